"""Moves of a group's offsets between ZooKeeper and Kafka: the plan of a move and its files."""
