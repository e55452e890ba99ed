"""Bugs of the original's fetching, and one of ours, with a stepped fetcher or a scripted broker.

A test is named for its report and opens with the failure and its cause. ``zkconsumer/REGRESSIONS.md`` lists them all.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import monotonic
from typing import Any

import pytest

from tests.timing import eventually, scaled
from tests.unit.fetch.one_partition import OnePartition, closing, manager_of
from tests.unit.kafka.scripted import Peer, ScriptedBroker, response
from tests.unit.kafka.sets import WHERE, Batch
from tests.values import present
from zkconsumer.errors import BrokerError
from zkconsumer.fetch.fetcher_manager import FetcherManager, fetcher_number
from zkconsumer.kafka import BrokerChannel, error_codes
from zkconsumer.kafka.broker_schemas import METADATA
from zkconsumer.model import Endpoint, ThreadId, TopicPartition
from zkconsumer.ownership.partition_position import PartitionPosition
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.streams.stream_queue import StreamQueue


def messages(base: int, count: int = 1) -> bytes:
    return Batch([*Batch().records] * count).encode(base)[0]


def log_of(count: int) -> Callable[[int, int], bytes]:
    return lambda offset, _: messages(offset) if offset < count else b""


# ---- one fetcher, stepped ----


def test_kafka_693_a_reset_error_harms_only_its_partition() -> None:
    """Where the lookup of the reset offset failed, the fetcher's thread ended and with it all its partitions."""
    it = OnePartition(start=9)
    it.listed = (error_codes.NOT_LEADER_OR_FOLLOWER, -1)
    with it.fetching(lambda *_: error_codes.OFFSET_OUT_OF_RANGE) as fetcher:
        fetcher.step()
        assert [fetch.tp for fetch in it.returned] == [WHERE]
        assert "returned no start offset: NOT_LEADER" in it.returned[0].trouble
        assert it.position.cursor.fetched == 9, "it is not guessed where to go on"


def test_kafka_832_a_full_queue_holds_up_nobody() -> None:
    """A fetcher stood still in the full queue of a slow stream, and a rebalance waited for the fetcher."""
    it = OnePartition()
    it.queue = it.stream.queue = StreamQueue(1, it.on_room)
    slow = it.position
    with it.fetching(log_of(100)) as fetcher:
        fetcher.step()
        assert not it.queue.has_room()
        fetcher.partitions.wake()
        began = monotonic()
        fetcher.step()
        assert monotonic() - began < scaled(5)
        assert len(it.asked) == 1, "nothing more is asked for while nobody takes it"
        it.queue.revoke([slow])
        assert fetcher.partitions.drop_revoked()
        assert it.queue.has_room()


@pytest.mark.parametrize(
    ("topic", "partition", "number"),
    [*(("t", n, n) for n in range(4)), ("topic-1", 0, 3), ("topic-1", 1, 2), ("__consumer_offsets", 7, 0)],
)
def test_kafka_1178_fetchers_have_numbers_that_exist(topic: str, partition: int, number: int) -> None:
    """The hash of a topic may be negative, and so was the number of the fetcher."""
    assert fetcher_number(TopicPartition(topic, partition), 4) == number


# ---- the leader finder and its fetchers ----


class Cluster:
    """A broker that leads t-3 while ``leader`` says so, and the brokers that are registered in ZooKeeper."""

    def __init__(self) -> None:
        self.it = OnePartition()
        self.leader = 7
        self.registered: list[Endpoint] = []
        self.asked: list[str] = []

    def serve(self, peer: Peer) -> None:
        """Metadata as asked, and no fetch is ever answered."""
        peer.versions()
        while True:
            try:
                request = peer.request()
            except ConnectionError:
                return
            self.asked.append({1: "fetch", 3: "metadata"}[request.api])
            if request.api != 3:
                peer.until_closed()
                return
            partition: tuple[Any, ...] = (
                error_codes.LEADER_NOT_AVAILABLE if self.leader < 0 else 0,
                3,
                self.leader,
                [7],
                [7],
                [],
            )
            topics = [(0, "t", False, [partition])]
            peer.answer(request.correlation_id, response(METADATA, 5, 0, [(7, "h", 1, None)], "id", 7, topics))

    def manager(self, **settings: Any) -> FetcherManager:
        return manager_of(OnePartition(backoff=0.05, **settings).settings, lambda _: self.registered)

    def start(self, manager: FetcherManager) -> PartitionPosition:
        position = PartitionPosition(WHERE, ThreadId("g_c-0"), 0)
        manager.start([(position, StreamQueue(2, lambda: None))])
        return position


def test_a_silent_broker_delays_the_leaders_of_others_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker whose answer never came was asked again and again, ten seconds each time, before the others."""
    monkeypatch.setattr("zkconsumer.fetch.leader_search.random.sample", lambda brokers, _: brokers)
    monkeypatch.setattr("zkconsumer.fetch.leader_search.FIRST_TIMEOUT", scaled(0.6))
    cluster = Cluster()
    asked: list[int] = []
    connect = BrokerChannel.connect

    def recorded(self: BrokerChannel, deadline: Deadline) -> None:
        asked.append(self.endpoint.broker_id)
        connect(self, deadline)

    def silent(peer: Peer) -> None:
        peer.versions()
        peer.until_closed()

    monkeypatch.setattr(BrokerChannel, "connect", recorded)
    with (
        ScriptedBroker(silent) as slow,
        ScriptedBroker(cluster.serve, cluster.serve) as quick,
        closing(cluster.manager()) as manager,
    ):
        brokers = [Endpoint(8, "127.0.0.1", slow.port, 5), quick.endpoint()]
        assert [manager.leaders.find(["t"], brokers)[WHERE] for _ in range(2)] == [7, 7]
        assert asked == [8, 7, 7]


def test_kafka_1461_a_failed_fetch_is_not_repeated_at_once(caplog: pytest.LogCaptureFixture) -> None:
    """After an error of a fetch there was no pause. Ours asked a broker that closed each connection 900 times a
    second: giving a partition back woke the leader finder out of its pause.
    """
    caplog.set_level(logging.CRITICAL)
    cluster = Cluster()

    def closes(peer: Peer) -> None:
        peer.versions()
        peer.request()
        cluster.asked.append("fetch")

    scripts = [cluster.serve, closes] * 4
    with ScriptedBroker(*scripts) as broker, closing(cluster.manager()) as manager:
        cluster.registered = [broker.endpoint()]
        began = monotonic()
        cluster.start(manager)
        manager.open()
        eventually(lambda: cluster.asked.count("fetch") == 4, 20, "four fetches")
        assert monotonic() - began >= 3 * 0.05
        eventually(lambda: "closed" in manager.trouble or "127.0.0.1" in manager.trouble, 5, "the reason, for the user")


def test_kafka_4319_fetchers_end_together() -> None:
    """Fetchers were stopped in turn, each with a wait of its own. KAFKA-1886, KAFKA-2241: an interrupt did not reach a
    blocking read.
    """
    cluster = Cluster()
    waiting: list[int] = []

    def lazy(peer: Peer) -> None:
        peer.versions()
        peer.request()
        waiting.append(1)
        peer.until_closed()

    with ScriptedBroker(lazy) as one, ScriptedBroker(lazy) as two, closing(cluster.manager(max_wait=60.0)) as manager:
        for number, broker in enumerate([one, two]):
            fetcher = present(manager.fetchers.fetcher_for((number, 0), broker.endpoint()))
            fetcher.partitions.add([OnePartition().flow()])
        eventually(lambda: len(waiting) == 2, 10, "two long polls")
        began = monotonic()
        manager.close(Deadline(scaled(10)))
        assert monotonic() - began < scaled(2)


def test_without_any_broker_the_reason_is_told() -> None:
    """KAFKA-969: without a broker at the start the rebalance failed for good."""
    cluster = Cluster()
    with closing(cluster.manager()) as manager:
        cluster.start(manager)
        with pytest.raises(BrokerError, match="no broker is registered"):
            manager.step()
