"""A member of a group that the brokers coordinate: what performs ``member.coordinator.state_machine``.

``member`` is the one thread that owns the state; ``line`` asks the coordinator for it, ``heartbeats`` keeps the
membership alive meanwhile; ``shares`` takes partitions over and gives them up, ``topics`` and ``readers`` look for what
makes a member join again or leave.
"""
