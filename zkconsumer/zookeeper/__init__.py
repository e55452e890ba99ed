"""Sessions, nodes and fenced writes in ZooKeeper; the only importer of its client library (kazoo)."""
