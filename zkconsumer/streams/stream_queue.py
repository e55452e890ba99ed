"""The queue of chunks that wait for one stream.

Threads: fetchers put chunks and never wait; the group's thread revokes partitions; the application's thread takes
chunks. The queue's lock guards its chunks and the flags of their positions. No thread waits, and no callback runs,
while the lock is held. Code enters the lock, never its condition; see ``zkconsumer.runtime.interruptible_wait``.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from threading import Condition
from typing import Protocol

from zkconsumer.errors import ConsumerTimeoutException, LogTruncatedError, OffsetConflictError, UnreadableMessageError
from zkconsumer.kafka.compression import Expansion
from zkconsumer.kafka.record_batch import DECODED_BYTES, DECODED_RECORDS, is_compressed
from zkconsumer.model import TopicPartition
from zkconsumer.ownership.fetch_cursor import LEADER
from zkconsumer.ownership.partition_position import PartitionPosition
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.runtime.interruptible_wait import InterruptibleLock, WakeFlag
from zkconsumer.streams.byte_budget import QueueBudget

log = logging.getLogger(__name__)

NOTHING_CAME = "no message within the timeout; the stream stays usable"


def nothing_came(why: str) -> ConsumerTimeoutException:
    """Return the error of a read without a message. ``why`` is the member's state, empty if all is owned and read."""
    return ConsumerTimeoutException(f"{NOTHING_CAME}; the member is {why}" if why else NOTHING_CAME)


LOOK_FOR_END = 0.2
"""Seconds between two looks of a waiting reader whether its stream has reached its end."""
_CHUNK_BYTES = 512
"""The bytes that a chunk takes beside its records, roughly."""


@dataclass(slots=True, eq=False)
class Chunk:
    """One fetched run of messages of one partition.

    ``fetch_offset`` is the requested offset and ``next_offset`` the one after the chunk. ``jump`` says that
    ``auto.offset.reset`` moved the position, and consumption continues here whatever came before. ``error`` is raised
    in place of messages. ``messages`` is their number, None if only offsets can be counted. ``expansion`` tells how
    much of the chunk is decompressed now, None before it is read. ``unfinished`` counts messages that were read and are
    not finished, where messages are finished in any order. ``dropped`` and ``decoded`` are the sizes of the fetched
    bytes and of the message in place of which they were given up, else 0. ``set_end`` is the end of the fetched
    messages if the chunk ends before it, because its stream does, else 0. ``followed``: a follower sent the chunk.
    """

    position: PartitionPosition
    records: bytes
    fetch_offset: int
    next_offset: int
    aborted: tuple[tuple[int, int], ...] = ()
    messages: int | None = None
    jump: bool = False
    error: UnreadableMessageError | OffsetConflictError | LogTruncatedError | None = None
    expansion: Expansion | None = None
    unfinished: int = 0
    dropped: int = 0
    decoded: int = 0
    set_end: int = 0
    followed: bool = False

    @property
    def size(self) -> int:
        """The number of fetched bytes."""
        return self.dropped or len(self.records)

    def end_at(self, offset: int) -> None:
        """Leave out the messages from this offset on, which is in the chunk."""
        self.set_end, self.next_offset, self.messages = self.set_end or self.next_offset, offset, None

    def drop_records(self, decoded: int) -> None:
        """Give the fetched bytes up, which are decoded to ``decoded`` bytes."""
        self.dropped, self.decoded = len(self.records), decoded
        self.records = b""

    @property
    def in_use(self) -> int:
        """The bytes that the chunk takes while it is read.

        These are the fetched bytes, the decompressed ones, and about as much as is decoded at a time.
        """
        if self.dropped:
            return self.decoded
        size = len(self.records) + (self.expansion.held if self.expansion is not None else 0)
        if not self.messages:
            return size
        each = size // self.messages
        decoded = min(size, each * DECODED_RECORDS)
        # a compressed chunk is in memory as a whole, so all of ``decoded`` counts
        return size + (decoded if is_compressed(self.records) else min(decoded, max(DECODED_BYTES, each)))


class ReadEnd(Protocol):
    """The end of a stream that has one (``until``). Any thread."""

    def limit(self, tp: TopicPartition) -> int:
        """Return the offset before which a partition is read. Takes no lock: it is asked under the queue's."""

    def left(self, ahead: Mapping[PartitionPosition, int]) -> int:
        """Return the number of offsets before the end, without those that are finished or before ``ahead``."""

    def reached(self, ahead: Mapping[PartitionPosition, int]) -> bool:
        """Return whether all before the end is finished, or before the offsets in ``ahead``. Returns at once."""


class StreamQueue:
    """The chunks that wait for one stream.

    Fetchers ask :meth:`has_room` before they fetch, so a response may pass the capacity by one chunk a partition. No
    thread ever blocks on a full queue. The original's fetcher stands still there, with all partitions of its broker.

    Arguments: ``capacity`` in chunks (``queued.max.message.chunks``); ``on_room`` is called when there is room again;
    ``budget`` is shared with the other streams. The budget may let more chunks wait than the capacity if they are
    small, so that a fetcher that is late by some milliseconds finds its reader busy. ``why`` returns the member's state
    for a read without a message, or an empty text if the member owns and has read all.
    """

    def __init__(
        self,
        capacity: int,
        on_room: Callable[[], None],
        budget: QueueBudget | None = None,
        why: Callable[[], str] = lambda: "",
    ) -> None:
        self._capacity = capacity
        self._ample = 0 if budget is None else budget.ample(capacity)
        self._on_room = on_room
        self._budget = budget
        self._why = why
        self._chunks: deque[Chunk] = deque()
        self._lock = InterruptibleLock()
        self._not_held = Condition(self._lock)
        self._arrived = WakeFlag()  # wakes the reader
        self.closed = False  # the stream has ended
        self._failure: Exception | None = None
        self.taken: Chunk | None = None
        """The chunk that is being read, until :meth:`finish_taken`. Only the queue writes it."""
        self.reader_waits = False  # a reader has asked for a chunk and not got it yet
        self._watcher: Callable[[], None] | None = None
        self.end: ReadEnd | None = None
        self.ahead: Mapping[PartitionPosition, int] = {}  # how far rows are read that are not handed out yet
        self._aside: dict[PartitionPosition, deque[Chunk]] = {}
        self.asks = 0
        """Number of times that the reader asked for a chunk, or returned to a chunk that it could not finish."""
        self.bytes = 0
        self.skipped = 0
        if budget is not None:
            budget.enter(self)

    def __len__(self) -> int:
        return len(self._chunks)

    def finish_taken(self) -> None:
        """Note that the reader is done with the chunk that it took."""
        self.taken = None
        if self._budget is not None and self._budget.short:
            self._freed()

    @property
    def held_bytes(self) -> int:
        """Bytes of the queued chunks and of the chunk that is being read."""
        taken = self.taken
        return self.bytes if taken is None else self.bytes + taken.in_use

    def has_room(self, free: int | None = None) -> bool:
        """Return whether another fetch is welcome, with ``free`` bytes left for all streams together (None: look)."""
        budget, waiting = self._budget, len(self._chunks)
        if self.closed or (waiting >= self._capacity and self._full):
            return False
        if budget is None:
            return True
        # a waiting reader is always served; otherwise streams that nobody reads could starve it
        return budget.allows(self.held_bytes, budget.free() if free is None else free) or self.reader_waits

    @property
    def _full(self) -> bool:
        return self.bytes + len(self._chunks) * _CHUNK_BYTES >= self._ample

    def _freed(self) -> None:
        """Wake refused fetchers: bytes were freed, or a reader began to wait."""
        budget = self._budget
        if budget is not None and budget.short:
            budget.short = False
            self._on_room()

    @property
    def ready(self) -> bool:
        """Whether a read would return at once: with a chunk, an error, or the end of the stream."""
        return bool(self._chunks) or self.closed or self._failure is not None

    @property
    def head(self) -> Chunk | None:
        """The chunk that would be taken next, as it was a moment ago."""
        try:
            return self._chunks[0]
        except IndexError:
            return None

    def nothing_came(self) -> ConsumerTimeoutException:
        """Return the error of a read that got no message in time. Takes no lock of a queue."""
        return nothing_came(self._why())

    def withdraw_ask(self) -> None:
        """Note that the reader got a message from another stream, so that this stream may wait for its share."""
        self.asks += 1
        self.reader_waits = False

    def ask(self) -> bool:
        """Return whether there is a chunk for the reader. If there is none, one is fetched before all others."""
        self.asks += 1
        with self._lock:
            if self.ready:
                return True
            self.reader_waits = True
        self._freed()
        return False

    def deliver(
        self,
        position: PartitionPosition,
        records: bytes,
        span: tuple[int, int],
        aborted: tuple[tuple[int, int], ...],
        messages: int | None = None,
        *,
        wake: bool = True,
    ) -> None:
        """Queue a fetched chunk.

        ``span`` is (fetch offset, next offset); ``messages`` is their number, None if it is unknown. Unless ``wake``,
        :meth:`wake_reader` must follow.
        """
        followed = position.cursor.replica != LEADER  # which may have changed before the chunk is read
        if self._offer(Chunk(position, records, *span, aborted, messages, followed=followed)) and wake:
            self.wake_reader()

    def jump(self, position: PartitionPosition, offset: int) -> None:
        """Continue the partition there after the queued chunks, by ``auto.offset.reset`` or because its log changed."""
        if self._offer(Chunk(position, b"", offset, offset, jump=True)):
            self.wake_reader()

    def fail(
        self, position: PartitionPosition, error: UnreadableMessageError | OffsetConflictError | LogTruncatedError
    ) -> None:
        """Raise ``error`` to the reader when it has come to this point of the partition."""
        if self._offer(Chunk(position, b"", error.offset, error.offset, error=error)):
            self.wake_reader()

    def skip(self, position: PartitionPosition, error: UnreadableMessageError) -> None:
        """Skip the data that the error names. The stream continues the partition after it."""
        self.count_skipped(error)
        self.jump(position, error.next_offset)

    def count_skipped(self, error: UnreadableMessageError) -> None:
        """Log and count a given-up place."""
        with self._lock:
            self.skipped += 1
        log.error("skipping to offset %d what cannot be read: %s", error.next_offset, error)

    def read_again(self, position: PartitionPosition, start: int | None = None) -> None:
        """Drop the fetched chunks of the partition, and fetch it again from ``start``, by default what is consumed.

        If a truncated log waits to be read from an earlier offset, that jump stays, and the partition is fetched from
        there. The fetcher has found the truncation already, and would not find it again.
        """
        with self._lock:
            waiting = [self.taken] if self.taken is not None else []
            for chunks in (self._chunks, *self._aside.values()):
                waiting += chunks
            jumps = [chunk for chunk in waiting if chunk.position is position and chunk.jump]
            start = position.consumed if start is None else start
            back = min(jumps, key=lambda chunk: chunk.fetch_offset, default=None)
            if back is not None and start is not None and back.fetch_offset >= start:
                back = None  # by auto.offset.reset, or behind a corrupt place: the fetcher finds it again
            # first: an interrupt after this line only costs another fetch, and one before it has changed nothing
            position.cursor.fetch_from = start if back is None else back.fetch_offset
            if self.end is not None:
                position.full = False  # else a partition that was fetched up to its end would not be fetched again
            kept = [] if back is None else [back]
            if kept and position.paused:
                self._aside[position] = deque(kept)
                kept = []
            else:
                self._aside.pop(position, None)
            self._chunks = deque([*kept, *(chunk for chunk in self._chunks if chunk.position is not position)])
            self._recount()
            if self.taken is not None and self.taken.position is position:
                self.taken = None
        self._freed()
        self._on_room()

    def stop_at(self, end: ReadEnd) -> None:
        """Hand out nothing from the end of each partition on. Reads end when all have reached it."""
        with self._lock:
            self.end = end
            self._keep(lambda chunk: not self._is_beyond(chunk))

    @property
    def at_end(self) -> bool:
        """Whether nothing is left to read before the end of the stream."""
        return self.end is not None and not self._chunks and self.end.reached(self.ahead)

    def _is_beyond(self, chunk: Chunk) -> bool:
        """Cut a chunk at the end of its partition; return whether nothing of it is left. The caller holds the lock."""
        if self.end is None:
            return False
        position, end = chunk.position, self.end.limit(chunk.position.tp)
        if chunk.next_offset < end:
            return False
        position.full = True  # nothing more of it is fetched
        if chunk.fetch_offset >= end:
            return not chunk.jump  # which tells the reader where the partition begins
        if chunk.next_offset > end:
            chunk.end_at(end)
        return False

    def _offer(self, chunk: Chunk) -> bool:
        """Queue a chunk; returns whether the reader may take it now."""
        position = chunk.position
        with self._lock:
            if self.closed or (position.halted and position.revoked) or self._is_beyond(chunk):
                return False
            self.bytes += len(chunk.records)
            if position.paused:
                self._aside.setdefault(position, deque()).append(chunk)
                return False
            self._chunks.append(chunk)
            self.reader_waits = False
            return True

    def watch(self, watcher: Callable[[], None] | None) -> None:
        """Call ``watcher`` when there may be a chunk to take, for a reader of several streams; None: no more."""
        self._watcher = watcher

    def wake_reader(self) -> None:
        """Wake the reader, if it waits for a chunk."""
        self._arrived.set()
        watcher = self._watcher
        if watcher is not None:
            watcher()

    def take(self, deadline: Deadline) -> Chunk | None:
        """Return the next chunk, or None at the end of the stream. It stays in ``taken`` until it is finished.

        Raises: :class:`ConsumerTimeoutException` at the deadline; the error that made the connector fail.
        """
        self.asks += 1
        asked = False
        while True:
            with self._lock:
                if self._chunks or self.closed or self._failure is not None:
                    was_full = len(self._chunks) >= self._capacity and self._full
                    chunk = self._take()
                    break
                self.reader_waits = True  # also if the chunk that woke the reader was revoked or paused meanwhile
                self._arrived.clear()
            if not asked:
                asked = True
                self._freed()
            if self.at_end:
                return None
            left = deadline.remaining()
            if left is not None and left <= 0:
                raise self.nothing_came()
            self._arrived.wait(left if self.end is None else deadline.bounded(LOOK_FOR_END))
        if was_full:
            self._on_room()
        return chunk

    def _take(self) -> Chunk | None:
        """Return the next chunk. The caller holds the lock."""
        if self.closed:
            return None
        if self._failure is not None:
            raise self._failure
        # in this order: an interrupt between the two repeats the chunk and does not lose it
        chunk = self.taken = self._chunks[0]
        self._chunks.popleft()
        # an empty queue has no bytes, which corrects a sum that an earlier interrupt left wrong
        self.bytes = self.bytes - len(chunk.records) if self._chunks or self._aside else 0
        return chunk

    def replace(self, old: PartitionPosition, new: PartitionPosition) -> None:
        """Continue the partition at ``new``, paused if ``old`` is, and hand out nothing more of ``old``.

        A later pause or resume of ``old`` goes to ``new``.
        """
        with self._lock:
            new.paused = new.halted = old.paused
            old.successor = new
            old.revoked = True
            self._keep(lambda chunk: not chunk.position.revoked)

    def revoke(self, positions: Collection[PartitionPosition]) -> None:
        """Stop the hand-out of these positions, and drop their chunks."""
        with self._lock:
            for position in positions:
                position.revoked = True
            self._keep(lambda chunk: not chunk.position.revoked)

    def _keep(self, kept: Callable[[Chunk], bool]) -> None:
        self._chunks = deque(filter(kept, self._chunks))
        aside = {position: deque(filter(kept, chunks)) for position, chunks in self._aside.items()}
        self._aside = {position: chunks for position, chunks in aside.items() if chunks}
        self._recount()

    def _recount(self) -> None:
        self.bytes = sum(len(c.records) for chunks in (self._chunks, *self._aside.values()) for c in chunks)

    def pause(self, position: PartitionPosition) -> None:
        """Hand out nothing more of the position until :meth:`resume`; its chunks wait aside and take no room."""
        with self._lock:
            position = position.latest
            position.paused = position.halted = True
            mine = deque(chunk for chunk in self._chunks if chunk.position is position)
            if mine:
                self._aside[position] = mine + self._aside.get(position, deque())
                self._chunks = deque(chunk for chunk in self._chunks if chunk.position is not position)
        self._on_room()

    def resume(self, position: PartitionPosition) -> None:
        """Hand the position out again, from where it stopped."""
        with self._lock:
            position = position.latest
            position.paused = False
            # under the lock; otherwise this could undo a revocation at the same time
            position.halted = position.revoked
            self._chunks.extendleft(reversed(self._aside.get(position, ())))
            self._aside.pop(position, None)  # after the line above: an interrupt between the two only repeats
        self.wake_reader()
        self._on_room()

    def put_back(self, chunk: Chunk) -> None:
        """Queue the rest of a chunk again, at the head: its reader was interrupted, perhaps by a pause.

        The chunk of a paused partition waits until it is resumed. That of a partition that has left, or of a closed
        stream, is dropped.
        """
        position = chunk.position
        with self._lock:
            if not self.closed and not position.revoked:
                waiting = self._aside.setdefault(position, deque()) if position.paused else self._chunks
                waiting.appendleft(chunk)
                self._recount()
            # last: an interrupt before this line repeats the chunk, and nothing of it is handed out twice
            if self.taken is chunk:
                self.taken = None
        self._freed()

    def wake_revocation(self) -> None:
        """Wake a revocation that waits for a message: it is no longer in the user's hands."""
        with self._lock:
            self._not_held.notify_all()

    def wait_not_held(self, positions: Collection[PartitionPosition], deadline: Deadline) -> bool:
        """Wait until no message of these revoked positions is in the user's hands; returns whether that is so."""
        with self._lock:
            return self._not_held.wait_for(lambda: not any(p.held for p in positions), deadline.remaining())

    def fail_readers(self, error: Exception | None) -> None:
        """Make every reader raise ``error`` from its next read on; None takes it back."""
        with self._lock:
            self._failure = error
        self.wake_reader()

    def left_to_parent(self, error: Exception) -> None:
        """Raise ``error`` to readers in a forked process.

        No other thread is left there, and locks may be held by threads that are gone. So the call never touches
        anything that the queue shares with its fetchers.
        """
        self._lock = InterruptibleLock()
        self._not_held = Condition(self._lock)
        self._arrived = WakeFlag()
        self._budget, self._watcher, self._on_room = None, None, lambda: None
        self._chunks, self._aside = deque(), {}
        self._failure = error
        if self.taken is not None:
            self.taken.position.revoked = True

    def close(self) -> None:
        """End the stream: waiting readers wake and end, queued chunks are dropped."""
        with self._lock:
            self.closed = True
            self._chunks.clear()
            self._aside.clear()
            self.bytes = 0
        if self._budget is not None:
            self._budget.leave(self)
        self._freed()
        self.wake_reader()
