"""Trips to worker processes: what had begun when a process died, and the chunks that a process has already."""

from __future__ import annotations

from typing import Any, cast

import pytest

from tests.unit.balance.work_list import new_works
from zkconsumer.balance.worker_link import ChunkCache, WorkerTrip
from zkconsumer.balance.worker_process import SentChunk
from zkconsumer.model import ThreadId, TopicPartition
from zkconsumer.ownership.partition_position import PartitionPosition
from zkconsumer.streams.stream_queue import Chunk


class Link:
    """A process that never takes a token by itself."""

    def __init__(self) -> None:
        self.cache = ChunkCache()
        self.tokens = 0
        self.sent: list[Any] = []

    def send(self, value: object, steps: int) -> None:
        self.sent.append(value)
        self.tokens += steps

    def withdraw_steps(self) -> int:
        taken, self.tokens = self.tokens, 0
        return taken


def new_trip(groups: int) -> tuple[WorkerTrip, Link]:
    """A trip of groups of one message each, sent to a process."""
    link = Link()
    trip = WorkerTrip(cast("Any", link), [(work,) for work in new_works([b"v"] * groups)])
    trip.send(0.0)
    return trip, link


@pytest.mark.parametrize(
    ("begun", "settled", "failed", "known"),
    [
        (0, 0, [], True),  # it never received the trip
        (1, 0, [0, 1, 2, 3], False),  # while it decoded: any of them
        (2, 0, [0], True),
        (3, 1, [1], True),
        (3, 2, [], True),  # between two groups
        (5, 3, [3], True),
        (5, 4, [], True),
    ],
)
def test_only_what_had_begun_has_failed(begun: int, settled: int, failed: list[int], known: bool) -> None:
    trip, link = new_trip(4)
    link.tokens -= begun
    for number in range(settled):
        assert len(trip.take_settled(number)) == 1
    works, sure = trip.begun()
    assert ([work.offset for work in works], sure) == (failed, known)


def test_works_that_were_taken_back_are_not_the_process_s() -> None:
    trip, link = new_trip(4)
    link.tokens -= 2
    assert [work.offset for work in trip.waiting()] == [1, 2, 3]
    assert [work.offset for work in trip.recall()] == [1, 2, 3]
    assert trip.waiting() == []
    assert [work.offset for work in trip.running[0]] == [0]
    assert [work.offset for work in trip.begun()[0]] == [0]


def test_a_whole_trip_can_be_taken_back() -> None:
    """A process that was stopped before it received the trip does nothing of it once it goes on."""
    trip, _ = new_trip(2)
    assert [work.offset for work in trip.recall()] == [0, 1]
    assert trip.running[0] == ()
    assert trip.begun() == ([], True)


def test_steps_that_a_trip_left_are_none_of_the_next() -> None:
    """The lease ended after its first group, so the process begins no more of it. The next one is of one group."""
    trip, link = new_trip(3)
    link.tokens -= 2
    trip.take_settled(0)
    assert [work.offset for work in trip.end()] == [1, 2]
    (work,) = new_works([b"v"])
    later = WorkerTrip(cast("Any", link), [(work,)])
    later.send(0.0)
    link.tokens -= 2
    assert later.recall() == []
    assert later.begun() == ([work], True)


def test_a_chunk_is_sent_with_the_first_trip_alone() -> None:
    link = Link()
    works = new_works([b"v"] * 2)
    for work in works:
        WorkerTrip(cast("Any", link), [(work,)]).send(0.0)
    assert [len(sent.chunks) for sent in link.sent] == [1, 0]
    assert [sent.groups[0][0].serial for sent in link.sent] == [1, 1]


def new_chunk(size: int) -> Chunk:
    return Chunk(PartitionPosition(TopicPartition("t", 1), ThreadId("g_c-0"), 0), b"x" * size, 0, 10)


def test_a_chunk_is_sent_once_and_evicted_by_its_last_use() -> None:
    cache, new = ChunkCache(most_bytes=100), list[SentChunk]()
    first, second, third = new_chunk(40), new_chunk(40), new_chunk(40)
    assert [cache.serial(chunk, new) for chunk in (first, second, first)] == [1, 2, 1]
    assert [(sent.serial, sent.topic, sent.partition, len(sent.records)) for sent in new] == [
        (1, "t", 1, 40),
        (2, "t", 1, 40),
    ]
    assert cache.forget({1}) == ()
    assert cache.serial(third, new) == 3
    assert cache.forget({3}) == (2,)
    assert cache.serial(second, new) == 4
    assert cache.forget({1, 3, 4}) == ()  # all are needed, whatever they take
    assert cache.forget(()) == (1,)
