"""Balance across members: the owner of a partition lends slots of its messages to other members of the group.

The owner writes a loan for each borrower, and the borrower reads the partition from the broker itself. Loans and
reports are nodes under the group, so that ZooKeeper is all that the members have in common.
"""
