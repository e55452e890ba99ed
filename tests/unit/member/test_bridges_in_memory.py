"""Bridges as users make them, on a cluster in memory: who is in the brokers' group, and who is not."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import pytest

from tests.timing import eventually, scaled
from zkconsumer import ConsumerTimeoutException, ZookeeperConsumerConnector
from zkconsumer.core.registration import STATIC, Registration
from zkconsumer.errors import MemberIdRequiredError
from zkconsumer.kafka import BrokerChannel
from zkconsumer.kafka.group_channel import GroupChannel, Membership
from zkconsumer.member.events import SubscriptionChanged
from zkconsumer.member.group_thread import SubscriptionChanges
from zkconsumer.model import Endpoint
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.testing import FakeCluster
from zkconsumer.zookeeper import node_codecs

OLD = node_codecs.encode_registration(Registration(STATIC, {"t": 1}))


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


def test_the_last_commit_waits_for_members_that_leave_after_us() -> None:
    with FakeCluster(zookeeper=True) as cluster:
        cluster.create_topic("t", 1)
        cluster.append("t", 0, [b"1", b"2", b"3"])
        cluster.zookeeper.put("/consumers/g/ids/g_old", OLD, ephemeral_owner=7)  # the second of two: it gets nothing
        one = bridge(cluster, "a", auto_offset_reset="smallest")
        stream = one.create_message_streams({"t": 1})["t"][0]
        assert [message.offset for message in itertools.islice(stream, 3)] == [0, 1, 2]
        channel = GroupChannel(BrokerChannel(Endpoint(0, *cluster.address(0)), client_id="b", socket_timeout=scaled(5)))
        channel.connect(Deadline(scaled(5)))
        limits: dict[str, Any] = {
            "session_timeout": scaled(30),
            "rebalance_timeout": scaled(30),
            "deadline": Deadline(scaled(10)),
        }
        with pytest.raises(MemberIdRequiredError) as required:
            channel.join(Membership("g"), [("range", b"")], **limits)
        channel.join(Membership("g", -1, required.value.member_id), [("range", b"")], **limits)
        with pytest.raises(ConsumerTimeoutException):
            stream.get(timeout=0)
        closing = threading.Thread(target=one.shutdown, name="closing")
        closing.start()
        eventually(lambda: len(cluster.requests_of("OffsetCommit")) > 3, 30, "refused commits, tried again and again")
        cluster.expire_member("g", required.value.member_id)
        closing.join(scaled(30))
        channel.close()
        assert cluster.committed("g") == {("t", 0): 3}
        assert cluster.zookeeper.tree("/consumers/g/offsets/t")["/consumers/g/offsets/t/0"] == b"3"


def test_a_moment_under_zookeeper_is_a_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else what ZooKeeper gave meanwhile looked as if the brokers had taken it, and was never committed there again."""
    asked: list[SubscriptionChanged] = []
    begin, ask = SubscriptionChanges.begin, SubscriptionChanges.ask
    with FakeCluster(zookeeper=True) as cluster:
        cluster.create_topic("t", 1)
        one = bridge(cluster, "a")
        one.create_message_streams({"t": 1})
        eventually(lambda: cluster.group("g").state == "Stable" and one.state.owned == 1, 30, "the brokers' assignment")

        def noted(self: SubscriptionChanges, change: SubscriptionChanged) -> None:
            asked.append(change)
            ask(self, change)

        monkeypatch.setattr(SubscriptionChanges, "ask", noted)
        monkeypatch.setattr(SubscriptionChanges, "begin", lambda self: begin(self) if len(asked) > 1 else [])
        cluster.zookeeper.put("/consumers/g/ids/g_old", OLD, ephemeral_owner=700)
        eventually(lambda: len(asked) == 1, 30, "the leave, which waits")
        assert not cluster.requests_of("LeaveGroup")
        cluster.zookeeper.remove("/consumers/g/ids/g_old")
        eventually(lambda: cluster.requests_of("LeaveGroup"), 30, "the leave, before the next join")
        eventually(lambda: cluster.group("g").state == "Stable" and one.state.owned == 1, 30, "the next assignment")
        one.shutdown()
