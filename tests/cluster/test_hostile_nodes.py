"""Garbage in the nodes of a real ZooKeeper: it affects only the partition or member of the node.

Members use the test's own chroot, with copies of the nodes of the real broker and topics. So the real controller never
reads the garbage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kazoo.client import KazooClient

from tests.cluster.chroot import Chroot
from tests.cluster.conftest import NewTopic, unique
from tests.cluster.in_process import Reader, connectors
from tests.timing import eventually
from zkconsumer import ZookeeperConsumerConnector
from zkconsumer.devcluster import DevCluster

PARTITIONS, EACH = 4, 5
LARGE = b"[" * 900_000
GARBAGE = [b"", b"\xff\xfe\x00", b"{", b"null", b"[1]", b"12a", b" 3", b"9" * 40, b'{"version":"x"}', LARGE]


@pytest.fixture
def chroot(cluster: DevCluster, zookeeper: KazooClient) -> Chroot:
    return Chroot(zookeeper, cluster.zookeeper_connect)


@pytest.fixture
def topic(chroot: Chroot, new_topic: NewTopic, produce: Callable[..., int]) -> str:
    name = new_topic(PARTITIONS, prefix="hostile")
    produce(name, [b"%d" % (n // PARTITIONS) for n in range(PARTITIONS * EACH)], partitions=PARTITIONS)
    chroot.copy(f"/brokers/topics/{name}")
    return name


Join = Callable[..., tuple[ZookeeperConsumerConnector, Reader]]


@pytest.fixture
def join(chroot: Chroot) -> Iterator[Join]:
    """Make members that read: ``join(group, topic, **properties)``; all leave with the test."""
    with connectors({"zookeeper.connect": chroot.connect}) as connect:

        def make(group: str, topic: str, **properties: Any) -> tuple[ZookeeperConsumerConnector, Reader]:
            made = connect({"group.id": group}, **properties)
            return made, Reader(made.create_message_streams({topic: 1})[topic][0])

        yield make


def places(*partitions: int, start: int = 0, end: int = EACH) -> list[tuple[int, int]]:
    return [(p, n) for p in partitions for n in range(start, end)]


def test_unreadable_brokers_are_left_out(chroot: Chroot, topic: str, produce: Callable[..., int], join: Join) -> None:
    """Other members' registrations are garbage. Then the only readable one becomes garbage for a while."""
    for number, data in enumerate(GARBAGE):
        chroot.put(f"/brokers/ids/{77 + number}", data)
    for name in ("-1", "x", "9" * 30, "007"):
        chroot.put(f"/brokers/ids/{name}", b"{}")
    group = unique("group")
    connector, reader = join(group, topic)
    total = PARTITIONS * EACH
    reader.wait_for(total)
    for data in GARBAGE:
        chroot.put("/brokers/ids/0", data)
        produce(topic, [b"more"] * PARTITIONS, partitions=PARTITIONS)
    chroot.copy("/brokers/ids/0")
    reader.wait_for(total + len(GARBAGE) * PARTITIONS)
    connector.shutdown()
    reader.join()
    end = EACH + len(GARBAGE)
    assert sorted(reader.places) == sorted(places(*range(PARTITIONS), end=end))
    assert chroot.offsets(group, topic) == dict.fromkeys(range(PARTITIONS), end)


def test_an_unreadable_topic_is_waited_for(chroot: Chroot, topic: str, produce: Callable[..., int], join: Join) -> None:
    """At the start and during reading, no message is lost or repeated."""
    group = unique("group")
    chroot.put(f"/brokers/topics/{topic}", b"\xff\xfe")
    connector, reader = join(group, topic)
    eventually(lambda: topic in str(connector.state), 10, "the topic named in the state")
    chroot.copy(f"/brokers/topics/{topic}")
    total = PARTITIONS * EACH
    reader.wait_for(total)
    for number, data in enumerate(GARBAGE):
        chroot.put(f"/brokers/topics/{topic}", data)
        produce(topic, [b"more"] * PARTITIONS, partitions=PARTITIONS)
        if number % 3 == 2:
            chroot.copy(f"/brokers/topics/{topic}")
            reader.wait_for(total + (number + 1) * PARTITIONS)
    chroot.copy(f"/brokers/topics/{topic}")
    reader.wait_for(total + len(GARBAGE) * PARTITIONS)
    connector.shutdown()
    reader.join()
    end = EACH + len(GARBAGE)
    assert sorted(reader.places) == sorted(places(*range(PARTITIONS), end=end))
    assert chroot.offsets(group, topic) == dict.fromkeys(range(PARTITIONS), end)
