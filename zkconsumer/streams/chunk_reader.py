"""Reads a stream's chunks, for messages and for columns alike.

Responsible for the place to begin in a chunk, for unreadable places, for waiting on the lease, and for the end of a
chunk. Threads: the application thread that reads the stream, no other. Nothing here runs for each message.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from itertools import takewhile
from time import monotonic
from typing import NamedTuple

from zkconsumer.config import ConsumerConfig
from zkconsumer.errors import ConsumerTimeoutException, InvalidMessageException, UnreadableMessageError
from zkconsumer.kafka.compression import DEFAULT_LIMIT, Expansion
from zkconsumer.kafka.fetched_batches import batches
from zkconsumer.kafka.record_batch import DECODED_BYTES, RecordBatch
from zkconsumer.ownership.partition_position import NOTHING_HELD, PartitionPosition
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.streams.rate_limit import HandOutGate, RateLimitedLease
from zkconsumer.streams.stream_queue import Chunk, StreamQueue

log = logging.getLogger(__name__)

CountConsumed = Callable[[str, int, int], None]
"""Called when a chunk ends, with its topic, the number of offsets passed, and the bytes they took."""

WaitForToken = Callable[[float], bool]
"""Waits so many seconds, or less if something changed. Returns whether there is time left to look again."""

_AWAY = "no message within the timeout: ZooKeeper or the group's coordinator is away; the stream stays usable"
_UNHEARD = 0.1
"""Seconds after which a reader at the gate looks whether the stream or the partition has left."""
_PACED = "no message within the timeout: consumed.max.per.second allows none yet; the stream stays usable"


class ReadDeadline(Deadline):
    """The time of one read, over every wait on the way to a message.

    A read may pass chunks without a message (markers, aborted transactions, revoked or given-up places) and wait at the
    gate. If each of these began a deadline of its own, a read might never end. After the deadline, only chunks that
    were fetched by then are still read. Otherwise chunks without messages could keep the read for ever.
    """

    __slots__ = ("_looks",)

    def __init__(self, seconds: float | None) -> None:
        self.at = None if seconds is None else monotonic() + seconds  # no super(): one is made for each chunk
        self._looks = -1

    def is_over(self, waiting: int) -> bool:
        """Return whether to take no more chunks, of which ``waiting`` are queued. Asked before each but the first."""
        if not self.expired:
            return False
        self._looks = max(1, waiting) if self._looks < 0 else self._looks - 1
        return not self._looks


class ReadSettings(NamedTuple):
    """How records are read.

    ``check_crc`` is ``check.crcs``, ``read_committed`` is ``isolation.level``, ``skip_corrupt`` is
    ``corrupt.message.policy``, ``largest_batch`` is ``batch.expanded.max.bytes``.
    """

    check_crc: bool = True
    read_committed: bool = False
    skip_corrupt: bool = False
    largest_batch: int = DEFAULT_LIMIT


def read_settings(config: ConsumerConfig) -> ReadSettings:
    """Return how records are read."""
    return ReadSettings(
        check_crc=config.check_crcs,
        read_committed=config.isolation_level == "read_committed",
        skip_corrupt=config.corrupt_message_policy == "skip",
        largest_batch=config.batch_expanded_max_bytes,
    )


class ChunkReader:
    """The part of a stream that messages and columns have in common.

    Arguments: ``name`` is the stream's, for errors; ``lease`` says whether a message may be handed out; ``count`` is
    called with the consumed offsets and bytes.
    """

    def __init__(
        self, name: str, queue: StreamQueue, lease: HandOutGate, settings: ReadSettings, count: CountConsumed
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

    def next_chunk(self, deadline: ReadDeadline) -> Chunk | None:
        """Return the chunk being read, or the next one; None at the end of the stream.

        Raises: ConsumerTimeoutException; the error that made the connector fail.
        """
        queue = self.queue
        chunk = queue.taken
        if chunk is None:
            if deadline.is_over(len(queue)):
                raise queue.nothing_came()
            chunk = queue.take(deadline)
        return chunk

    def begin(self, chunk: Chunk) -> int | None:
        """Return the first offset to hand out of the chunk, or None if nothing of it is to be read now.

        Raises: the error that the chunk stands for, if it stands for one.
        """
        self.queue.asks += 1
        position = chunk.position
        if position.halted:
            # before anything is decoded: an unreadable place would hold up all other partitions of the stream
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
            self.queue.read_again(position)  # never go on behind the gap: its messages were not handed out
            return None
        if chunk is not self._current:
            self._current, self._counted_to = chunk, position.consumed
        if chunk.error is not None:
            raise chunk.error
        if chunk.dropped and position.consumed < chunk.next_offset:
            self.queue.read_again(position)  # the message did not reach its user: an interrupt, or a closed lease
            return None
        return position.consumed

    def batches(self, chunk: Chunk, start: int) -> Iterator[RecordBatch]:
        """Return the batches without records before ``start``; a compressed set may begin before it (KAFKA-546)."""
        chunk.expansion = Expansion(self._settings.largest_batch)
        self._read_from = start
        found = batches(
            chunk.records,
            check_crc=self._settings.check_crc,
            where=chunk.position.tp,
            fetch_offset=start,
            aborted=chunk.aborted,
            read_committed=self._settings.read_committed,
            expansion=chunk.expansion,
            end=chunk.set_end or chunk.next_offset,
        )
        return _before(found, chunk.next_offset) if chunk.set_end else found

    def message_batches(self, chunk: Chunk, start: int) -> Iterator[RecordBatch]:
        """Return the batches, as :meth:`batches` does, for handing out messages.

        A single large message is decoded, and the fetched bytes are given up. Otherwise the stream would hold the
        message twice while the user has it. A message that must be handed out again, in rare cases, is fetched again.
        """
        found = self.batches(chunk, start)
        if chunk.messages != 1 or len(chunk.records) <= DECODED_BYTES:
            return found
        if self._pace is not None or not self.lease.valid:  # it would be fetched again and again while it must wait
            return found
        batches, size = [], 0
        for batch in found:
            records = list(batch)
            size += sum([len(record.value or b"") + len(record.key or b"") for record in records])
            batches.append(RecordBatch(batch.where, batch.base_offset, batch.next_offset, None, 0, records))
        chunk.drop_records(size)
        return iter(batches)

    def finish(self, chunk: Chunk) -> None:
        """Stop reading the chunk: the chunk or the stream has ended, or the partition has left or is paused.

        The unfinished rest is queued again, also if the partition was resumed a moment ago.
        """
        position = chunk.position
        position.held_until = NOTHING_HELD
        reached = position.consumed or 0
        whole = chunk.error is None and not chunk.jump and reached >= chunk.next_offset
        if chunk is self._current:
            self.passed(chunk, self._counted_to, reached, closing=whole)
        self._current = None
        if whole:
            self.queue.finish_taken()
        else:
            self.queue.put_back(chunk)
        if position.halted and position.revoked:
            self.queue.wake_revocation()

    def passed(self, chunk: Chunk, first: int, end: int, *, closing: bool) -> None:
        """Count the finished part of a chunk; ``closing`` says that nothing of the chunk is left."""
        messages = max(0, end - first)
        if chunk.messages is not None:  # a compacted chunk has fewer messages than offsets
            messages = chunk.messages if closing and first == chunk.fetch_offset else min(messages, chunk.messages)
        self._count(chunk.position.tp.topic, messages, chunk.size if closing else 0)
        self._current, self._counted_to = chunk, end

    def count_bytes(self, chunk: Chunk) -> None:
        """Count the bytes of a chunk that is dropped before it counts as finished."""
        self._count(chunk.position.tp.topic, 0, chunk.size)

    def left_to_parent(self, error: Exception) -> None:
        """Read nothing any more, in a forked process."""
        self._count = lambda _topic, _messages, _bytes: None  # it takes locks
        self.queue.left_to_parent(error)

    def finish_for_columns(self) -> None:
        """Finish the messages that were handed out, before columns are read."""
        chunk = self.queue.taken
        if chunk is None:
            return
        self.finish_message(chunk.position)
        if chunk is self._current:
            self.passed(chunk, self._counted_to, chunk.position.consumed or 0, closing=False)

    def finish_message(self, position: PartitionPosition) -> None:
        """Finish the message in hand, if there is one."""
        if position.held and position.consumed is not None:
            # so that the next write makes it finished and no longer held at once
            position.held_until = position.consumed + 1
            position.consumed += 1
        position.held_until = NOTHING_HELD

    def retract(self) -> None:
        """Have the announced message come again: it was not handed out."""
        chunk = self.queue.taken
        if chunk is not None:
            chunk.position.held_until = NOTHING_HELD
            self.queue.wake_revocation()

    def handle_error(self, error: Exception, *, in_hand: bool = True) -> Exception | None:
        """Handle an error of a read. Returns the error to raise, or None if the read goes on.

        ``in_hand`` says that the user has received the announced message. Then the call finishes the message; otherwise
        the stream hands it out again.
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
            # not to be read now, or all that counts as fetched was read; the fetcher fetches the rest anew
            self.finish(chunk)
            return None
        interrupt = error.__cause__
        if chunk.error is None and isinstance(interrupt, Exception) and not self._fails_again(chunk, interrupt):
            return interrupt
        if self.is_doubtful(chunk, error):
            self.queue.read_again(position)
            return None
        self._unreadable = (chunk, error) if isinstance(error, UnreadableMessageError) else None
        if not isinstance(error, InvalidMessageException) or not self.skips(error):
            return error
        self._give_up(chunk, error)
        return None

    def is_doubtful(self, chunk: Chunk, error: Exception) -> bool:
        """Return whether the data may be corrupt at a follower alone. The leader is asked next."""
        doubtful = chunk.followed and isinstance(error, InvalidMessageException)
        if doubtful:
            log.warning("%s; a follower sent it, so the leader is asked", error)
        return doubtful

    def skips(self, error: UnreadableMessageError) -> bool:
        """Return whether ``corrupt.message.policy`` gives such a place up."""
        return self._settings.skip_corrupt and isinstance(error, InvalidMessageException)

    def _fails_again(self, chunk: Chunk, cause: Exception) -> bool:
        """Return whether data that looked corrupt is corrupt. Libraries raise errors of any kind, and so do signal
        handlers. An error of a signal handler, or missing memory, must not be taken for data that may be skipped.
        """
        if isinstance(cause, MemoryError):
            return False
        try:
            for batch in self.batches(chunk, self._read_from):  # from the same place as before
                for _ in batch:
                    pass
        except UnreadableMessageError as again:
            return not isinstance(again.__cause__, MemoryError)
        return False

    def skip(self) -> int:
        """Skip unreadable data and continue after it; see ``KafkaStream.skip``."""
        chunk, error = self._unreadable or (None, None)
        if chunk is None or error is None or chunk is not self.queue.taken:
            raise ValueError(f"{self.name}: nothing to skip; it did not just raise that something cannot be read")
        return self._give_up(chunk, error)

    def _give_up(self, chunk: Chunk, error: UnreadableMessageError) -> int:
        """Go on after the unreadable place; returns the offset to read on. Nothing is given up of a partition that has
        left: its next owner decides.
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
            # a corrupt head may name any offset: never go beyond the fetched chunk
            position.consumed = max(min(error.next_offset, chunk.next_offset), position.consumed or 0)
        return position.consumed

    def _gate_closed(self) -> ConsumerTimeoutException:
        if self.lease.valid:
            return self.queue.nothing_came()
        return ConsumerTimeoutException(_PACED if self._pace is not None and self._pace.lease.valid else _AWAY)

    def may_hand_out(self) -> bool:
        """Return whether a message may be handed out now; with a rate limit this takes its token."""
        return self.lease.valid if self._pace is None else self._pace.take()

    def handed_out(self, messages: int) -> None:
        """Take the tokens of ``messages`` that were handed out at once; the first has taken its own."""
        if self._pace is not None:
            self._pace.spend(messages - 1)

    def wait_at_gate(self, deadline: Deadline) -> None:
        """Wait for the lease, or until something else changed that the caller must look at.

        Raises: ConsumerTimeoutException when the deadline has passed.
        """
        if deadline.expired:
            raise self._gate_closed()
        # the lease itself wakes readers; the bound is for a stream that ends while the session is away
        self.lease.wait(Deadline(deadline.bounded(_UNHEARD)))

    def wait_to_hand_out(
        self, position: PartitionPosition, until: int, deadline: Deadline, wait_for_token: WaitForToken | None = None
    ) -> bool:
        """Wait for the lease before a hand-out, unless the partition is no longer ours; returns whether to hand out.

        The message is announced (``until`` is the end of its batch) only if this returns True.

        Arguments: ``wait_for_token`` waits when only the rate limit keeps the message back, whatever the deadline.
        Raises: ConsumerTimeoutException at the deadline; the message comes at a later read.
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
                now = monotonic()  # no call after it, as in data_plane.hand_out
                position.held_until = until
                if not position.halted and now < lease.until:
                    return True
                position.held_until = NOTHING_HELD
            elif not time_left:
                raise self._gate_closed()

    def _wait_before(self, deadline: Deadline, wait_for_token: WaitForToken | None) -> bool:
        """Wait for the lease or a token; returns whether there is time left. It waits no longer than it may take to see
        a change that wakes nobody.
        """
        pace = self._pace
        if wait_for_token is not None and pace is not None and pace.lease.valid:
            return wait_for_token(min(pace.missing(), _UNHEARD))
        self.lease.wait(Deadline(deadline.bounded(_UNHEARD)))
        return not deadline.expired


def _before(found: Iterator[RecordBatch], end: int) -> Iterator[RecordBatch]:
    """Return the batches without records from offset ``end`` on."""
    for batch in found:
        if batch.next_offset < end:
            yield batch
            continue
        records = list(takewhile(lambda record: record.offset < end, batch))
        yield RecordBatch(batch.where, batch.base_offset, end, None, 0, records)
        return
