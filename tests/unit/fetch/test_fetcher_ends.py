"""Another fetcher takes over the partitions of a fetcher that ends, or cannot begin."""

from __future__ import annotations

from threading import Thread
from unittest.mock import Mock

import pytest

from tests.unit.fetch.one_partition import OnePartition, closing, manager_of
from tests.values import present
from zkconsumer.model import Endpoint, ThreadId
from zkconsumer.ownership.partition_position import PartitionPosition
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.runtime.metrics import Metrics


def test_a_cursor_stays_when_a_later_one_of_its_partition_ends() -> None:
    """Bug: a loan that began while its borrower claimed the partition took the owner's cursor out of the table."""
    it = OnePartition()
    with closing(manager_of(it.settings, lambda _: [])) as manager:
        later = PartitionPosition(it.position.tp, ThreadId("borrowed-0"), 5)
        manager.start([(it.position, it.queue)])
        manager.start([(later, it.queue)])
        later.revoked = True
        manager.forget()
        assert manager.leaderless == {it.position.tp}


def test_metrics_of_a_broker_go_with_its_last_fetcher() -> None:
    """Bug: brokers that had left the cluster stayed in every report for ever."""
    it, metrics = OnePartition(), Metrics()

    def ports() -> set[str]:
        return {value for name in metrics.snapshot() for tag, value in name.tags if tag == "brokerPort"}

    with closing(manager_of(it.settings, lambda _: [], metrics=metrics)) as manager:
        for number, port in enumerate((1, 2, 2)):
            assert manager.fetchers.fetcher_for((port, number), Endpoint(port, "127.0.0.1", port)) is not None
        assert ports() == {"1", "2"}
        everywhere = {name for name in metrics.snapshot() if "brokerPort" not in dict(name.tags)}
        fetcher = present(manager.fetchers.fetcher_for((2, 1), Endpoint(2, "127.0.0.1", 2)))
        fetcher.partitions.add([it.flow(waiting=True)])
        manager.fetchers.retire_idle()
        assert ports() == {"2"}, "one of its two fetchers is left"
        manager.fetchers.fetcher_for((2, 1), Endpoint(2, "127.0.0.1", 3))
        assert ports() == {"3"}, "the broker came back at another address"
        it.position.revoked = True
        manager.fetchers.retire_idle()
        assert ports() == set()
        assert set(metrics.snapshot()) == everywhere


def test_a_fetcher_without_a_thread_gets_no_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Out of threads, the manager kept a fetcher without one and gave it partitions at the next try, for ever."""
    it, broker = OnePartition(), Endpoint(0, "127.0.0.1", 1)
    with closing(manager_of(it.settings, lambda _: [broker])) as manager:
        with monkeypatch.context() as without_threads:
            without_threads.setattr(Thread, "start", Mock(side_effect=RuntimeError("can't start new thread")))
            with pytest.raises(RuntimeError):
                manager.hand_over([(it.flow(), broker)])
        taken = present(manager.fetchers.fetcher_for((0, 0), broker))
        assert not taken.join(Deadline(0)), "its thread runs"
