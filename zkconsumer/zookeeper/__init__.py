"""What we read and write in ZooKeeper; the only importer of its client library (kazoo)."""
