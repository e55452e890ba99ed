"""A place that cannot be read, in a partition that leaves, is paused, or goes on elsewhere.

Bug: a reader decoded before it looked whether the partition was still wanted. The error came again at each
ask, ``skip()`` refused since the partition had left, and the other partitions of the stream were never read again. With
``corrupt.message.policy=skip`` an ordinary rebalance made ``run`` raise ValueError.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.unit.kafka.sets import Batch, Written
from tests.unit.streams.bench import Bench, position
from zkconsumer import MergedStreams
from zkconsumer.errors import (
    ConsumerTimeoutException,
    InvalidMessageException,
    MessageSizeTooLargeException,
    OffsetConflictError,
    UnreadableMessageError,
)
from zkconsumer.kafka import CorruptRecordsError, RecordBatch
from zkconsumer.kafka.fetched_batches import batches
from zkconsumer.model import TopicPartition
from zkconsumer.ownership.partition_position import PartitionPosition
from zkconsumer.streams import chunk_reader
from zkconsumer.streams.chunk_reader import ChunkReader

BAD, GOOD = TopicPartition("t", 0), TopicPartition("t", 1)
Reader = Callable[["Two"], list[tuple[int, int]]]


def batch(base: int, count: int) -> bytes:
    return Batch([Written(value=b"x")] * count).encode(base)[0]


def broken(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 0xFF])


class Two(Bench):
    """A stream of two partitions: of ``bad`` the messages from offset 2 on cannot be read."""

    def __init__(self, *, skip_corrupt: bool = False) -> None:
        super().__init__(capacity=10, skip_corrupt=skip_corrupt)
        self.merged: MergedStreams[bytes, bytes] = MergedStreams(lambda: [self.stream], timeout=0)
        self.bad, self.good = position(0), position(1)
        self.queue.deliver(self.bad, batch(0, 2) + broken(batch(2, 3)) + batch(5, 2), (0, 7), ())
        self.queue.deliver(self.good, batch(0, 3), (0, 3), ())


def by_message(two: Two) -> list[tuple[int, int]]:
    message = two.stream.get(timeout=0)
    return [(message.partition, message.offset)]


def by_merged(two: Two) -> list[tuple[int, int]]:
    message = two.merged.get(timeout=0)
    return [(message.partition, message.offset)]


def by_batch(two: Two) -> list[tuple[int, int]]:
    rows = next(two.stream.batches(timeout=0))
    return list(zip(rows["partition"].to_pylist(), rows["offset"].to_pylist(), strict=True))


def by_table(two: Two) -> list[tuple[int, int]]:
    rows = two.stream.to_arrow(timeout=0)
    if not rows.num_rows:
        raise ConsumerTimeoutException("nothing")
    return list(zip(rows["partition"].to_pylist(), rows["offset"].to_pylist(), strict=True))


WAYS = pytest.mark.parametrize("ask", [by_message, by_merged, by_batch, by_table])


def until(two: Two, ask: Reader, error: type[Exception]) -> list[tuple[int, int]]:
    """All that comes before the error."""
    got: list[tuple[int, int]] = []
    for _ in range(20):
        try:
            got += ask(two)
        except error:
            return got
    raise AssertionError(f"no {error} after {got}")


def leaves(two: Two) -> None:
    two.queue.revoke([two.bad])


def is_sought(two: Two) -> None:
    two.queue.replace(two.bad, PartitionPosition(BAD, two.bad.thread, 5))


def is_paused(two: Two) -> None:
    two.queue.pause(two.bad)


@WAYS
@pytest.mark.parametrize("goes", [leaves, is_sought, is_paused])
def test_an_unwanted_unreadable_partition_stops_no_other(ask: Reader, goes: Callable[[Two], None]) -> None:
    two = Two()
    assert until(two, ask, InvalidMessageException) == [(0, 0), (0, 1)]
    goes(two)
    assert until(two, ask, ConsumerTimeoutException) == [(1, 0), (1, 1), (1, 2)]


@WAYS
def test_a_resumed_unreadable_partition_is_told_of_again(ask: Reader) -> None:
    two = Two()
    until(two, ask, InvalidMessageException)
    two.queue.pause(two.bad)
    until(two, ask, ConsumerTimeoutException)
    two.queue.resume(two.bad)
    assert until(two, ask, InvalidMessageException) == []
    assert two.stream.skip() == 5
    assert until(two, ask, ConsumerTimeoutException) == [(0, 5), (0, 6)]
    assert two.bad.consumed == 7


@WAYS
def test_skip_by_policy_does_not_mind_a_rebalance(ask: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    """The partition leaves between the error and the decision to skip it."""
    two = Two(skip_corrupt=True)
    handle_error = ChunkReader.handle_error

    def leaves_before(reader: ChunkReader, error: Exception, **how: bool) -> Exception | None:
        if isinstance(error, UnreadableMessageError):
            two.queue.revoke([two.bad])
        return handle_error(reader, error, **how)

    monkeypatch.setattr(ChunkReader, "handle_error", leaves_before)
    assert until(two, ask, ConsumerTimeoutException) == [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)]
    assert two.bad.consumed == 2, "nothing of it was given up: its next owner decides"


def test_skip_of_a_partition_that_has_left_is_harmless() -> None:
    two = Two()
    until(two, by_message, InvalidMessageException)
    two.queue.revoke([two.bad])
    assert two.stream.skip() == 2
    assert two.queue.skipped == 0
    assert until(two, by_message, ConsumerTimeoutException) == [(1, 0), (1, 1), (1, 2)]


def too_large() -> UnreadableMessageError:
    return MessageSizeTooLargeException("too large", BAD, 7, 8)


def conflict() -> OffsetConflictError:
    return OffsetConflictError(BAD, 7, 3)


@pytest.fixture(params=[too_large, conflict])
def stopped(request: pytest.FixtureRequest) -> tuple[Two, Exception]:
    """Fetching of a partition has stopped, and its reader was told so."""
    two = Two(skip_corrupt=True)
    error = request.param()
    two.queue.fail(two.bad, error)
    assert len(until(two, by_message, type(error))) == 7
    return two, error


def test_a_pause_keeps_the_error_that_stopped_fetching(stopped: tuple[Two, Exception]) -> None:
    """The error was dropped with the pause. Nobody fetched the partition after that, and nobody was told."""
    two, error = stopped
    two.queue.pause(two.bad)
    assert until(two, by_message, ConsumerTimeoutException) == []
    two.queue.resume(two.bad)
    with pytest.raises(type(error)):
        two.stream.get(timeout=0)


def test_an_error_of_a_place_that_was_left_is_not_raised(stopped: tuple[Two, Exception]) -> None:
    two, _ = stopped
    new = PartitionPosition(BAD, two.bad.thread, 9)
    two.queue.replace(two.bad, new)
    two.queue.deliver(new, batch(9, 1), (9, 10), ())
    assert until(two, by_message, ConsumerTimeoutException) == [(0, 9)]


class Alarm(Exception):
    """Raised by a signal handler."""


@WAYS
@pytest.mark.parametrize("kind", [Alarm, MemoryError])
def test_an_interrupted_decoding_is_not_taken_for_corrupt(
    ask: Reader, kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An alarm, or missing memory, while records were decoded looked like corrupt data. With
    ``corrupt.message.policy=skip`` the rest of the batch was then passed over, and committed.
    """
    two = Two(skip_corrupt=True)
    two.queue.revoke([two.bad])
    failing = [True]

    def interrupted(records: Any, **how: Any) -> Iterator[RecordBatch]:
        for made in batches(records, **how):
            if failing:
                failing.clear()
                try:
                    raise kind("now")
                except kind as e:
                    raise CorruptRecordsError(GOOD, 0, 3, f"a record cannot be read: {e!r}") from e
            yield made

    monkeypatch.setattr(chunk_reader, "batches", interrupted)
    with pytest.raises(kind):
        ask(two)
    assert until(two, ask, ConsumerTimeoutException) == [(1, 0), (1, 1), (1, 2)]
    assert two.queue.skipped == 0
