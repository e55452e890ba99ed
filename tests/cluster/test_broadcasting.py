"""Broadcasting members on a real cluster, with the original connector and its tools in the same group."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kazoo.client import KazooClient

from tests.cluster.conftest import NewTopic, owners_of, produce_to
from tests.cluster.in_process import Reader, kafka_offsets, offsets_of
from tests.cluster.kafka_tools import table, tool
from tests.cluster.legacy_member import LegacyMember
from tests.timing import eventually
from zkconsumer import Whitelist, ZookeeperConsumerConnector
from zkconsumer.devcluster import DevCluster

PARTITIONS = 4


class Broadcast:
    """A group with a topic, and broadcasting members that read it."""

    def __init__(
        self, cluster: DevCluster, group: str, topic: str, connector: Callable[..., ZookeeperConsumerConnector]
    ) -> None:
        self.group, self.topic = group, topic
        self._cluster, self._connector = cluster, connector
        self.produced: list[tuple[int, int]] = []

    def member(self, name: str, **properties: Any) -> ZookeeperConsumerConnector:
        return self._connector(self.group, message_model="broadcasting", consumer_id=name, **properties)

    def read(self, name: str, streams: int = 1, **properties: Any) -> tuple[ZookeeperConsumerConnector, list[Reader]]:
        member = self.member(name, **properties)
        return member, [Reader(s) for s in member.create_message_streams({self.topic: streams})[self.topic]]

    def produce(self, rounds: int) -> list[tuple[int, int]]:
        """Produce messages and return their (partition, offset)."""
        first = len(self.produced) // PARTITIONS
        values = [str(n) for n in range(rounds * PARTITIONS)]
        produce_to(self._cluster.bootstrap_servers, self.topic, values, partitions=PARTITIONS)
        new = [(p, offset) for p in range(PARTITIONS) for offset in range(first, first + rounds)]
        self.produced += new
        return new

    def own(self, name: str) -> str:
        return f"{self.group}@{name}"


@pytest.fixture
def broadcast(
    cluster: DevCluster,
    new_group: Callable[[], str],
    new_topic: NewTopic,
    connector: Callable[..., ZookeeperConsumerConnector],
) -> Broadcast:
    return Broadcast(cluster, new_group(), new_topic(PARTITIONS), connector)


def everything(readers: list[Reader], expected: list[tuple[int, int]]) -> None:
    """Wait until these readers together have exactly these messages."""
    eventually(lambda: sum(len(reader.places) for reader in readers) >= len(expected), 20, f"{len(expected)} messages")
    assert sorted(place for reader in readers for place in reader.places) == sorted(expected)


def test_a_filter_broadcasts_topics_that_come_later(broadcast: Broadcast, cluster: DevCluster) -> None:
    broadcast.produce(2)
    both = [broadcast.member(name).create_message_streams_by_filter(Whitelist(f"{broadcast.topic}.*")) for name in "ab"]
    readers = [Reader(streams[0]) for streams in both]
    later = f"{broadcast.topic}-later"
    cluster.create_topic(later, 1)
    produce_to(cluster.bootstrap_servers, later, ["x"] * 3, partitions=1)
    for reader in readers:
        got = reader.wait_for(2 * PARTITIONS + 3)
        assert sum(m.topic == later for m in got) == 3


def test_offsets_in_kafka_are_those_of_its_own_group(broadcast: Broadcast, cluster: DevCluster) -> None:
    properties: dict[str, Any] = {"offsets_storage": "kafka", "dual_commit_enabled": False}
    broadcast.produce(5)
    a, readers = broadcast.read("a", **properties)
    everything(readers, broadcast.produced)
    a.shutdown()
    stored = kafka_offsets(cluster.bootstrap_servers, broadcast.own("a"), broadcast.topic)
    assert 5 * PARTITIONS - 1 <= sum(stored.values()) <= 5 * PARTITIONS
    assert kafka_offsets(cluster.bootstrap_servers, broadcast.group, broadcast.topic) == {}
    broadcast.produce(1)
    _, again = broadcast.read("a", **properties)
    everything(again, [(p, o) for p in range(PARTITIONS) for o in range(stored[p], 6)])


def test_an_original_member_in_the_group_does_no_harm(
    broadcast: Broadcast, legacy_member: Callable[..., LegacyMember], zookeeper: KazooClient
) -> None:
    """An original member in the group neither notices the broadcasting members nor harms them."""
    a, readers = broadcast.read("a")
    first = broadcast.produce(5)
    everything(readers, first)
    assert a.state.detail == ""
    topics = {broadcast.topic: 1}
    original = legacy_member("1.1.1", broadcast.group, topics, properties={"consumer.id": "s"}).wait_ready()
    original.wait_messages(len(first))
    assert set(owners_of(zookeeper, broadcast.group, broadcast.topic).values()) == {f"{broadcast.group}_s-0"}
    eventually(lambda: f"{broadcast.group}_s" in a.state.detail, 10, "a report of the original member")
    broadcast.produce(5)
    everything(readers, broadcast.produced)
    original.wait_messages(10 * PARTITIONS)
    assert len(original.messages) == 10 * PARTITIONS
    assert original.stop() is not None
    assert sum(offsets_of(zookeeper, broadcast.group, broadcast.topic).values()) == 10 * PARTITIONS
    eventually(lambda: a.state.detail == "", 10, "the end of the report")
    assert len(a.assignment()) == PARTITIONS


def test_old_tools_see_a_broadcasting_member_as_a_group(
    broadcast: Broadcast, cluster: DevCluster, zookeeper: KazooClient
) -> None:
    """The old tools see a broadcasting member as a group of its own."""
    where, own = cluster.zookeeper_connect, broadcast.own("a")

    def groups(*arguments: str) -> list[str]:
        return tool("1.1.1", "kafka.admin.ConsumerGroupCommand", "--zookeeper", where, *arguments)

    a, readers = broadcast.read("a", auto_commit_enable=False)
    everything(readers, broadcast.produce(3))
    a.commit_offsets(dict.fromkeys(a.assignment(), 1))
    rows = table(groups("--describe", "--group", own), "TOPIC")
    assert {(row["PARTITION"], row["CURRENT-OFFSET"], row["LAG"], row["CONSUMER-ID"]) for row in rows} == {
        (str(partition), "1", "2", f"{broadcast.group}_a") for partition in range(PARTITIONS)
    }
    checked = tool("0.8.2.2", "kafka.tools.ConsumerOffsetChecker", "--zookeeper", where, "--group", own)
    assert {(row["Pid"], row["Offset"], row["Lag"], row["Owner"]) for row in table(checked, "Group")} == {
        (str(partition), "1", "2", f"{broadcast.group}_a-0") for partition in range(PARTITIONS)
    }
    verified = tool("1.1.1", "kafka.tools.VerifyConsumerRebalance", "--zookeeper.connect", where, "--group", own)
    assert any("Rebalance operation successful !" in line for line in verified)

    # the group itself has no members and no offsets for any of them
    assert not any(broadcast.topic in line for line in groups("--describe", "--group", broadcast.group))
    # and the tool, which deletes, is told that the member lives
    assert any("still active" in line for line in groups("--delete", "--group", own))
    groups("--delete", "--group", broadcast.group)
    assert offsets_of(zookeeper, own, broadcast.topic) == dict.fromkeys(range(PARTITIONS), 1)
    assert len(owners_of(zookeeper, own, broadcast.topic)) == PARTITIONS

    a.shutdown()
    groups("--delete", "--group", own)
    assert zookeeper.exists(f"/consumers/{own}") is None


def test_the_old_tool_can_delete_a_topic_from_all_groups(
    broadcast: Broadcast, cluster: DevCluster, zookeeper: KazooClient
) -> None:
    """The tool fails if one child of ``/consumers`` has no directory of offsets.

    The tool runs on a copy of this group, because groups of other tests may lack the directory.
    """
    a, readers = broadcast.read("a")
    everything(readers, broadcast.produce(1))
    a.shutdown()
    chroot = f"/copy-{broadcast.group}"

    def copy(path: str) -> None:
        zookeeper.create(chroot + path, zookeeper.get(path)[0], makepath=True)
        for name in zookeeper.get_children(path):
            copy(f"{path}/{name}")

    for group in (broadcast.group, broadcast.own("a")):
        copy(f"/consumers/{group}")
    arguments = ("--zookeeper", cluster.zookeeper_connect + chroot, "--delete", "--topic", broadcast.topic)
    said = tool("1.1.1", "kafka.admin.ConsumerGroupCommand", *arguments)
    assert not any("failed" in line for line in said), said
    assert zookeeper.exists(f"{chroot}/consumers/{broadcast.own('a')}/offsets/{broadcast.topic}") is None
