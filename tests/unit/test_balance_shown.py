"""What a run with ``concurrency`` shows of itself, on a cluster in memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any

import pytest

from tests.timing import eventually, scaled
from zkconsumer import ZookeeperConsumerConnector
from zkconsumer.balance.balance_state import PartitionBalance
from zkconsumer.balance.outcomes import Reject
from zkconsumer.balance.retry import Retry
from zkconsumer.core import message_ledger
from zkconsumer.metrics import BucketsValue
from zkconsumer.model import TopicPartition
from zkconsumer.testing import FakeCluster

T0 = TopicPartition("t", 0)
NEVER = Retry(delays=(3600.0,), park_after=99, park_seconds=9e9, jitter=0.0)


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(zookeeper=True) as made:
        made.create_topic("t", 2)
        made.append("t", 0, [b"%d" % number for number in range(20)])
        yield made


@contextmanager
def running(cluster: FakeCluster, handler: Any, **options: Any) -> Iterator[ZookeeperConsumerConnector]:
    """A member whose ``run`` is under way on a thread."""
    properties = {"zookeeper.connect": cluster.zookeeper_connect, "group.id": "g", "auto.offset.reset": "smallest"}
    properties |= options.pop("properties", {})
    failures: list[BaseException] = []
    connector = ZookeeperConsumerConnector(properties)

    def run() -> None:
        try:
            connector.run(handler, "t", **{"concurrency": 4, "order": "none", "retry": NEVER, **options})
        except BaseException as error:
            failures.append(error)

    thread = Thread(target=run, name="the run")
    thread.start()
    try:
        yield connector
    finally:
        connector.shutdown(scaled(10))
        thread.join(scaled(20))
    assert not thread.is_alive()
    assert failures == []


def partition(connector: ZookeeperConsumerConnector, tp: TopicPartition = T0) -> PartitionBalance:
    found = [one for one in (connector.balance.partitions if connector.balance else ()) if one.partition == tp]
    return found[0] if found else PartitionBalance(tp, -1)


def fails_at(offset: int) -> Any:
    def handler(message: Any) -> None:
        if message.offset == offset:
            raise TimeoutError("the warehouse is away")

    return handler


def test_a_failing_message_is_seen_to_hold_the_base(cluster: FakeCluster) -> None:
    with running(cluster, fails_at(5)) as connector:
        eventually(lambda: partition(connector).finished_beyond == 14, 20, lambda: f"14 beyond: {connector.state}")
        line = next(line for line in connector.state.balance if line.startswith("t-0"))
        assert line.startswith("t-0: base 5 held by 5 (attempt 1, next in ")
        assert line.endswith(" s: TimeoutError), 14 finished beyond, 0 in hand")
        assert line in str(connector.state)
        assert connector.lag()[T0] == 1
        assert connector.health().ready
        told = {str(name): value for name, value in connector.metrics().items()}
        times = next(value for name, value in told.items() if "HandlerTime" in name)
        assert isinstance(times, BucketsValue)
        assert times.count == 20
        assert next(value for name, value in told.items() if "FailedAttempts" in name) == 1
        held = next(value for name, value in told.items() if "HeldTime" in name and "partition=0" in name)
        assert isinstance(held, float)
    assert connector.balance is None
    assert connector.state.balance == ()


def test_a_message_in_hand_is_seen_with_its_time(cluster: FakeCluster) -> None:
    go = Event()

    def handler(message: Any) -> None:
        if message.offset == 3:
            go.wait(scaled(30))

    with running(cluster, handler) as connector:
        eventually(lambda: partition(connector).finished_beyond == 16, 20, lambda: f"16 beyond: {connector.state}")
        one = partition(connector)
        assert one.held is not None
        assert one.held.offset == one.base == 3
        assert one.held.in_hand is not None
        assert "held by 3 (in hand for " in str(one)
        assert (one.in_hand, one.unfinished) == (1, 1)
        go.set()
        eventually(lambda: partition(connector).base == 20, 20, lambda: f"all finished: {connector.state}")
        assert partition(connector).held is None


def test_a_handler_beyond_its_time_is_a_trouble(cluster: FakeCluster) -> None:
    go = Event()

    def handler(message: Any) -> None:
        if message.offset == 3:
            go.wait(scaled(30))

    with running(cluster, handler, properties={"handler.timeout.ms": "50"}) as connector:
        trouble = "the handler of t-0 at offset 3 has run for"
        eventually(lambda: trouble in str(connector.health()), 20, lambda: f"a trouble: {connector.health()}")
        assert connector.health().live
        go.set()
        eventually(lambda: connector.health().ready, 20, lambda: f"ready again: {connector.health()}")


def test_a_stopped_partition_is_not_ready(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no room for the pointer of a message that was given up: passing it would lose it."""
    monkeypatch.setattr(message_ledger, "MOST_POINTERS", 2)
    handled: list[int] = []

    def handler(message: Any) -> Reject:
        handled.append(message.offset)
        return Reject("no such field")

    with running(cluster, handler, concurrency=1, order="partition") as connector:
        eventually(lambda: "t-0 stopped at 2" in str(connector.health()), 20, lambda: f"a stop: {connector.state}")
        assert connector.health().live
        assert partition(connector).stopped.endswith("no more dead letters can be kept: see `zkconsumer dead`")
        assert "2 dead, stopped at 2: no" in connector.state.balance[0]
    assert handled == [0, 1, 2]
