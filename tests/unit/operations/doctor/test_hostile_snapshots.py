"""The checks on snapshots with anything in them: they answer, whatever stands in the nodes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.group_snapshots import NOW
from tests.unit.operations.doctor.cases import CHROOTS, healthy
from zkconsumer.core.registration import Registration
from zkconsumer.model import ConsumerId, TopicPartition
from zkconsumer.operations.doctor import CHECKS, examine
from zkconsumer.operations.group_snapshot import (
    AckNode,
    BrokerNode,
    FailingMessage,
    KafkaOffset,
    LoanNode,
    MemberNode,
    NodeStat,
    NoteSummary,
    OffsetNode,
    OwnerNode,
    PartitionLog,
    PointedMessage,
    PointersNode,
    Problem,
    TopicNode,
    ZooKeeperServer,
)

NAMES = st.sampled_from(
    ["g_a", "t", "", "-", "g_a-0", "\x1b[2J", "a b'c", "\u202e", "e\udc80", "-1", "x" * 300, "$(id)"]
)
LONG = st.sampled_from([0, 1, -1, 2, 77, NOW, (1 << 63) - 1, -(1 << 63)])
STATS = st.none() | st.builds(
    NodeStat, LONG, LONG, LONG, LONG, version=LONG, cversion=LONG, pzxid=LONG, ephemeral_owner=LONG, length=LONG
)
PARTITIONS = st.builds(TopicPartition, NAMES, st.integers(0, 4))
EXTRA = st.dictionaries(st.sampled_from(["strategy", "zkconsumer", "host", "pid", "coordination"]), NAMES | LONG)
REGISTRATIONS = st.none() | st.builds(
    Registration,
    st.sampled_from(["static", "white_list", "black_list", "\x00"]),
    st.dictionaries(NAMES, st.integers(1, 3), max_size=3),
    NAMES | LONG.map(str),
    extra=EXTRA,
)
OFFSETS = st.none() | LONG
NOTES = st.builds(
    NoteSummary, LONG, LONG, LONG, LONG, st.lists(st.builds(FailingMessage, LONG, LONG, LONG), max_size=2).map(tuple)
)
POINTED = st.lists(st.builds(PointedMessage, LONG, st.booleans(), LONG, LONG, LONG, NAMES), max_size=3).map(tuple)
PARTS: dict[str, st.SearchStrategy[Any]] = {
    "members": st.dictionaries(NAMES.map(ConsumerId), st.builds(MemberNode, REGISTRATIONS, STATS, NAMES), max_size=4),
    "owners": st.dictionaries(PARTITIONS, st.builds(OwnerNode, NAMES, STATS, NAMES), max_size=4),
    "offsets": st.dictionaries(PARTITIONS, st.builds(OffsetNode, OFFSETS, STATS, NAMES), max_size=4),
    "kafka_offsets": st.none() | st.dictionaries(PARTITIONS, st.builds(KafkaOffset, OFFSETS), max_size=3),
    "acks": st.dictionaries(PARTITIONS, st.builds(AckNode, st.none() | NOTES, STATS, NAMES), max_size=3),
    "pointers": st.dictionaries(
        PARTITIONS, st.builds(PointersNode, OFFSETS, OFFSETS, POINTED, STATS, LONG, NAMES), max_size=3
    ),
    "loans": st.dictionaries(
        PARTITIONS,
        st.dictionaries(NAMES.map(ConsumerId), st.builds(LoanNode, OFFSETS, OFFSETS, OFFSETS, STATS), max_size=2),
        max_size=3,
    ),
    "topics": st.dictionaries(NAMES, st.builds(TopicNode, st.just((0, 1, 3)), OFFSETS, NAMES), max_size=3),
    "logs": st.dictionaries(PARTITIONS, st.builds(PartitionLog, OFFSETS, OFFSETS, OFFSETS), max_size=3),
    "brokers": st.dictionaries(st.integers(0, 3), st.builds(BrokerNode, NAMES, LONG), max_size=2),
    "servers": st.lists(st.builds(ZooKeeperServer, NAMES, tick_time=OFFSETS), max_size=2).map(tuple),
    "acls": st.dictionaries(NAMES, NAMES, max_size=3),
    "other_nodes": st.dictionaries(NAMES, STATS, max_size=3),
    "problems": st.lists(st.builds(Problem, NAMES, NAMES), max_size=3).map(tuple),
    "ids_node": STATS,
    "group_node": STATS,
    "zookeeper": NAMES,
}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.fixed_dictionaries({}, optional=PARTS), min_size=1, max_size=2), st.none() | EXTRA)
def test_anything_in_the_nodes_gets_an_answer(looks: list[dict[str, Any]], config: Any) -> None:
    texts = None if config is None else {key: str(value) for key, value in config.items()}
    snapshots = [replace(healthy(), **look) for look in looks]

    found = examine(snapshots, texts, chroots=CHROOTS)

    assert all(one.check in {check.name for check in CHECKS} for one in found)
    assert all(one.text for one in found)
    assert len(found) <= 30 * len(CHECKS)
    assert examine(snapshots, texts, chroots=CHROOTS) == found
