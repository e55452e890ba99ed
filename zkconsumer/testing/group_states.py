"""The groups of the fake coordinator: the state table, the members, and the requests of joining and syncing.

The table has the action and the error for each request in each state. Pure; times are in seconds. A ticket is an object
of the caller, who gets it back with the answer to a waiting request. ``fake_group`` performs the actions;
``fake_coordinator`` adds locks and time. Mirrors the coordinator of Kafka 0.9 to 3.9 (the "classic" protocol). ``OLD``
and ``NEW`` hold the differences between 1.1 and 3.9 that a client can see. The contract suite runs the same requests
against real brokers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, TypedDict

from zkconsumer.testing.wire_types import (
    BYTES,
    INT16,
    STRING,
    Array,
    MalformedRequestError,
    Struct,
    WireField,
    WireReader,
)


class CoordinatorGroupState(Enum):
    """The state of a group. The values are the names in DescribeGroups."""

    EMPTY = "Empty"
    """The group has no members. It may have offsets."""
    PREPARING = "PreparingRebalance"
    """The members have to join again."""
    AWAITING = "CompletingRebalance"
    """All members have joined, and the leader's assignment is missing. (``AwaitingSync`` up to Kafka 1.0.)"""
    STABLE = "Stable"
    """Every member can get its assignment."""
    DEAD = "Dead"
    """The group is deleted, or moved to another coordinator."""


MOVES: Mapping[CoordinatorGroupState, frozenset[CoordinatorGroupState]] = {
    CoordinatorGroupState.EMPTY: frozenset({CoordinatorGroupState.PREPARING, CoordinatorGroupState.DEAD}),
    CoordinatorGroupState.PREPARING: frozenset(
        {CoordinatorGroupState.AWAITING, CoordinatorGroupState.EMPTY, CoordinatorGroupState.DEAD}
    ),
    CoordinatorGroupState.AWAITING: frozenset(
        {CoordinatorGroupState.STABLE, CoordinatorGroupState.PREPARING, CoordinatorGroupState.DEAD}
    ),
    CoordinatorGroupState.STABLE: frozenset({CoordinatorGroupState.PREPARING, CoordinatorGroupState.DEAD}),
    CoordinatorGroupState.DEAD: frozenset(),
}
"""The states that may follow each state."""

# The protocol's error codes that a coordinator answers.
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
    """A kind of request to a group."""

    JOIN_NEW = "a member without an id joins"
    JOIN = "a known member joins again"
    SYNC = "a member asks for its assignment"
    HEARTBEAT = "a member sends a heartbeat"
    COMMIT = "offsets are committed"
    LEAVE = "a member leaves"
    DELETE = "an operator deletes the group"


class GroupAction(Enum):
    """The action of a group on a request."""

    REFUSE = "answer with an error, change nothing"
    ADD = "add the member and begin a rebalance"
    REJOIN = "store the member's protocols and let it wait for the others"
    REJOIN_IF_CHANGED = "as REJOIN if its protocols changed, else answer with the current generation"
    REJOIN_IF_CHANGED_OR_LEADER = "as REJOIN_IF_CHANGED, but the leader always begins a rebalance"
    WAIT = "let it wait for the assignment in the leader's own request"
    ANSWER = "answer at once, and count the request as a heartbeat"
    STORE = "write the offsets, and count a member's commit as a heartbeat"
    REMOVE = "remove the member"
    REMOVE_AND_LOOK = "remove the member, and complete the join if all others have joined"
    REMOVE_AND_REBALANCE = "remove the member and begin a rebalance"
    DELETE = "delete the group and its offsets"


class TableEntry(NamedTuple):
    """An entry of the table: the action, and the error code of the answer."""

    action: GroupAction
    error: int = NONE


_S, _R, _A = CoordinatorGroupState, GroupRequest, GroupAction
Table = Mapping[tuple[CoordinatorGroupState, GroupRequest], TableEntry]

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
    **{(_S.DEAD, request): TableEntry(_A.REFUSE, NOT_AVAILABLE) for request in _R},
    (_S.DEAD, _R.DELETE): TableEntry(_A.REFUSE, GROUP_NOT_FOUND),
}
"""Kafka 3.9."""

OLD: Table = {
    **NEW,
    # before KAFKA-9752, a heartbeat before the assignment asked for another join
    (_S.AWAITING, _R.HEARTBEAT): TableEntry(_A.REFUSE, REBALANCING),
    # a dead group made members drop their ids; KAFKA-7858 changed that for static members, which must keep them
    **{(_S.DEAD, request): TableEntry(_A.REFUSE, UNKNOWN_MEMBER) for request in _R if request is not _R.DELETE},
}
"""Kafka 1.1: only the entries that differ."""


class GroupRules(TypedDict, total=False):
    """The rules of groups that a test may set. Times are in seconds."""

    initial_delay: float
    """As ``group.initial.rebalance.delay.ms``."""
    min_session_timeout: float
    max_session_timeout: float
    """The limits of members' session timeouts."""
    offsets_retention: float
    """The life of offsets, 7 days unless given (one day in 1.1)."""
    offsets_retention_check: float
    """The life of an empty group without offsets."""
    max_members: int
    """The most members of one group."""


class CoordinatorRules(NamedTuple):
    """The rules of a coordinator. Times are in seconds.

    ``modern`` selects the behaviour of Kafka 3.9, else 1.1's. In 1.1 there are no member ids before joining, no static
    members, and no time limit for a SyncGroup. All members that join too late are removed, and offsets expire by their
    own age. Offsets live for ``offsets_retention``, an empty group without offsets for ``offsets_retention_check``.
    """

    modern: bool = True
    initial_delay: float = 0.0
    min_session_timeout: float = 0.01
    max_session_timeout: float = 1800.0
    offsets_retention: float = 7 * 24 * 3600.0
    offsets_retention_check: float = 600.0
    max_members: int = 2**31 - 1
    max_metadata: int = 4096
    new_member_timeout: float = 300.0

    def step(self, state: CoordinatorGroupState, request: GroupRequest) -> TableEntry:
        """Return the table's entry for a request in a state."""
        return (NEW if self.modern else OLD)[state, request]


Protocols = tuple[tuple[str, bytes], ...]
"""The protocols that a member offers, its favourite first: the name and the member's metadata."""

CONSUMERS = "consumer"
"""The only protocol type whose metadata the coordinator can read."""

_SUBSCRIPTION = Struct(WireField("version", INT16), WireField("topics", Array(STRING)), WireField("user_data", BYTES))
"""Version 0. All later versions begin with its fields."""


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """Return the topics of a consumer's subscription, None if the bytes are no subscription."""
    try:
        topics = _SUBSCRIPTION.read(WireReader(metadata))["topics"]
    except MalformedRequestError:
        return None
    return None if topics is None or None in topics else frozenset(topics)


class JoinRequest(NamedTuple):
    """A JoinGroup request. ``member_id`` is empty for a new member, ``instance_id`` is None for a dynamic one."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout: float
    rebalance_timeout: float
    protocol_type: str
    protocols: Protocols
    needs_member_id: bool = False
    """Whether a new member first gets an id and has to join again with it (JoinGroup 4 and later)."""
    skips_assignment: bool = False
    """Whether the answer can tell a returning static leader not to assign (JoinGroup 9 and later)."""


class SyncRequest(NamedTuple):
    """A SyncGroup request. Only the leader sends an ``assignment``, by member id.

    ``protocol_type`` and ``protocol`` are None before version 5.
    """

    member_id: str
    instance_id: str | None
    generation: int
    assignment: dict[str, bytes]
    protocol_type: str | None = None
    protocol: str | None = None


class JoinAnswer(NamedTuple):
    """The answer to a JoinGroup. Only the leader gets the ``members`` (id, instance id, metadata)."""

    error: int
    member_id: str
    generation: int = -1
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    members: tuple[tuple[str, str | None, bytes], ...] = ()
    skip_assignment: bool = False


class SyncAnswer(NamedTuple):
    """The answer to a SyncGroup."""

    error: int
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


class DueAnswer(NamedTuple):
    """An answer to send now, with the ticket of its request."""

    ticket: object
    answer: JoinAnswer | SyncAnswer


@dataclass(slots=True)
class FakeGroupMember:
    """A member of a group. Its session ends at ``deadline`` unless a heartbeat comes; None: no heartbeat is due.

    ``join_ticket`` and ``sync_ticket`` belong to its waiting requests.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout: float
    rebalance_timeout: float
    protocol_type: str
    protocols: Protocols
    assignment: bytes = b""
    join_ticket: object | None = None
    sync_ticket: object | None = None
    deadline: float | None = None
    is_new: bool = True

    def metadata(self, protocol: str) -> bytes:
        """Return the member's metadata for a protocol. Raises KeyError if the member does not offer it."""
        return dict(self.protocols)[protocol]

    @property
    def excused(self) -> bool:
        """Whether the member needs no heartbeats, because one of its requests waits. New members always need them."""
        return not self.is_new and (self.join_ticket is not None or self.sync_ticket is not None)


class MemberView(NamedTuple):
    """The present state of a member, for tests and DescribeGroups."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


class FakeGroupView(NamedTuple):
    """The present state of a group, for tests and DescribeGroups."""

    group_id: str
    state: str
    generation: int
    protocol_type: str
    protocol: str
    leader: str
    members: dict[str, MemberView]
    error: int = NONE
