"""The footprint of a member: its memory, and the names of its threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from scripts.measurements.bench import memory
from tests.cluster.conftest import NewTopic, owners_of
from tests.cluster.our_member import OurMember
from tests.timing import eventually
from zkconsumer import ZookeeperConsumerConnector
from zkconsumer.devcluster import DevCluster

LIMIT_KB = 80_000
MARGIN_KB = 5_000


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_an_idle_member_takes_less_than_80_megabytes(
    our_member: Callable[..., OurMember],
    new_topic: NewTopic,
    new_group: Callable[[], str],
    produce: Callable[..., int],
    zookeeper: KazooClient,
    capsys: pytest.CaptureFixture[str],
) -> None:
    topic, group = new_topic(12), new_group()
    produce(topic, [b"x" * 100] * 1200, partitions=12)
    member = our_member(group, {topic: 2})
    member.wait_messages(1200)
    eventually(lambda: len(owners_of(zookeeper, group, topic)) == 12, 10, "ownership")
    threading.Event().wait(1.0)  # what only shows after a few commits and polls shall show
    resident = member.resident_kilobytes()
    with capsys.disabled():
        print(f"\n  an idle member of 12 partitions: {resident / 1000:.1f} MB resident")
    assert resident < LIMIT_KB - MARGIN_KB


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_a_slow_reader_of_large_messages_keeps_to_its_budget(
    cluster: DevCluster, new_topic: NewTopic, new_group: Callable[[], str]
) -> None:
    """An answer of 50 MB was received as a whole beside its copies.

    Neither it nor the messages in readers' hands counted in the budget: 204 MB were resident with a budget of 67.
    """
    chunks = ("queued.max.message.chunks", "100")  # so that bytes alone are the limit
    load = memory.Load("test", 60, 120, 1_000_000, 4, 0.1, 5.0, (("queued.max.bytes", "33554432"), chunks))
    topic = new_topic(load.partitions)
    memory.produce(cluster.bootstrap_servers, topic, load)
    found = memory.watch(cluster.zookeeper_connect, new_group(), topic, load)
    assert found["read"] > 10
    assert found["over_budget_mb"] < memory.MARGIN_MB, found["series_mb"]


def test_every_thread_of_a_member_names_its_owner(
    connector: Callable[..., ZookeeperConsumerConnector], new_topic: NewTopic, new_group: Callable[[], str]
) -> None:
    """Every thread of a member has a name with the member's."""
    topic = new_topic(1)
    before = set(threading.enumerate())
    member = connector(new_group(), consumer_id="named")
    member.create_message_streams({topic: 1})
    names = [t.name for t in set(threading.enumerate()) - before]
    assert [n for n in names if member.consumer_id not in n and not n.startswith("zkconsumer-zookeeper-")] == []
    for part in ("watcher_executor", "committer", "leader-finder"):
        assert [name for name in names if part in name]
