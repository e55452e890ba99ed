"""What the application iterates: a bounded queue of fetched chunks, and the stream that hands their messages out one
by one.

Threads: fetchers offer chunks and never wait; the group's thread revokes partitions; exactly one application thread
at a time iterates a stream (a thread that takes a stream over calls ``iter`` on it again). The queue's condition
guards its chunks alone and nobody blocks while holding it.

What counts as consumed differs from the original on purpose. There a message is consumed the moment it is returned,
so a crash while it is processed loses it. Here it is finished when the next one is asked for; see :class:`KafkaStream`.

The hand-out path runs for each message and is written for speed: one generator per stream keeps everything in local
names, and an iterator over it is ``map(MessageAndMetadata, generator)``, which makes the message object in C. What
must be raised to the user (a timeout, an error) is yielded as a :class:`_Raise`, which raises when the map unpacks
it, so that neither the generator nor the iterator ends by it.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterator
from inspect import GEN_CLOSED, GEN_RUNNING, getgeneratorstate
from operator import attrgetter, itemgetter
from threading import Condition, get_ident
from time import monotonic
from typing import Any, Generic, NoReturn

from zkconsumer.brokers.records import batches
from zkconsumer.core.positions import NOTHING_HELD, PartitionPosition
from zkconsumer.deadline import Deadline
from zkconsumer.decoders import K, V
from zkconsumer.errors import (
    ConnectorClosedException,
    ConsumerTimeoutException,
    InvalidMessageException,
    UnreadableMessageError,
)
from zkconsumer.registry.lease import Lease

log = logging.getLogger(__name__)


Count = Callable[[str, int, int], None]
"""Told, when a chunk ends, of a topic how many offsets were passed and how many bytes that took."""


class MessageAndMetadata(tuple[Any, Any], Generic[K, V]):
    """One message: ``topic``, ``partition``, ``offset``, ``key``, ``value``, ``timestamp`` (ms since the epoch, -1:
    none), ``timestamp_type`` (0: set by the producer, 1: by the broker, None: none) and ``headers`` (list of (name,
    bytes or None)).

    It refers to the fetched data and reads a field when it is asked for, as the original decodes lazily (KAFKA-1140).
    Keep ``bytes(message.value)`` rather than the message where a few are kept of many: it holds its chunk in memory.
    """

    __slots__ = ()

    _record = property(itemgetter(0))
    _place = property(itemgetter(1))
    offset: int = property(attrgetter("_record.offset"))  # type: ignore[assignment]
    timestamp_type: int | None = property(attrgetter("_record.timestamp_type"))  # type: ignore[assignment]
    headers: list[tuple[str, bytes | None]] = property(attrgetter("_record.headers"))  # type: ignore[assignment]
    topic: str = property(attrgetter("_place.topic"))  # type: ignore[assignment]
    partition: int = property(attrgetter("_place.partition"))  # type: ignore[assignment]

    @property
    def key(self) -> K:
        """The key; bytes (or None) unless a decoder was given."""
        return self[0].key  # type: ignore[no-any-return]

    @property
    def value(self) -> V:
        """The value; bytes (or None) unless a decoder was given."""
        return self[0].value  # type: ignore[no-any-return]

    @property
    def timestamp(self) -> int:
        """Milliseconds since the epoch, -1 where the message format has none."""
        timestamp: int | None = self[0].timestamp
        return -1 if timestamp is None else timestamp

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MessageAndMetadata):
            return NotImplemented
        return _content(self) == _content(other)

    def __hash__(self) -> int:
        return hash((self.topic, self.partition, self.offset))

    def __repr__(self) -> str:
        return (
            f"MessageAndMetadata(topic={self.topic!r}, partition={self.partition}, offset={self.offset}, "
            f"key={self[0].key!r}, value={self[0].value!r}, timestamp={self.timestamp})"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickle, _content(self)


def _content(message: MessageAndMetadata[Any, Any]) -> tuple[Any, ...]:
    record = message[0]
    return (
        message.topic,
        message.partition,
        record.offset,
        message.key,
        message.value,
        record.timestamp,
        record.timestamp_type,
        list(record.headers),
    )


class _Copy:
    """A record and its place, detached from the fetched data (what a pickled message becomes)."""

    __slots__ = ("headers", "key", "offset", "partition", "timestamp", "timestamp_type", "topic", "value")


def _unpickle(*content: Any) -> MessageAndMetadata[Any, Any]:
    copy = _Copy()
    names = ("topic", "partition", "offset", "key", "value", "timestamp", "timestamp_type", "headers")
    for name, value in zip(names, content, strict=True):
        setattr(copy, name, value)
    return MessageAndMetadata((copy, copy))


class _Raise:
    """Yielded in place of a message: raises when the iterator tries to make a message of it."""

    __slots__ = ("_error",)

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __iter__(self) -> NoReturn:
        raise self._error


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
        error: UnreadableMessageError | None = None,
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

    Arguments: ``capacity`` in chunks (``queued.max.message.chunks``). Fetchers ask :meth:`has_room` before they
    fetch, so an answer that carries several partitions may pass the capacity by one chunk a partition; nobody ever
    blocks on a full queue, so a slow stream holds up no other (the original's fetcher thread stands still with all
    partitions of its broker).
    """

    def __init__(self, capacity: int, on_room: Callable[[], None]) -> None:
        self._capacity = capacity
        self._on_room = on_room
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
        return len(self._chunks) < self._capacity and not self._closed

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

    def fail(self, position: PartitionPosition, error: UnreadableMessageError) -> None:
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
            self.bytes += len(chunk.records)
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
            self.bytes -= len(chunk.records)
        if was_full:
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
        self.bytes = sum(len(chunk.records) for chunks in (self._chunks, *self._aside.values()) for chunk in chunks)

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
        """The reader was interrupted by a pause: the chunk's rest comes first when the partition is resumed."""
        with self._changed:
            self.taken = None
            if self._closed or chunk.position.revoked:
                return
            self.bytes += len(chunk.records)
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
            self.bytes = 0
            self._changed.notify_all()

    @property
    def closed(self) -> bool:
        """Whether the stream has ended."""
        return self._closed


class KafkaStream(Generic[K, V]):
    """The messages of the partitions that one thread of this member owns, in the order of each partition.

    Iterate it (``for message in stream``) or ask :meth:`get`; it is always the same single pass, also over several
    ``for`` loops. A message is finished when the next one is asked for on the stream; what is committed never passes
    the first unfinished one. Iteration ends when the connector is shut down, and raises
    :class:`ConsumerTimeoutException` after ``consumer.timeout.ms`` without a message (then simply iterate on), or
    ends the loop then with ``consumer.timeout.action=end``.

    Made by the connector; used by one thread at a time.
    """

    def __init__(
        self,
        name: str,
        queue: StreamQueue,
        lease: Lease,
        *,
        timeout: float | None,
        check_crc: bool,
        read_committed: bool = False,
        skip_corrupt: bool = False,
        message_class: type[MessageAndMetadata[Any, Any]] = MessageAndMetadata,
        ended: Callable[[], None] = lambda: None,
        ends_on_timeout: bool = False,
        count: Count = lambda _topic, _messages, _bytes: None,
    ) -> None:
        self.name = name
        self._ended = ended
        self.queue = queue
        self._lease = lease
        self._timeout = timeout
        self._patience = timeout
        self._check_crc = check_crc
        self._read_committed = read_committed
        self._skip_corrupt = skip_corrupt
        self._unreadable: tuple[Chunk, UnreadableMessageError] | None = None
        self._message_class = message_class
        self._count = count
        self._ends_on_timeout = self._ends = ends_on_timeout
        self._messages = self._hand_out()
        self._holder = 0

    def __iter__(self) -> Iterator[MessageAndMetadata[K, V]]:
        self._patience = self._timeout
        self._holder = get_ident()
        if getgeneratorstate(self._messages) == GEN_CLOSED and not self.queue.closed:
            # an interrupt (Ctrl-C) inside the generator ended it: what it had not handed out comes again
            self._messages = self._hand_out()
        return map(self._message_class, self._messages)

    def __next__(self) -> MessageAndMetadata[K, V]:
        return next(iter(self))

    def get(self, timeout: float | None = None) -> MessageAndMetadata[K, V]:
        """The next message.

        Arguments: ``timeout`` in seconds; None waits for ever, 0 looks only at what was fetched already.
        Raises: :class:`ConsumerTimeoutException` when none came in time, :class:`ConnectorClosedException` at the end
        of the stream.
        """
        messages = iter(self)
        self._patience, self._ends = timeout, False
        try:
            return next(messages)
        except StopIteration:
            raise ConnectorClosedException(f"the stream {self.name} has ended: its connector was shut down") from None
        finally:
            self._patience, self._ends = self._timeout, self._ends_on_timeout

    def held_by(self, thread: int) -> bool:
        """Whether that thread (its identifier) was the last to ask this stream for messages, and is not asking now."""
        return self._holder == thread and getgeneratorstate(self._messages) != GEN_RUNNING

    def interrupted(self, thread: int) -> bool:
        """Whether that thread, which calls this, is asking this stream for a message: then a signal handler calls."""
        return self._holder == thread and getgeneratorstate(self._messages) == GEN_RUNNING

    def __repr__(self) -> str:
        # never iterates (KAFKA-1146: printing a stream blocked for ever)
        return f"<KafkaStream {self.name} queued={len(self.queue)}>"

    def _hand_out(self) -> Generator[Any, None, None]:
        # one function for speed: whatever it calls for each message costs more than all it does itself
        queue, lease = self.queue, self._lease
        while not queue.closed:
            try:
                chunk = queue.taken or queue.take(Deadline(self._patience))
                if chunk is None:
                    break
                self._holder = get_ident()
                position = chunk.position
                start = self._begin(chunk)
                # records before the start (a compressed set may begin there, KAFKA-546) are left out below
                for batch in self._batches(chunk, start):
                    if position.halted or queue.closed:
                        break
                    fresh = True
                    for record in batch:
                        position.consumed = record.offset
                        if fresh:
                            position.held_until = batch.next_offset
                            fresh = False
                        if (position.halted or monotonic() >= lease.until) and not self._may_go_on(position):
                            break
                        yield (record, position)
                    else:
                        # the last message is finished: at once "no longer held" and "consumed up to here", so that
                        # who waits for it to be let go commits it as well
                        position.consumed = batch.next_offset
                        continue
                    break
                else:
                    # what follows was compacted away, or a chunk came twice
                    position.consumed = max(chunk.next_offset, position.consumed or 0)
                self._finish(chunk, start)
            except Exception as e:  # noqa: BLE001 (whatever it is, the user's next ask raises it)
                # the chunk stays taken: its error comes again rather than a silent gap
                if not self._passes_over(e):
                    # raised through the map, which ends this loop and neither the generator nor the stream
                    yield _Raise(StopIteration() if self._ends and isinstance(e, ConsumerTimeoutException) else e)
        self._ended()

    def _passes_over(self, error: Exception) -> bool:
        """What was handed out before the error is finished; whether to go on after the error instead of raising it."""
        chunk = self.queue.taken
        if chunk is None:
            return False
        position = chunk.position
        if position.held and position.consumed is not None:
            position.held_until = position.consumed + 1  # finished and no longer held at once, by what follows
            position.consumed += 1
        position.held_until = NOTHING_HELD
        if chunk.error is None and (position.consumed or 0) >= chunk.next_offset:
            # all that counts as fetched was read; what follows is the fetcher's to deal with, which asks for it anew
            self._finish(chunk, chunk.fetch_offset)
            return True
        self._unreadable = (chunk, error) if isinstance(error, UnreadableMessageError) else None
        if not self._skip_corrupt or not isinstance(error, InvalidMessageException):
            return False
        self.skip()
        return True

    def skip(self) -> int:
        """Give up what cannot be read, after this stream raised InvalidMessageException or
        MessageSizeTooLargeException, and go on after it. It is logged and counted in ``queue.skipped``.

        Returns: the offset at which the partition is read on. Raises ValueError if the last ask raised neither, or
        the partition has left meanwhile.
        """
        chunk, error = self._unreadable or (None, None)
        self._unreadable = None
        if chunk is None or error is None or chunk is not self.queue.taken or chunk.position.revoked:
            raise ValueError(f"{self.name}: nothing to skip; it did not just raise that something cannot be read")
        position = chunk.position
        self.queue.count_skipped(error)
        if chunk.error is error:
            position.consumed = max(error.next_offset, position.consumed or 0)
            self.queue.give_up(chunk)
        else:
            # a corrupt head may name any offset: never beyond what was fetched
            position.consumed = max(min(error.next_offset, chunk.next_offset), position.consumed or 0)
        return position.consumed

    def _begin(self, chunk: Chunk) -> int:
        """Reconcile what the chunk holds with where we stand; returns the first offset to hand out."""
        position = chunk.position
        if chunk.jump or position.consumed is None:
            position.consumed = chunk.fetch_offset
            chunk.jump = False
        elif position.consumed < chunk.fetch_offset:
            log.error(
                "%s: expected offset %d but the next chunk begins at %d",
                position.tp,
                position.consumed,
                chunk.fetch_offset,
            )
            position.consumed = chunk.fetch_offset
        if chunk.error is not None and not position.revoked:
            raise chunk.error
        return position.consumed

    def _batches(self, chunk: Chunk, start: int) -> Iterator[Any]:
        return batches(
            chunk.records,
            check_crc=self._check_crc,
            where=chunk.position.tp,
            fetch_offset=start,
            aborted=chunk.aborted,
            read_committed=self._read_committed,
        )

    def _finish(self, chunk: Chunk, start: int) -> None:
        """Every message of the chunk is finished, or the partition is no longer ours or paused, or the stream has
        ended. ``start`` is the first offset that was handed out of it.
        """
        position = chunk.position
        position.held_until = NOTHING_HELD
        reached = position.consumed or 0
        whole = reached >= chunk.next_offset
        self._count(position.topic, max(0, reached - start), len(chunk.records) if whole else 0)
        if position.paused and not whole:
            self.queue.put_back(chunk)
        self.queue.taken = None
        if position.revoked:
            self.queue.let_go()

    def _may_go_on(self, position: PartitionPosition) -> bool:
        """The gate was found closed before a hand-out: wait for the lease, unless the partition is no longer ours.

        Raises: ConsumerTimeoutException when the reader's patience is over; the message comes at a later ask.
        """
        until, deadline = position.held_until, Deadline(self._patience)
        while True:
            position.held_until = NOTHING_HELD
            if position.halted or self.queue.closed:
                return False
            # readers are woken by the lease itself; the bound is for a stream that ends while the session is away
            self._lease.wait(Deadline(deadline.bounded(0.1)))
            position.held_until = until
            if not position.halted and self._lease.valid:
                return True
            if deadline.expired:
                position.held_until = NOTHING_HELD
                raise ConsumerTimeoutException(
                    "no message within the timeout, for ZooKeeper is away; the stream stays usable"
                )
