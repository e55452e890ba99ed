"""A member of a group that is coordinated through ZooKeeper: registration, owner nodes, rebalance rounds."""
