"""The state of a group in Kafka's words: when it counts as stable, rebalancing, stuck, empty or dead. Pure; any thread.

``group_view`` finds what differs from the expected owners. "Stuck" needs proof: the group has not changed for longer
than everything that a rebalance waits for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from zkconsumer.operations.group_snapshot import BrokersGroup, GroupSnapshot, NodeStat
from zkconsumer.operations.printable import duration

SCALA_PATIENCE = 8.0
"""Seconds in which a Scala member uses up its attempts by default: ``rebalance.max.retries`` 4, each 2 s."""
OUR_PATIENCE = 60.0
"""Seconds after which a member of this package has looked at the group again: three times ``rebalance.interval.ms``."""
SESSION_TIMEOUT = 40.0
"""Seconds of the longest session that a ZooKeeper server with its default settings allows."""


class GroupState(Enum):
    """The state of a group. The values are Kafka's words, and ``Rebalancing`` and ``Stuck`` for ZooKeeper groups."""

    STABLE = "Stable"
    REBALANCING = "Rebalancing"
    STUCK = "Stuck"
    EMPTY = "Empty"
    DEAD = "Dead"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    NOT_READY = "NotReady"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class StateOfGroup:
    """The state of a group, and the reason in words."""

    state: GroupState
    reason: str


def unsettled(differences: Sequence[str], quiet: float | None, limit: float) -> StateOfGroup:
    """Return whether a group that is not stable rebalances, or is stuck.

    Arguments: ``differences`` keep it from being stable, in words; ``quiet`` as :func:`quiet_since` returns, and
    ``limit`` as :func:`patience` does.
    """
    reason = "; ".join(differences)
    if quiet is not None and quiet > limit:
        return StateOfGroup(GroupState.STUCK, f"{reason}; unchanged for at least {duration(1000 * quiet)}")
    return StateOfGroup(GroupState.REBALANCING, reason)


def patience(snapshot: GroupSnapshot, attempts: float) -> float:
    """Return the seconds after which everything that a rebalance waits for has ended: sessions, attempts and looks.

    Arguments: ``attempts`` are the seconds of the members' attempts and looks.
    """
    known = [timeout for server in snapshot.servers for _, timeout in server.sessions.values()]
    limits = [server.max_session_timeout for server in snapshot.servers if server.max_session_timeout]
    return max(known or limits, default=SESSION_TIMEOUT * 1000) / 1000 + attempts


def without_members(snapshot: GroupSnapshot) -> StateOfGroup:
    """Return the state of a group in which no member is registered in ZooKeeper."""
    if not snapshot.in_zookeeper and not snapshot.in_kafka:
        missing = [one for one in snapshot.problems if one.what.startswith(("broker", "offsets of group"))]
        if missing:
            return StateOfGroup(GroupState.UNKNOWN, f"{missing[0].what} could not be asked: {missing[0].why}")
        if not snapshot.zookeeper and snapshot.brokers_group is None:
            said = "neither ZooKeeper nor the brokers said anything about this group"
            return StateOfGroup(GroupState.UNKNOWN, said)
        return StateOfGroup(GroupState.DEAD, "there is no such group")
    left = len(snapshot.owners)
    rest = f"; {left} owner nodes are left of members that are gone" if left else ""
    return StateOfGroup(GroupState.EMPTY, f"no member is registered{rest}")


def quiet_since(snapshot: GroupSnapshot, earlier: Sequence[GroupSnapshot] = ()) -> float | None:
    """Return the seconds for which members and owners have not changed at least; None if nothing tells.

    A node that vanished leaves the transaction of ``ids`` only. That has no time, but the next transaction with a known
    time is not earlier. A snapshot that was taken before with the same last change proves the time as well.
    """
    last = last_change(snapshot)
    times = [time for zxid, time in _times(snapshot) if zxid >= last]
    times += [one.taken for one in earlier if one.taken <= snapshot.taken and _same(one, snapshot)]
    return max(0.0, (snapshot.taken - min(times)) / 1000) if times else None


def last_change(snapshot: GroupSnapshot) -> int:
    """Return the last transaction that is known to have changed members or owners, 0 if none is."""
    stats = [node.stat for node in snapshot.members.values()] + [node.stat for node in snapshot.owners.values()]
    made = [stat.czxid for stat in stats if stat is not None]
    return max([*made, snapshot.ids_node.pzxid if snapshot.ids_node else 0], default=0)


def _same(one: GroupSnapshot, other: GroupSnapshot) -> bool:
    return last_change(one) == last_change(other) and set(one.owners) == set(other.owners)


def _times(snapshot: GroupSnapshot) -> list[tuple[int, int]]:
    """Return all transactions with their times, by ZooKeeper's clock."""
    stats: list[NodeStat | None] = [snapshot.group_node, snapshot.ids_node, *snapshot.other_nodes.values()]
    stats += [node.stat for node in snapshot.members.values()]
    stats += [node.stat for node in snapshot.owners.values()]
    stats += [node.stat for node in snapshot.offsets.values()]
    known = [stat for stat in stats if stat is not None]
    return [pair for stat in known for pair in ((stat.czxid, stat.ctime), (stat.mzxid, stat.mtime))]


def state_of_brokers(group: BrokersGroup) -> StateOfGroup:
    """Return the state of a group that the brokers coordinate, as its coordinator says."""
    reason = f"the coordinator says {group.state}, with {len(group.members)} members"
    known = {state.value: state for state in GroupState}
    return StateOfGroup(known.get(group.state, GroupState.UNKNOWN), reason)
