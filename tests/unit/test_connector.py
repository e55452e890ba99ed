"""The calls that a connector refuses at once."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from types import SimpleNamespace
from typing import Any

import pytest

from tests.timing import eventually, scaled
from zkconsumer import ConsumerTimeoutException, Whitelist, ZookeeperConsumerConnector
from zkconsumer.member.connector_state import StandstillLog
from zkconsumer.model import TopicPartition, thread_id
from zkconsumer.ownership.partition_position import PartitionPosition
from zkconsumer.streams.stream_queue import StreamQueue
from zkconsumer.testing import FakeCluster
from zkconsumer.wiring.group_member import WHY_LASTS, GroupMember


@pytest.fixture
def connector() -> ZookeeperConsumerConnector:
    return ZookeeperConsumerConnector(zookeeper_connect="127.0.0.1:1", group_id="g")


@pytest.mark.parametrize(
    ("topics", "reason"),
    [
        (None, "a mapping"),
        (["t"], "a mapping"),
        ({"t": 0}, "at least 1"),
        ({"t": True}, "whole number"),
        ({"t": "2"}, "whole number"),
        ({"": 1}, "non-empty"),
        ({"a/b": 1}, "cannot be a topic"),
        ({"..": 1}, "cannot be a topic"),
    ],
)
def test_a_bad_subscription_is_named_and_harms_nothing(
    connector: ZookeeperConsumerConnector, topics: Any, reason: str
) -> None:
    for _ in range(2):
        with pytest.raises(ValueError, match=reason):
            connector.create_message_streams(topics)


def test_a_bad_filter_is_named(connector: ZookeeperConsumerConnector) -> None:
    with pytest.raises(ValueError, match="Whitelist"):
        connector.create_message_streams_by_filter("a.*")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least 1"):
        connector.create_message_streams_by_filter(Whitelist("a.*"), 0)


async def coroutine(_: Any) -> None: ...


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda member: member.run(None, "t"), TypeError, "callable"),
        (lambda member: member.run(coroutine, "t"), TypeError, "plain function"),
        (lambda member: member.run(print), ValueError, "no streams yet"),
        (lambda member: member.run(print, []), ValueError, "no topics"),
        (lambda member: member.run(print, "t", workers=0), ValueError, "workers"),
        (lambda member: member.messages(), ValueError, "no streams yet"),
    ],
)
def test_a_run_that_makes_no_sense_is_refused(
    connector: ZookeeperConsumerConnector, call: Callable[[Any], object], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        call(connector)


def test_a_connector_that_never_began_can_be_shut_down_twice(connector: ZookeeperConsumerConnector) -> None:
    connector.shutdown()
    connector.shutdown()


def test_pausing_what_is_just_leaving_returns(
    connector: ZookeeperConsumerConnector, monkeypatch: pytest.MonkeyPatch
) -> None:
    leaving = PartitionPosition(TopicPartition("t", 0), thread_id(connector.consumer_id, 0), 5)
    leaving.revoked = True
    queue = StreamQueue(2, lambda: None)
    member = SimpleNamespace(delivery=SimpleNamespace(stream_of=lambda _: SimpleNamespace(queue=queue)))
    monkeypatch.setattr(connector.lifecycle, "live", lambda: member)
    monkeypatch.setattr(connector.lifecycle, "positions", lambda: {leaving.tp: leaving})
    connector.pause([leaving.tp])
    assert connector.paused() == {leaving.tp}
    connector.resume([leaving.tp])
    assert leaving.halted


def test_a_place_beyond_64_bits_is_refused(
    connector: ZookeeperConsumerConnector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connector.lifecycle, "live", lambda: SimpleNamespace(request_timeout=1.0))
    with pytest.raises(ValueError, match="64 bits"):
        connector.seek(TopicPartition("t", 0), 1 << 63)
    with pytest.raises(ValueError, match="ms since 1970"):
        connector.offsets_for_times({TopicPartition("t", 0): 1 << 63})


def test_polls_do_not_compute_the_state_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: each read without a message computed the state, and so did each turn of merged streams."""
    made = []
    monkeypatch.setattr(GroupMember, "state", property(lambda member: made.append(member)))
    with FakeCluster(zookeeper=True) as cluster:
        cluster.create_topic("t", 2)
        with ZookeeperConsumerConnector(zookeeper_connect=cluster.zookeeper_connect, group_id="g") as connector:
            streams = connector.create_message_streams({"t": 2})["t"]
            with pytest.raises(ConsumerTimeoutException):
                streams[0].get(timeout=scaled(0.2))
            began = monotonic()
            made.clear()
            messages = connector.messages()
            for poll in 100 * [streams[0].get, streams[1].get, messages.get]:
                with pytest.raises(ConsumerTimeoutException):
                    poll(timeout=0)
            # the group thread looks at the state once a second
            assert len(made) <= 2 + (monotonic() - began) * (1 + 1 / WHY_LASTS)


def test_a_paused_member_does_not_stand_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: a member whose partitions were all paused was logged as one that does not read, while a broker was away."""
    looks: list[bool] = []
    monkeypatch.setattr(StandstillLog, "look", lambda _, state, now, *, still: looks.append(bool(state.detail) & still))
    with FakeCluster(zookeeper=True) as cluster:
        cluster.create_topic("t")
        with ZookeeperConsumerConnector(zookeeper_connect=cluster.zookeeper_connect, group_id="g") as connector:
            connector.create_message_streams({"t": 1})
            connector.pause(connector.assignment())
            cluster.stop_broker(cluster.addresses()[0][0])
            eventually(lambda: "no broker is registered" in connector.state.detail, 20, "the trouble")
            seen = len(looks)
            eventually(lambda: len(looks) > seen + 1, 20, "two looks")
            assert not any(looks)
            connector.resume(connector.assignment())
            eventually(lambda: looks[-1], 20, "a standstill")
