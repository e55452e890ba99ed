"""Reads what ZooKeeper knows of a group, level by level of its tree.

The reads of a level are sent together, so that a level of most groups takes one round trip. A level is bounded: the
reader reads the first :data:`MOST_NODES` nodes of each kind, and notes a problem if there are more. One thread calls.

Mirrors the reads of the original's ``ConsumerOffsetChecker`` and ``VerifyConsumerRebalance``. Differs on purpose: the
original asks for node after node.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Protocol

from zkconsumer.core.names import name_problem
from zkconsumer.core.placement_plan import InvalidPlanError, decode_plan
from zkconsumer.core.subscription import subscribed_topics
from zkconsumer.core.topic_filter import InvalidTopicFilterError, TopicFilterTimeoutError
from zkconsumer.errors import MalformedNodeError, RegistryError
from zkconsumer.model import ConsumerId, TopicPartition, shared_partition
from zkconsumer.operations.balance_reader import BALANCE_PARTS, BalanceReader
from zkconsumer.operations.group_snapshot import (
    FORBIDDEN_NODE,
    BrokerNode,
    GroupSnapshot,
    LogState,
    MemberNode,
    OffsetNode,
    OwnerNode,
    PlanNode,
    TopicNode,
    node_stat,
    wanted_topics,
)
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.zookeeper import node_codecs, paths
from zkconsumer.zookeeper.broker_directory import broker_ids
from zkconsumer.zookeeper.node_values import Node, NodePart, Reading, Wanted

MOST_NODES = 100_000
"""The most members, owners, offsets, and topics that are read of one group: some 100 MB."""
MOST_RIGHTS = 100
"""The most topics of a group whose ACLs are read."""
MOST_OTHER = 1000
"""The most further nodes of a group that are listed."""
MOST_OWNER_BYTES = 4096
"""The longest content of an owner that is read: it is kept and shown, for each partition."""
MOST_REGISTERED_BYTES = 64 * 1024 * 1024
"""The most bytes of registrations that are decoded; 10,000 members take a tenth of it."""

_PARTITION = re.compile("0|[1-9][0-9]{0,9}", re.ASCII)
_LAST_PARTITION = (1 << 31) - 1
_KNOWN = ("ids", "owners", "offsets", "placement", "loads", *BALANCE_PARTS)


class NodeSource(Protocol):
    """Reads nodes: a session, or groups that are held by watches."""

    @property
    def hosts(self) -> str:
        """The servers, for errors."""

    @property
    def last_zxid(self) -> int:
        """The last transaction that an answer told of."""

    def read_each(self, wanted: Iterable[Wanted], deadline: Deadline) -> Iterator[Reading]:
        """Yield the answer to each read, in order. Raises RegistryError."""


class ZooKeeperReader:
    """Fills the part of a snapshot that comes from ZooKeeper.

    Arguments: ``session`` is open; ``draft`` is what to fill.
    """

    def __init__(self, session: NodeSource, draft: GroupSnapshot, deadline: Deadline) -> None:
        self._session = session
        self._draft = draft
        self._deadline = deadline
        self._group = draft.group
        self._registered_bytes = 0
        self._answered = False
        self._owned: list[TopicPartition] = []
        self._committed: list[TopicPartition] = []
        self._others: list[str] = []
        self.broker_nodes: list[node_codecs.RegisteredBroker] = []
        self.offsets_topic: bool | None = None
        """Whether the topic of Kafka's offsets exists; None if it is unknown."""

    def read(self) -> bool:
        """Read everything, and note failed reads as problems. Returns whether ZooKeeper answered to the end.

        Raises RegistryError if there was no answer at all.
        """
        try:
            if name_problem(self._group) is None:
                self._read_group()
            else:
                self._read_cluster()
        except RegistryError as error:
            if not self._answered:
                raise
            self._draft.problem(f"ZooKeeper {self._session.hosts}", f"the rest was not read: {error}")
            return False
        finally:
            self._draft.zxid = self._session.last_zxid
        return True

    def go_on(self, draft: GroupSnapshot, deadline: Deadline) -> None:
        """Fill another draft from now on, which has what was read so far."""
        self._draft, self._deadline = draft, deadline

    def partition_states(self, deadline: Deadline) -> None:
        """Read leaders and in-sync replicas from ZooKeeper, for when no broker answers."""
        self._deadline = deadline
        wanted = [
            Wanted(NodePart.CONTENT, paths.partition_state(TopicPartition(topic, number)))
            for topic, node in self._draft.topics.items()
            for number in node.partitions
        ]
        try:
            for reading in self._each(islice(wanted, MOST_NODES)):
                self._state(reading)
        except RegistryError as error:
            self._draft.problem("leaders of partitions", error)

    def complete_topics(self, deadline: Deadline) -> None:
        """Read the nodes of the topics that the brokers alone told of."""
        self._deadline = deadline
        told = [topic for topic, node in self._draft.topics.items() if node.created is None]
        try:
            self.read_topics(told)
        except RegistryError as error:
            self._draft.problem(paths.TOPICS, error)

    # ---- the levels

    def _read_group(self) -> None:
        group, draft = self._group, self._draft
        top = (paths.consumers_group(group), paths.ids(group), paths.owners(group), paths.offsets(group))
        found = {
            one.wanted: one
            for one in self._each(
                [
                    *(Wanted(NodePart.CHILDREN, path) for path in (*top, paths.BROKER_IDS)),
                    *(Wanted(NodePart.RIGHTS, path) for path in top),
                    Wanted(NodePart.STAT, paths.topic("__consumer_offsets")),
                ]
            )
        }
        group_node, ids, owners, offsets, brokers = (
            found[Wanted(NodePart.CHILDREN, path)] for path in (*top, paths.BROKER_IDS)
        )
        draft.group_node = None if group_node.node is None else node_stat(group_node.node)
        draft.ids_node = None if ids.node is None else node_stat(ids.node)
        for path in top:
            self._take_rights(found[Wanted(NodePart.RIGHTS, path)])
        known = found[Wanted(NodePart.STAT, paths.topic("__consumer_offsets"))]
        self.offsets_topic = None if known.forbidden else known.node is not None
        names = self._names(group_node)
        others = [f"{top[0]}/{name}" for name in names if name not in _KNOWN]
        if len(others) > MOST_OTHER:
            draft.problem(top[0], f"only {MOST_OTHER} of its {len(others)} further nodes are listed")
        self._others = others[:MOST_OTHER]
        self._second_level(ids, owners, offsets, brokers)
        self._third_level()
        # after the offsets: a note that is newer than its offset is then one of a commit in between
        BalanceReader(self._each, self._names, draft, self._deadline).read(BALANCE_PARTS.intersection(names))
        if "placement" in names:
            for one in self._each([Wanted(NodePart.CONTENT, paths.placement(group))]):
                self._take_plan(one)
        self._topics()

    def _second_level(self, ids: Reading, owners: Reading, offsets: Reading, brokers: Reading) -> None:
        group = self._group
        members = [paths.member(group, name) for name in self._names(ids)]
        topics = [f"{one.wanted.path}/{name}" for one in (owners, offsets) for name in self._names(one)]
        levels: list[Wanted] = [Wanted(NodePart.CONTENT, path) for path in members]
        levels += [Wanted(NodePart.CHILDREN, path) for path in topics]
        levels += [Wanted(NodePart.RIGHTS, path) for path in topics[:MOST_RIGHTS]]
        levels += [Wanted(NodePart.CONTENT, paths.broker(number)) for number in broker_ids(self._names(brokers))]
        levels += [Wanted(NodePart.CHILDREN, path) for path in self._others]
        registered, owned = ids.wanted.path + "/", owners.wanted.path + "/"
        committed = offsets.wanted.path + "/"
        for one in self._each(levels):
            path = one.wanted.path
            if one.wanted.part is NodePart.RIGHTS:
                self._take_rights(one)
            elif path.startswith(registered):
                self._take_member(one)
            elif path.startswith(owned):
                self._take_partitions(one, self._owned)
            elif path.startswith(committed):
                self._take_partitions(one, self._committed)
            elif path.startswith(paths.BROKER_IDS):
                self._take_broker(one)
            else:
                self._take_other(one)

    def _third_level(self) -> None:
        group = self._group
        owned, committed = paths.owners(group) + "/", paths.offsets(group) + "/"
        levels = [Wanted(NodePart.CONTENT, paths.owner(group, tp)) for tp in self._owned]
        levels += [Wanted(NodePart.CONTENT, paths.offset(group, tp)) for tp in self._committed]
        levels += [Wanted(NodePart.STAT, path) for path in self._others]
        partitions = iter((*self._owned, *self._committed))
        for one in self._each(levels):
            path = one.wanted.path
            if path.startswith(owned):
                self._take_owner(one, next(partitions))
            elif path.startswith(committed):
                self._take_offset(one, next(partitions))
            else:
                self._draft.other_nodes[path] = None if one.node is None else node_stat(one.node)
        self._owned, self._committed = [], []  # the reader may be kept

    def _topics(self) -> None:
        """Read the topics of the group, those that match an expression after the names of all."""
        self.read_topics(wanted_topics(self._draft))
        wildcards = {
            (one.registration.pattern, one.registration.wildcard[0]): (name, one.registration)
            for name, one in self._draft.members.items()
            if one.registration is not None and one.registration.is_wildcard
        }
        if not wildcards:
            return
        (listed,) = self._each([Wanted(NodePart.CHILDREN, paths.TOPICS)])
        names, matched = self._names(listed), set[str]()
        for member, registration in wildcards.values():
            try:
                matched |= subscribed_topics(registration, names, exclude_internal=True).keys()
            except (InvalidTopicFilterError, TopicFilterTimeoutError) as error:
                self._draft.problem(paths.member(self._group, member), error)
        self.read_topics(matched - self._draft.topics.keys())

    def read_topics(self, names: Iterable[str]) -> None:
        """Read these topics. Raises RegistryError."""
        good = sorted(name for name in names if name_problem(name) is None)
        self._bounded(good, paths.TOPICS)
        for one in self._each(Wanted(NodePart.CONTENT, paths.topic(name)) for name in good):
            if one.node is None:
                self._refused(one)
                continue
            name = one.wanted.path.rpartition("/")[2]
            self._draft.topics[name] = topic_node(one.node, one.wanted.path)

    def _read_cluster(self) -> None:
        """Read the brokers alone: no group in ZooKeeper can have this name."""
        (listed,) = self._each([Wanted(NodePart.CHILDREN, paths.BROKER_IDS)])
        for one in self._each(Wanted(NodePart.CONTENT, paths.broker(n)) for n in broker_ids(self._names(listed))):
            self._take_broker(one)

    # ---- one answer

    def _each(self, wanted: Iterable[Wanted]) -> Iterator[Reading]:
        for one in self._session.read_each(wanted, self._deadline):
            self._answered = True
            yield one

    def _refused(self, one: Reading) -> None:
        if one.forbidden:
            self._draft.problem(one.wanted.path, FORBIDDEN_NODE)

    def _names(self, one: Reading) -> list[str]:
        """Return the children's names that can be looked up, sorted, the first of them if there are too many."""
        self._refused(one)
        good = []
        for name in sorted(one.names):
            problem = name_problem(name)
            if problem is None:
                good.append(name)
            else:
                self._draft.problem(one.wanted.path, f"the child {name!a} cannot be read: {problem}")
        self._bounded(good, one.wanted.path)
        return good

    def _bounded(self, found: list[str], path: str) -> None:
        if len(found) > MOST_NODES:
            self._draft.problem(path, f"only the first {MOST_NODES} of {len(found)} nodes were read")
            del found[MOST_NODES:]

    def _take_rights(self, one: Reading) -> None:
        if one.rights:
            self._draft.acls[one.wanted.path] = one.rights

    def _take_member(self, one: Reading) -> None:
        path = one.wanted.path
        name = ConsumerId(path.rpartition("/")[2])
        if one.node is None:
            if one.forbidden:
                self._draft.members[name] = MemberNode(None, None, FORBIDDEN_NODE)
                self._refused(one)
            return
        self._registered_bytes += one.node.length
        if self._registered_bytes > MOST_REGISTERED_BYTES:
            many = f"not decoded: the registrations have more than {MOST_REGISTERED_BYTES} bytes together"
            self._draft.members[name] = MemberNode(None, node_stat(one.node), many)
        else:
            self._draft.members[name] = member_node(one.node, path)

    def _take_partitions(self, one: Reading, into: list[TopicPartition]) -> None:
        path = one.wanted.path
        topic = path.rpartition("/")[2]
        self._refused(one)
        numbers = []
        for name in one.names:
            if _PARTITION.fullmatch(name) and int(name) <= _LAST_PARTITION:
                numbers.append(int(name))
            else:
                self._draft.problem(path, f"the child {name!a} is no number of a partition")
        room = MOST_NODES - len(into)
        if len(numbers) > room:
            self._draft.problem(path, f"only {room} of {len(numbers)} nodes were read, {MOST_NODES} of all topics")
        into += [shared_partition(topic, number) for number in sorted(numbers)[:room]]

    def _take_owner(self, one: Reading, tp: TopicPartition) -> None:
        if one.node is None:
            if one.forbidden:
                self._draft.owners[tp] = OwnerNode("", None, FORBIDDEN_NODE)
            return
        if one.node.length > MOST_OWNER_BYTES:
            problem = f"{one.node.length} bytes are no thread id"
            self._draft.owners[tp] = OwnerNode("", node_stat(one.node), problem)
        else:
            self._draft.owners[tp] = owner_node(one.node, one.wanted.path)

    def _take_offset(self, one: Reading, tp: TopicPartition) -> None:
        if one.node is None:
            if one.forbidden:
                self._draft.offsets[tp] = OffsetNode(None, None, FORBIDDEN_NODE)
            return
        stat = node_stat(one.node)
        try:
            offset = node_codecs.decode_offset(one.node.data, one.wanted.path)
        except MalformedNodeError as error:
            self._draft.offsets[tp] = OffsetNode(None, stat, error.reason)
            return
        if offset >= 0:
            self._draft.offsets[tp] = OffsetNode(offset, stat)
        else:  # the original takes it for no offset
            self._draft.offsets[tp] = OffsetNode(None, stat, f"{offset} means that there is none")

    def _take_plan(self, one: Reading) -> None:
        if one.node is None:
            self._draft.plan = PlanNode(problem=FORBIDDEN_NODE) if one.forbidden else None
            return
        stat = node_stat(one.node)
        try:
            plan = decode_plan(one.node.data)
        except InvalidPlanError as error:
            self._draft.plan = PlanNode(stat=stat, problem=str(error))
            return
        present, reserved = sorted(plan.inputs.streams), sorted(plan.reserved)
        threads = {tp: str(thread) for tp, thread in plan.assignment.items()}
        self._draft.plan = PlanNode(plan.inputs.strategy, plan.planner, tuple(present), tuple(reserved), threads, stat)

    def _take_broker(self, one: Reading) -> None:
        path = one.wanted.path
        self._refused(one)
        if one.node is None:
            return
        try:
            found = node_codecs.decode_broker(one.node.data, path)
        except MalformedNodeError as error:
            self._draft.problem(path, error.reason)
            return
        self.broker_nodes.append(found)
        first = found.endpoints[0]
        protocols = tuple(endpoint.protocol for endpoint in found.endpoints)
        self._draft.brokers[found.broker_id] = BrokerNode(first.host, first.port, found.rack, protocols)

    def _take_other(self, one: Reading) -> None:
        path = one.wanted.path
        self._draft.other_nodes[path] = None if one.node is None else node_stat(one.node)
        self._others = [other for other in self._others if other != path]
        room = MOST_OTHER - len(self._others)
        names = self._names(one)
        if len(names) > room:
            self._draft.problem(path, f"only {room} of {len(names)} nodes below it are listed")
        self._others += [f"{path}/{name}" for name in names[:room]]

    def _state(self, one: Reading) -> None:
        if one.node is None:
            self._refused(one)
            return
        topic, _, number, _ = one.wanted.path.rsplit("/", 3)
        tp = TopicPartition(topic.rsplit("/", 1)[-1], int(number))
        try:
            state = node_codecs.decode_partition_state(one.node.data, one.wanted.path)
        except MalformedNodeError as error:
            self._draft.logs[tp] = LogState(problem=error.reason)
            return
        leader = state.leader if state.leader >= 0 else None
        self._draft.logs[tp] = LogState(leader=leader, in_sync=state.isr, problem="its log was not asked for")


def member_node(node: Node, path: str) -> MemberNode:
    """Return a member's registration."""
    try:
        return MemberNode(node_codecs.decode_registration(node.data, path), node_stat(node))
    except (MalformedNodeError, InvalidTopicFilterError) as error:
        return MemberNode(None, node_stat(node), getattr(error, "reason", str(error)))


def owner_node(node: Node, path: str) -> OwnerNode:
    """Return the claim on a partition."""
    try:
        return OwnerNode(node_codecs.decode_owner(node.data, path), node_stat(node))
    except MalformedNodeError as error:
        return OwnerNode("", node_stat(node), error.reason)


def topic_node(node: Node, path: str) -> TopicNode:
    """Return a topic."""
    try:
        return TopicNode(node_codecs.decode_topic(node.data, path), node.ctime)
    except MalformedNodeError as error:
        return TopicNode((), node.ctime, error.reason)
