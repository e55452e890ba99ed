"""The result of ``run``, and the attempts that a message shows, in every form of ``run``."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.timing import eventually
from tests.unit.balance import handlers
from tests.unit.clusters import cluster_with
from tests.values import present
from zkconsumer import BalancedMessage, FailureLimit, Later, Reject, Retry, RunSummary, ZookeeperConsumerConnector
from zkconsumer.core.message_pointers import decode_pointers
from zkconsumer.testing import FakeCluster

COUNT = 12
cluster = cluster_with({"events": [[]]})


def connector(cluster: FakeCluster, **properties: Any) -> ZookeeperConsumerConnector:
    base = {"zookeeper.connect": cluster.zookeeper_connect, "group.id": "g", "auto.offset.reset": "smallest"}
    return ZookeeperConsumerConnector(base | properties)


FORMS: dict[str, dict[str, Any]] = {
    "threads": {},
    "asyncio": {"executor": "asyncio"},
    "processes": {"executor": "processes"},
}


@pytest.mark.parametrize("form", FORMS)
def test_a_balanced_run_counts_what_became_of_messages(cluster: FakeCluster, form: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    told = f"told {out}".encode()
    cluster.append("events", 0, [told] * COUNT + [b"reject no", b"failed park"], [b"%d" % n for n in range(COUNT + 2)])
    handler = handlers.told_coroutine if form == "asyncio" else handlers.told
    retry = Retry(attempts=9, delays=[0.0], park_after=2)
    with connector(cluster) as one:
        summary = one.run(handler, "events", concurrency=2, retry=retry, until="end", **FORMS[form])
    assert summary == RunSummary(COUNT, COUNT + 2, 1, 1, "until")
    assert str(summary) == "12 messages handled, 14 attempts failed, 1 messages parked, 1 dead letters; ended by until"
    assert sorted(out.read_text().splitlines()) == sorted(["1 ", "2 ValueError: of attempt 1"] * COUNT)
    node = present(cluster.zookeeper.node("/consumers/g/parked/events/0"))
    dead, parked = decode_pointers(node.data).values()
    assert (parked.attempts, parked.reason) == (2, "park")
    assert dead.reason == "no"


def test_a_parked_message_knows_its_last_failure(cluster: FakeCluster) -> None:
    """Also at another member: the pointer tells."""
    cluster.append("events", 0, [b"v"])
    seen: list[tuple[int, str]] = []

    def handle(message: BalancedMessage[bytes | None, bytes | None]) -> Later | Reject | None:
        seen.append((message.attempt, message.last_failure))
        return Later(0.2, failure="busy") if message.attempt < 2 else None

    retry = Retry(attempts=9, park_after=1)
    with connector(cluster) as one:
        assert one.run(handle, "events", concurrency=1, retry=retry, until="end") == RunSummary(0, 1, 1, 0, "until")
    with connector(cluster) as two:
        stop = eventually_stopping(two, lambda: len(seen) > 1)
        assert two.run(handle, "events", concurrency=1, retry=retry) == RunSummary(1, 0, 0, 0, "shutdown")
        stop.join()
    assert seen == [(1, ""), (2, "busy")]


def eventually_stopping(one: ZookeeperConsumerConnector, when: Any) -> Thread:
    """Shut a connector down from a thread, once something is so."""

    def stop() -> None:
        eventually(when, 20, "the second attempt")
        one.shutdown()

    thread = Thread(target=stop)
    thread.start()
    return thread


@pytest.mark.parametrize("options", [{}, {"workers": 2}, {"concurrency": 2}], ids=str)
def test_each_end_of_a_run_is_told(cluster: FakeCluster, options: dict[str, Any]) -> None:
    cluster.append("events", 0, [b"v"] * COUNT)
    with connector(cluster, **{"consumer.timeout.ms": 300, "consumer.timeout.action": "end"}) as one:
        assert one.run(lambda _: None, "events", **options) == RunSummary(COUNT, ended="timeout")
        cluster.append("events", 0, [b"last"])
        assert one.run(lambda _: None, **options) == RunSummary(1, ended="timeout")
    cluster.append("events", 0, [b"next"] * 2)

    def handle(message: Any) -> None:
        if message.offset == COUNT + 2:
            os.kill(os.getpid(), signal.SIGUSR1)

    two = connector(cluster)
    assert two.run(handle, "events", stop_on=[signal.SIGUSR1], **options) == RunSummary(2, ended="signal")


def test_streams_that_end_by_themselves_end_the_run(cluster: FakeCluster) -> None:
    cluster.append("events", 0, [b"v"] * COUNT)
    with connector(cluster) as one:
        one.create_message_streams({"events": 1}, until="end")
        assert one.run(lambda _: None) == RunSummary(COUNT, ended="until")


def test_failures_at_the_limit_count_as_failed(cluster: FakeCluster) -> None:
    cluster.append("events", 0, [b"v"] * COUNT)
    tries: list[int] = []

    def handle(message: BalancedMessage[bytes | None, bytes | None]) -> Later:
        tries.append(message.offset)
        return Later(60, failure="busy")

    with connector(cluster) as one:
        stop = eventually_stopping(one, lambda: one.health().ready is False and len(tries) > 1)
        limit = FailureLimit(consecutive=2)
        summary = one.run(handle, "events", concurrency=1, order="none", failure_limit=limit)
        stop.join()
    assert (summary.handled, summary.failed, summary.ended) == (0, len(tries), "shutdown")
