"""Which offsets of a group are dead."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests import group_snapshots
from tests.group_snapshots import partition, stat
from zkconsumer.core.offset_move_plan import Store
from zkconsumer.operations.group_deletion import DeadReason, plan_prune
from zkconsumer.operations.group_snapshot import BrokerNode, GroupSnapshot, KafkaOffset, MemberNode, Problem, TopicNode

LOGS = {"t:0": (0, 9), "u:0": (0, 9)}
OFFSETS = {"t:0": 1, "t:5": 2, "gone:0": 3, "u:0": 4}
DEAD = {"t-5": DeadReason.NO_PARTITION, "gone-0": DeadReason.NO_TOPIC}


def group_snapshot(*nodes: Any, **more: Any) -> GroupSnapshot:
    return group_snapshots.group_snapshot(*nodes, **{"brokers": {0: BrokerNode("h", 9092)}, **more})


def dead(snapshot: GroupSnapshot) -> dict[str, DeadReason]:
    plan = plan_prune(snapshot)
    assert not plan.errors, plan.errors
    return {str(one.partition): one.reason for one in plan.dead}


def test_offsets_of_missing_topics_and_partitions_are_dead() -> None:
    assert dead(group_snapshot(offsets=OFFSETS, logs=LOGS)) == DEAD


def test_without_members_nothing_is_taken_as_unsubscribed() -> None:
    """All members may be stopped for a moment."""
    assert "u-0" not in dead(group_snapshot(offsets=OFFSETS, logs=LOGS))


def test_a_topic_that_no_registration_wants_is_dead() -> None:
    found = group_snapshot({"g_a": {"t": 1}}, offsets=OFFSETS, logs=LOGS)
    assert dead(found) == {**DEAD, "u-0": DeadReason.UNSUBSCRIBED}
    owned = group_snapshot({"g_a": {"t": 1}}, {"u:0": "g_x-0"}, offsets=OFFSETS, logs=LOGS)
    assert dead(owned) == DEAD


def test_an_unreadable_registration_may_want_any_topic() -> None:
    found = group_snapshot({"g_a": {"t": 1}, "g_b": {"t": 1}}, offsets=OFFSETS, logs=LOGS)
    names = list(found.members)
    members = {**found.members, names[1]: MemberNode(None, stat(), "no JSON")}
    assert dead(replace(found, members=members)) == DEAD
    assert "g_b" in plan_prune(replace(found, members=members)).notes[0]


def test_a_topic_that_cannot_be_read_keeps_its_offsets() -> None:
    found = group_snapshot(offsets=OFFSETS, logs=LOGS)
    odd = {**found.topics, "gone": TopicNode((), problem="malformed"), "t": TopicNode(())}
    assert dead(replace(found, topics=odd)) == {}
    for what in ("/brokers/topics", "topic 'gone'", "ZooKeeper h:1", "brokers"):
        assert plan_prune(replace(found, problems=(Problem(what, "no answer"),))).errors


def test_offsets_in_kafka_are_judged_alike() -> None:
    kafka = {partition(text): KafkaOffset(offset) for text, offset in OFFSETS.items()}
    found = replace(group_snapshot(logs=LOGS), kafka_offsets=kafka)
    assert {str(one.partition) for one in plan_prune(found, [Store.KAFKA]).dead} == DEAD.keys()
    assert plan_prune(found, [Store.ZOOKEEPER]).dead == ()


def test_nothing_is_dead_where_no_broker_is_registered() -> None:
    """A wrong chroot has no topics at all."""
    plan = plan_prune(group_snapshot(offsets=OFFSETS, logs=LOGS, brokers={}))
    assert plan.dead == ()
    assert "chroot" in plan.errors[0]
