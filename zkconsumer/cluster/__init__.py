"""One client of a cluster: its session with ZooKeeper, its channels to the brokers, and the questions to both.

``cluster_client`` makes the connections from a configuration. ``offset_lookup`` finds topics, leaders and log ends;
``group_offsets`` reads and writes the offsets of a group, and knows its members.
"""
