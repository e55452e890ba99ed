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
from zkconsumer.member.zookeeper.registration import REPORTED_AT_ONCE

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


def test_an_unreadable_offset_waits_until_it_is_repaired(chroot: Chroot, topic: str, join: Join) -> None:
    group = unique("group")
    base = f"/consumers/{group}/offsets/{topic}"
    written = {0: b"3 ", 1: b"", 2: LARGE, 3: b"2"}
    for partition, data in written.items():
        chroot.put(f"{base}/{partition}", data)
    connector, reader = join(group, topic)
    reader.wait_for(EACH - 2)
    eventually(lambda: all(f"{base}/{p}" in str(connector.state) for p in range(3)), 10, "nodes named in the state")
    assert reader.places == places(3, start=2)
    assert [chroot.get(f"{base}/{p}") for p in range(3)] == [written[p] for p in range(3)], "never guessed, nor written"
    chroot.put(f"{base}/0", b"4")
    chroot.delete(f"{base}/1")
    chroot.put(f"{base}/2", b"5")
    reader.wait_for(EACH - 2 + 1 + EACH)
    connector.commit_offsets()
    assert sorted(reader.places) == sorted(places(3, start=2) + places(0, start=4) + places(1))
    assert chroot.offsets(group, topic) == dict.fromkeys(range(PARTITIONS), EACH)


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


def test_unreadable_members_do_not_stop_the_others(
    chroot: Chroot, topic: str, join: Join, caplog: pytest.LogCaptureFixture
) -> None:
    """Each is named, and once. They are no more than the log names at once."""
    group = unique("group")
    odd = b'{"version":1,"subscription":{"%s":%s},"pattern":"%s","timestamp":"1"}'
    counts = [odd % (topic.encode(), count, b"static") for count in (b"0", b'"1"')]
    unreadable = [*GARBAGE[3:], *counts, odd % (b"(", b"1", b"white_list")]
    assert len(unreadable) == REPORTED_AT_ONCE
    for number, data in enumerate(unreadable):
        chroot.put(f"/consumers/{group}/ids/{group}_bad-{number}", data)
    connector, reader = join(group, topic)
    reader.wait_for(PARTITIONS * EACH)
    assert sorted(reader.places) == sorted(places(*range(PARTITIONS)))
    for number in range(len(unreadable)):
        assert f"{group}_bad-{number}" in str(connector.state) + caplog.text, number
    assert len([record for record in caplog.records if f"{group}_bad-1 " in record.getMessage()]) <= 1, "said once"
