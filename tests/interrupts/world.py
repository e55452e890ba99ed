"""A stream with prepared chunks, and the promises that hold at any interrupt of its reader.

A message counts as handed out from the moment on at which the project's frame returned it to its caller. Up to then it
comes again. Nothing is committed that was not handed out.

Threads: the reader is the calling thread. Another thread (:class:`Elsewhere`) does the work of
fetchers and of the group's thread, so that a lock that an interrupt left locked shows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from queue import Empty, SimpleQueue
from threading import Thread, get_native_id
from time import monotonic
from typing import Any, TypeVar

from tests.interrupts.boundaries import untraced
from tests.streams import new_stream
from tests.timing import scaled
from tests.unit.kafka.record_writer import CONTROL, NewRecord, batch_bytes
from zkconsumer import KafkaStream, MergedStreams
from zkconsumer.errors import ConsumerTimeoutException
from zkconsumer.model import ThreadId, TopicPartition
from zkconsumer.ownership.partition_position import PartitionPosition
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.streams.stream_queue import StreamQueue
from zkconsumer.zookeeper.lease import Lease

T = TypeVar("T")
STANDSTILL_S = 1.0
"""Seconds after which another thread that wants a lock counts as standing still."""


class Violation(AssertionError):
    """Something that must hold does not: a loss, a standstill, a refusal."""


class Elsewhere:
    """Another thread: what fetchers and the group's thread do."""

    def __init__(self) -> None:
        self._wanted: SimpleQueue[tuple[Callable[[], Any], SimpleQueue[Any]] | None] | None = None

    def start(self, action: Callable[[], T]) -> Callable[[], T]:
        """Begin something there; returns how to wait for its result."""
        wanted = self._wanted
        if wanted is None:
            wanted = self._wanted = SimpleQueue()
            Thread(target=_work, args=(wanted,), name="interrupts-elsewhere", daemon=True).start()
        done: SimpleQueue[Any] = SimpleQueue()
        wanted.put((action, done))

        def result() -> T:
            try:
                came = done.get(timeout=scaled(STANDSTILL_S))
            except Empty:
                self._wanted = None  # its thread waits for ever: never come back to it
                raise Violation(
                    "stands still: another thread waits for a lock that the interrupt left locked"
                ) from None
            if isinstance(came, Violation):
                raise came
            return came  # type: ignore[no-any-return]

        return result

    def do(self, action: Callable[[], T]) -> T:
        """Do something there and wait for it. Raises: Violation where it stands still."""
        return self.start(action)()

    def end(self) -> None:
        """End the thread."""
        if self._wanted is not None:
            self._wanted.put(None)
            self._wanted = None


def _work(wanted: SimpleQueue[tuple[Callable[[], Any], SimpleQueue[Any]] | None]) -> None:
    while True:
        asked = wanted.get()
        if asked is None:
            return
        action, done = asked
        try:
            done.put(action())
        except Exception as e:
            done.put(Violation(f"fails in another thread: {e!r}"))


ELSEWHERE = Elsewhere()


MARKER = b"\0\0\0\1"
"""The key of a record that ends a transaction by a commit."""


@cache
def batch(base: int, count: int, control: bool = False) -> bytes:
    """A batch of so many messages from offset ``base`` on; or a marker of a transaction."""
    records = [
        NewRecord(delta, 1_500_000_000_000, MARKER if control else b"k%d" % (base + delta), b"v%d" % (base + delta))
        for delta in range(count)
    ]
    return batch_bytes(records, base=base, attributes=CONTROL if control else 0)


class Partition:
    """A partition: the position, the chunks in order, and the messages that were handed out."""

    def __init__(self, number: int) -> None:
        self.position = PartitionPosition(TopicPartition("t", number), ThreadId("g_c-0"), 0)
        self.messages: set[int] = set()
        self.returned: set[int] = set()
        self.repeats = 0
        self.in_hand: int | None = None
        self.end = 0
        self.fetched: list[tuple[bytes, tuple[int, int]]] = []

    def chunk(self, *counts: int) -> tuple[bytes, tuple[int, int]]:
        """The next chunk: batches of so many messages; 0 is a marker of a transaction."""
        start, data = self.end, b""
        for count in counts:
            data += batch(self.end, count or 1, control=not count)
            self.messages.update(range(self.end, self.end + count))
            self.end += count or 1
        return data, (start, self.end)

    @property
    def first_unseen(self) -> int:
        """The first message that was not handed out; beyond it nothing may be committed."""
        return min(self.messages - self.returned, default=self.end)

    def took(self, first: int, end: int) -> None:
        """These offsets were handed out, in order."""
        if self.position.revoked:
            raise Violation(f"offset {first} of {self.position.tp} was handed out after it had left")
        offsets = [offset for offset in range(first, end) if offset in self.messages]
        if first > self.first_unseen:
            raise Violation(f"lost: after an interrupt {self.position.tp} went on at {first}, not {self.first_unseen}")
        self.repeats += len(self.returned.intersection(offsets))
        self.returned.update(offsets)
        self.in_hand = first


class InterruptedStreams:
    """Two partitions of one stream, or of two that are read as one.

    Arguments: ``lease`` in place of one that is valid; ``merged`` makes two streams; ``settings`` go to the streams.
    """

    def __init__(self, *, merged: bool = False, gate: Callable[[Lease], Any] | None = None, **settings: Any) -> None:
        self.lease = Lease()
        self.lease.renew(monotonic(), 3600.0)
        self.lease.resume(self.lease.epoch)
        self.partitions = [Partition(0), Partition(1)]
        self.streams: list[KafkaStream[bytes, bytes]] = [
            new_stream(
                f"s{number}",
                StreamQueue(10, lambda: None),
                self.lease if gate is None else gate(self.lease),
                **settings,
            )
            for number in range(1 + merged)
        ]
        self.merged: MergedStreams[bytes, bytes] = MergedStreams(lambda: self.streams, timeout=0)
        self._late: list[tuple[Partition, bytes, tuple[int, int]]] = []

    @property
    def stream(self) -> KafkaStream[bytes, bytes]:
        """The stream of the first partition (of both, where there is one)."""
        return self.streams[0]

    def stream_of(self, partition: Partition) -> KafkaStream[bytes, bytes]:
        """The stream that hands it out."""
        return self.streams[self.partitions.index(partition) % len(self.streams)]

    # ---- what fetchers do

    def fetch(self, number: int, *counts: int, late: bool = False) -> None:
        """Queue a chunk of a partition; a ``late`` one comes after the interrupt, from another thread."""
        partition = self.partitions[number]
        data, span = partition.chunk(*counts)
        if late:
            self._late.append((partition, data, span))
        else:
            self._deliver(partition, data, span)

    def _deliver(self, partition: Partition, data: bytes, span: tuple[int, int]) -> None:
        partition.fetched.append((data, span))
        partition.position.cursor.fetched = span[1]
        self.stream_of(partition).queue.deliver(partition.position, data, span, ())

    def fill(self) -> None:
        """Queue the chunks that most operations read, of both partitions. A chunk is empty, and a chunk is late."""
        self.fetch(0, 3, 2)
        self.fetch(1, 2)
        self.fetch(0, 0)
        self.fetch(0, 1, 0, 2)
        self.fetch(1, 1, late=True)

    def late(self) -> None:
        """Queue the late chunks."""
        for partition, data, span in self._late:
            ELSEWHERE.do(lambda p=partition, d=data, s=span: self._deliver(p, d, s))  # type: ignore[misc]
        self._late.clear()

    def fetch_again(self) -> bool:
        """Fetch once more the chunks that the stream dropped to read them again; return whether there were any."""
        return ELSEWHERE.do(self._fetch_again)

    def _fetch_again(self) -> bool:
        found = False
        for partition in self.partitions:
            position = partition.position
            if position.cursor.fetch_from is not None:
                position.cursor.fetched, position.cursor.fetch_from = position.cursor.fetch_from, None
            for data, (first, end) in partition.fetched:
                wanted = position.cursor.fetched
                if not position.revoked and wanted is not None and wanted < end:
                    # as brokers do: from the batch on that holds the offset
                    self.stream_of(partition).queue.deliver(position, data, (max(first, wanted), end), ())
                    position.cursor.fetched = end
                    found = True
        return found

    # ---- what the reader gets

    def took(self, message: Any) -> None:
        """A message was returned to its caller."""
        with untraced():
            self.forget_hands()
            self.partitions[message.partition].took(message.offset, message.offset + 1)
            self.check()

    def took_rows(self, rows: Any) -> None:
        """Rows were returned to their caller."""
        with untraced():
            self._took_rows(rows)

    def _took_rows(self, rows: Any) -> None:
        self._took_offsets(rows.column("partition").to_pylist(), rows.column("offset").to_pylist())

    def took_list(self, messages: list[Any]) -> None:
        """A list of messages was returned to its caller."""
        with untraced():
            self._took_offsets([message.partition for message in messages], [message.offset for message in messages])

    def _took_offsets(self, numbers: list[int], offsets: list[int]) -> None:
        self.forget_hands()
        for number in dict.fromkeys(numbers):
            mine = [offset for which, offset in zip(numbers, offsets, strict=True) if which == number]
            if mine != sorted(set(mine)):
                raise Violation(f"rows are not in order: {mine}")
            partition = self.partitions[number]
            gap = set(range(mine[0], mine[-1])) & partition.messages - set(mine)
            if gap:
                raise Violation(f"lost: rows {sorted(gap)} are missing in a table")
            partition.took(mine[0], mine[-1] + 1)
        self.check()

    def holds(self, variables: Mapping[str, Any]) -> None:
        """Count messages in variables of an interrupted reader as handed out. The reader has not noted them yet."""
        offsets: list[tuple[int, int]] = []
        for name in ("message", "rows", "table", "taken"):
            found = variables.get(name)
            if name in {"rows", "table"} and found is not None:
                offsets += zip(found.column("partition").to_pylist(), found.column("offset").to_pylist(), strict=True)
            elif found is not None:
                messages = found if name == "taken" else [found]
                offsets += [(message.partition, message.offset) for message in messages]
        for number, offset in offsets:
            self.partitions[number].returned.add(offset)

    # ---- what must hold

    def check(self) -> None:
        """Nothing that would be committed now is beyond what was handed out; what is in hand is committed by its
        reader alone.
        """
        for partition in self.partitions:
            position = partition.position
            stream = self.stream_of(partition)
            mine = stream.held_by(get_native_id()) and not self.merged.withholds(stream)  # as MemberStreams says
            for including in {False, mine}:
                offset = position.finished(including_held=including) or 0
                if offset > partition.first_unseen:
                    raise Violation(
                        f"committed unseen: a commit {'of its reader ' if including else ''}writes {offset}, "
                        "and the first message that nobody got is an earlier one"
                    )
            in_hand = partition.in_hand
            if in_hand is not None and (position.finished(including_held=False) or 0) > in_hand:
                raise Violation("committed unfinished: a message in hand would be committed by another thread")

    def forget_hands(self) -> None:
        """An ask began: what was in hand may be finished now."""
        for partition in self.partitions:
            partition.in_hand = None

    def check_end(self, most_repeats: int) -> None:
        """All was handed out, and with one more ask all is finished. Raises: Violation."""
        for partition in self.partitions:
            position = partition.position
            if not position.revoked:
                missing = sorted(partition.messages - partition.returned)
                finished = position.finished(including_held=False)
                if missing:
                    what = "lost" if (finished or 0) > missing[0] else "stands still"
                    raise Violation(f"{what}: {len(missing)} messages do not come any more")
                if finished != partition.end:
                    raise Violation(f"stands still: finished up to {finished} of {partition.end}")
            if position.held:
                raise Violation("stands still: a message counts as in hand, and nobody has it")
        repeats = sum(partition.repeats for partition in self.partitions)
        if repeats > most_repeats:
            raise Violation(f"repeats: {repeats} messages came again, not at most {most_repeats}")

    def revoke(self, number: int) -> None:
        """The partition leaves, which the group's thread does."""
        partition = self.partitions[number]
        queue = self.stream_of(partition).queue
        ELSEWHERE.do(lambda: queue.revoke([partition.position]))
        ELSEWHERE.do(lambda: queue.wait_not_held([partition.position], Deadline(0)))
        self.check()

    def end(self) -> None:
        """Close the streams, which another thread does."""
        for stream in self.streams:
            ELSEWHERE.do(stream.queue.close)


# ---- ways to read until nothing is left

Reading = Callable[[InterruptedStreams], None]


def by_for(world: InterruptedStreams) -> None:
    """``for message in stream``."""
    try:
        for message in world.stream:
            world.took(message)
    except ConsumerTimeoutException:
        pass


def by_get(world: InterruptedStreams) -> None:
    """``stream.get(timeout=0)``."""
    while True:
        try:
            message = world.stream.get(timeout=0)
        except ConsumerTimeoutException:
            return
        world.took(message)


def by_next(world: InterruptedStreams) -> None:
    """``next(stream)``."""
    while True:
        try:
            message = next(world.stream)
        except ConsumerTimeoutException:
            return
        world.took(message)


def by_messages(world: InterruptedStreams) -> None:
    """``for message in connector.messages()``."""
    try:
        for message in world.merged:
            world.took(message)
    except ConsumerTimeoutException:
        pass


def by_messages_get(world: InterruptedStreams) -> None:
    """``connector.messages().get(timeout=0)``."""
    while True:
        try:
            message = world.merged.get(timeout=0)
        except ConsumerTimeoutException:
            return
        world.took(message)


def by_messages_next(world: InterruptedStreams) -> None:
    """``next(connector.messages())``."""
    while True:
        try:
            message = next(world.merged)
        except ConsumerTimeoutException:
            return
        world.took(message)


ROWS = 2
"""Rows of a batch, where batches are asked for."""
TABLE = 4
"""Rows of a table, where tables are asked for."""


def by_batches(world: InterruptedStreams) -> None:
    """``for batch in stream.batches()``."""
    try:
        for rows in world.stream.batches(max_rows=ROWS):
            world.took_rows(rows)
    except ConsumerTimeoutException:
        pass


def by_batches_next(world: InterruptedStreams) -> None:
    """``next(stream.batches())``."""
    batches = world.stream.batches(max_rows=ROWS)
    while True:
        try:
            rows = next(batches)
        except ConsumerTimeoutException:
            return
        world.took_rows(rows)


def by_to_arrow(world: InterruptedStreams) -> None:
    """``stream.to_arrow(max_messages=4, timeout=0)``."""
    while True:
        table = world.stream.to_arrow(max_messages=TABLE, timeout=0)
        if not table.num_rows:
            return
        world.took_rows(table)


def by_take(world: InterruptedStreams) -> None:
    """``stream.take(4, timeout=0)``."""
    while taken := world.stream.take(TABLE, timeout=0):
        world.took_list(taken)


def by_turns(world: InterruptedStreams) -> None:
    """Messages, batches and tables by turns."""
    try:
        while True:
            world.took(world.stream.get(timeout=0))
            world.took_rows(next(world.stream.batches(max_rows=ROWS)))
            world.took(next(world.stream))
            table = world.stream.to_arrow(max_messages=ROWS, timeout=0)
            if table.num_rows:
                world.took_rows(table)
    except ConsumerTimeoutException:
        pass
