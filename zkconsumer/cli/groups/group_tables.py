"""The tables of ``zkconsumer groups --describe``: a group's offsets, members and state, from its snapshot.

Columns, their widths and their order are those of Kafka 3.9's ``ConsumerGroupCommand``. A group in ZooKeeper fills the
same columns, as ``ConsumerGroupCommand --zookeeper`` did up to 1.1.1. Pure; any thread.

Four things differ from Kafka's tool on purpose. A lag is never negative, and counts from the log's start at the
earliest. It does not count what balanced members have finished beyond the offset. Rows of one member are sorted by
topic and partition; Kafka's have the order of a hash table. An assignment names its topics, which Kafka's tool left out
in 3.9.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import Enum
from functools import cached_property

from zkconsumer.cli.tables import Cell, Column, Table
from zkconsumer.model import ConsumerId, TopicPartition
from zkconsumer.operations.group_snapshot import (
    BrokersGroup,
    BrokersMember,
    GroupSnapshot,
    MemberNode,
    NoteSummary,
    finished_beyond,
    gone_before,
    lag_between,
)
from zkconsumer.operations.group_view import GroupAnalysis, is_unread, member_host, member_kind


class CoordinatedBy(Enum):
    """Which of the two coordinates a group. A group of one name may exist in both."""

    ZOOKEEPER = "ZooKeeper"
    BROKERS = "brokers"


@dataclass(frozen=True)
class GroupSide:
    """A group as one of the two coordinates it. Each answer of the analysis is computed once."""

    snapshot: GroupSnapshot
    coordination: CoordinatedBy

    @property
    def group(self) -> str:
        """The name of the group."""
        return self.snapshot.group

    @property
    def state(self) -> str:
        """Kafka's word for the state; for a group in ZooKeeper also ``Rebalancing`` and ``Stuck``."""
        if self.coordination is CoordinatedBy.ZOOKEEPER:
            return self.analysis.state.state.value
        known = self.snapshot.brokers_group
        return "Unknown" if known is None else known.state

    @property
    def reason(self) -> str:
        """Why a group in ZooKeeper is in its state; empty for the brokers."""
        return self.analysis.state.reason if self.coordination is CoordinatedBy.ZOOKEEPER else ""

    @cached_property
    def analysis(self) -> GroupAnalysis:
        """The analysis of the group's nodes in ZooKeeper."""
        # with the brokers' group of this name the answers may be about that one
        return GroupAnalysis(replace(self.snapshot, brokers_group=None))

    @property
    def type(self) -> str:
        """Kafka's word for the protocol of the group, ``Unknown`` if the broker does not tell; or ``ZooKeeper``."""
        if self.coordination is CoordinatedBy.ZOOKEEPER:
            return "ZooKeeper"
        known = self.snapshot.brokers_group
        return (known.group_type if known else "") or "Unknown"


def sides(snapshot: GroupSnapshot) -> tuple[GroupSide, ...]:
    """Return the group by those who coordinate it. Empty for a group that nobody knows."""
    found = []
    if snapshot.in_zookeeper:
        found.append(GroupSide(snapshot, CoordinatedBy.ZOOKEEPER))
    if snapshot.in_kafka:
        found.append(GroupSide(snapshot, CoordinatedBy.BROKERS))
    return tuple(found)


def _any_in_zookeeper(shown: Iterable[GroupSide]) -> bool:
    return any(side.coordination is CoordinatedBy.ZOOKEEPER for side in shown)


# ---- offsets ----


def offsets_table(shown: Sequence[GroupSide], *, verbose: bool = False, with_side: bool = False) -> Table:
    """Return a row for each partition that is owned or assigned, has an offset, or has a subscriber.

    ``verbose`` adds our own columns if any of the groups is in ZooKeeper, and further ones if any has balanced members.
    ``with_side`` adds the coordination.
    """
    extra = verbose and _any_in_zookeeper(shown)
    balance = verbose and any(map(_balanced, shown))
    columns: list[Column | str] = [
        *(Column("GROUP", 15), Column("TOPIC", 15), Column("PARTITION", 10), Column("CURRENT-OFFSET", 15)),
        *(Column("LOG-END-OFFSET", 15), Column("LAG", 15), Column("CONSUMER-ID", 15), Column("HOST", 15), "CLIENT-ID"),
        *(["COORDINATION"] if with_side else []),
        *(["LOG-START-OFFSET", "LAST-COMMIT", "THREAD-ID", "OWNED-SINCE", "NOTE"] if extra else []),
        *(["FINISHED-BEYOND", "PARKED", "DEAD", "SLOTS-LENT"] if balance else []),
    ]
    rows = []
    for side in shown:
        partitions = _owned if side.coordination is CoordinatedBy.ZOOKEEPER else _assigned
        for who, tp in partitions(side):
            row = [side.group, *_offset_cells(side, tp), *who]
            row += [*_side_cell(side, with_side), *(_offset_details(side, tp) if extra else [])]
            rows.append([*row, *(_balance_cells(side, tp) if balance else [])])
    return Table(columns, rows)


_Who = tuple[str | None, str | None, str | None]
"""CONSUMER-ID, HOST and CLIENT-ID."""
_NOBODY: _Who = (None, None, None)


def _assigned(side: GroupSide) -> list[tuple[_Who, TopicPartition]]:
    """Return the partitions of the brokers' group: by member, members with most of them first, then unassigned ones."""
    snapshot = side.snapshot
    members = [] if snapshot.brokers_group is None else list(snapshot.brokers_group.members)
    members.sort(key=lambda member: -len(member.assignment or ()))
    rows: list[tuple[_Who, TopicPartition]] = [
        ((member.member_id, member.host, member.client_id), tp)
        for member in members
        for tp in sorted(member.assignment or ())
    ]
    assigned = {tp for _, tp in rows}
    return [*rows, *((_NOBODY, tp) for tp in sorted(snapshot.kafka_offsets or ()) if tp not in assigned)]


def _owned(side: GroupSide) -> list[tuple[_Who, TopicPartition]]:
    """Return the partitions of the group in ZooKeeper in the same order."""
    snapshot = side.snapshot
    found: list[tuple[_Who, TopicPartition]] = []
    for consumer, owned in sorted(_partitions_by_owner(snapshot).items(), key=lambda entry: (-len(entry[1]), entry[0])):
        found += ((_who(snapshot, consumer), tp) for tp in sorted(owned))
    known = {*snapshot.owners, *snapshot.offsets, *snapshot.partitions_of(side.analysis.subscribed)}
    owned_ones = {tp for _, tp in found}
    return [*found, *((_NOBODY, tp) for tp in sorted(known - owned_ones))]


def _partitions_by_owner(snapshot: GroupSnapshot) -> dict[str, list[TopicPartition]]:
    found: dict[str, list[TopicPartition]] = {}
    for tp, owner in snapshot.owners.items():
        if owner.thread:
            found.setdefault(_consumer_of(owner.thread), []).append(tp)
    return found


def _consumer_of(thread: str) -> str:
    """Return the consumer id in a thread id, and hostile content as it is."""
    return thread.rpartition("-")[0] or thread


def _who(snapshot: GroupSnapshot, consumer: str) -> _Who:
    return consumer, member_host(snapshot.group, ConsumerId(consumer), snapshot.members.get(ConsumerId(consumer))), None


def _offset_cells(side: GroupSide, tp: TopicPartition) -> list[Cell]:
    log, offset = side.snapshot.logs.get(tp), _offset(side, tp)
    lag = lag_between(offset, log, _note(side, tp))
    return [tp.topic, tp.partition, offset, None if log is None else log.end, lag]


def gone_messages(side: GroupSide) -> list[tuple[TopicPartition, int, int | None]]:
    """Return the partitions of which messages were deleted unread, with their number and what is left to read."""
    found = []
    for tp in side.snapshot.partitions():
        offset, log = _offset(side, tp), side.snapshot.logs.get(tp)
        if gone := gone_before(offset, log):
            found.append((tp, gone, lag_between(offset, log, _note(side, tp))))
    return found


def _offset(side: GroupSide, tp: TopicPartition) -> int | None:
    if side.coordination is CoordinatedBy.ZOOKEEPER:
        return side.snapshot.committed(tp)
    stored = (side.snapshot.kafka_offsets or {}).get(tp)
    return None if stored is None else stored.offset


def _note(side: GroupSide, tp: TopicPartition) -> NoteSummary | None:
    if side.coordination is CoordinatedBy.ZOOKEEPER:
        return side.snapshot.note(tp)
    stored = (side.snapshot.kafka_offsets or {}).get(tp)
    return None if stored is None else stored.note


def _balanced(side: GroupSide) -> bool:
    """Return whether balanced members have left anything of the group."""
    snapshot = side.snapshot
    if side.coordination is CoordinatedBy.ZOOKEEPER and (snapshot.acks or snapshot.pointers or snapshot.loans):
        return True
    return any(stored.note is not None for stored in (snapshot.kafka_offsets or {}).values())


def _balance_cells(side: GroupSide, tp: TopicPartition) -> list[Cell]:
    snapshot, offset = side.snapshot, _offset(side, tp)
    if side.coordination is CoordinatedBy.BROKERS:
        beyond = None if offset is None else finished_beyond(offset, snapshot.logs.get(tp), _note(side, tp))
        return [beyond, None, None, None]
    pointers, loans = snapshot.pointers.get(tp), snapshot.loans.get(tp, {}).values()
    lent = [loan.slots for loan in loans]
    return [
        snapshot.finished_beyond(tp),
        0 if pointers is None else pointers.parked,
        0 if pointers is None else pointers.dead,
        None if None in lent else sum(slots or 0 for slots in lent),
    ]


def _offset_details(side: GroupSide, tp: TopicPartition) -> list[Cell]:
    snapshot = side.snapshot
    log = snapshot.logs.get(tp)
    start = None if log is None else log.start
    if side.coordination is CoordinatedBy.BROKERS:
        stored = (snapshot.kafka_offsets or {}).get(tp)
        return [start, None, None, None, _notes([stored.problem if stored else "", log.problem if log else ""])]
    owner, node = snapshot.owners.get(tp), snapshot.offsets.get(tp)
    only_kafka = node is None and _offset(side, tp) is not None
    return [
        start,
        _time(node.stat.mtime) if node is not None and node.stat is not None else None,
        owner.thread or None if owner is not None else None,
        _time(owner.stat.ctime) if owner is not None and owner.stat is not None else None,
        _notes(
            [
                owner.problem if owner else "",
                node.problem if node else "",
                log.problem if log else "",
                "the offset is in Kafka" if only_kafka else "",
            ]
        ),
    ]


def _notes(texts: Iterable[str]) -> str | None:
    return "; ".join(filter(None, texts)) or None


def _time(milliseconds: int) -> str:
    """Return a time as text, and hostile numbers as they are."""
    try:
        return f"{datetime.fromtimestamp(milliseconds / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"
    except (OverflowError, OSError, ValueError):
        return str(milliseconds)


def _side_cell(side: GroupSide, with_side: bool) -> list[Cell]:
    return [side.coordination.value] if with_side else []


# ---- members ----


@dataclass(frozen=True, slots=True)
class _Member:
    who: _Who
    instance_id: str
    assignment: tuple[TopicPartition, ...] | None
    details: tuple[Cell, ...] = (None, None, None, None, None)


def members_table(shown: Sequence[GroupSide], *, verbose: bool = False, with_side: bool = False) -> Table:
    """Return a row for each member. ``verbose`` adds the assignment, as in Kafka's tool.

    For groups in ZooKeeper it also adds our own columns.
    """
    members = [(side, member) for side in shown for member in _members(side)]
    static = any(member.instance_id for _, member in members)
    extra = verbose and _any_in_zookeeper(shown)
    columns: list[Column | str] = [
        *(Column("GROUP", 15), Column("CONSUMER-ID", 15)),
        *([Column("GROUP-INSTANCE-ID", 17)] if static else []),
        *(Column("HOST", 15), Column("CLIENT-ID", 15), Column("#PARTITIONS", 15)),
        *(["COORDINATION"] if with_side else []),
        *(["ASSIGNMENT"] if verbose else []),
        *(["KIND", "STREAMS", "SUBSCRIPTION", "SINCE", "NOTE"] if extra else []),
    ]
    rows = []
    for side, member in members:
        consumer, host, client = member.who
        count = None if member.assignment is None else len(member.assignment)
        row: list[Cell] = [side.group, consumer, *([member.instance_id] if static else []), host, client, count]
        row += _side_cell(side, with_side)
        row += [assignment_texts(member.assignment or ())] if verbose else []
        rows.append([*row, *(member.details if extra else ())])
    return Table(columns, rows)


def assignment_texts(partitions: Iterable[TopicPartition]) -> list[str]:
    """Return ``other(0)`` and ``topic(0,1,2)``, sorted by topic."""
    numbers: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        numbers.setdefault(topic, []).append(number)
    return [f"{topic}({','.join(map(str, some))})" for topic, some in numbers.items()]


def _members(side: GroupSide) -> list[_Member]:
    if side.coordination is CoordinatedBy.BROKERS:
        known = side.snapshot.brokers_group
        return [] if known is None else [_brokers_member(member) for member in known.members]
    owned = _partitions_by_owner(side.snapshot)
    return [
        _zookeeper_member(side.snapshot, consumer, node, owned.get(consumer, []))
        for consumer, node in sorted(side.snapshot.members.items())
    ]


def _brokers_member(member: BrokersMember) -> _Member:
    return _Member((member.member_id, member.host, member.client_id), member.instance_id or "", member.assignment)


def _zookeeper_member(
    snapshot: GroupSnapshot, consumer: str, node: MemberNode, owned: Sequence[TopicPartition]
) -> _Member:
    registration = node.registration
    subscription: Mapping[str, int] = {} if registration is None else registration.subscription
    pattern = "" if registration is None or not registration.is_wildcard else f"{registration.pattern} "
    details: tuple[Cell, ...] = (
        member_kind(node).value,
        None if registration is None else sum(subscription.values()),
        pattern + ", ".join(sorted(subscription)) or None,
        None if node.stat is None else _time(node.stat.ctime),
        node.problem or None,
    )
    return _Member(_who(snapshot, consumer), "", None if is_unread(snapshot, "owners") else tuple(owned), details)


# ---- state ----


def states_table(shown: Sequence[GroupSide], *, verbose: bool = False, with_side: bool = False) -> Table:
    """Return the row of each group with its coordinator, strategy, state and number of members."""
    made = [(side, *_coordinator(side)) for side in shown]
    # Kafka's own tool gives the width of the coordinator to the first column
    width = max([25, *(len(coordinator) for _, coordinator, *_ in made)])
    extra = verbose and _any_in_zookeeper(shown)
    columns: list[Column | str] = [
        *(Column("GROUP", width), Column("COORDINATOR (ID)", 25), Column("ASSIGNMENT-STRATEGY", 20)),
        *(Column("STATE", 15, fixed=True), "#MEMBERS"),
        *(["COORDINATION"] if with_side else []),
        *(["REASON"] if extra else []),
    ]
    rows: list[list[Cell]] = [
        [
            *(side.group, coordinator, strategy, side.state, members),
            *_side_cell(side, with_side),
            *([side.reason or None] if extra else []),
        ]
        for side, coordinator, strategy, members in made
    ]
    return Table(columns, rows)


def _coordinator(side: GroupSide) -> tuple[str, str, int | None]:
    """Return the coordinator, the strategy and the number of members."""
    if side.coordination is CoordinatedBy.ZOOKEEPER:
        strategy = side.analysis.strategy.name or "-"
        members = None if is_unread(side.snapshot, "ids") else len(side.snapshot.members)
        return f"{side.snapshot.zookeeper}  (ZooKeeper)", strategy, members
    known = side.snapshot.brokers_group or BrokersGroup("Unknown")
    return (
        "-" if known.coordinator is None else "{1}:{2}  ({0})".format(*known.coordinator),
        known.strategy,
        None if side.snapshot.brokers_group is None else len(known.members),
    )


# ---- list ----


def list_table(shown: Sequence[GroupSide], *, with_type: bool, with_state: bool) -> Table:
    """Return the row of each group, by name, with type and state if asked for."""
    width = max([15, *(len(side.group) for side in shown)]) + 10
    columns = [
        Column("GROUP", width),
        *([Column("TYPE", 20)] if with_type else []),
        *([Column("STATE", 20)] if with_state else []),
    ]
    rows = [
        [side.group, *([side.type] if with_type else []), *([side.state] if with_state else [])]
        for side in sorted(shown, key=lambda side: (side.group, side.coordination.value))
    ]
    return Table(columns, rows)
