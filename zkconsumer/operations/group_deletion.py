"""Deletes groups and offsets of groups, in ZooKeeper and at the brokers, while nobody is a member.

Refusals have the texts of Kafka's own errors. One thread. The snapshot says what is there; each write proves again that
the group has no members: ZooKeeper in the transaction, the coordinator by its own rule.

ZooKeeper cannot check in a transaction that a node has no children, or that it is absent. Deleting ``ids`` fails if
``ids`` has children. Where ``ids`` is absent, the transaction creates and deletes the node. So a member that registers
meanwhile makes the transaction fail, and nothing of it is done.

The original's ``ZkUtils.deleteConsumerGroup`` looks first and deletes recursively after it. A member that joins between
the two loses its nodes.

:func:`plan_prune` finds dead offsets: those of topics and partitions that exist no more, or that nobody wants. The
original keeps the offsets of deleted topics for ever. Lag monitors show them, and a topic that is created again under
the same name is begun at the old offset.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from enum import Enum

from zkconsumer.cluster.cluster_client import ClusterClient
from zkconsumer.cluster.group_offsets import BATCH, KafkaGroupOffsets
from zkconsumer.core.names import first_of
from zkconsumer.core.offset_move_plan import Store
from zkconsumer.errors import BrokerResponseError
from zkconsumer.kafka import error_codes
from zkconsumer.model import TopicPartition
from zkconsumer.operations.group_snapshot import GroupSnapshot
from zkconsumer.operations.group_view import GroupAnalysis
from zkconsumer.operations.offset_reset import unread
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.zookeeper import ownership_transactions, paths
from zkconsumer.zookeeper.node_requests import Transaction
from zkconsumer.zookeeper.node_values import FORBIDDEN, Look, Node
from zkconsumer.zookeeper.ownership_transactions import REQUEST_BYTES, Change, Outcome
from zkconsumer.zookeeper.session import Session

_OVERHEAD = 64
MAX_NODES = 200_000
"""Nodes of one group that are read: 100,000 partitions. A group with more is refused."""


class Removal(Enum):
    """The result of deleting a group."""

    DONE = "deleted"
    MISSING = "there is no such group"
    LIVE = "it has live members"
    CHANGED = "somebody wrote or created a node of it meanwhile"
    FORBIDDEN = "a node must not be read"
    TOO_LARGE = "it has too many nodes"


@dataclass(frozen=True, slots=True)
class RemovalResult:
    """The result, the nodes that prevented it, and the numbers of deleted nodes and of all."""

    result: Removal
    nodes: tuple[str, ...] = ()
    deleted: int = 0
    total: int = 0


def read_nodes(session: Session, group: str, deadline: Deadline) -> dict[str, Node]:
    """Return the nodes of a group by path, in one round trip a level; empty if there is no such group.

    Reading ends beyond :data:`MAX_NODES`. Raises RegistryError.
    """
    found: dict[str, Node] = {}
    level = [paths.consumers_group(group)]
    while level and len(found) <= MAX_NODES:
        seen = session.look(Look(stats=level, children=level), deadline)
        found |= {path: node for path, node in seen.nodes.items() if node is not None}
        level = [f"{path}/{name}" for path, names in seen.children.items() for name in names or ()]
    return found


def delete_group_nodes(session: Session, group: str, deadline: Deadline) -> RemovalResult:
    """Delete all nodes of a group without members, in as few transactions as possible.

    A group of up to some thousands of partitions is deleted in one transaction, so wholly or not at all. Of a larger
    one, the first failure ends it. Raises RegistryError if the outcome is unknown.
    """
    nodes = read_nodes(session, group, deadline)
    refused = _refusal(group, nodes)
    if refused is not None:
        return refused
    ids = paths.ids(group)
    leaves_first = sorted((path for path in nodes if path != ids), key=lambda path: (-path.count("/"), path))
    deleted = 0
    for number, some in enumerate(_batches(leaves_first)):
        proven = ids in nodes and number == 0

        def build(transaction: Transaction, some: Sequence[str] = some, proven: bool = proven) -> None:
            if not proven:
                transaction.create(ids, b"")
            transaction.delete(ids)
            for path in some:
                transaction.delete(path, nodes[path].version)

        if any(session.transact(build, deadline)):
            changed = _refusal(group, read_nodes(session, group, deadline))
            result = Removal.CHANGED if changed is None or changed.result is Removal.MISSING else changed.result
            return RemovalResult(result, changed.nodes if changed else (), deleted, len(nodes))
        deleted += len(some) + proven
    return RemovalResult(Removal.DONE, (), deleted, len(nodes))


def _refusal(group: str, nodes: Mapping[str, Node]) -> RemovalResult | None:
    if not nodes:
        return RemovalResult(Removal.MISSING)
    if len(nodes) > MAX_NODES:
        return RemovalResult(Removal.TOO_LARGE, (paths.consumers_group(group),), 0, len(nodes))
    registered = f"{paths.ids(group)}/"
    live = [path for path, node in nodes.items() if node.ephemeral_owner or path.startswith(registered)]
    if live:
        return RemovalResult(Removal.LIVE, tuple(sorted(live)), 0, len(nodes))
    forbidden = [path for path, node in nodes.items() if node is FORBIDDEN]
    if forbidden:
        return RemovalResult(Removal.FORBIDDEN, tuple(sorted(forbidden)), 0, len(nodes))
    return None


def _batches(found: Sequence[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    size = 0
    for path in found:
        if batch and size + len(path) + _OVERHEAD > REQUEST_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(path)
        size += len(path) + _OVERHEAD
    if batch:
        yield batch


_ERRORS = "org.apache.kafka.common.errors"
NOT_EMPTY = f"{_ERRORS}.GroupNotEmptyException: The group is not empty."
NOT_FOUND = f"{_ERRORS}.GroupIdNotFoundException: The group id does not exist."
SUBSCRIBED = (
    f"{_ERRORS}.GroupSubscribedToTopicException: Deleting offsets of a topic is forbidden while the consumer group is"
    " actively subscribed to it."
)
NO_PARTITION = f"{_ERRORS}.UnknownTopicOrPartitionException: This server does not host this topic-partition."
BROKERS_UNKNOWN = "the brokers could not be asked whether the group has members"
_TEXTS = {
    3: NO_PARTITION,
    24: f"{_ERRORS}.InvalidGroupIdException: The group id is invalid.",
    29: f"{_ERRORS}.TopicAuthorizationException: Topic authorization failed.",
    30: f"{_ERRORS}.GroupAuthorizationException: Group authorization failed.",
    35: f"{_ERRORS}.UnsupportedVersionException: Brokers before 2.4 delete the offsets of a group all together only,"
    " with the group.",
    68: NOT_EMPTY,
    69: NOT_FOUND,
    86: SUBSCRIBED,
}
_OUTCOMES = {Outcome.OWNED: "somebody owns the partition", Outcome.OFFSET_MOVED: "somebody wrote the offset meanwhile"}
_REMOVALS = {Removal.MISSING: NOT_FOUND, Removal.LIVE: NOT_EMPTY}


def members_in_zookeeper(snapshot: GroupSnapshot) -> list[str]:
    """Return the ids of the members, and the threads that own a partition without a registration."""
    owners = {
        owner.thread for owner in snapshot.owners.values() if owner.stat is not None and owner.stat.ephemeral_owner
    }
    return sorted({*snapshot.members, *(one for one in owners if one.rpartition("-")[0] not in snapshot.members)})


def _unseen(snapshot: GroupSnapshot) -> str:
    """Return why members in ZooKeeper may have been overlooked; empty if they were not, or if it was not asked.

    To the brokers, a group that ZooKeeper coordinates has no members, and they delete its offsets.
    """
    group = snapshot.path()  # brokers' groups may have names that no node can have
    lists = (group, f"{group}/ids", f"{group}/owners")
    for problem in snapshot.problems:
        if problem.what in lists or problem.what.startswith("ZooKeeper "):
            return f"whether the group has members in ZooKeeper is unknown: {problem.what}: {problem.why}"
    return ""


def why_not(snapshot: GroupSnapshot) -> str:
    """Return why the group cannot be deleted now, or an empty text."""
    unseen = _unseen(snapshot)
    if unseen:
        return unseen
    if not snapshot.in_zookeeper and not snapshot.in_kafka:
        return "not everything could be asked" if snapshot.problems else NOT_FOUND
    if _brokers_unknown(snapshot):
        return BROKERS_UNKNOWN
    brokers = () if snapshot.brokers_group is None else snapshot.brokers_group.members
    return _not_empty([*members_in_zookeeper(snapshot), *(member.member_id for member in brokers)])


def why_not_offset(snapshot: GroupSnapshot, partition: TopicPartition, *, in_zookeeper: bool) -> str:
    """Return why the group's offset of this partition cannot be deleted now, or an empty text.

    Members in ZooKeeper may rely on offsets in either store. The brokers refuse it only for topics that a member
    subscribes to.
    """
    unseen = _unseen(snapshot)
    if unseen:
        return unseen
    if _brokers_unknown(snapshot):
        return BROKERS_UNKNOWN
    members = members_in_zookeeper(snapshot)
    brokers = () if snapshot.brokers_group is None else snapshot.brokers_group.members
    if members or (in_zookeeper and brokers):
        return _not_empty([*members, *(member.member_id for member in brokers)])
    subscribed = any(
        partition.topic in (*member.topics, *(tp.topic for tp in member.assignment or ())) for member in brokers
    )
    return SUBSCRIBED if subscribed else ""


def _brokers_unknown(snapshot: GroupSnapshot) -> bool:
    return snapshot.brokers_group is None and bool(snapshot.problems)


def _not_empty(live: Collection[str]) -> str:
    return f"{NOT_EMPTY} ({first_of(live, 3)})" if live else ""


def delete_group(client: ClusterClient, snapshot: GroupSnapshot, deadline: Deadline) -> str:
    """Delete the group wherever the snapshot has it. Return the reason why not, or an empty text.

    Raises: RegistryError, BrokerError if the outcome is unknown.
    """
    if snapshot.in_zookeeper:
        done = delete_group_nodes(client.open_session(deadline), snapshot.group, deadline)
        if done.result is not Removal.DONE:
            partly = f"; {done.deleted} of {done.total} nodes were deleted" if done.deleted else ""
            where = f" ({first_of(done.nodes, 3)})" if done.nodes else ""
            return f"{_REMOVALS.get(done.result, done.result.value)}{where}{partly}"
    if snapshot.in_kafka:
        with closing(KafkaGroupOffsets(client, snapshot.group)) as offsets:
            try:
                offsets.delete_group(deadline)
            except BrokerResponseError as error:
                also = "; its nodes in ZooKeeper were deleted" if snapshot.in_zookeeper else ""
                return _TEXTS.get(error.code, str(error)) + also
    return ""


def delete_zookeeper_offsets(
    client: ClusterClient, snapshot: GroupSnapshot, partitions: Collection[TopicPartition], deadline: Deadline
) -> dict[TopicPartition, str]:
    """Delete offset nodes whose versions are those of the snapshot. Returns the reason for each refused partition.

    A partition without a node is skipped. Raises RegistryError if the outcome is unknown.
    """
    found = {tp: node for tp in sorted(partitions) if (node := snapshot.offsets.get(tp)) is not None}
    refused = {tp: "the version of its node is unknown" for tp, node in found.items() if node.stat is None}
    changes = [Change(tp, None, node.stat.version) for tp, node in found.items() if node.stat is not None]
    if changes:
        session = client.open_session(deadline)
        outcomes = ownership_transactions.write_unowned(session, snapshot.group, changes, deadline)
        refused |= {tp: _OUTCOMES.get(one, one.value) for tp, one in outcomes.items() if one is not Outcome.DONE}
    return refused


def delete_kafka_offsets(
    client: ClusterClient, group: str, partitions: Collection[TopicPartition], deadline: Deadline
) -> dict[TopicPartition, str]:
    """Delete offsets at the coordinator. Returns the reason for each refused partition.

    Raises: BrokerError if the outcome is unknown.
    """
    wanted = sorted(partitions)
    codes: dict[TopicPartition, int] = {}
    with closing(KafkaGroupOffsets(client, group)) as offsets:
        try:
            for start in range(0, len(wanted), BATCH):
                codes |= offsets.delete_offsets(wanted[start : start + BATCH], deadline)
        except BrokerResponseError as error:
            codes |= {tp: error.code for tp in wanted if tp not in codes}
    return _texts(codes)


def _texts(codes: Mapping[TopicPartition, int]) -> dict[TopicPartition, str]:
    return {tp: _TEXTS.get(code, error_codes.name(code)) for tp, code in codes.items() if code}


class DeadReason(Enum):
    """Why an offset is dead. The values are for users."""

    NO_TOPIC = "the topic does not exist"
    NO_PARTITION = "the topic has no such partition"
    UNSUBSCRIBED = "no registration subscribes to the topic"


@dataclass(frozen=True, slots=True)
class DeadOffset:
    """A dead offset in one store. ``offset`` is None if it cannot be read; that does not matter here."""

    store: Store
    partition: TopicPartition
    offset: int | None
    reason: DeadReason


@dataclass(frozen=True, slots=True)
class PrunePlan:
    """The dead offsets of a group. With ``errors`` there are none. ``notes`` say what could not be judged."""

    group: str
    dead: tuple[DeadOffset, ...] = ()
    notes: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()


def plan_prune(snapshot: GroupSnapshot, stores: Sequence[Store] = ()) -> PrunePlan:
    """Return the dead offsets in these stores; without any, in both. An offset is dead only if that is certain.

    A topic counts as unsubscribed only if the group has members, all of them can be read, and nobody owns a partition
    of it.
    """
    errors = unread(snapshot, tuple(Store)) + [
        f"The topics are unknown: {problem.what}: {problem.why}"
        for problem in snapshot.problems
        if problem.what.startswith(("/brokers/topics", "topic "))
    ]
    if not snapshot.brokers:
        errors.append("No broker is registered there, so no topic would exist; is the chroot that of the brokers?")
    if errors:
        return PrunePlan(snapshot.group, errors=tuple(errors))
    unreadable = [name for name, node in snapshot.members.items() if node.registration is None]
    notes = [f"{name} cannot be read, so nothing is taken as unsubscribed" for name in sorted(unreadable)]
    wanted: frozenset[str] | None = None
    if snapshot.members and not unreadable:
        wanted = GroupAnalysis(snapshot).subscribed | {tp.topic for tp in snapshot.owners}
    held: list[tuple[Store, TopicPartition, int | None]] = []
    if not stores or Store.ZOOKEEPER in stores:
        held += [(Store.ZOOKEEPER, tp, node.offset) for tp, node in snapshot.offsets.items()]
    if not stores or Store.KAFKA in stores:
        held += [(Store.KAFKA, tp, one.offset) for tp, one in (snapshot.kafka_offsets or {}).items()]
    dead = []
    for store, tp, offset in sorted(held, key=lambda one: (one[0].value, one[1])):
        reason = dead_reason(snapshot, tp, wanted)
        if reason is not None:
            dead.append(DeadOffset(store, tp, offset, reason))
    return PrunePlan(snapshot.group, tuple(dead), tuple(notes))


def dead_reason(snapshot: GroupSnapshot, tp: TopicPartition, wanted: frozenset[str] | None) -> DeadReason | None:
    """Return why the offset of a partition is dead, None if it is not. ``wanted`` None: what is wanted is unknown."""
    node = snapshot.topics.get(tp.topic)
    if node is None:
        return DeadReason.NO_TOPIC
    if node.problem:
        return None
    if tp.partition not in node.partitions:
        # no numbers at all: a topic that is being created or deleted
        return DeadReason.NO_PARTITION if node.partitions else None
    return DeadReason.UNSUBSCRIBED if wanted is not None and tp.topic not in wanted else None
