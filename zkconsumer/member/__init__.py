"""A member of a group: one engine, and two coordinators that decide about its partitions.

The modules here are the same for both. ``zookeeper`` coordinates by nodes in ZooKeeper, ``coordinator`` by the brokers.
"""
