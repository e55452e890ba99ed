"""The broker's group coordinator as a table: what each request means in each state of a group.

Pure: no thread, no clock, no socket. ``group.py`` performs what is decided here, ``groups.py`` adds locks and time.
Mirrors the coordinator of Kafka 0.9 to 3.9 (the "classic" protocol), which differs between releases; the differences
that a client can see between 1.1 and 3.9 stand here side by side. The contract suite asks the real brokers the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple


class GroupState(Enum):
    """A group's state, by the name that DescribeGroups gives it."""

    EMPTY = "Empty"
    """No members; offsets may be kept."""
    PREPARING = "PreparingRebalance"
    """Members are called to join again."""
    AWAITING = "CompletingRebalance"
    """All have joined; the leader's assignment is awaited. (``AwaitingSync`` up to Kafka 1.0.)"""
    STABLE = "Stable"
    """Every member can have its assignment."""
    DEAD = "Dead"
    """Deleted, or moved to another coordinator."""


MOVES: Mapping[GroupState, frozenset[GroupState]] = {
    GroupState.EMPTY: frozenset({GroupState.PREPARING, GroupState.DEAD}),
    GroupState.PREPARING: frozenset({GroupState.AWAITING, GroupState.EMPTY, GroupState.DEAD}),
    GroupState.AWAITING: frozenset({GroupState.STABLE, GroupState.PREPARING, GroupState.DEAD}),
    GroupState.STABLE: frozenset({GroupState.PREPARING, GroupState.DEAD}),
    GroupState.DEAD: frozenset(),
}
"""Where each state may lead."""

# Error codes of the protocol that a coordinator answers with.
NONE = 0
OFFSET_METADATA_TOO_LARGE = 12
LOADING = 14
NOT_AVAILABLE = 15
NOT_COORDINATOR = 16
ILLEGAL_GENERATION = 22
INCONSISTENT_PROTOCOL = 23
INVALID_GROUP_ID = 24
UNKNOWN_MEMBER = 25
INVALID_SESSION_TIMEOUT = 26
REBALANCING = 27
NON_EMPTY_GROUP = 68
GROUP_NOT_FOUND = 69
MEMBER_ID_REQUIRED = 79
GROUP_FULL = 81
FENCED_INSTANCE = 82


class GroupRequest(Enum):
    """What is asked of a group."""

    JOIN_NEW = "a member without an id joins"
    JOIN = "a known member joins again"
    SYNC = "a member asks for its assignment"
    HEARTBEAT = "a member says that it lives"
    COMMIT = "offsets are committed"
    LEAVE = "a member leaves"
    DELETE = "the group is to be deleted"


class GroupAction(Enum):
    """What the group does about it."""

    REFUSE = "answer with an error, change nothing"
    ADD = "take it in and begin a rebalance"
    REJOIN = "take what it offers and let it wait for the others"
    REJOIN_IF_CHANGED = "as REJOIN where it offers something else, else answer with the current generation"
    REJOIN_IF_CHANGED_OR_LEADER = "as REJOIN_IF_CHANGED, but the leader always begins a rebalance"
    WAIT = "let it wait for the leader's assignment, which the leader's own request brings"
    ANSWER = "answer at once; it counts as a heartbeat"
    STORE = "write the offsets; of a member it counts as a heartbeat"
    REMOVE = "take it out"
    REMOVE_AND_LOOK = "take it out, and see whether all others have joined"
    REMOVE_AND_REBALANCE = "take it out and begin a rebalance"
    DELETE = "forget the group and its offsets"


class TableEntry(NamedTuple):
    """A line of the table: what to do, and the error that is answered."""

    action: GroupAction
    error: int = NONE


_S, _R, _A = GroupState, GroupRequest, GroupAction
Table = Mapping[tuple[GroupState, GroupRequest], TableEntry]

NEW: Table = {
    (_S.EMPTY, _R.JOIN_NEW): TableEntry(_A.ADD),
    (_S.EMPTY, _R.JOIN): TableEntry(_A.REFUSE, UNKNOWN_MEMBER),
    (_S.EMPTY, _R.SYNC): TableEntry(_A.REFUSE, UNKNOWN_MEMBER),
    (_S.EMPTY, _R.HEARTBEAT): TableEntry(_A.REFUSE, UNKNOWN_MEMBER),
    (_S.EMPTY, _R.COMMIT): TableEntry(_A.STORE),
    (_S.EMPTY, _R.LEAVE): TableEntry(_A.REMOVE),
    (_S.EMPTY, _R.DELETE): TableEntry(_A.DELETE),
    (_S.PREPARING, _R.JOIN_NEW): TableEntry(_A.ADD),
    (_S.PREPARING, _R.JOIN): TableEntry(_A.REJOIN),
    (_S.PREPARING, _R.SYNC): TableEntry(_A.REFUSE, REBALANCING),
    (_S.PREPARING, _R.HEARTBEAT): TableEntry(_A.ANSWER, REBALANCING),
    (_S.PREPARING, _R.COMMIT): TableEntry(_A.STORE),
    (_S.PREPARING, _R.LEAVE): TableEntry(_A.REMOVE_AND_LOOK),
    (_S.PREPARING, _R.DELETE): TableEntry(_A.REFUSE, NON_EMPTY_GROUP),
    (_S.AWAITING, _R.JOIN_NEW): TableEntry(_A.ADD),
    (_S.AWAITING, _R.JOIN): TableEntry(_A.REJOIN_IF_CHANGED),
    (_S.AWAITING, _R.SYNC): TableEntry(_A.WAIT),
    (_S.AWAITING, _R.HEARTBEAT): TableEntry(_A.ANSWER),
    (_S.AWAITING, _R.COMMIT): TableEntry(_A.REFUSE, REBALANCING),
    (_S.AWAITING, _R.LEAVE): TableEntry(_A.REMOVE_AND_REBALANCE),
    (_S.AWAITING, _R.DELETE): TableEntry(_A.REFUSE, NON_EMPTY_GROUP),
    (_S.STABLE, _R.JOIN_NEW): TableEntry(_A.ADD),
    (_S.STABLE, _R.JOIN): TableEntry(_A.REJOIN_IF_CHANGED_OR_LEADER),
    (_S.STABLE, _R.SYNC): TableEntry(_A.ANSWER),
    (_S.STABLE, _R.HEARTBEAT): TableEntry(_A.ANSWER),
    (_S.STABLE, _R.COMMIT): TableEntry(_A.STORE),
    (_S.STABLE, _R.LEAVE): TableEntry(_A.REMOVE_AND_REBALANCE),
    (_S.STABLE, _R.DELETE): TableEntry(_A.REFUSE, NON_EMPTY_GROUP),
    (_S.DEAD, _R.JOIN_NEW): TableEntry(_A.REFUSE, NOT_AVAILABLE),
    (_S.DEAD, _R.JOIN): TableEntry(_A.REFUSE, NOT_AVAILABLE),
    (_S.DEAD, _R.SYNC): TableEntry(_A.REFUSE, NOT_AVAILABLE),
    (_S.DEAD, _R.HEARTBEAT): TableEntry(_A.REFUSE, NOT_AVAILABLE),
    (_S.DEAD, _R.COMMIT): TableEntry(_A.REFUSE, NOT_AVAILABLE),
    (_S.DEAD, _R.LEAVE): TableEntry(_A.REFUSE, NOT_AVAILABLE),
    (_S.DEAD, _R.DELETE): TableEntry(_A.REFUSE, GROUP_NOT_FOUND),
}
"""Kafka 3.9."""

OLD: Table = {
    **NEW,
    # a heartbeat before the assignment calls for another join, which KAFKA-9752 ended
    (_S.AWAITING, _R.HEARTBEAT): TableEntry(_A.REFUSE, REBALANCING),
    # a dead group told members to forget their id, which static members must not (KAFKA-7858)
    (_S.DEAD, _R.JOIN_NEW): TableEntry(_A.REFUSE, UNKNOWN_MEMBER),
    (_S.DEAD, _R.JOIN): TableEntry(_A.REFUSE, UNKNOWN_MEMBER),
    (_S.DEAD, _R.SYNC): TableEntry(_A.REFUSE, UNKNOWN_MEMBER),
    (_S.DEAD, _R.HEARTBEAT): TableEntry(_A.REFUSE, UNKNOWN_MEMBER),
    (_S.DEAD, _R.COMMIT): TableEntry(_A.REFUSE, UNKNOWN_MEMBER),
    (_S.DEAD, _R.LEAVE): TableEntry(_A.REFUSE, UNKNOWN_MEMBER),
}
"""Kafka 1.1: only the lines that differ are written out."""


class CoordinatorRules(NamedTuple):
    """How a coordinator behaves. Times in seconds.

    ``modern`` is 3.9's behaviour, else 1.1's: no member ids ahead of joining, no static members, no limit for a
    SyncGroup that never comes, members that do not join in time are all removed, offsets expire by their own age.
    ``retention`` is how long offsets are kept, ``retention_check`` how long a group that is empty and has none.
    """

    modern: bool = True
    initial_delay: float = 0.0
    min_session_timeout: float = 0.01
    max_session_timeout: float = 1800.0
    retention: float = 7 * 24 * 3600.0
    retention_check: float = 600.0
    max_members: int = 2**31 - 1
    max_metadata: int = 4096
    new_member_timeout: float = 300.0

    def step(self, state: GroupState, request: GroupRequest) -> TableEntry:
        """The line of the table for a request in a state."""
        return (NEW if self.modern else OLD)[state, request]
