"""The chunks that wait for one stream.

Threads: fetchers offer chunks and never wait; the group's thread revokes partitions; the application's thread takes.
The queue's condition guards its chunks alone and nobody blocks while holding it; the budget's lock may be taken under
it.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection
from threading import Condition

from zkconsumer.core.positions import PartitionPosition
from zkconsumer.deadline import Deadline
from zkconsumer.errors import ConsumerTimeoutException, OffsetConflictError, UnreadableMessageError
from zkconsumer.streams.budget import QueueBudget

log = logging.getLogger(__name__)


class Chunk:
    """One fetched run of messages of one partition.

    ``fetch_offset`` is what was asked for and ``next_offset`` what follows; ``jump`` says that the position was moved
    by ``auto.offset.reset`` and consumption continues here, whatever came before. ``error`` is raised in place of
    messages.
    """

    __slots__ = ("aborted", "error", "fetch_offset", "jump", "next_offset", "position", "records")

    def __init__(
        self,
        position: PartitionPosition,
        records: bytes,
        fetch_offset: int,
        next_offset: int,
        *,
        aborted: tuple[tuple[int, int], ...] = (),
        jump: bool = False,
        error: UnreadableMessageError | OffsetConflictError | None = None,
    ) -> None:
        self.position = position
        self.records = records
        self.fetch_offset = fetch_offset
        self.next_offset = next_offset
        self.aborted = aborted
        self.jump = jump
        self.error = error


class StreamQueue:
    """The chunks that wait for one stream.

    Arguments: ``capacity`` in chunks (``queued.max.message.chunks``); ``budget`` is shared with the other streams.
    Fetchers ask :meth:`has_room` before they fetch, so an answer that carries several partitions may pass the
    capacity by one chunk a partition; nobody ever blocks on a full queue, so a slow stream holds up no other (the
    original's fetcher thread stands still with all partitions of its broker).
    """

    def __init__(self, capacity: int, on_room: Callable[[], None], budget: QueueBudget | None = None) -> None:
        self._capacity = capacity
        self._on_room = on_room
        self._budget = budget
        self._chunks: deque[Chunk] = deque()
        self._changed = Condition()
        self._closed = False
        self._failure: Exception | None = None
        self.taken: Chunk | None = None
        self._aside: dict[PartitionPosition, deque[Chunk]] = {}
        self.bytes = 0
        self.skipped = 0

    def __len__(self) -> int:
        return len(self._chunks)

    def has_room(self) -> bool:
        """Whether another fetch for this stream is welcome."""
        if self._closed or len(self._chunks) >= self._capacity:
            return False
        # an empty stream is always served, or one that is not read could starve the others
        return not self._chunks or self._budget is None or self._budget.has_room()

    def _count(self, size: int) -> bool:
        """So many bytes are queued now; returns whether all streams together have room again by this."""
        change, self.bytes = size - self.bytes, size
        return self._budget is not None and self._budget.add(change)

    def deliver(
        self,
        position: PartitionPosition,
        records: bytes,
        span: tuple[int, int],
        aborted: tuple[tuple[int, int], ...],
    ) -> None:
        """Queue what was fetched of a partition; ``span`` is (fetch offset, next offset)."""
        self._offer(Chunk(position, records, *span, aborted=aborted))

    def jump(self, position: PartitionPosition, offset: int) -> None:
        """Consumption of the partition continues at ``offset`` after what is queued (``auto.offset.reset`` out of
        range).
        """
        self._offer(Chunk(position, b"", offset, offset, jump=True))

    def fail(self, position: PartitionPosition, error: UnreadableMessageError | OffsetConflictError) -> None:
        """Raise ``error`` to the reader when it has come to this point of the partition."""
        self._offer(Chunk(position, b"", error.offset, error.offset, error=error))

    def skip(self, position: PartitionPosition, error: UnreadableMessageError) -> None:
        """The place that the error names is given up; consumption of the partition continues after it."""
        self.count_skipped(error)
        self.jump(position, error.next_offset)

    def count_skipped(self, error: UnreadableMessageError) -> None:
        """A place in a partition was given up: log and count it."""
        with self._changed:
            self.skipped += 1
        log.error("skipping to offset %d what cannot be read: %s", error.next_offset, error)

    def give_up(self, chunk: Chunk) -> None:
        """The reader gives up the place at which fetching stopped, and fetching goes on after it."""
        self.taken = None
        chunk.position.fetched = chunk.position.consumed
        self._on_room()

    def _offer(self, chunk: Chunk) -> None:
        with self._changed:
            if self._closed or chunk.position.revoked:
                return
            self._count(self.bytes + len(chunk.records))
            if chunk.position.paused:
                self._aside.setdefault(chunk.position, deque()).append(chunk)
                return
            self._chunks.append(chunk)
            self._changed.notify()

    def take(self, deadline: Deadline) -> Chunk | None:
        """The next chunk, or None at the end of the stream; it stays in ``taken`` until the reader is through with it.

        Raises: :class:`ConsumerTimeoutException` at the deadline; whatever made the connector fail.
        """
        with self._changed:
            while not self._chunks and not self._closed and self._failure is None:
                left = deadline.remaining()
                if left is not None and left <= 0:
                    raise ConsumerTimeoutException("no message within the timeout; the stream stays usable")
                self._changed.wait(left)
            if self._closed:
                return None
            if self._failure is not None:
                raise self._failure
            was_full = len(self._chunks) >= self._capacity
            # in this order an interrupt between the two repeats the chunk and does not lose it
            chunk = self.taken = self._chunks[0]
            self._chunks.popleft()
            room_again = self._count(self.bytes - len(chunk.records))
        if was_full or room_again:
            self._on_room()
        return chunk

    def revoke(self, positions: Collection[PartitionPosition]) -> None:
        """These have ended: hand out nothing more of them, and drop what is queued."""
        with self._changed:
            for position in positions:
                position.revoked = True
            self._discard_revoked()

    def discard_revoked(self) -> None:
        """Drop what is queued of revoked partitions."""
        with self._changed:
            self._discard_revoked()

    def _discard_revoked(self) -> None:
        self._chunks = deque(chunk for chunk in self._chunks if not chunk.position.revoked)
        self._aside = {position: chunks for position, chunks in self._aside.items() if not position.revoked}
        self._count(sum(len(c.records) for chunks in (self._chunks, *self._aside.values()) for c in chunks))

    def pause(self, position: PartitionPosition) -> None:
        """Hand out nothing more of it until :meth:`resume`; what is queued waits aside and takes no room."""
        with self._changed:
            position.paused = position.halted = True
            mine = deque(chunk for chunk in self._chunks if chunk.position is position)
            if mine:
                self._aside[position] = mine + self._aside.get(position, deque())
                self._chunks = deque(chunk for chunk in self._chunks if chunk.position is not position)
        self._on_room()

    def resume(self, position: PartitionPosition) -> None:
        """Hand it out again, from where it stopped."""
        with self._changed:
            position.paused = False
            # under the lock, or a revocation at the same time could be undone
            position.halted = position.revoked
            self._chunks.extendleft(reversed(self._aside.pop(position, ())))
            self._changed.notify_all()
        self._on_room()

    def put_back(self, chunk: Chunk) -> None:
        """The reader was interrupted, perhaps by a pause: the chunk's rest comes first (once it is resumed)."""
        with self._changed:
            if self.taken is chunk:
                self.taken = None
            if self._closed or chunk.position.revoked:
                return
            self._count(self.bytes + len(chunk.records))
            if chunk.position.paused:
                self._aside.setdefault(chunk.position, deque()).appendleft(chunk)
            else:
                self._chunks.appendleft(chunk)

    def let_go(self) -> None:
        """A revoked partition's message is no longer in the user's hands: wake who waits for that."""
        with self._changed:
            self._changed.notify_all()

    def wait_let_go(self, positions: Collection[PartitionPosition], deadline: Deadline) -> bool:
        """Wait until no message of the given revoked partitions is in the user's hands; returns whether that is so."""
        with self._changed:
            return self._changed.wait_for(lambda: not any(p.held for p in positions), deadline.remaining())

    def fail_readers(self, error: Exception | None) -> None:
        """Make every reader raise ``error`` from its next ask on; None takes it back."""
        with self._changed:
            self._failure = error
            self._changed.notify_all()

    def close(self) -> None:
        """End the stream: waiting readers wake and end, what is queued is dropped."""
        with self._changed:
            self._closed = True
            self._chunks.clear()
            self._aside.clear()
            self._count(0)
            self._changed.notify_all()

    @property
    def closed(self) -> bool:
        """Whether the stream has ended."""
        return self._closed
