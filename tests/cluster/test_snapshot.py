"""Group snapshots of a real ZooKeeper and a real broker: a brokers' group, and a large one."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_digest_acl

from tests.cluster.conftest import NewTopic, produce_to
from tests.cluster.in_process import live_source
from tests.timing import scaled
from zkconsumer import ZookeeperConsumerConnector
from zkconsumer.devcluster import DevCluster
from zkconsumer.model import ConsumerId, TopicPartition
from zkconsumer.operations.group_lookup import UnknownGroupError, require_group
from zkconsumer.operations.snapshot_reader import LiveSource

MANY_MEMBERS = 10_000
LARGE = 1_000_000


@pytest.fixture
def source(cluster: DevCluster) -> Iterator[LiveSource]:
    """The cluster by its ZooKeeper alone, which names the broker."""
    with live_source(cluster.zookeeper_connect, seconds=60.0) as made:
        yield made


@pytest.fixture
def brokers_only(cluster: DevCluster) -> Iterator[LiveSource]:
    with live_source(None, cluster.bootstrap_servers, seconds=60.0) as made:
        yield made


def test_a_group_of_the_brokers(
    cluster: DevCluster,
    source: LiveSource,
    brokers_only: LiveSource,
    new_topic: NewTopic,
    new_group: Callable[[], str],
    connector: Callable[..., ZookeeperConsumerConnector],
) -> None:
    group, topic = new_group(), new_topic(3)
    produce_to(cluster.bootstrap_servers, topic, [str(n) for n in range(6)], partitions=3)
    member = connector(
        group, group_coordination="kafka", bootstrap_servers=cluster.bootstrap_servers, auto_commit_enable=False
    )
    (stream,) = member.create_message_streams({topic: 1})[topic]
    assert len([stream.get(timeout=scaled(20)) for _ in range(6)]) == 6
    member.commit_offsets()
    for one in (source, brokers_only):
        found = require_group(one, group)
        assert found.in_kafka
        assert not found.in_zookeeper
        assert not found.problems
        assert found.brokers_group is not None
        assert (found.brokers_group.state, found.brokers_group.protocol_type) == ("Stable", "consumer")
        assert found.brokers_group.coordinator is not None
        (described,) = found.brokers_group.members
        assert described.assignment == tuple(TopicPartition(topic, number) for number in range(3))
        assert described.topics == (topic,)
        assert {tp.partition: stored.offset for tp, stored in (found.kafka_offsets or {}).items()} == {0: 2, 1: 2, 2: 2}
        assert found.topics[topic].partitions == (0, 1, 2)
        assert (found.topics[topic].created is None) is (one is brokers_only)
        assert [found.lag(TopicPartition(topic, number)) for number in range(3)] == [0, 0, 0]
        assert group in one.groups()
    with pytest.raises(UnknownGroupError, match=f"Did you mean '{group}'"):
        require_group(brokers_only, group + "x")


def test_a_large_and_hostile_group(
    source: LiveSource, zookeeper: KazooClient, new_topic: NewTopic, new_group: Callable[[], str]
) -> None:
    """10,000 members, nodes of almost 1 MB, ACLs that forbid nodes: all the rest is read, and the problems named."""
    group, topic = new_group(), new_topic(1)
    root = f"/consumers/{group}"
    for name in ("ids", f"owners/{topic}", f"offsets/{topic}", "offsets/secret"):
        zookeeper.ensure_path(f"{root}/{name}")
    content = f'{{"version":1,"subscription":{{"{topic}":1}},"pattern":"static","timestamp":"1"}}'.encode()
    nodes = {f"{root}/ids/{group}_h-{n:05d}": content for n in range(MANY_MEMBERS)}
    nodes |= dict.fromkeys((f"{root}/ids/large", f"{root}/owners/{topic}/0"), b"9" * LARGE)
    nodes |= {f"{root}/offsets/{topic}/{n}": b"[" * LARGE for n in range(20)}
    # they end with the client's session, which is quicker than to delete them one by one
    for one in [zookeeper.create_async(path, data, ephemeral=True) for path, data in nodes.items()]:
        one.get(timeout=scaled(60))
    zookeeper.set_acls(f"{root}/offsets/secret", [make_digest_acl("somebody", "hunter2", all=True)])
    found = source.snapshot(group)
    assert len(found.members) == MANY_MEMBERS + 1
    assert sum(one.registration is not None for one in found.members.values()) == MANY_MEMBERS
    assert "more than" in found.members[ConsumerId("large")].problem
    assert len(found.offsets) == 20
    assert all(len(one.problem) < 200 and one.offset is None for one in found.offsets.values())
    assert [one.what for one in found.problems] == [f"{root}/offsets/secret"]
    assert "ACL" in found.problems[0].why
    assert "hunter2" not in str(found.acls)
