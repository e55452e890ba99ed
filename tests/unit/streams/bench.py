"""One stream with its queue and lease, for tests that read the stream in every way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from functools import wraps
from threading import Thread
from types import coroutine
from typing import Any

import pytest

from tests.streams import new_stream, valid_lease
from tests.timing import scaled
from tests.unit.kafka.record_writer import NewRecord, batch_bytes
from tests.values import present
from zkconsumer import KafkaStream, MergedStreams
from zkconsumer.errors import ConsumerTimeoutException
from zkconsumer.model import ThreadId, TopicPartition
from zkconsumer.ownership.partition_position import PartitionPosition
from zkconsumer.streams.async_stream import AsyncStream
from zkconsumer.streams.byte_budget import QueueBudget
from zkconsumer.streams.stream_queue import StreamQueue

WITHIN = 20.0


def record_batch(first: int, count: int) -> bytes:
    records = [
        NewRecord(n, 1_700_000_000_000 + n, b"k%d" % (first + n), b"v%d" % (first + n), [("h", b"1")])
        for n in range(count)
    ]
    return batch_bytes(records, base=first)


def position(partition: int = 0, start: int | None = 0) -> PartitionPosition:
    return PartitionPosition(TopicPartition("t", partition), ThreadId("g_c-0"), start)


class Bench:
    """One stream with its queue and lease; ``settings`` are those of :func:`new_stream`."""

    def __init__(
        self,
        *,
        timeout: float | None = 0.0,
        capacity: int = 2,
        budget: QueueBudget | None = None,
        gate: Callable[[Any], Any] = lambda lease: lease,
        **settings: Any,
    ) -> None:
        self.room = 0
        self.lease = valid_lease()
        self.on_room: Callable[[], None] = self._count_room
        self.queue = StreamQueue(capacity, lambda: self.on_room(), budget)
        self.stream: KafkaStream[Any, Any] = new_stream(
            "t/g_c-0", self.queue, gate(self.lease), timeout=timeout, **settings
        )

    def _count_room(self) -> None:
        self.room += 1

    def put(self, where: PartitionPosition, first: int, count: int) -> None:
        self.queue.deliver(where, record_batch(first, count), (first, first + count), ())


def take(stream: KafkaStream[bytes, bytes], count: int) -> list[int]:
    return [stream.get(timeout=0).offset for _ in range(count)]


def nothing_comes(stream: KafkaStream[Any, Any]) -> bool:
    """Ask for another message in vain, which finishes the one in hand."""
    with pytest.raises(ConsumerTimeoutException):
        stream.get(timeout=0)
    return True


class AsyncBench(Bench):
    """One stream that never waits in a read, and its reader on a loop."""

    def __init__(self, timeout: float | None = None, *, ends: bool = False, **settings: Any) -> None:
        super().__init__(capacity=1000, ends_on_timeout=True, **settings)
        self.reader: AsyncStream[bytes, bytes] = AsyncStream(self.stream, timeout=timeout, ends_on_timeout=ends)


class Several:
    """Several streams, each with the partition of the same number, and the merged stream."""

    def __init__(
        self,
        count: int,
        *,
        timeout: float | None = 0,
        budget: QueueBudget | None = None,
        gate: Callable[[Any], Any] = lambda lease: lease,
        **options: Any,
    ) -> None:
        self.lease = valid_lease()
        passed = gate(self.lease)
        self.streams: list[KafkaStream[Any, Any]] = [
            new_stream(f"s{n}", StreamQueue(9, lambda: None, budget), passed, timeout=timeout) for n in range(count)
        ]
        self.positions = [position(n) for n in range(count)]
        self.ends = [0] * count
        self.merged = MergedStreams(lambda: self.streams, timeout=timeout, **options)

    def put(self, number: int, count: int) -> None:
        """So many messages more, as one chunk."""
        start = self.ends[number]
        self.ends[number] = end = start + count
        self.streams[number].queue.deliver(self.positions[number], record_batch(start, count), (start, end), ())

    @property
    def held(self) -> list[int]:
        return [where.tp.partition for where in self.positions if where.held]

    @property
    def finished(self) -> list[int | None]:
        return [where.finished(including_held=False) for where in self.positions]

    def close(self) -> None:
        for stream in self.streams:
            stream.queue.close()


def run(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine on a loop of its own, which must not take for ever."""

    async def bounded() -> Any:
        return await asyncio.wait_for(work, scaled(WITHIN))

    return asyncio.run(bounded())


def on_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Make a test of a coroutine, which :func:`run` runs."""

    @wraps(test)
    def on_its_loop(*arguments: Any, **options: Any) -> None:
        run(test(*arguments, **options))

    return on_its_loop


def elsewhere(act: Callable[[], object]) -> None:
    """Act on another thread, as a fetcher does, and wait for it."""
    thread = Thread(target=act)
    thread.start()
    thread.join()


async def awaited(work: Any) -> Any:
    """Make a coroutine, of which a task can be made, of something that can be awaited."""
    return await work


@coroutine
def cancelled_at(work: Coroutine[Any, Any, Any], suspension: int) -> Generator[Any, Any, bool]:
    """Run a coroutine, and cancel its task in so many-th suspension. Returns whether it came that far."""
    steps, count, error = work.__await__(), 0, None
    while True:
        try:
            waits_for = steps.send(None) if error is None else steps.throw(error)
        except StopIteration:
            return False
        except asyncio.CancelledError:
            return True
        count += 1
        if count == suspension:
            task = present(asyncio.current_task())
            task.cancel()  # it is thrown in as soon as the task waits
        error = None
        try:
            yield waits_for
        except asyncio.CancelledError as cancelled:
            error = cancelled
