"""What a stream does with a chunk before messages or columns are made of it, and after: where to begin, what to do
about what cannot be read, how to wait at the gate, when it is through.

Threads: the application's thread that reads the stream, nobody else. Nothing here runs for each message.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from time import monotonic
from typing import NamedTuple

from zkconsumer.core.partition_position import NOTHING_HELD, PartitionPosition
from zkconsumer.deadline import Deadline
from zkconsumer.errors import ConsumerTimeoutException, InvalidMessageException, UnreadableMessageError
from zkconsumer.kafka.compression import DEFAULT_LIMIT, Expansion
from zkconsumer.kafka.message_set import batches
from zkconsumer.kafka.record_batch import RecordBatch
from zkconsumer.streams.rate_limit import HandOutGate, RateLimitedLease
from zkconsumer.streams.stream_queue import NOTHING_CAME, Chunk, StreamQueue

log = logging.getLogger(__name__)

CountConsumed = Callable[[str, int, int], None]
"""Told, when a chunk ends, of a topic how many offsets were passed and how many bytes that took."""

WaitForToken = Callable[[float], bool]
"""Waits so many seconds, or less where something changed; returns whether there is time left to look again."""

_AWAY = "no message within the timeout, for ZooKeeper is away, or the group's coordinator; the stream stays usable"
_UNHEARD = 0.1
"""Seconds after which who waits at the gate looks whether the stream or the partition has left."""
_PACED = "no message within the timeout, for consumed.max.per.second allows none yet; the stream stays usable"


class ReadDeadline(Deadline):
    """The time that one ask has, over all that it goes through before there is a message: chunks without any (markers,
    aborted transactions, what was revoked or given up) and the gate. One that each of these began anew would never end.

    At its end what was fetched by then is still looked into, and not what comes for ever.
    """

    __slots__ = ("_looks",)

    def __init__(self, seconds: float | None) -> None:
        self.at = None if seconds is None else monotonic() + seconds  # and no call: it is made for each chunk
        self._looks = -1

    def is_over(self, waiting: int) -> bool:
        """Whether to take none of the chunks any more, of which so many wait. Asked before each but the first."""
        if not self.expired:
            return False
        self._looks = max(1, waiting) if self._looks < 0 else self._looks - 1
        return not self._looks


class ReadSettings(NamedTuple):
    """How records are read: ``check_crc`` is ``check.crcs``, ``read_committed`` ``isolation.level``, ``skip_corrupt``
    ``corrupt.message.policy``, ``largest_batch`` ``batch.expanded.max.bytes``.
    """

    check_crc: bool = True
    read_committed: bool = False
    skip_corrupt: bool = False
    largest_batch: int = DEFAULT_LIMIT


class ChunkReader:
    """The part of a stream that messages and columns have in common.

    Arguments: ``name`` is the stream's, for errors; ``count`` is told of what was passed.
    """

    def __init__(
        self,
        name: str,
        queue: StreamQueue,
        lease: HandOutGate,
        settings: ReadSettings,
        count: CountConsumed,
    ) -> None:
        self.name = name
        self.queue = queue
        self.lease = lease
        self._pace = lease if isinstance(lease, RateLimitedLease) else None
        self._settings = settings
        self._count = count
        self._unreadable: tuple[Chunk, UnreadableMessageError] | None = None
        self._current: Chunk | None = None
        self._read_from = 0
        self._counted_to = 0

    def next_chunk(self, ask: ReadDeadline) -> Chunk | None:
        """The chunk that is read, or the next one; None at the end of the stream.

        Raises: ConsumerTimeoutException; whatever made the connector fail.
        """
        queue = self.queue
        chunk = queue.taken
        if chunk is None:
            if ask.is_over(len(queue)):
                raise ConsumerTimeoutException(NOTHING_CAME)
            chunk = queue.take(ask)
        return chunk

    def begin(self, chunk: Chunk) -> int | None:
        """Reconcile what the chunk holds with where we stand; returns the first offset to hand out, or None where
        nothing of the chunk is to be read now.

        Raises the chunk's error, where it stands for one.
        """
        self.queue.asks += 1
        position = chunk.position
        if position.halted:
            # before anything is decoded: what cannot be read would hold up all other partitions of the stream
            self.finish(chunk)
            return None
        if chunk.jump or position.consumed is None:
            position.consumed = chunk.fetch_offset
            position.batch_until = NOTHING_HELD
            chunk.jump = False
        elif position.consumed < chunk.fetch_offset:
            log.error(
                "%s: expected offset %d but the next chunk begins at %d; reading again from %d",
                position.tp,
                position.consumed,
                chunk.fetch_offset,
                position.consumed,
            )
            self.queue.read_again(position)  # never on behind the gap: its messages were not handed out
            return None
        if chunk is not self._current:
            self._current, self._counted_to = chunk, position.consumed
        if chunk.error is not None:
            raise chunk.error
        return position.consumed

    def batches(self, chunk: Chunk, start: int) -> Iterator[RecordBatch]:
        """The chunk's batches; records before ``start`` (a compressed set may begin there, KAFKA-546) are left out."""
        chunk.expansion = Expansion(self._settings.largest_batch)
        self._read_from = start
        return batches(
            chunk.records,
            check_crc=self._settings.check_crc,
            where=chunk.position.tp,
            fetch_offset=start,
            aborted=chunk.aborted,
            read_committed=self._settings.read_committed,
            expansion=chunk.expansion,
            end=chunk.next_offset,
        )

    def finish(self, chunk: Chunk) -> None:
        """Every message of the chunk is finished, or the partition is no longer ours or paused, or the stream has
        ended. What is not finished waits again, also where the partition was resumed a moment ago.
        """
        position = chunk.position
        position.held_until = NOTHING_HELD
        reached = position.consumed or 0
        whole = chunk.error is None and not chunk.jump and reached >= chunk.next_offset
        if chunk is self._current:
            self.passed(chunk, self._counted_to, reached, closing=whole)
        self._current = None
        if whole:
            self.queue.taken = None
        else:
            self.queue.put_back(chunk)
        if position.revoked:
            self.queue.let_go()

    def passed(self, chunk: Chunk, first: int, end: int, *, closing: bool) -> None:
        """Count what is finished of a chunk; ``closing`` says that nothing of it is left."""
        messages = max(0, end - first)
        if chunk.messages is not None:  # a compacted chunk has fewer than offsets; only of all of it we know how many
            messages = chunk.messages if closing and first == chunk.fetch_offset else min(messages, chunk.messages)
        self._count(chunk.position.topic, messages, len(chunk.records) if closing else 0)
        self._current, self._counted_to = chunk, end

    def count_bytes(self, chunk: Chunk) -> None:
        """Count the bytes of a chunk that is given away before it counts as finished."""
        self._count(chunk.position.topic, 0, len(chunk.records))

    def left_to_parent(self, error: Exception) -> None:
        """In a forked process: nothing of this is read here."""
        self._count = lambda _topic, _messages, _bytes: None  # it takes locks
        self.queue.left_to_parent(error)

    def finish_for_columns(self) -> None:
        """What was handed out as messages is finished, for columns go on."""
        chunk = self.queue.taken
        if chunk is None:
            return
        self.finish_message(chunk.position)
        if chunk is self._current:
            self.passed(chunk, self._counted_to, chunk.position.consumed or 0, closing=False)

    def finish_message(self, position: PartitionPosition) -> None:
        """The message in hand, if there is one, is finished."""
        if position.held and position.consumed is not None:
            position.held_until = position.consumed + 1  # finished and no longer held at once, by what follows
            position.consumed += 1
        position.held_until = NOTHING_HELD

    def retract(self) -> None:
        """The message that was announced last was not handed out: it comes again."""
        chunk = self.queue.taken
        if chunk is not None:
            chunk.position.held_until = NOTHING_HELD
            self.queue.let_go()

    def handle_error(self, error: Exception, *, in_hand: bool = True) -> Exception | None:
        """Deal with an error of an ask; returns what is to be raised, None where the ask goes on.

        The message announced last is finished if it was ``in_hand``, else it comes again.
        """
        chunk = self.queue.taken
        if chunk is None:
            return error
        position = chunk.position
        if in_hand:
            self.finish_message(position)
        else:
            self.retract()
        if not (isinstance(error, UnreadableMessageError) or error is chunk.error):
            return error
        if position.halted or (chunk.error is None and (position.consumed or 0) >= chunk.next_offset):
            # not to be read now, or all that counts as fetched was read: what follows the fetcher asks for anew
            self.finish(chunk)
            return None
        interrupt = error.__cause__
        if chunk.error is None and isinstance(interrupt, Exception) and not self._fails_again(chunk, interrupt):
            return interrupt
        self._unreadable = (chunk, error) if isinstance(error, UnreadableMessageError) else None
        if not self._settings.skip_corrupt or not isinstance(error, InvalidMessageException):
            return error
        self._give_up(chunk, error)
        return None

    def _fails_again(self, chunk: Chunk, cause: Exception) -> bool:
        """Whether what looked corrupt is: libraries raise errors of any kind, and so do signal handlers, whose error
        must not be taken for data that may be skipped. Nor must missing memory.
        """
        if isinstance(cause, MemoryError):
            return False
        try:
            for batch in self.batches(chunk, self._read_from):  # in the same way as before
                for _ in batch:
                    pass
        except UnreadableMessageError as again:
            return not isinstance(again.__cause__, MemoryError)
        return False

    def skip(self) -> int:
        """Give up what could not be read, and go on after it; see ``KafkaStream.skip``."""
        chunk, error = self._unreadable or (None, None)
        if chunk is None or error is None or chunk is not self.queue.taken:
            raise ValueError(f"{self.name}: nothing to skip; it did not just raise that something cannot be read")
        return self._give_up(chunk, error)

    def _give_up(self, chunk: Chunk, error: UnreadableMessageError) -> int:
        """Go on after the place that cannot be read; returns where. Of a partition that has left nothing is given up:
        its next owner decides.
        """
        self._unreadable = None
        position = chunk.position
        if position.revoked:
            return position.consumed or 0
        self.queue.count_skipped(error)
        if chunk.error is error:
            position.consumed = max(error.next_offset, position.consumed or 0)
            self.queue.read_again(position)
        else:
            # a corrupt head may name any offset: never beyond what was fetched
            position.consumed = max(min(error.next_offset, chunk.next_offset), position.consumed or 0)
        return position.consumed

    def _why_closed(self) -> str:
        if self.lease.valid:
            return NOTHING_CAME
        return _PACED if self._pace is not None and self._pace.lease.valid else _AWAY

    def may_hand_out(self) -> bool:
        """Whether a message may be handed out now; then its token is taken, if there is a pace."""
        return self.lease.valid if self._pace is None else self._pace.take()

    def handed_out(self, messages: int) -> None:
        """So many were handed out at once, and only the first of them has taken its token."""
        if self._pace is not None:
            self._pace.spend(messages - 1)

    def wait_at_gate(self, deadline: Deadline) -> None:
        """Wait for the lease, or until something else changed that the caller must look at.

        Raises: ConsumerTimeoutException when the deadline has passed.
        """
        if deadline.expired:
            raise ConsumerTimeoutException(self._why_closed())
        # readers are woken by the lease itself; the bound is for a stream that ends while the session is away
        self.lease.wait(Deadline(deadline.bounded(_UNHEARD)))

    def wait_to_hand_out(
        self, position: PartitionPosition, until: int, deadline: Deadline, wait_for_token: WaitForToken | None = None
    ) -> bool:
        """The gate was found closed before a hand-out: wait for the lease, unless the partition is no longer ours.

        The message is announced (``until`` is the end of its batch) only where this returns True.
        Arguments: ``wait_for_token`` is how to wait where nothing but the pace is missing, whatever the deadline.
        Raises: ConsumerTimeoutException when the reader's patience is over; the message comes at a later ask.
        """
        lease = self.lease if self._pace is None else self._pace.lease
        while True:
            if position.halted or self.queue.closed:
                return False
            time_left = True
            if not (open_now := self.may_hand_out()):
                time_left = self._wait_before(deadline, wait_for_token)
                open_now = self.may_hand_out()
            if open_now:
                now = monotonic()  # and then no call, as in the loop that hands out
                position.held_until = until
                if not position.halted and now < lease.until:
                    return True
                position.held_until = NOTHING_HELD
            elif not time_left:
                raise ConsumerTimeoutException(self._why_closed())

    def _wait_before(self, deadline: Deadline, wait_for_token: WaitForToken | None) -> bool:
        """Wait for what is missing, and no longer than what changes unheard may take to be seen; whether there is time
        left.
        """
        pace = self._pace
        if wait_for_token is not None and pace is not None and pace.lease.valid:
            return wait_for_token(min(pace.missing(), _UNHEARD))
        self.lease.wait(Deadline(deadline.bounded(_UNHEARD)))
        return not deadline.expired
