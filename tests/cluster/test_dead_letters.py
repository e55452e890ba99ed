"""Parked messages and dead letters on a real ZooKeeper and a real broker."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer
from confluent_kafka import TopicPartition as Place
from kazoo.client import KazooClient

from tests.cluster.conftest import NewTopic, produce_to
from tests.timing import eventually, scaled
from zkconsumer import DeadLetterTopic, Reject, Retry, ZookeeperConsumerConnector
from zkconsumer.core.message_pointers import Pointer, decode_pointers
from zkconsumer.devcluster import DevCluster
from zkconsumer.fetch.broker_fetch import FetchSettings
from zkconsumer.fetch.message_lookup import MessageLookup
from zkconsumer.model import EARLIEST, Endpoint, TopicPartition
from zkconsumer.runtime.deadline import Deadline

MESSAGES = 60
Connect = Callable[..., ZookeeperConsumerConnector]


class HandledGroup:
    """One group that reads one topic."""

    def __init__(self, zookeeper: KazooClient, group: str, topic: str) -> None:
        self._zookeeper = zookeeper
        self.name = group
        self.topic = topic
        self.handled: list[tuple[int, int]] = []
        self.decide: Callable[[Any], object] = lambda _: None

    def handler(self, message: Any) -> object:
        self.handled.append((message.offset, message.attempt))
        return self.decide(message)

    @contextmanager
    def running(self, connector: Connect, retry: Retry, **options: Any) -> Iterator[ZookeeperConsumerConnector]:
        made = connector(self.name, auto_commit_interval_ms=200)
        thread = threading.Thread(
            target=lambda: made.run(self.handler, self.topic, concurrency=8, retry=retry, failure_limit=None, **options)
        )
        thread.start()
        try:
            yield made
        finally:
            made.shutdown()
            thread.join(scaled(30))
            assert not thread.is_alive()

    def _read(self, kind: str, partition: int) -> bytes:
        path = f"/consumers/{self.name}/{kind}/{self.topic}/{partition}"
        return bytes(self._zookeeper.get(path)[0]) if self._zookeeper.exists(path) else b""

    def committed(self, partition: int = 0) -> int:
        return int(self._read("offsets", partition) or -1)

    def pointers(self, partition: int = 0) -> dict[int, Pointer]:
        return decode_pointers(self._read("parked", partition))


@pytest.fixture
def topic(cluster: DevCluster, new_topic: NewTopic) -> str:
    """One partition with compressed batches of messages, the keys of which are a, b and c in turn."""
    name = new_topic(1)
    values = [f"message {n}" for n in range(MESSAGES)]
    produce_to(
        cluster.bootstrap_servers,
        name,
        values,
        partitions=1,
        key=lambda n: "abc"[n % 3],
        compression_type="zstd",
        linger_ms=200,
    )
    return name


@pytest.fixture
def group(zookeeper: KazooClient, new_group: Callable[[], str], topic: str) -> HandledGroup:
    return HandledGroup(zookeeper, new_group(), topic)


def test_parked_message_is_read_from_its_compressed_batch(group: HandledGroup, connector: Connect) -> None:
    def fail_twice(message: Any) -> None:
        if message.offset == 10 and message.attempt < 3:
            raise TimeoutError("the server is away")

    group.decide = fail_twice
    with group.running(connector, Retry(delays=[0.3], jitter=0, park_after=1)):
        eventually(lambda: group.committed() == MESSAGES and not group.pointers(), 60, "all messages")
    assert [attempt for offset, attempt in group.handled if offset == 10] == [1, 2, 3]
    of_key = [offset for offset, attempt in group.handled if offset % 3 == 1 and (offset != 10 or attempt == 3)]
    assert of_key == list(range(1, MESSAGES, 3))


def consumed(cluster: DevCluster, topic: str, partition: int) -> Any:
    """Return the first message of a partition."""
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": "unused", "log_level": 0})
    consumer.assign([Place(topic, partition, OFFSET_BEGINNING)])
    message = consumer.poll(scaled(30))
    consumer.close()
    assert message is not None
    assert message.error() is None
    return message


def test_dead_letters_reach_a_topic(
    group: HandledGroup, connector: Connect, cluster: DevCluster, new_topic: NewTopic
) -> None:
    letters = new_topic(2)
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    # to a topic that its broker does not name yet, the producer would write by the key, and not by the partition
    eventually(lambda: letters in producer.list_topics(timeout=10).topics, 60, "the topic of dead letters")
    group.decide = lambda message: Reject("no such account") if message.offset == 10 else None
    with group.running(connector, Retry(), dead_letter=DeadLetterTopic(producer, letters)):
        eventually(lambda: group.committed() == MESSAGES, 60, "the base")
    assert group.pointers() == {}
    message = consumed(cluster, letters, 0)
    assert (message.key(), message.value()) == (b"b", b"message 10")
    assert dict(message.headers()) == {
        "__dlq.errors.topic": group.topic.encode(),
        "__dlq.errors.partition": b"0",
        "__dlq.errors.offset": b"10",
        "__dlq.errors.group": group.name.encode(),
        "__dlq.errors.delivery.count": b"1",
        "__dlq.errors.message": b"no such account",
    }


def test_unacknowledged_dead_letter_stops_the_partition(
    group: HandledGroup, connector: Connect, cluster: DevCluster, new_topic: NewTopic
) -> None:
    """With ``acks=0`` the producer says that all is well, whether or not the broker got anything."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": 0, "log_level": 0})
    group.decide = lambda message: Reject("no") if message.offset == 10 else None
    target = DeadLetterTopic(producer, new_topic(1), timeout=scaled(5))
    with group.running(connector, Retry(), dead_letter=target) as made:
        eventually(lambda: "acks=0" in str(made.state), 60, lambda: f"the stop, not {made.state}")
        eventually(lambda: group.committed() == 10, 60, lambda: f"the base to hold, not at {group.committed()}")


def test_broker_tells_the_retention_of_a_topic(cluster: DevCluster, new_topic: NewTopic) -> None:
    host, port = cluster.bootstrap_servers.split(":")
    settings = FetchSettings("test", 0.1, 1, 1 << 20, 1 << 20, EARLIEST, scaled(10), 65536, 0.1)
    lookup = MessageLookup(settings, lambda _: [Endpoint(0, host, int(port))])
    for config, milliseconds in (({"retention.ms": "7200000"}, 7_200_000), ({"cleanup.policy": "compact"}, None)):
        tp = TopicPartition(new_topic(1, config=config), 0)
        produce_to(cluster.bootstrap_servers, tp.topic, ["x"], key=lambda _: "k", partitions=1)
        assert lookup.retention(tp, Deadline(scaled(20))) == (0, milliseconds)
    lookup.close()
