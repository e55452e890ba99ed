"""Snapshots with random names: nothing of the old ones is left, and every assignment is the same."""

from __future__ import annotations

import re
from random import Random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.group_snapshots import NOW, group_snapshot, stat
from tests.values import present
from zkconsumer.assignors.assignor import Assignor, Member
from zkconsumer.assignors.scala_assignors import RangeAssignor
from zkconsumer.core.registration import BLACK_LIST, WHITE_LIST, Registration
from zkconsumer.core.subscription import subscribed_topics, thread_ids
from zkconsumer.model import ConsumerId, ThreadId, TopicPartition, utf16_key
from zkconsumer.operations.anonymization import anonymized
from zkconsumer.operations.group_snapshot import (
    AckNode,
    BrokerNode,
    BrokersGroup,
    BrokersMember,
    GroupSnapshot,
    KafkaOffset,
    LoanNode,
    MemberNode,
    NoteSummary,
    PointedMessage,
    PointersNode,
    Problem,
    TopicNode,
)
from zkconsumer.operations.snapshot_file import format_snapshot
from zkconsumer.zookeeper.node_values import ZooKeeperServer

IDS = ("secretgroup_secrethost1-1700000000000-abcdef01", "secretgroup_secrethost10-1700000000001-abcdef02")
SECRETS = (
    *(
        "secretgroup",
        "secrethost1",
        "abcdef0",
        "secrettopic",
        "10.1.2.3",
        "secretclient",
        "secretnote",
        "secretrack",
        "alice",
    ),
    *("secretroot", "zk.example", "broker.example", "secretstate"),
)
SNAPSHOT = group_snapshot(
    group="secretgroup",
    zookeeper="zk.example:2181,10.1.2.3:2181/secretroot/x",
    bootstrap="broker.example:9092",
    members={IDS[0]: {"secrettopic": 1}, IDS[1]: {"secrettopic": 2}},
    extra={
        IDS[0]: {"host": "secrethost1", "address": "10.1.2.3", "strategy": "range", "more": "secretnote", "on": True}
    },
    owners={"secrettopic:0": f"{IDS[0]}-0", "secrettopic:1": f"{IDS[1]}-1", "secrettopic:2": "secretstate"},
    offsets={"secrettopic:0": 5},
    logs={"secrettopic:0": (0, 9), "secrettopic:1": (0, 9), "__consumer_offsets:0": (0, 1)},
    kafka_offsets={TopicPartition("secrettopic", 0): KafkaOffset(3, "secretnote")},
    brokers_group=BrokersGroup(
        "Stable",
        "range",
        coordinator=(1, "broker.example", 9092),
        members=(
            BrokersMember(
                "secretclient-1", "secretclient", "/10.1.2.3", "secrethost1", (TopicPartition("secrettopic", 0),)
            ),
        ),
    ),
    brokers={1: BrokerNode("broker.example", 9092, "secretrack")},
    servers=(ZooKeeperServer("zk.example:2181", sessions={1: ("10.1.2.3:5", 6000)}, problem="zk.example is away"),),
    other_nodes={"/consumers/secretgroup/broadcast/secretgroup_secrethost1": None},
    acls={"/consumers/secretgroup/ids": "world:anyone=cdrwa, sasl:alice=cdrwa, digest:alice=r"},
    acks={TopicPartition("secrettopic", 0): AckNode(NoteSummary(5, 9, 2, 2), stat(), "secretnote")},
    pointers={TopicPartition("secrettopic", 1): PointersNode(1, 0, (PointedMessage(3, reason="secretnote"),), stat())},
    loans={TopicPartition("secrettopic", 0): {ConsumerId("secretgroup_secretclient"): LoanNode(64, 3, 1, stat())}},
    problems=(Problem("/consumers/secretgroup/secretstate", "secrethost1"), Problem("broker 1", "broker.example")),
)


def test_nothing_of_a_name_is_left() -> None:
    (found,) = anonymized([SNAPSHOT])
    text = format_snapshot(found)
    assert [secret for secret in SECRETS if secret in text] == []


def test_figures_and_times_stay() -> None:
    (found,) = anonymized([SNAPSHOT])
    assert found.taken == NOW
    assert sorted(one.offset or 0 for one in found.offsets.values()) == [5]
    assert [one.stat for one in found.members.values()] == [one.stat for one in SNAPSHOT.members.values()]
    assert TopicPartition("__consumer_offsets", 0) in found.logs
    assert [one.note for one in found.acks.values()] == [NoteSummary(5, 9, 2, 2)]
    assert [one.parked for one in found.pointers.values()] == [1]
    assert [list(map(bool, loans)) for loans in found.loans.values()] == [[True]]
    assert found.brokers[1].port == 9092
    registered = present(next(iter(found.members.values())).registration)
    assert registered.extra["strategy"] == "range"
    assert registered.extra["on"] is True
    (acl,) = found.acls.values()
    assert acl.startswith("world:anyone=cdrwa, sasl:name-")


def test_one_name_becomes_one_name_everywhere() -> None:
    first, second = anonymized([SNAPSHOT, group_snapshot(group="secretgroup", members={IDS[1]: {"secrettopic": 1}})])
    assert first.group == second.group
    assert set(second.members) < set(first.members)
    member = list(first.members)[1]
    assert member.startswith(f"{first.group}_host")
    assert member.split("-")[2] == "1700000000001"
    assert [one.thread for one in first.owners.values()][1] == f"{member}-1"
    assert first.brokers_group is not None
    assert first.brokers_group.coordinator is not None
    assert first.brokers_group.coordinator[1] == first.brokers[1].host == first.bootstrap.partition(":")[0]


def test_two_runs_give_other_names() -> None:
    assert anonymized([SNAPSHOT])[0].group != anonymized([SNAPSHOT])[0].group


@pytest.mark.parametrize(
    ("pattern", "expression", "streams"),
    [(WHITE_LIST, "secret.*", 2), (BLACK_LIST, "secret.*", 1), (WHITE_LIST, "x", 1)],
)
def test_an_expression_allows_the_same_topics(pattern: str, expression: str, streams: int) -> None:
    topics = ("other", "secret1", "secret2", "secrets")
    given_one = Registration(pattern, {expression: streams})
    made = group_snapshot(members={}, topics={topic: TopicNode((0,)) for topic in topics})
    made = GroupSnapshot("g", 1, members={ConsumerId("g_h"): MemberNode(given_one, None)}, topics=made.topics)
    (found,) = anonymized([made])
    renamed = dict(zip(topics, sorted(found.topics), strict=True))
    (node,) = found.members.values()
    assert node.registration is not None
    assert "secret" not in str(node.registration)
    wanted = {renamed[topic]: count for topic, count in subscribed_topics(given_one, topics, True).items()}
    assert subscribed_topics(node.registration, tuple(found.topics), True) == wanted


NAMES = st.text(st.sampled_from("aZ09-._"), min_size=1, max_size=4).filter(lambda name: name not in (".", ".."))


def assigned(snapshot: GroupSnapshot, strategy: Assignor) -> dict[TopicPartition, ThreadId]:
    numbers = {name: node.partitions for name, node in snapshot.topics.items()}
    members = {
        consumer: Member(thread_ids(consumer, node.registration, tuple(numbers), True))
        for consumer, node in snapshot.members.items()
        if node.registration is not None
    }
    return dict(strategy.assign(members, numbers))


def ranked(snapshot: GroupSnapshot, strategy: Assignor) -> list[tuple[int, int, int, str]]:
    """The assignment by ranks of names in place of names."""
    topics = sorted(snapshot.topics, key=utf16_key)
    consumers = sorted(snapshot.members, key=lambda name: utf16_key(f"{name}-0"))
    found = []
    for tp, thread in assigned(snapshot, strategy).items():
        consumer, _, number = thread.rpartition("-")
        found.append((topics.index(tp.topic), tp.partition, consumers.index(ConsumerId(consumer)), number))
    return sorted(found)


@settings(max_examples=40, deadline=None)
@given(
    st.dictionaries(NAMES, st.integers(1, 5), min_size=1, max_size=3),
    st.dictionaries(NAMES, st.integers(1, 3), min_size=1, max_size=4),
    st.integers(0, 1000),
    st.booleans(),
)
def test_an_assignment_by_range_stays_the_same(
    topics: dict[str, int], hosts: dict[str, int], seed: int, usual: bool
) -> None:
    assume(not any(re.match(re.escape(one) + "-[0-9]", other) for one in hosts for other in hosts))
    ending = "-1700000000000-0123abcd" if usual else ""
    made = group_snapshot(
        members={f"g_{host}{ending}": dict.fromkeys(topics, streams) for host, streams in hosts.items()},
        topics={topic: TopicNode(tuple(range(count))) for topic, count in topics.items()},
    )
    (found,) = anonymized([made], Random(seed))
    assert ranked(found, RangeAssignor()) == ranked(made, RangeAssignor())


def test_the_lost_order_of_roundrobin_is_a_problem() -> None:
    topics = {f"topic{n}": TopicNode((0, 1)) for n in range(50)}
    for strategy, told in ({}, True), ({"strategy": "roundrobin"}, True), ({"strategy": "range"}, False):
        (found,) = anonymized([group_snapshot(members={"g_a": {"topic1": 1}}, extra={"g_a": strategy}, topics=topics)])
        assert [one.what for one in found.problems] == (["roundrobin"] if told else [])
        renamed = dict(zip(topics, found.topics, strict=True))
        assert [renamed[topic] for topic in sorted(topics)] == sorted(found.topics)
