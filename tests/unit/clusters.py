"""Fixtures of a cluster in memory and of connectors on it, and what the connectors have stored."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import pytest

from tests.timing import scaled
from zkconsumer import ZookeeperConsumerConnector
from zkconsumer.kafka import BrokerChannel
from zkconsumer.kafka.group_channel import GroupChannel, Membership
from zkconsumer.model import Endpoint, TopicPartition
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.testing import FakeCluster

Join = Callable[..., ZookeeperConsumerConnector]
"""Makes a connector with these properties."""


def cluster_with(topics: Mapping[str, Sequence[Sequence[bytes]]], *, brokers: int = 1, zookeeper: bool = True) -> Any:
    """Return a fixture: a cluster in memory with these topics. Each partition of a topic is a list of values."""

    @pytest.fixture
    def cluster() -> Iterator[FakeCluster]:
        with FakeCluster(brokers=brokers, zookeeper=zookeeper) as made:
            for topic, partitions in topics.items():
                made.create_topic(topic, len(partitions))
                for number, values in enumerate(partitions):
                    if values:
                        made.append(topic, number, values)
            yield made

    return cluster


def connectors_with(properties: Mapping[str, Any] = MappingProxyType({})) -> Any:
    """Return a fixture: a function that makes connectors of the group ``g`` on the fixture ``cluster``.

    It takes further properties. All its connectors are shut down at the end.
    """

    @pytest.fixture
    def join(cluster: FakeCluster) -> Iterator[Join]:
        made: list[ZookeeperConsumerConnector] = []

        def make(**more: Any) -> ZookeeperConsumerConnector:
            base = {"zookeeper.connect": cluster.zookeeper_connect, "group.id": "g", "auto.offset.reset": "smallest"}
            made.append(ZookeeperConsumerConnector({**base, **properties, **more}))
            return made[-1]

        yield make
        for one in made:
            one.shutdown()

    return join


def committed(cluster: FakeCluster, topic: str = "events", group: str = "g") -> list[int]:
    """Return the offset of each partition of a topic in ZooKeeper; -1 where there is none."""
    nodes = cluster.zookeeper.tree(f"/consumers/{group}/offsets/{topic}")
    return [
        int(nodes.get(f"/consumers/{group}/offsets/{topic}/{number}", b"-1"))
        for number in range(len(cluster.logs(topic) or ()))
    ]


def whole(*ends: int) -> list[tuple[int, int]]:
    """Return the place of each message up to these ends of the partitions 0, 1 and so on."""
    return [(partition, offset) for partition, end in enumerate(ends) for offset in range(end)]


def commit_from_outside(cluster: FakeCluster, offsets: Mapping[TopicPartition, int], group: str = "g") -> None:
    """Write offsets to Kafka as a tool does, or as a member does if the group has members."""
    view = cluster.group(group)
    who = Membership(group, view.generation, next(iter(view.members))) if view.members else Membership(group)
    channel = GroupChannel(
        BrokerChannel(Endpoint(*cluster.addresses()[0]), client_id="test", socket_timeout=scaled(5.0))
    )
    channel.connect(Deadline(scaled(5.0)))
    assert channel.commit(who, offsets, Deadline(scaled(5.0))) == dict.fromkeys(offsets, 0)
    channel.close()
