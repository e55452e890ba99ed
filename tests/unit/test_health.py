"""The health of a connector on a cluster in memory, in each of its states."""

from __future__ import annotations

from threading import Thread
from typing import Any

import pytest

from tests.internals import member_of
from tests.timing import eventually, scaled
from tests.unit.clusters import cluster_with
from zkconsumer import ConsumerRebalanceListener, Health, ZookeeperConsumerConnector
from zkconsumer.connector import health
from zkconsumer.core.registration import STATIC, Registration
from zkconsumer.member.events import LookAgain
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.testing import FakeCluster
from zkconsumer.zookeeper import node_codecs

cluster = cluster_with({"t": [[], []]})


def connector(cluster: FakeCluster, **properties: Any) -> ZookeeperConsumerConnector:
    base = {"zookeeper_connect": cluster.zookeeper_connect, "group_id": "g", "consumer_id": "a"}
    return ZookeeperConsumerConnector(**{**base, **properties})


def becomes_ready(made: ZookeeperConsumerConnector) -> None:
    eventually(lambda: made.health().ready, 20, lambda: f"a ready member: {made.health()}")


def becomes(made: ZookeeperConsumerConnector, reason: str) -> Health:
    """Wait for this reason, and return the health that has it."""
    found = Health()

    def told() -> bool:
        nonlocal found
        found = made.health()
        return reason in str(found)

    eventually(told, 20, lambda: f"{reason!r}: {made.health()}")
    return found


def sides(made: ZookeeperConsumerConnector) -> set[str]:
    """The coordinators that keep a member from being ready."""
    return {reason.partition(":")[0] for reason in made.health().not_ready}


def test_a_member_is_ready_from_its_first_rebalance_to_its_end(cluster: FakeCluster) -> None:
    made = connector(cluster)
    assert made.health() == Health((), ("no streams were created yet",))
    with made:
        made.create_message_streams({"t": 1})
        becomes_ready(made)
        member_of(made).events.put(LookAgain("another round"))
        becomes_ready(made)
    assert made.health() == Health(("the connector was shut down",))


def test_a_partition_of_another_owner_is_waited_for(cluster: FakeCluster) -> None:
    with connector(cluster) as made:
        made.create_message_streams({"t": 1})
        cluster.zookeeper.put("/consumers/g/owners/t/2", b"g_dead-0")
        cluster.add_partitions("t", 3)
        found = becomes(made, "ZooKeeper: waiting for t-2, held by g_dead-0")
        assert (found.live, found.ready) == (True, False)
        cluster.zookeeper.remove("/consumers/g/owners/t/2")
        becomes_ready(made)


def test_without_zookeeper_a_member_lives_and_is_not_ready(cluster: FakeCluster) -> None:
    assert cluster.zookeeper_server is not None
    with connector(cluster) as made:
        made.create_message_streams({"t": 1})
        becomes_ready(made)
        cluster.zookeeper_server.stop()
        assert becomes(made, "ZooKeeper: the connection is gone").live


def test_a_member_that_subscribes_to_nothing_is_ready(cluster: FakeCluster) -> None:
    with connector(cluster, group_coordination="kafka") as made:
        made.create_message_streams({})
        assert made.health().ready


def test_a_bridge_is_ready_when_both_its_sides_are(cluster: FakeCluster) -> None:
    properties = {"group_coordination": "kafka", "group_migration": True, "heartbeat_interval_ms": 50}
    with connector(cluster, **properties) as made:
        made.create_message_streams({"t": 1})
        eventually(lambda: cluster.group("g").members, 20, "the bridge to be in the brokers' group")
        becomes_ready(made)
        (member,) = cluster.group("g").members
        with cluster.park("JoinGroup") as parked:
            cluster.expire_member("g", str(member))
            parked.wait(scaled(10))
            eventually(lambda: sides(made) == {"the brokers"}, 20, "ZooKeeper's side to be ready alone")
        old = node_codecs.encode_registration(Registration(STATIC, {"t": 1}))
        cluster.zookeeper.put("/consumers/g/ids/g_old", old, ephemeral_owner=7)  # now ZooKeeper alone coordinates
        eventually(lambda: not cluster.group("g").members, 20, "the bridge to leave the brokers' group")
        becomes_ready(made)


def test_a_thread_that_has_ended_makes_a_member_not_live(cluster: FakeCluster) -> None:
    with connector(cluster) as made:
        made.set_consumer_rebalance_listener(ConsumerRebalanceListener())
        made.create_message_streams({"t": 1})
        becomes_ready(made)
        listener = member_of(made).parts.listener
        listener.close(Deadline(scaled(10)))
        assert made.health().not_live == (f"the thread {listener.thread.name} has ended",)


def test_threads_that_do_not_answer_make_a_member_not_live(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group thread waits for a ZooKeeper that takes a request, and a fetcher for a broker."""
    with connector(cluster) as made:
        made.create_message_streams({"t": 1})
        becomes_ready(made)
        with cluster.park("Fetch") as parked:
            parked.wait(scaled(10))
            assert made.health().live
            monkeypatch.setattr(health, "SILENT", 0.0)
            monkeypatch.setattr(health, "REQUESTS", 0)
            assert (
                "thread ConsumerFetcherThread-g_a-0-0 has not answered for 0 s" in becomes(made, "Fetcher").not_live[0]
            )
        with cluster.zookeeper.at_once():
            adding = Thread(target=made.add_topics, args=({"u": 1},), daemon=True)
            adding.start()
            assert not becomes(made, "g_a_watcher_executor has not answered").live
        adding.join(scaled(20))
