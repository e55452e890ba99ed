"""The calls and properties of a connector in a run with ``concurrency``: a test for each line of the docs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Lock
from typing import Any

import pytest

from tests.balanced_run import T0, at_work, running
from tests.timing import eventually, scaled
from tests.unit.clusters import cluster_with, committed
from zkconsumer import ConsumerTimeoutException, ZookeeperConsumerConnector
from zkconsumer.member.connector_state import Phase
from zkconsumer.model import TopicPartition
from zkconsumer.testing import FakeCluster

COUNT = 20
cluster = cluster_with({"t": [[b"%d" % number for number in range(COUNT)], []]})


class Held:
    """A handler that keeps one message in hand until ``go``, and notes the handled offsets."""

    def __init__(self, offset: int) -> None:
        self._offset = offset
        self._lock = Lock()
        self.go = Event()
        self.handled: list[int] = []

    def __call__(self, message: Any) -> None:
        with self._lock:
            self.handled.append(message.offset)
        if message.offset == self._offset:
            self.go.wait(scaled(60))


@contextmanager
def holding_one(cluster: FakeCluster, **options: Any) -> Iterator[tuple[ZookeeperConsumerConnector, Held]]:
    """A member whose handler has the message at offset 5 in hand. All others are finished."""
    held = Held(5)
    with running(cluster, held, **options) as connector:

        def all_but_one() -> bool:
            now = at_work(connector)
            return (now.base, now.finished_beyond) == (5, COUNT - 6)

        eventually(all_but_one, 20, lambda: f"only 5 in hand: {connector.state}")
        yield connector, held


def test_commit_offsets_counts_nothing_in_hand(cluster: FakeCluster) -> None:
    with holding_one(cluster) as (connector, held):
        connector.commit_offsets()
        assert committed(cluster, "t")[0] == 5
        assert "/consumers/g/acks/t/0" in cluster.zookeeper.tree("/consumers/g/acks")
        held.go.set()
        eventually(lambda: at_work(connector).base == COUNT, 20, lambda: f"the end: {connector.state}")
        connector.commit_offsets()
        assert committed(cluster, "t")[0] == COUNT


def test_without_auto_commit_nothing_is_committed(cluster: FakeCluster) -> None:
    with running(cluster, lambda _: None, properties={"auto.commit.enable": "false"}) as connector:
        eventually(lambda: at_work(connector).base == COUNT, 20, lambda: f"the end: {connector.state}")
    assert committed(cluster, "t")[0] <= 0


def test_seek_makes_outcomes_in_hand_count_no_more(cluster: FakeCluster) -> None:
    with holding_one(cluster) as (connector, held):
        connector.seek(("t", 0), 12)
        eventually(lambda: held.handled.count(19) == 2, 20, lambda: f"read again: {held.handled}")
        held.go.set()
        eventually(lambda: at_work(connector).base == COUNT, 20, lambda: f"the end: {connector.state}")
        assert held.handled.count(5) == held.handled.count(11) == 1
        assert held.handled.count(12) == 2


def test_a_paused_partition_begins_no_message(cluster: FakeCluster) -> None:
    held = Held(5)
    with running(cluster, held, concurrency=1, order="partition") as connector:
        eventually(lambda: held.handled[-1:] == [5], 20, lambda: f"5 in hand: {held.handled}")
        connector.pause([("t", 0)])
        held.go.set()
        eventually(lambda: at_work(connector).base == 6, 20, lambda: f"5 finished: {connector.state}")
        assert held.handled == list(range(6))
        connector.resume([("t", 0)])
        eventually(lambda: at_work(connector).base == COUNT, 20, lambda: f"the end: {connector.state}")
        assert held.handled == list(range(COUNT))


def test_consumer_timeout_waits_for_handlers(cluster: FakeCluster) -> None:
    """The time counts while nothing is in hand: a slow handler does not end the run."""
    held, timeout = Held(5), {"consumer.timeout.ms": str(int(scaled(0.15) * 1000))}
    connector = ZookeeperConsumerConnector(
        {"zookeeper.connect": cluster.zookeeper_connect, "group.id": "g", "auto.offset.reset": "smallest", **timeout}
    )

    def handler(message: Any) -> None:
        held.handled.append(message.offset)
        if message.offset == 5:
            assert not held.go.wait(scaled(0.5)), "three times the timeout"

    with connector:
        with pytest.raises(ConsumerTimeoutException):
            connector.run(handler, "t", concurrency=1, order="partition")
        assert held.handled == list(range(COUNT))


def test_the_rate_cap_counts_handlers_that_begin(cluster: FakeCluster) -> None:
    """One a second begins, whatever ``concurrency`` is. All of them would take 19 s."""
    handled: list[int] = []
    cap = {"consumed.max.per.second": "1"}
    with running(cluster, lambda m: handled.append(m.offset), concurrency=16, properties=cap) as connector:
        eventually(lambda: len(handled) >= 2, 20, lambda: f"some: {connector.state}")
        assert len(handled) < COUNT


def test_broadcasting_members_balance_for_themselves(cluster: FakeCluster) -> None:
    first, second = list[int](), list[int]()
    broadcast = {"message.model": "broadcasting"}
    with (
        running(cluster, lambda m: first.append(m.offset), properties={**broadcast, "consumer.id": "a"}),
        running(cluster, lambda m: second.append(m.offset), properties={**broadcast, "consumer.id": "b"}),
    ):
        eventually(lambda: len(first) == len(second) == COUNT, 20, lambda: f"both: {len(first)}, {len(second)}")
    assert sorted(first) == sorted(second) == list(range(COUNT))


def test_max_poll_interval_does_not_watch_handlers() -> None:
    """The reader comes back whatever handlers do. ``handler.timeout.ms`` is for handlers."""
    properties = {"group.coordination": "kafka", "max.poll.interval.ms": "200", "heartbeat.interval.ms": "50"}
    with FakeCluster() as cluster:
        cluster.create_topic("t", 1)
        cluster.append("t", 0, [b"%d" % number for number in range(COUNT)])
        properties["bootstrap.servers"] = cluster.bootstrap_servers
        with holding_one(cluster, properties=properties) as (connector, held):
            rebalances = connector.state.rebalances
            assert at_work(connector).held is not None

            def far_beyond() -> bool:
                now = at_work(connector).held
                return now is not None and (now.in_hand or 0.0) > 1.0

            eventually(far_beyond, 20, lambda: f"five times the interval: {connector.state}")
            assert connector.state.phase is Phase.OWNING
            assert connector.state.rebalances == rebalances
            held.go.set()
            eventually(lambda: at_work(connector).base == COUNT, 20, lambda: f"the end: {connector.state}")


def test_shutdown_waits_for_handlers_and_commits(cluster: FakeCluster) -> None:
    with holding_one(cluster) as (_, held):
        held.go.set()
    assert committed(cluster, "t")[0] == COUNT


def test_an_unsubscribed_topic_is_left_when_finished(cluster: FakeCluster) -> None:
    with holding_one(cluster) as (connector, held):
        held.go.set()
        connector.unsubscribe(["t"])
        assert committed(cluster, "t")[0] == COUNT
        eventually(lambda: at_work(connector).base == -1, 20, lambda: f"nothing is read: {connector.state}")


def test_run_and_messages_exclude_each_other(cluster: FakeCluster) -> None:
    with holding_one(cluster) as (connector, held):
        with pytest.raises(ValueError, match="run"):
            connector.messages()
        with pytest.raises(ValueError, match="run already"):
            connector.run(held, concurrency=2)
        held.go.set()


def test_lag_leaves_out_what_is_finished_beyond(cluster: FakeCluster) -> None:
    with holding_one(cluster) as (connector, held):
        assert connector.lag() == {T0: 1, TopicPartition("t", 1): 0}
        held.go.set()
