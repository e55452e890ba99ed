"""The snapshot of a group, read from a ZooKeeper and brokers in memory over their real protocols."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.timing import scaled
from zkconsumer.errors import ZkConsumerError
from zkconsumer.model import ConsumerId, TopicPartition
from zkconsumer.operations.cluster_connection import ClusterConnection, command_config
from zkconsumer.operations.group_snapshot import GroupSnapshot
from zkconsumer.operations.snapshot_reader import LiveSource
from zkconsumer.testing import FakeCluster

STATIC = b'{"version":1,"subscription":{"t":1},"pattern":"static","timestamp":"1"}'
WILDCARD = b'{"version":1,"subscription":{"u.*":1},"pattern":"white_list","timestamp":"1"}'


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(zookeeper=True) as running:
        running.create_topic("t", 2)
        running.create_topic("u1")
        running.append("t", 0, [b"a", b"b"])
        yield running


@pytest.fixture
def sources() -> Iterator[list[LiveSource]]:
    made: list[LiveSource] = []
    yield made
    for one in made:
        one.close()


def source_of(
    made: list[LiveSource], zookeeper: str | None = None, bootstrap: str | None = None, timeout: float = 10.0
) -> LiveSource:
    source = LiveSource(ClusterConnection(command_config(zookeeper, bootstrap)[0], scaled(timeout)))
    made.append(source)
    return source


def a_group(cluster: FakeCluster) -> None:
    zookeeper = cluster.zookeeper
    zookeeper.put("/consumers/g/ids/g_h-1", STATIC, ephemeral_owner=7)
    zookeeper.put("/consumers/g/ids/g_h-2", WILDCARD, ephemeral_owner=8)
    zookeeper.put("/consumers/g/ids/g_h-3", b"{", ephemeral_owner=9)
    zookeeper.put("/consumers/g/owners/t/0", b"g_h-1-0", ephemeral_owner=7)
    zookeeper.put("/consumers/g/owners/gone/5", b"g_h-1-0")
    zookeeper.put("/consumers/g/offsets/t/0", b"1")
    zookeeper.put("/consumers/g/offsets/t/1", b"\x1b[31m")
    zookeeper.put("/consumers/g/offsets/t/x", b"1")
    zookeeper.put("/consumers/g/broadcast/g_h-4", b"", ephemeral_owner=10)


def read_by_zookeeper(cluster: FakeCluster, made: list[LiveSource]) -> GroupSnapshot:
    a_group(cluster)
    return source_of(made, cluster.zookeeper_connect).snapshot("g", message_times=True)


def test_members_owners_and_offsets_are_read(cluster: FakeCluster, sources: list[LiveSource]) -> None:
    found = read_by_zookeeper(cluster, sources)
    first, second, third = (found.members[ConsumerId(f"g_h-{n}")] for n in (1, 2, 3))
    assert first.registration is not None
    assert first.stat is not None
    assert first.stat.ephemeral_owner == 7
    assert first.stat.length == len(STATIC)
    assert second.registration is not None
    assert second.registration.is_wildcard
    assert third.registration is None
    assert "not JSON" in third.problem
    assert third.stat is not None
    assert {str(tp): one.thread for tp, one in found.owners.items()} == {"t-0": "g_h-1-0", "gone-5": "g_h-1-0"}
    owned = found.owners[TopicPartition("gone", 5)].stat
    assert owned is not None
    assert owned.ephemeral_owner == 0
    assert found.offsets[TopicPartition("t", 0)].offset == 1
    bad = found.offsets[TopicPartition("t", 1)]
    assert bad.offset is None
    assert "\x1b" not in bad.problem
    assert [one.what for one in found.problems] == ["/consumers/g/offsets/t"]
    assert found.zxid >= found.members[ConsumerId("g_h-3")].stat.czxid  # type: ignore[union-attr]
    assert set(found.other_nodes) == {"/consumers/g/broadcast", "/consumers/g/broadcast/g_h-4"}
    assert found.acls["/consumers/g/owners"] == "world:anyone=cdrwa"


def test_topics_logs_and_times_are_read(cluster: FakeCluster, sources: list[LiveSource]) -> None:
    found = read_by_zookeeper(cluster, sources)
    assert {name: node.partitions for name, node in found.topics.items()} == {"t": (0, 1), "u1": (0,)}
    assert found.topics["t"].created
    log = found.logs[TopicPartition("t", 0)]
    assert (log.start, log.end, log.leader, log.in_sync) == (0, 2, 0, (0,))
    assert log.message_time is not None
    assert abs(log.message_time - found.taken) < 60_000
    assert found.logs[TopicPartition("t", 1)].message_time is None
    assert found.lag(TopicPartition("t", 0)) == 1
    assert found.brokers[0].protocols == ("PLAINTEXT",)


def test_reading_makes_no_topic_of_offsets(cluster: FakeCluster, sources: list[LiveSource]) -> None:
    found = read_by_zookeeper(cluster, sources)
    assert not cluster.keeps_groups
    assert found.kafka_offsets == {}
    assert found.brokers_group is not None
    assert found.brokers_group.state == "Dead"
    assert found.in_zookeeper
    assert not found.in_kafka


def test_a_group_that_nobody_knows_is_empty(cluster: FakeCluster, sources: list[LiveSource]) -> None:
    found = source_of(sources, cluster.zookeeper_connect).snapshot("unknown")
    assert not found.in_zookeeper
    assert not found.in_kafka
    assert not found.problems


def test_without_brokers_zookeeper_tells_leaders(cluster: FakeCluster, sources: list[LiveSource]) -> None:
    a_group(cluster)
    source = source_of(sources, cluster.zookeeper_connect, timeout=2.0)
    for broker in cluster.brokers.values():
        broker.stop()  # its registration stays, as that of a broker that hangs
    found = source.snapshot("g")
    assert found.members
    assert found.offsets
    log = found.logs[TopicPartition("t", 0)]
    assert log.leader == 0
    assert log.end is None
    assert log.problem
    assert "brokers" in [one.what for one in found.problems]
    assert found.lag(TopicPartition("t", 0)) is None
    assert found.kafka_offsets is None


def test_without_zookeeper_the_brokers_tell(cluster: FakeCluster, sources: list[LiveSource]) -> None:
    a_group(cluster)
    connect = cluster.zookeeper_connect
    assert cluster.zookeeper_server is not None
    cluster.zookeeper_server.stop()
    source = source_of(sources, connect, cluster.bootstrap_servers, timeout=1.0)
    found = source.snapshot("g")
    assert found.brokers
    assert found.brokers_group is not None
    assert [one.what for one in found.problems] == [f"ZooKeeper {connect}"]
    assert source.groups() == []


def test_if_nothing_answers_it_is_an_error(sources: list[LiveSource]) -> None:
    source = source_of(sources, "127.0.0.1:1", "127.0.0.1:1", timeout=0.5)
    with pytest.raises(ZkConsumerError, match="no ZooKeeper server"):
        source.snapshot("g")
    with pytest.raises(ZkConsumerError, match="no ZooKeeper server"):
        source.groups()


def test_a_forbidden_node_is_a_problem(cluster: FakeCluster, sources: list[LiveSource]) -> None:
    a_group(cluster)
    cluster.zookeeper.refuse("/consumers/g/owners", "read")
    cluster.zookeeper.refuse("/consumers/g/offsets/t/0", "read")
    found = source_of(sources, cluster.zookeeper_connect).snapshot("g")
    assert not found.owners
    assert "/consumers/g/owners" in [one.what for one in found.problems]
    assert "ACL" in found.offsets[TopicPartition("t", 0)].problem
    assert found.members
