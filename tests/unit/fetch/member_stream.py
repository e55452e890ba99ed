"""The stream of a member that reads one partition of a cluster in memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.timing import scaled
from zkconsumer import KafkaStream, TopicPartition, ZookeeperConsumerConnector
from zkconsumer.testing import FakeCluster

TP = TopicPartition("t", 0)


Stream = KafkaStream[Any, Any]


@contextmanager
def reading(cluster: FakeCluster, **properties: Any) -> Iterator[tuple[ZookeeperConsumerConnector, Stream]]:
    config = {
        "zookeeper.connect": cluster.zookeeper_connect,
        "group.id": "g",
        "auto.offset.reset": "largest",
        "refresh.leader.backoff.ms": 20,
        "auto.commit.enable": False,
        **{name.replace("_", "."): value for name, value in properties.items()},
    }
    with ZookeeperConsumerConnector(config) as connector:
        yield connector, connector.create_message_streams({"t": 1})["t"][0]


def take(stream: Stream, count: int) -> list[tuple[int, str]]:
    """The next messages, as offset and value."""
    return [
        (message.offset, message.value.decode()) for message in (stream.get(timeout=scaled(10)) for _ in range(count))
    ]


def add(cluster: FakeCluster, values: str) -> None:
    """One batch for each character."""
    for value in values:
        cluster.append("t", 0, [value.encode()])


@contextmanager
def away(cluster: FakeCluster) -> Iterator[None]:
    """Keep fetchers away while the body runs."""
    cluster.stop_broker(0)
    yield
    cluster.start_broker(0)
