"""A group snapshot in the making, which one reader after the other fills. One thread at a time."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from zkconsumer.model import ConsumerId, TopicPartition
from zkconsumer.operations.group_snapshot import (
    AckNode,
    BrokerNode,
    BrokersGroup,
    GroupSnapshot,
    KafkaOffset,
    LoanNode,
    LogState,
    MemberNode,
    NodeStat,
    OffsetNode,
    OwnerNode,
    PlanNode,
    PointersNode,
    Problem,
    TopicNode,
    ZooKeeperServer,
)
from zkconsumer.zookeeper.node_values import Node

MOST_PROBLEMS = 1000
"""The most problems that one snapshot lists."""


def node_stat(node: Node) -> NodeStat:
    """Return a node's stat."""
    return NodeStat(
        *(node.czxid, node.mzxid, node.ctime, node.mtime, node.version, node.cversion, node.pzxid),
        *(node.ephemeral_owner, node.length, node.children),
    )


@dataclass(slots=True)
class SnapshotDraft:
    """The fields of :class:`GroupSnapshot`, to be filled. ``suppressed`` counts problems beyond the limit."""

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
    problems: list[Problem] = field(default_factory=list)
    suppressed: int = 0

    def problem(self, what: str, why: object) -> None:
        """Note something that could not be read."""
        if len(self.problems) < MOST_PROBLEMS:
            self.problems.append(Problem(what, str(why)))
        else:
            self.suppressed += 1

    def wanted_topics(self) -> set[str]:
        """Return the topics of the group so far: subscribed to by name, owned, assigned, or with an offset."""
        found = {tp.topic for tp in (*self.owners, *self.offsets, *(self.kafka_offsets or ()))}
        for member in self.members.values():
            if member.registration is not None and not member.registration.is_wildcard:
                found.update(member.registration.subscription)
        for one in self.brokers_group.members if self.brokers_group is not None else ():
            found.update(one.topics)
            found.update(tp.topic for tp in one.assignment or ())
        return found

    def committed(self) -> dict[TopicPartition, int]:
        """Return the committed offsets that are known, those of ZooKeeper before those of Kafka."""
        found = {tp: one.offset for tp, one in (self.kafka_offsets or {}).items() if one.offset is not None}
        return found | {tp: one.offset for tp, one in self.offsets.items() if one.offset is not None}

    def finished(self) -> GroupSnapshot:
        """Return the snapshot."""
        if self.suppressed:
            self.problems.append(Problem("problems", f"{self.suppressed} more of them are not listed"))
            self.suppressed = 0
        values = {one.name: getattr(self, one.name) for one in fields(GroupSnapshot)}
        return GroupSnapshot(**{**values, "problems": tuple(self.problems)})
