"""The group snapshot: a value with all that ZooKeeper and the brokers say about a group at one moment.

Every reading command is a pure function of a snapshot, or of several ones in the order of their times. A part that
could not be read is None or missing here, and ``problems`` says why. Pure; any thread. The thread that reads a group
fills the snapshot, one reader after the other. Nothing changes a snapshot after that.

The original has no snapshots: its tools read and print node after node.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from zkconsumer.core.registration import Registration
from zkconsumer.model import ConsumerId, TopicPartition
from zkconsumer.zookeeper import paths
from zkconsumer.zookeeper.node_values import Node, ZooKeeperServer

MOST_PROBLEMS = 1000
"""The most problems that one snapshot lists."""
FORBIDDEN_NODE = "ZooKeeper does not let us read it; check the node's ACL"
"""Why a node is a problem that ZooKeeper's rights keep from the reader."""


@dataclass(frozen=True, slots=True)
class NodeStat:
    """ZooKeeper's data about a node beside the content.

    ``czxid``, ``mzxid`` and ``pzxid`` are the transactions that created the node, wrote it, and changed its children.
    ``ctime`` and ``mtime`` are milliseconds since 1970 by ZooKeeper's clock. ``ephemeral_owner`` is the session that
    the node ends with, 0 for a persistent node. ``length`` is the size of the content in bytes.
    """

    czxid: int
    mzxid: int
    ctime: int
    mtime: int
    version: int = 0
    cversion: int = 0
    pzxid: int = 0
    ephemeral_owner: int = 0
    length: int = 0
    children: int = 0


def node_stat(node: Node) -> NodeStat:
    """Return a node's stat."""
    return NodeStat(
        *(node.czxid, node.mzxid, node.ctime, node.mtime, node.version, node.cversion, node.pzxid),
        *(node.ephemeral_owner, node.length, node.children),
    )


@dataclass(frozen=True, slots=True)
class MemberNode:
    """A member's registration under ``ids``. ``registration`` is None where ``problem`` says why."""

    registration: Registration | None
    stat: NodeStat | None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class OwnerNode:
    """The claim on one partition. ``thread`` is the thread id in it, empty where ``problem`` says why."""

    thread: str
    stat: NodeStat | None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class OffsetNode:
    """A committed offset in ZooKeeper. ``offset`` is None where ``problem`` says why."""

    offset: int | None
    stat: NodeStat | None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class FailingMessage:
    """An unfinished message of which ``failed`` attempts have failed, the first at ``first_ms`` (since 1970)."""

    offset: int
    failed: int
    first_ms: int = 0


@dataclass(frozen=True, slots=True)
class NoteSummary:
    """The summary of a note about the messages beyond a base.

    Before ``end``, ``finished`` of them are finished. That is exact unless slots are on loan; then it is an estimate.
    ``unfinished`` are listed as not finished. ``failing`` are the first few that failed.
    """

    base: int
    end: int
    finished: int = 0
    unfinished: int = 0
    failing: tuple[FailingMessage, ...] = ()


@dataclass(frozen=True, slots=True)
class AckNode:
    """A partition's note of the messages finished beyond its offset. ``note`` is None where ``problem`` says why."""

    note: NoteSummary | None
    stat: NodeStat | None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class PointedMessage:
    """A parked message or a dead letter (``dead``). Its next attempt is due at ``due_ms``, 0 if there is none.

    ``reason`` is free text, which may hold anything that an exception tells.
    """

    offset: int
    dead: bool = False
    attempts: int = 0
    due_ms: int = 0
    first_ms: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class PointersNode:
    """The pointers of a partition. ``parked`` and ``dead`` are their numbers, None where ``problem`` says why.

    ``listed`` are the first few of each kind, by offset. ``due_ms`` is when the next parked one is due, 0 if none is.
    """

    parked: int | None
    dead: int | None
    listed: tuple[PointedMessage, ...]
    stat: NodeStat | None
    due_ms: int = 0
    problem: str = ""

    def first(self, *, dead: bool) -> PointedMessage | None:
        """Return the pointer of this kind with the lowest offset."""
        return next((one for one in self.listed if one.dead == dead), None)


@dataclass(frozen=True, slots=True)
class LoanNode:
    """Slots of a partition that its owner lends to a member.

    ``session`` is the lender's, ``number`` counts the changes of the loan, ``slots`` is how many are lent. The borrower
    answers with a report: to the change ``answered``, it still holds ``held`` slots, and everything of them is finished
    before ``base``. An unknown value is None; ``problem`` says why.
    """

    slots: int | None
    number: int | None
    session: int | None
    stat: NodeStat | None
    answered: int | None = None
    held: int | None = None
    base: int | None = None
    report: NodeStat | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class KafkaOffset:
    """A committed offset in Kafka. ``leader_epoch`` is -1 where it is unknown.

    ``note`` is the note in the metadata, None if there is none.
    """

    offset: int | None
    metadata: str = ""
    leader_epoch: int = -1
    problem: str = ""
    note: NoteSummary | None = None


@dataclass(frozen=True, slots=True)
class TopicNode:
    """A topic. ``created`` is its node's creation in milliseconds since 1970, None where only brokers were asked."""

    partitions: tuple[int, ...]
    created: int | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class LogState:
    """A partition's log: its offsets ``[start, end)``, and its leader.

    ``message_time`` is the timestamp of the message at the committed offset, in milliseconds since 1970. It is None if
    it was not asked for or not found, and -1 if the message has none (formats before 0.10). It is -2 if only
    transaction markers stand between the offset and the log's end.
    ``in_sync`` and ``replicas`` are broker ids, empty if unknown.
    """

    start: int | None = None
    end: int | None = None
    leader: int | None = None
    message_time: int | None = None
    replicas: tuple[int, ...] = ()
    in_sync: tuple[int, ...] = ()
    problem: str = ""

    @property
    def known_time(self) -> int | None:
        """The timestamp of the message at the committed offset, None if there is none."""
        return None if self.message_time is None or self.message_time < 0 else self.message_time

    def at(self, message_time: int) -> LogState:
        """Return the log with the time of the message at the committed offset of a group."""
        return LogState(self.start, self.end, self.leader, message_time, self.replicas, self.in_sync, self.problem)


def age_at_offset(lag: int | None, log: LogState | None, now: int) -> int | None:
    """Return :meth:`GroupSnapshot.lag_ms` of a partition whose ``lag`` is known already."""
    if not lag or log is None or log.known_time is None:
        return lag if lag == 0 else None
    return max(0, now - log.known_time)


def gone_before(offset: int | None, log: LogState | None) -> int:
    """Return the messages from a committed offset on that were deleted before they were read, 0 if none is known."""
    return 0 if offset is None or offset < 0 or log is None else max(0, (log.start or 0) - offset)


def gone_words(gone: int, lag: int | None) -> str:
    """Return a count of deleted and of unread messages, as every command and page says it."""
    return f"{gone} gone, {'unknown' if lag is None else lag} to read"


def lag_between(offset: int | None, log: LogState | None, note: NoteSummary | None = None) -> int | None:
    """Return the messages between a committed offset and the log's end, None if either is unknown.

    None too for an offset beyond the end: what the group has consumed of this log is unknown, so 0 would be a guess.
    Arguments: ``note`` tells what is finished beyond the offset, and is not counted. See :meth:`GroupSnapshot.lag`.
    """
    if log is None or log.end is None or offset is None or offset > log.end:
        return None
    return max(0, log.end - max(offset, log.start or 0) - finished_beyond(offset, log, note))


def finished_beyond(offset: int, log: LogState | None, note: NoteSummary | None) -> int:
    """Return how many messages from a committed offset on are finished, of those that are left in the log."""
    if note is None or offset > note.base:
        return 0
    begin = max(offset, 0 if log is None else log.start or 0)
    return max(0, note.base - begin) + min(note.finished, max(0, note.end - max(note.base, begin)))


@dataclass(frozen=True, slots=True)
class BrokerNode:
    """A registered broker."""

    host: str
    port: int
    rack: str | None = None
    protocols: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BrokersMember:
    """A member of a group that the brokers coordinate. ``assignment`` is None where it could not be decoded."""

    member_id: str
    client_id: str
    host: str
    instance_id: str | None = None
    assignment: tuple[TopicPartition, ...] | None = ()
    topics: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BrokersGroup:
    """A group as its coordinator, a broker, describes it. ``state`` is Kafka's word for it; ``strategy`` its assignor.

    ``coordinator`` is (broker id, host, port), None if it is unknown. ``group_type`` is Kafka's word for the protocol
    of the group, ``Classic`` or ``Consumer``. It is empty if the broker does not tell, as before 3.8.
    """

    state: str
    strategy: str = ""
    protocol_type: str = "consumer"
    coordinator: tuple[int, str, int] | None = None
    members: tuple[BrokersMember, ...] = ()
    group_type: str = ""


@dataclass(frozen=True, slots=True)
class PlanNode:
    """The plan of a group whose strategy needs one; empty where ``problem`` says why.

    ``assignment`` has the thread of each partition, also of those that are kept for ``reserved`` members, which have
    left. ``members`` are the present ones, by which the ``planner`` made it.
    """

    strategy: str = ""
    planner: str = ""
    members: tuple[str, ...] = ()
    reserved: tuple[str, ...] = ()
    assignment: Mapping[TopicPartition, str] = field(default_factory=dict)
    stat: NodeStat | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that could not be read. ``what`` is a node's path, a broker or a request."""

    what: str
    why: str


@dataclass(slots=True)
class GroupSnapshot:
    """One group at one moment.

    ``taken`` is milliseconds since 1970 by our clock, ``zxid`` the last transaction of ZooKeeper that the reader saw.
    ``zookeeper`` and ``bootstrap`` are the addresses of the read, without passwords, and empty for a side that was not
    asked. Offsets are read before log ends, so that a lag is never negative because of the order.

    In ZooKeeper: ``members`` by consumer id, ``owners`` and ``offsets`` by partition, ``group_node`` the stat of
    ``/consumers/<group>`` (None if it does not exist), ``ids_node`` that of ``ids``. Balanced members write ``acks``
    and ``pointers`` by partition, and ``loans`` by partition and borrower. ``plan`` is None if there is none. ``acls``
    maps a path to its rights in words, where they could be read. ``other_nodes`` are further nodes of the group by
    path: those of broadcasting members, migrating members and bridges.
    In Kafka: ``kafka_offsets`` and ``brokers_group``, None if they were not asked for or are unknown.
    Of the cluster: ``topics``, ``logs``, ``brokers``, ``servers``. ``suppressed`` counts problems beyond the limit.
    """

    group: str
    taken: int
    zookeeper: str = ""
    bootstrap: str = ""
    zxid: int = 0
    group_node: NodeStat | None = None
    ids_node: NodeStat | None = None
    members: dict[ConsumerId, MemberNode] = field(default_factory=dict)
    owners: dict[TopicPartition, OwnerNode] = field(default_factory=dict)
    offsets: dict[TopicPartition, OffsetNode] = field(default_factory=dict)
    kafka_offsets: dict[TopicPartition, KafkaOffset] | None = None
    brokers_group: BrokersGroup | None = None
    topics: dict[str, TopicNode] = field(default_factory=dict)
    logs: dict[TopicPartition, LogState] = field(default_factory=dict)
    brokers: dict[int, BrokerNode] = field(default_factory=dict)
    servers: tuple[ZooKeeperServer, ...] = ()
    other_nodes: dict[str, NodeStat | None] = field(default_factory=dict)
    acls: dict[str, str] = field(default_factory=dict)
    acks: dict[TopicPartition, AckNode] = field(default_factory=dict)
    pointers: dict[TopicPartition, PointersNode] = field(default_factory=dict)
    loans: dict[TopicPartition, dict[ConsumerId, LoanNode]] = field(default_factory=dict)
    plan: PlanNode | None = None
    problems: tuple[Problem, ...] = ()
    suppressed: int = 0

    def path(self, *names: object) -> str:
        """Return the path of a node of the group. Unchecked: a brokers' group may have a name that no node can have."""
        return "/".join((paths.CONSUMERS, self.group, *map(str, names)))

    def problem(self, what: str, why: object) -> None:
        """Note something that could not be read."""
        if len(self.problems) < MOST_PROBLEMS:
            self.problems += (Problem(what, str(why)),)
        else:
            self.suppressed += 1

    @property
    def in_zookeeper(self) -> bool:
        """Whether ZooKeeper has anything of this group."""
        return bool(self.group_node or self.members or self.owners or self.offsets)

    @property
    def in_kafka(self) -> bool:
        """Whether the brokers have anything of this group."""
        known = self.brokers_group is not None and self.brokers_group.state != "Dead"
        return known or bool(self.kafka_offsets)

    def committed(self, partition: TopicPartition) -> int | None:
        """Return the committed offset, None if there is none or it is unknown.

        Members that ZooKeeper coordinates commit there, and to Kafka as well if they are told to. So ZooKeeper's offset
        counts, and Kafka's only if there is none.
        """
        node = self.offsets.get(partition)
        if node is not None and node.offset is not None:
            return node.offset
        stored = (self.kafka_offsets or {}).get(partition)
        return None if stored is None else stored.offset

    def note(self, partition: TopicPartition) -> NoteSummary | None:
        """Return the note that belongs to :meth:`committed`, None if there is none that counts.

        A note in ZooKeeper counts while it was written in the transaction that wrote the offset. The reader reads the
        offset first. So a newer note is of a commit between the two reads, and counts as well.
        """
        node = self.offsets.get(partition)
        if node is None or node.offset is None:
            stored = (self.kafka_offsets or {}).get(partition)
            return None if stored is None else stored.note
        noted = self.acks.get(partition)
        if noted is None or noted.stat is None or node.stat is None or noted.stat.mzxid < node.stat.mzxid:
            return None
        return noted.note

    def finished_beyond(self, partition: TopicPartition) -> int | None:
        """Return how many messages beyond :meth:`committed` are finished, None if it is unknown."""
        offset, noted = self.committed(partition), self.acks.get(partition)
        if offset is None or (noted is not None and noted.note is None):
            return None
        return finished_beyond(offset, self.logs.get(partition), self.note(partition))

    def lag(self, partition: TopicPartition) -> int | None:
        """Return the messages before the log's end that are not finished, None if they cannot be counted.

        They begin at the committed offset. Messages that a note has as finished do not count. An offset below
        the log's start counts from the start: what was deleted cannot be consumed. Never negative.
        """
        return lag_between(self.committed(partition), self.logs.get(partition), self.note(partition))

    def lag_ms(self, partition: TopicPartition) -> int | None:
        """Return the age of the message at the committed offset in milliseconds, 0 without a lag, None if unknown."""
        return age_at_offset(self.lag(partition), self.logs.get(partition), self.taken)

    def gone(self, partition: TopicPartition) -> int:
        """Return the messages from :meth:`committed` on that were deleted before they were read."""
        return gone_before(self.committed(partition), self.logs.get(partition))

    def partitions(self) -> tuple[TopicPartition, ...]:
        """Return, in order, each partition that is owned, has an offset, or is assigned by the brokers."""
        found = {*self.owners, *self.offsets, *(self.kafka_offsets or ())}
        if self.brokers_group is not None:
            found.update(tp for member in self.brokers_group.members for tp in member.assignment or ())
        return tuple(sorted(found))

    def partitions_of(self, topics: Iterable[str]) -> tuple[TopicPartition, ...]:
        """Return, in order, the existing partitions of these topics."""
        return tuple(
            TopicPartition(topic, number)
            for topic in sorted(set(topics))
            for number in (self.topics[topic].partitions if topic in self.topics else ())
        )


def wanted_topics(snapshot: GroupSnapshot) -> set[str]:
    """Return the topics of the group so far: subscribed to by name, owned, assigned, or with an offset."""
    found = {tp.topic for tp in snapshot.partitions()}
    for node in snapshot.members.values():
        if node.registration is not None and not node.registration.is_wildcard:
            found.update(node.registration.subscription)
    return found.union(*(one.topics for one in snapshot.brokers_group.members) if snapshot.brokers_group else ())


class SnapshotSource(Protocol):
    """Names the groups, and reads the snapshot of one. One thread at a time."""

    def groups(self) -> Sequence[str]:
        """Return the names of the groups that this source knows, sorted, without repetitions.

        Raises: RegistryError, BrokerError if nothing at all could be asked.
        """

    def snapshot(self, group: str, *, message_times: bool = False) -> GroupSnapshot:
        """Return the group now; from files, the latest one of it. A group that nobody knows is an empty snapshot.

        Arguments: ``message_times`` also reads the timestamp of the message at each committed offset.
        Raises: RegistryError, BrokerError if nothing at all could be read; the rest stands in ``problems``.
        """

    def history(self, group: str) -> Sequence[GroupSnapshot]:
        """Return all snapshots of the group that this source has, oldest first; a live cluster has the present one."""

    def close(self) -> None:
        """Close the connections."""
