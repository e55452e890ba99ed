"""Reading from the follower in our rack (KIP-392) beside two real brokers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.cluster.conftest import TICK_MS, produce_to, unique
from tests.cluster.in_process import Reader, client_of, connectors
from tests.internals import member_of
from tests.timing import eventually
from zkconsumer import TopicPartition
from zkconsumer.devcluster import EmbeddedKafka, EmbeddedZooKeeper
from zkconsumer.fetch import replica_choice
from zkconsumer.zookeeper.cluster_admin import Admin

SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


@pytest.fixture(scope="module")
def two_racks() -> Iterator[tuple[str, tuple[EmbeddedKafka, ...]]]:
    """The address of a ZooKeeper, and brokers 0 and 1 in the racks a and b."""
    with ExitStack() as stack:
        zookeeper = stack.enter_context(EmbeddedZooKeeper(tick_ms=TICK_MS))
        properties = {"replica.selector.class": SELECTOR, "replica.lag.time.max.ms": 2000}
        brokers = tuple(
            stack.enter_context(
                EmbeddedKafka(zookeeper.connect, number, properties={**properties, "broker.rack": rack}, keep=True)
            )
            for number, rack in enumerate("ab")
        )
        yield zookeeper.connect, brokers


def test_a_follower_is_read_dies_and_comes_back(
    two_racks: tuple[str, tuple[EmbeddedKafka, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_choice, "LEADER_STAYS", 1.0)
    zookeeper, (leader, follower) = two_racks
    topic = unique("racks")
    place, bootstrap = TopicPartition(topic, 0), f"{leader.address},{follower.address}"
    with Admin(zookeeper) as admin:
        admin.create_topic(topic, assignment={0: [0, 1]})
    with connectors({"zookeeper.connect": zookeeper}) as join:
        member = join({"group.id": unique("group")}, client_rack="b", auto_offset_reset="smallest")
        reader = Reader(member.create_message_streams({topic: 1})[topic][0])
        eventually(lambda: member.state.followers == {place: 1}, 30, lambda: f"the follower: {member.state}")
        produce_to(bootstrap, topic, map(str, range(1000)))
        reader.wait_for(1000)
        follower.kill()
        produce_to(bootstrap, topic, map(str, range(1000, 2000)), acks=1)
        reader.wait_for(2000)
        assert member.state.followers == {}
        follower.start()
        eventually(lambda: member.state.followers == {place: 1}, 60, lambda: f"the follower again: {member.state}")
        produce_to(bootstrap, topic, map(str, range(2000, 3000)), acks="all")
        assert [int(one.value or b"") for one in reader.wait_for(3000)] == list(range(3000))


def test_a_member_without_a_rack_leaves_a_former_leader(two_racks: tuple[str, tuple[EmbeddedKafka, ...]]) -> None:
    """The former leader goes on as a follower, and no message of the new leader's epoch comes."""
    zookeeper, brokers = two_racks
    topic = unique("moved")
    place = {"topic": topic, "partition": 0}
    with Admin(zookeeper) as admin:
        admin.create_topic(topic, assignment={0: [0, 1]})
    with connectors({"zookeeper.connect": zookeeper}) as join, client_of(zookeeper) as client:

        def ask_controller(task: str, **of_partition: object) -> None:
            client.create(f"/admin/{task}", json.dumps({"version": 1, "partitions": [place | of_partition]}).encode())
            eventually(lambda: client.exists(f"/admin/{task}") is None, 30, task)

        def fetched_from() -> list[int]:
            return [fetcher.endpoint.broker_id for fetcher in member_of(member).parts.fetching.fetchers.running]

        member = join({"group.id": unique("group")}, auto_offset_reset="smallest")
        reader = Reader(member.create_message_streams({topic: 1})[topic][0])
        eventually(lambda: fetched_from() == [0], 30, "the leader")
        ask_controller("reassign_partitions", replicas=[1, 0])
        ask_controller("preferred_replica_election")
        eventually(lambda: fetched_from() == [1], 30, "the new leader")
        produce_to(",".join(broker.address for broker in brokers), topic, map(str, range(10)))
        assert len(reader.wait_for(10)) == 10
