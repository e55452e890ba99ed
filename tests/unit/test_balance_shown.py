"""The state that a run with ``concurrency`` shows, on a cluster in memory."""

from __future__ import annotations

from threading import Event
from typing import Any

import pytest

from tests.balanced_run import T0, at_work, running
from tests.timing import eventually, scaled
from tests.unit.clusters import cluster_with
from zkconsumer.balance.outcomes import Reject
from zkconsumer.ownership import balanced_ledger
from zkconsumer.runtime.metrics import BucketsValue
from zkconsumer.testing import FakeCluster

cluster = cluster_with({"t": [[b"%d" % number for number in range(20)], []]})


def fails_at(offset: int) -> Any:
    def handler(message: Any) -> None:
        if message.offset == offset:
            raise TimeoutError("the warehouse is away")

    return handler


def test_a_failing_message_is_seen_to_hold_the_base(cluster: FakeCluster) -> None:
    with running(cluster, fails_at(5)) as connector:
        eventually(lambda: at_work(connector).base == 5, 20, lambda: f"base 5: {connector.state}")
        eventually(lambda: at_work(connector).finished_beyond == 14, 20, lambda: f"14 beyond: {connector.state}")
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
    monkeypatch.setattr(balanced_ledger, "MOST_POINTERS", 2)
    handled: list[int] = []

    def handler(message: Any) -> Reject:
        handled.append(message.offset)
        return Reject("no such field")

    with running(cluster, handler, concurrency=1, order="partition") as connector:
        eventually(lambda: "t-0 stopped" in str(connector.health()), 20, lambda: f"a stop: {connector.state}")
        assert connector.health().live
        assert "the message at offset 2 is a dead letter" in at_work(connector).stopped
        assert "2 dead, stopped: the message at offset 2" in connector.state.balance[0]
    assert handled == [0, 1, 2]
