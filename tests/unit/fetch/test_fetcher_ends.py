"""Another fetcher takes over the partitions of a fetcher that ends, or cannot begin."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from tests.timing import scaled
from tests.unit.fetch.one_partition import OnePartition
from tests.unit.kafka.sets import WHERE
from tests.values import present
from zkconsumer.core.partition_position import PartitionPosition
from zkconsumer.deadline import Deadline
from zkconsumer.fetch.fetcher import Fetcher, PartitionFetch
from zkconsumer.fetch.fetcher_manager import FetcherManager
from zkconsumer.metrics import Metrics
from zkconsumer.model import Endpoint, ThreadId
from zkconsumer.streams import QueueBudget, StreamQueue


def test_a_fetcher_that_is_replaced_gives_its_partitions_back() -> None:
    """When a broker was registered at another address while its old connection was still believed in, the fetcher for
    the new address ended the old one, whose partitions nobody fetched any more.
    """
    it = OnePartition()
    manager = FetcherManager(
        "m", it.settings, lambda _: [], resolved=lambda *_: None, metrics=Metrics(), budget=QueueBudget(1 << 40)
    )
    old = present(manager.fetcher_for((0, 0), Endpoint(0, "127.0.0.1", 1)))
    it.position.fetched = None  # it waits for its start, and so in peace
    fetch = PartitionFetch(it.position, it.queue)
    fetch.resolving = True
    old.add([fetch])
    try:
        manager.fetcher_for((0, 0), Endpoint(0, "127.0.0.1", 2))
        assert old.join(Deadline(scaled(10)))
        assert manager.leaderless == {it.position.tp}
    finally:
        manager.close(Deadline(scaled(10)))


def test_metrics_of_a_broker_go_with_its_last_fetcher() -> None:
    """Bug: brokers that had left the cluster stayed in every report for ever."""
    it, metrics = OnePartition(), Metrics()
    manager = FetcherManager(
        "m", it.settings, lambda _: [], resolved=lambda *_: None, metrics=metrics, budget=QueueBudget(1 << 40)
    )

    def ports() -> set[str]:
        return {value for name in metrics.snapshot() for tag, value in name.tags if tag == "brokerPort"}

    try:
        for number, port in enumerate((1, 2, 2)):
            assert manager.fetcher_for((port, number), Endpoint(port, "127.0.0.1", port)) is not None
        assert ports() == {"1", "2"}
        everywhere = {name for name in metrics.snapshot() if "brokerPort" not in dict(name.tags)}
        it.position.fetched = None  # so that it waits in peace
        fetch = PartitionFetch(it.position, it.queue)
        fetch.resolving = True
        fetcher = present(manager.fetcher_for((2, 1), Endpoint(2, "127.0.0.1", 2)))
        fetcher.add([fetch])
        manager.retire_idle()
        assert ports() == {"2"}, "one of its two fetchers is left"
        manager.fetcher_for((2, 1), Endpoint(2, "127.0.0.1", 3))
        assert ports() == {"3"}, "the broker came back at another address"
        it.position.revoked = True
        manager.retire_idle()
        assert ports() == set()
        assert set(metrics.snapshot()) == everywhere
    finally:
        manager.close(Deadline(scaled(10)))


def test_a_fetcher_without_a_thread_gets_no_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Out of threads, the manager kept a fetcher without one and gave it partitions at the next try, for ever."""
    begun = OnePartition()
    broker = Endpoint(0, "127.0.0.1", 1)
    manager = FetcherManager(
        "m",
        begun.settings,
        lambda _: [broker],
        resolved=lambda *_: None,
        metrics=Metrics(),
        budget=QueueBudget(1 << 40),
    )
    with monkeypatch.context() as without_threads:
        without_threads.setattr(Fetcher, "start", Mock(side_effect=RuntimeError("can't start new thread")))
        fetch = PartitionFetch(PartitionPosition(WHERE, ThreadId("g_c-0"), 0), StreamQueue(2, lambda: None))
        with pytest.raises(RuntimeError):
            manager.hand_over([(fetch, broker)])
    try:
        taken = present(manager.fetcher_for((0, 0), broker))
        assert not taken.join(Deadline(0)), "its thread runs"
    finally:
        manager.close(Deadline(scaled(10)))
