"""The stream that hands the messages of fetched chunks out, one by one.

Threads: exactly one application thread at a time iterates a stream (a thread that takes a stream over calls ``iter``
on it again); its queue is where the others put and take away.

What counts as consumed differs from the original on purpose. There a message is consumed the moment it is returned,
so a crash while it is processed loses it. Here it is finished when the next one is asked for; see :class:`KafkaStream`.

The hand-out path runs for each message and is written for speed: one generator per stream keeps everything in local
names, and an iterator over it is ``map(MessageAndMetadata, generator)``, which makes the message object in C. What
must be raised to the user (a timeout, an error) is yielded as a :class:`_Raise`, which raises when the map unpacks
it, so that neither the generator nor the iterator ends by it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator
from inspect import GEN_CLOSED, GEN_RUNNING, getgeneratorstate
from threading import get_native_id
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
from zkconsumer.streams.messages import MessageAndMetadata
from zkconsumer.streams.queue import Chunk, StreamQueue

log = logging.getLogger(__name__)


Count = Callable[[str, int, int], None]
"""Told, when a chunk ends, of a topic how many offsets were passed and how many bytes that took."""


class _Raise:
    """Yielded in place of a message: raises when the iterator tries to make a message of it."""

    __slots__ = ("_error",)

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __iter__(self) -> NoReturn:
        raise self._error


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
        self._holder = get_native_id()
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
        """Whether that thread (its native identifier) was the last to ask this stream, and is not asking now."""
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
                self._holder = get_native_id()
                position = chunk.position
                start = self._begin(chunk)
                # records before the start (a compressed set may begin there, KAFKA-546) are left out below
                for batch in self._batches(chunk, start):
                    if position.halted or queue.closed:
                        break
                    fresh = True
                    for record in batch:
                        # the clock first: from the announcement to the yield nothing is called, so no interrupt and no
                        # signal handler finds a message announced that was never handed out, and counts it
                        now = monotonic()
                        position.consumed = record.offset
                        if fresh:
                            position.held_until = batch.next_offset
                            fresh = False
                        if position.halted or now >= lease.until:
                            position.held_until = NOTHING_HELD
                            if not self._may_go_on(position, batch.next_offset):
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

    def _may_go_on(self, position: PartitionPosition, until: int) -> bool:
        """The gate was found closed before a hand-out: wait for the lease, unless the partition is no longer ours.

        The message is announced (``until`` is the end of its batch) only where this returns True.
        Raises: ConsumerTimeoutException when the reader's patience is over; the message comes at a later ask.
        """
        deadline = Deadline(self._patience)
        while True:
            if position.halted or self.queue.closed:
                return False
            # readers are woken by the lease itself; the bound is for a stream that ends while the session is away
            self._lease.wait(Deadline(deadline.bounded(0.1)))
            now = monotonic()  # and then no call, as in the loop that hands out
            position.held_until = until
            if not position.halted and now < self._lease.until:
                return True
            position.held_until = NOTHING_HELD
            if deadline.expired:
                raise ConsumerTimeoutException(
                    "no message within the timeout, for ZooKeeper is away; the stream stays usable"
                )
