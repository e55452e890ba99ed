"""Moving a group's offsets between ZooKeeper and Kafka: what to write, what stands in the way, and the files for it."""
