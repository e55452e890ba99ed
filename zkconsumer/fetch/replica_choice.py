"""Which replica a partition is fetched from: the leader, or the follower that the leader names (KIP-392).

The leader names a follower in the rack of this client (``client.rack``), which is fetched from for
:data:`REPLICA_STAYS`. A follower only delivers: after anything else that it says or does, the leader is fetched from
for :data:`LEADER_STAYS`.

Threads: whichever writes the cursor.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from time import monotonic

from zkconsumer.ownership.fetch_cursor import LEADER, FetchCursor

REPLICA_STAYS = 300.0
"""Seconds after which the leader may name another follower to read from, as in the Java consumer."""
LEADER_STAYS = 30.0
"""Seconds for which a leader is fetched from after a follower has failed, before it may name a follower again."""


def follow(cursor: FetchCursor, named: int, leader: int) -> None:
    """Fetch from the replica that the ``leader`` has named."""
    if named == leader:  # which sends nothing as long as it may name a replica
        cursor.read_from(LEADER, monotonic() + REPLICA_STAYS)
    else:
        cursor.read_from(named, monotonic() + REPLICA_STAYS)
        cursor.leader_end = cursor.log_end


def ask_leader(cursor: FetchCursor) -> None:
    """Fetch from the leader, since the follower has failed, has gone, or may be damaged."""
    cursor.read_from(LEADER, monotonic() + LEADER_STAYS)


def leaves_follower(cursor: FetchCursor) -> bool:
    """Return whether a follower is left for the leader: its time is over, or a reader found its chunk damaged."""
    if cursor.replica == LEADER:
        return False
    if cursor.fetch_from is not None:
        ask_leader(cursor)
        return True
    if cursor.stays_until <= monotonic():
        cursor.read_from(LEADER, 0.0)  # which may name another follower
        return True
    return False


def source_of(cursor: FetchCursor, leader: int, brokers: Container[int]) -> int:
    """Return the broker to fetch from, among those that are registered; ``leader`` is -1 if it is not known."""
    if cursor.replica != LEADER and cursor.replica not in brokers:
        ask_leader(cursor)
    return leader if cursor.replica == LEADER else cursor.replica


def rack_to_tell(cursors: Sequence[FetchCursor], rack: str, now: float) -> str | None:
    """Return the rack that a fetch request of these partitions tells the broker, None for a request without one.

    A broker that is told a rack may name a follower. One that is told an empty rack answers where it is a follower.
    """
    if rack and any(each.replica == LEADER and each.stays_until > now for each in cursors):
        return None if all(each.replica == LEADER for each in cursors) else ""
    return rack or None
