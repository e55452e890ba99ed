"""A live member on a real cluster: its lag and metrics, and changed subscriptions beside Scala."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kazoo.client import KazooClient

from tests.cluster.conftest import NewTopic, owners_of
from tests.cluster.in_process import Reader, by_range
from tests.cluster.legacy_member import LegacyMember
from tests.timing import eventually, scaled
from zkconsumer import ConsumerTimeoutException, TopicPartition, ZookeeperConsumerConnector
from zkconsumer.devcluster import DevCluster

Make = Callable[..., ZookeeperConsumerConnector]
Produce = Callable[..., int]
NewGroup = Callable[[], str]


def test_lag_leaves_out_what_an_open_transaction_holds_back(
    connector: Make, new_topic: NewTopic, new_group: NewGroup, cluster: DevCluster
) -> None:
    """After a seek as well, where the fetch session reports the log's end without an answer for the partition."""
    from confluent_kafka import Producer

    topic = new_topic(1)
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": topic, "log_level": 0})
    producer.init_transactions(scaled(30))
    producer.begin_transaction()
    for _ in range(3):
        producer.produce(topic, b"x", partition=0)
    assert producer.flush(scaled(20)) == 0
    where = TopicPartition(topic, 0)
    members = {
        level: connector(new_group(), **{"isolation.level": level}) for level in ("read_uncommitted", "read_committed")
    }
    for member in members.values():
        member.create_message_streams({topic: 1})
    eventually(lambda: members["read_uncommitted"].lag() == {where: 3}, 20, "the lag of everything")
    eventually(lambda: members["read_committed"].lag() == {where: 0}, 20, "no lag")
    members["read_committed"].seek(where, 0)
    eventually(lambda: members["read_committed"].lag() == {where: 0}, 20, "no lag after a seek")
    producer.abort_transaction(scaled(20))


def test_a_live_member_changes_topics_and_the_original_sees_it(
    connector: Make,
    new_topic: NewTopic,
    new_group: NewGroup,
    produce: Produce,
    zookeeper: KazooClient,
    legacy_member: Callable[..., LegacyMember],
) -> None:
    """A live member adds and removes topics, and the original sees it."""
    first, second, group = new_topic(4), new_topic(4), new_group()
    produce(first, [str(n) for n in range(8)], partitions=4)
    produce(second, [str(n) for n in range(8)], partitions=4)
    ours = connector(group, consumer_id="ours")
    scala = legacy_member("1.1.1", group, {first: 1, second: 1}, properties={"consumer.id": "scala"})
    one = Reader(ours.create_message_streams({first: 1})[first][0])
    scala.wait_ready()
    mine, theirs = f"{group}_ours-0", f"{group}_scala-0"
    shared = by_range([mine, theirs], range(4))
    eventually(lambda: owners_of(zookeeper, group, first) == shared, 40, "the first topic shared")
    eventually(lambda: set(owners_of(zookeeper, group, second).values()) == {theirs}, 40, "the second is Scala's")

    two = Reader(ours.add_topics({second: 1})[second][0])
    eventually(lambda: owners_of(zookeeper, group, second) == shared, 40, "Scala gives up its half of the second")
    produce(second, [str(n) for n in range(8)], partitions=4)
    mine_of_second = {n for n, owner in shared.items() if owner == mine}
    eventually(lambda: {p for p, _ in two.places} == mine_of_second, 20, "and ours reads it")

    ours.unsubscribe([first])
    one.join()
    assert {tp.topic for tp in ours.assignment()} == {second}
    all_theirs = dict.fromkeys(range(4), theirs)
    eventually(lambda: owners_of(zookeeper, group, first) == all_theirs, 40, "Scala takes all of the first")
    ours.shutdown()
    two.join()


def test_metrics_have_the_names_of_the_original(
    connector: Make, new_topic: NewTopic, new_group: NewGroup, produce: Produce
) -> None:
    """Metrics have the names of the original and show the events."""
    topic, group = new_topic(2), new_group()
    produce(topic, ["x" * 100] * 20, partitions=2)
    member = connector(group, auto_commit_enable="false")
    assert member.metrics() == {}
    stream = member.create_message_streams({topic: 1})[topic][0]
    for _ in range(20):
        stream.get(timeout=scaled(20))
    with pytest.raises(ConsumerTimeoutException):
        stream.get(timeout=0)
    member.commit_offsets()
    eventually(lambda: set(member.lag().values()) == {0}, 10, "all read")
    found: dict[str, Any] = {str(name): value for name, value in member.metrics().items()}
    client = f"clientId={group}"
    consumer = "kafka.consumer:type="
    assert found[f"{consumer}ZookeeperConsumerConnector,name=OwnedPartitionsCount,{client},groupId={group}"] == 2
    assert found[f"{consumer}ZookeeperConsumerConnector,name=FetchQueueSize,{client},topic={topic},threadId=0"] == 0
    assert found[f"{consumer}ZookeeperConsumerConnector,name=RebalanceRateAndTime,{client}"].rate.count >= 1
    commits = found[f"{consumer}ZookeeperConsumerConnector,name=ZooKeeperCommitsPerSec,{client}"]
    assert commits.count == 4, "two starts that were resolved, two commits"
    for tags in (client, f"{client},topic={topic}"):
        assert found[f"{consumer}ConsumerTopicMetrics,name=MessagesPerSec,{tags}"].count == 20
        assert found[f"{consumer}ConsumerTopicMetrics,name=BytesPerSec,{tags}"].count > 2000
    assert found[f"{consumer}ConsumerFetcherManager,name=MaxLag,{client}"] == 0
    assert f"{consumer}ConsumerFetcherManager,name=MinFetchRate,{client}" in found
    assert found[f"kafka.server:type=FetcherLagMetrics,name=ConsumerLag,{client},topic={topic},partition=1"] == 0
    times = found[f"{consumer}FetchRequestAndResponseMetrics,name=FetchRequestRateAndTimeMs,{client}"]
    assert times.rate.count >= 1
    assert times.duration.max > 0
    missing = "not-yet-there"
    member.add_topics({missing: 1})
    assert f"waiting for topic {missing}" in str(member.state)
    member.shutdown()
    after = {str(name): value for name, value in member.metrics().items()}
    assert after[f"{consumer}ZookeeperConsumerConnector,name=OwnedPartitionsCount,{client},groupId={group}"] == 0
