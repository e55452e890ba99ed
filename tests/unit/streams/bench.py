"""One stream with its queue and lease, for tests that read it in each of its ways."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from threading import Thread
from types import coroutine
from typing import Any

from tests.streams import new_stream, valid_lease
from tests.timing import scaled
from tests.unit.kafka.record_writer import NewRecord, batch_bytes
from tests.values import present
from zkconsumer.core.partition_position import PartitionPosition
from zkconsumer.model import ThreadId, TopicPartition
from zkconsumer.streams import KafkaStream, StreamQueue
from zkconsumer.streams.async_stream import AsyncStream

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
    """One stream with its queue and lease."""

    def __init__(self, *, timeout: float | None = 0.0, capacity: int = 2) -> None:
        self.room = 0
        self.lease = valid_lease()
        self.on_room: Callable[[], None] = self._count_room
        self.queue = StreamQueue(capacity, lambda: self.on_room())
        self.stream: KafkaStream[bytes, bytes] = new_stream("t/g_c-0", self.queue, self.lease, timeout=timeout)

    def _count_room(self) -> None:
        self.room += 1

    def put(self, where: PartitionPosition, first: int, count: int) -> None:
        self.queue.deliver(where, record_batch(first, count), (first, first + count), ())


def take(stream: KafkaStream[bytes, bytes], count: int) -> list[int]:
    return [stream.get(timeout=0).offset for _ in range(count)]


class AsyncBench(Bench):
    """One stream that never waits in a read, and its reader on a loop."""

    def __init__(self, timeout: float | None = None, *, ends: bool = False, gate: Callable[[Any], Any] | None = None):
        super().__init__(capacity=1000)
        lease = self.lease if gate is None else gate(self.lease)
        self.stream = new_stream("t/g_c-0", self.queue, lease, timeout=0, ends_on_timeout=True)
        self.reader: AsyncStream[bytes, bytes] = AsyncStream(self.stream, timeout=timeout, ends_on_timeout=ends)


def run(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine on a loop of its own, which must not take for ever."""

    async def bounded() -> Any:
        return await asyncio.wait_for(work, scaled(WITHIN))

    return asyncio.run(bounded())


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
