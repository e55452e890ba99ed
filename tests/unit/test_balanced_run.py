"""``run`` with ``concurrency`` on a cluster in memory: order, retries, ends, and what is committed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.timing import scaled
from zkconsumer import ConsumerTimeoutException, ZookeeperConsumerConnector
from zkconsumer.testing import FakeCluster

PARTITIONS = 3
EACH = 40
Join = Callable[..., ZookeeperConsumerConnector]


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(zookeeper=True) as made:
        made.create_topic("events", PARTITIONS)
        for partition in range(PARTITIONS):
            made.append("events", partition, [b"%d" % number for number in range(EACH)])
        yield made


@pytest.fixture
def join(cluster: FakeCluster) -> Iterator[Join]:
    made: list[ZookeeperConsumerConnector] = []

    def make(**properties: Any) -> ZookeeperConsumerConnector:
        base = {
            "zookeeper.connect": cluster.zookeeper_connect,
            "group.id": "g",
            "auto.offset.reset": "smallest",
            "consumer.timeout.ms": int(scaled(0.4) * 1000),
            "auto.commit.interval.ms": 60_000,
        }
        made.append(ZookeeperConsumerConnector(base | properties))
        return made[-1]

    yield make
    for one in made:
        one.shutdown()


def committed(cluster: FakeCluster) -> list[int]:
    tree = cluster.zookeeper.tree("/consumers/g/offsets/events")
    return [int(tree[f"/consumers/g/offsets/events/{partition}"]) for partition in range(PARTITIONS)]


def threads_left() -> list[str]:
    return [thread.name for thread in threading.enumerate() if "-worker-" in thread.name or "-reader" in thread.name]


@pytest.mark.parametrize("order", ["key", "partition", "none"])
def test_every_message_is_handled_and_committed(cluster: FakeCluster, join: Join, order: Any) -> None:
    connector, taken = join(), list[tuple[int, int]]()
    with pytest.raises(ConsumerTimeoutException):
        connector.run(lambda m: taken.append((m.partition, m.offset)), "events", concurrency=8, order=order)
    connector.shutdown()
    assert sorted(taken) == [(partition, offset) for partition in range(PARTITIONS) for offset in range(EACH)]
    assert committed(cluster) == [EACH] * PARTITIONS
    assert threads_left() == []
