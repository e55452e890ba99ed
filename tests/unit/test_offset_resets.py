"""An idle member whose offsets in Kafka an operator resets, on brokers in memory.

The timer's commit once wrote unchanged offsets again, and so the old one over an operator's reset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.timing import eventually, scaled
from tests.unit.clusters import cluster_with, commit_from_outside
from zkconsumer import KafkaStream, TopicPartition, ZookeeperConsumerConnector
from zkconsumer.errors import ConsumerTimeoutException
from zkconsumer.testing import FakeCluster
from zkconsumer.zookeeper import paths

TP = TopicPartition("t", 0)
MESSAGES, THEIRS = 20, 5
QUICK: dict[str, Any] = {
    "group.id": "g",
    "auto.offset.reset": "smallest",
    "auto.commit.interval.ms": 50,
    "rebalance.interval.ms": 200,
    "fetch.wait.max.ms": 50,
}
KEPT: dict[str, dict[str, Any]] = {
    "kafka": {"offsets.storage": "kafka"},
    "dual": {"offsets.storage": "kafka", "dual.commit.enabled": True},
    "brokers": {"group.coordination": "kafka"},
}

cluster = cluster_with({"t": [[b"%d" % number for number in range(MESSAGES)]], "u": [[]]})


@pytest.fixture(params=KEPT)
def kept(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def make(cluster: FakeCluster, kept: str) -> Iterator[Callable[..., ZookeeperConsumerConnector]]:
    made: list[ZookeeperConsumerConnector] = []

    def one(**properties: Any) -> ZookeeperConsumerConnector:
        place = {"zookeeper.connect": cluster.zookeeper_connect}
        if kept == "brokers":
            place = {"bootstrap.servers": cluster.bootstrap_servers}
        given = {name.replace("_", "."): value for name, value in properties.items()}
        made.append(ZookeeperConsumerConnector({**QUICK, **place, **KEPT[kept], **given}))
        return made[-1]

    yield one
    for connector in made:
        connector.shutdown()


def in_kafka(cluster: FakeCluster) -> int | None:
    return cluster.committed("g").get(("t", 0))


def in_zookeeper(cluster: FakeCluster) -> int | None:
    node = cluster.zookeeper.node(paths.offset("g", TP))
    return None if node is None else int(node.data)


def nothing_comes(stream: KafkaStream[Any, Any]) -> None:
    with pytest.raises(ConsumerTimeoutException):
        stream.get(timeout=0)


def read_all(stream: KafkaStream[Any, Any]) -> None:
    """Read to the end, so that the last message is finished."""
    while stream.get(timeout=scaled(10)).offset < MESSAGES - 1:
        pass
    nothing_comes(stream)


class Idle:
    """A member that has read and committed all of ``t``, and reads another topic as well."""

    def __init__(self, connector: ZookeeperConsumerConnector, cluster: FakeCluster) -> None:
        self._cluster = cluster
        streams = connector.create_message_streams({"t": 1, "u": 1})
        self.stream, self._other = streams["t"][0], streams["u"][0]
        read_all(self.stream)
        eventually(lambda: in_kafka(cluster) == MESSAGES, 10, "the commit of all")

    def reset(self) -> None:
        """Somebody resets ``t``; then something of the other topic is finished, so that the timer's commit is due."""
        commit_from_outside(self._cluster, {TP: THEIRS})
        self._cluster.append("u", 0, [b"x"])
        self._other.get(timeout=scaled(10))
        nothing_comes(self._other)


def test_a_reset_of_an_idle_partition_is_adopted(
    cluster: FakeCluster, make: Callable[..., ZookeeperConsumerConnector], kept: str
) -> None:
    """The messages come again that the operator wanted to be read again."""
    member = Idle(make(), cluster)
    member.reset()
    assert (member.stream.get(timeout=scaled(10)).offset, in_kafka(cluster)) == (THEIRS, THEIRS)
    if kept == "dual":
        eventually(lambda: in_zookeeper(cluster) == THEIRS, 10, "the node")
