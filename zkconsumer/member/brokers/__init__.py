"""A member of a group that the brokers coordinate.

``rebalancer`` carries out ``state_machine``. ``join_protocol`` is the member's side of the protocol;
``coordinator_requests`` and ``heartbeats`` send its requests. ``assignment`` takes partitions over and gives them up.
"""
