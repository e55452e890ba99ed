"""Bridges as users make them, on a cluster in memory: who is in the brokers' group, and who is not."""

from __future__ import annotations

from typing import Any

import pytest

from tests.timing import eventually, scaled
from zkconsumer import ZookeeperConsumerConnector
from zkconsumer.core.registration import STATIC, Registration
from zkconsumer.registry import codecs
from zkconsumer.testing import FakeCluster

OLD = codecs.encode_registration(Registration(STATIC, {"t": 1}))


def bridge(cluster: FakeCluster, name: str, **properties: Any) -> ZookeeperConsumerConnector:
    return ZookeeperConsumerConnector(
        zookeeper_connect=cluster.zookeeper_connect,
        group_id="g",
        group_coordination="kafka",
        group_migration=True,
        consumer_id=name,
        heartbeat_interval_ms=100,
        session_timeout_ms=int(1000 * scaled(60)),
        **properties,
    )


@pytest.mark.parametrize("static", [False, True])
def test_all_leave_the_brokers_group_at_once_for_a_member_that_zookeeper_alone_knows(static: bool) -> None:
    with FakeCluster(zookeeper=True, max_session_timeout=scaled(60)) as cluster:
        cluster.create_topic("t", 3)
        instances = [{"group_instance_id": name} if static else {} for name in "ab"]
        with bridge(cluster, "a", **instances[0]) as a, bridge(cluster, "b", **instances[1]) as b:
            for one in (a, b):
                one.create_message_streams({"t": 1})
            for _ in range(2):
                eventually(lambda: len(cluster.group("g").members) == 2, 30, "both to be in the brokers' group")
                eventually(lambda: cluster.group("g").state == "Stable", 30, "their assignment")
                eventually(lambda: a.state.owned + b.state.owned == 3, 30, "all to be owned")
                cluster.zookeeper.put("/consumers/g/ids/g_old", OLD, ephemeral_owner=7)
                eventually(lambda: not cluster.group("g").members, 30, "nobody to be in the brokers' group")
                eventually(lambda: a.state.owned + b.state.owned == 2, 30, "the old member's part to be free")
                cluster.zookeeper.remove("/consumers/g/ids/g_old")
