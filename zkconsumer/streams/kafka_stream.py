"""Hands the messages of fetched chunks to the application, one by one or as columns.

Threads: exactly one application thread at a time iterates a stream. A thread that takes a stream over calls ``iter`` on
it again. Other threads put chunks into the stream's queue and take them away.

A message counts as consumed later than in the original, on purpose. The original consumes a message the moment it
returns it, so a crash during processing loses the message. Here a message is finished when the next one is asked for;
see :class:`KafkaStream`.

The hand-out path runs for each message and is written for speed. One generator per stream keeps everything in local
names. The stream's iterator is ``map(MessageAndMetadata, generator)``, which makes the message object in C. An error
for the user, such as a timeout, is yielded as a :class:`RaiseInstead`, which raises when the map unpacks it. So neither
the generator nor the iterator ends by an error. A request for columns throws :class:`SwitchToColumns` into the
generator, which lets go of its chunk and begins anew there. This costs messages nothing.

The order of single statements matters here: it relies on CPython's GIL, under which one assignment is atomic.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator
from threading import get_native_id
from time import monotonic
from typing import Any

from zkconsumer.core.partition_position import NOTHING_HELD, PartitionPosition
from zkconsumer.deadline import Deadline
from zkconsumer.decoders import K, V
from zkconsumer.errors import ConsumerTimeoutException
from zkconsumer.streams.arrow_api import ColumnStream, SwitchToColumns
from zkconsumer.streams.chunk_reader import ChunkReader, ReadDeadline, WaitForToken
from zkconsumer.streams.message import MessageAndMetadata
from zkconsumer.streams.message_iterator import (
    NotReturned,
    RaiseInstead,
    as_generator,
    busy_text,
    log_in_hand,
    public_names,
)

log = logging.getLogger(__name__)

_FOR_MEMBERS = (
    "being_read",
    "chunk_reader",
    "held_by",
    "interrupted",
    "left_to_parent",
    "returning",
    "settle",
    "take_back",
    "log_message_in_hand",
    "message_class",
    "turn",
    "wait_at_gate",
)
"""Public methods for other parts of the member. They are hidden from the user's tab completion."""


class KafkaStream(ColumnStream[K, V]):
    """The messages of the partitions that one thread of this member owns, in the order of each partition.

    Iterate it (``for message in stream``) or call :meth:`get`. Both continue the same single pass, also over several
    ``for`` loops. A message is finished when the next one is asked for on the stream. A commit never passes the first
    unfinished message. Iteration ends when the connector is shut down. After ``consumer.timeout.ms`` without a message
    it raises :class:`ConsumerTimeoutException`, or ends the loop with ``consumer.timeout.action=end``. Iterate on in
    either case.

    Made by the connector; used by one thread at a time. Arguments: ``timeout`` in seconds is ``consumer.timeout.ms``;
    ``ends_on_timeout`` is ``consumer.timeout.action=end``; ``ended`` is called at the end of the stream.
    """

    def __init__(
        self,
        reader: ChunkReader,
        *,
        timeout: float | None,
        ends_on_timeout: bool = False,
        message_class: type[MessageAndMetadata[Any, Any]] = MessageAndMetadata,
        ended: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(reader, timeout=timeout, ends_on_timeout=ends_on_timeout, ended=ended)
        self._lease = reader.lease
        self._message_class = message_class
        self._wait_for_token: WaitForToken | None = None
        self._messages = as_generator(self._hand_out())

    @property
    def _decodes(self) -> bool:
        return self._message_class is not MessageAndMetadata

    def __iter__(self) -> Iterator[MessageAndMetadata[K, V]]:
        self.log_message_in_hand()
        return self._begin()

    def _begin(self) -> Iterator[MessageAndMetadata[K, V]]:
        if self._being_read:
            raise RuntimeError(busy_text(self.name, self._holder))
        if not self._returned:
            self._take_back()
        self._patience, self._ends, self._wait_for_token = self._timeout, self._ends_on_timeout, None
        self._holder = get_native_id()
        if self._messages.gi_frame is None and not self.queue.closed:
            # an interrupt (Ctrl-C) inside the generator ended it; the message that it had not handed out comes again
            self._messages = as_generator(self._hand_out())
        return map(self._message_class, self._messages)

    # ---- in turn with other streams (MergedStreams)

    def turn(self, wait_for_token: WaitForToken) -> Iterator[MessageAndMetadata[K, V]]:
        """Return an iterator over the messages that have arrived; it does not wait for more.

        With a rate limit, which all streams share, a message may lack its token. The iterator then calls
        ``wait_for_token`` with the seconds to wait, until it returns False. :meth:`settle` must follow.
        """
        messages = self._begin()
        self._patience, self._ends, self._wait_for_token = 0.0, True, wait_for_token
        return messages

    def settle(self) -> None:
        """Finish the last message although this stream is not asked for another: the next comes from another stream."""
        self._finish_in_hand()
        self._patience, self._ends, self._wait_for_token = self._timeout, self._ends_on_timeout, None
        self.queue.let_go()

    def take_back(self) -> None:
        """Hand the last message out again: it did not reach the caller of :class:`MergedStreams`."""
        self._take_back()
        self._patience, self._ends, self._wait_for_token = self._timeout, self._ends_on_timeout, None

    def wait_at_gate(self, deadline: Deadline) -> None:
        """Wait until a message may be handed out, or something changed. Raises: ConsumerTimeoutException."""
        self._reader.wait_at_gate(deadline)

    @property
    def chunk_reader(self) -> ChunkReader:
        """What reads the chunks, for a reader that takes the messages of several streams."""
        return self._reader

    @property
    def message_class(self) -> type[MessageAndMetadata[Any, Any]]:
        """The class of the stream's messages, with its decoders."""
        return self._message_class

    def held_by(self, thread: int) -> bool:
        """Return whether that thread (by its native identifier) read this stream last, and is not reading it now."""
        return self._holder == thread and not self._being_read and not self._withheld

    @property
    def _withheld(self) -> bool:
        """Whether the last message or rows have not reached their caller."""
        return not self._returned or self._columns.withheld

    def left_to_parent(self, error: Exception) -> None:
        """Raise ``error`` from each read on, in a forked process."""
        self._reading = None
        if self._messages.gi_running:  # on a thread that the child process does not have
            self._messages = as_generator(self._hand_out())
        self._reader.left_to_parent(error)

    def log_message_in_hand(self) -> None:
        """Log what becomes of a message that is still in hand, perhaps half processed, when a new loop begins."""
        chunk = self.queue.taken
        if chunk is None or self._withheld or not (self._yielded or self._columns.in_hand):
            return
        if chunk.position.held and not chunk.position.revoked:
            log_in_hand(log, self.name, chunk.position)

    def __dir__(self) -> list[str]:
        return public_names(super().__dir__(), _FOR_MEMBERS)

    def __repr__(self) -> str:
        # must not iterate (KAFKA-1146: printing a stream blocked for ever)
        return f"<KafkaStream {self.name} queued={len(self.queue)}>"

    def _hand_out(self) -> Generator[Any, None, None]:  # noqa: C901
        # One long function, for speed: a call for each message would cost more than all that the loop itself does.
        #
        # This path relies on CPython's GIL: it takes no lock for a message. Other threads must see the stores to
        # ``consumed`` and ``held_until`` in this order, and before ``halted`` is read (core/partition_position.py).
        # Otherwise the group's thread and this one miss each other, and a commit passes a message that nobody has seen.
        # So version.py refuses free-threaded builds.
        queue, lease, reader = self.queue, self._lease, self._reader
        limit: ReadDeadline | None = None
        # The first offset that was handed out of this batch, None before that. If it is set, another read has begun
        # since ``limit`` was made. So nothing need be noted for each message.
        first: int | None = None
        position: PartitionPosition | None = None
        message = None  # announced as held, and not handed out yet
        self._turned = False
        try:
            self._columns.settle()
            while not queue.closed:
                failure: RaiseInstead | None = None
                try:
                    # ``limit`` is set if this read has gone through a chunk without a message already
                    if limit:
                        chunk = reader.next_chunk(limit)
                    else:
                        chunk = queue.taken or queue.take(limit := ReadDeadline(self._patience))
                    if chunk is None:
                        break
                    self._holder = get_native_id()
                    position = chunk.position
                    start = reader.begin(chunk)
                    if start is None:
                        continue
                    for batch in reader.message_batches(chunk, start):
                        if position.halted or queue.closed:
                            break
                        for record in batch:
                            # The clock first: nothing is called between the announcement and the yield. Otherwise an
                            # interrupt or a signal handler could count an announced message that nobody got.
                            now = monotonic()
                            message = (record, position, record.value)
                            position.consumed = record.offset
                            if first is None:
                                first = record.offset
                                position.held_until = batch.next_offset
                            if position.halted or now >= lease.until:
                                position.held_until = NOTHING_HELD
                                limit, first = (
                                    limit if limit and first == record.offset else ReadDeadline(self._patience),
                                    None,
                                )
                                if not reader.wait_to_hand_out(
                                    position, batch.next_offset, limit, self._wait_for_token
                                ):
                                    break
                                limit = None
                            yield message
                            message = None
                        else:
                            # The last message is finished. One write says "no longer held" and "consumed up to here".
                            # Otherwise a revocation that waits for the message could commit without it.
                            position.consumed = batch.next_offset
                            limit, first = limit if first is None else None, None
                            continue
                        break
                    else:
                        # the rest was compacted away, or the chunk came twice
                        position.consumed = max(chunk.next_offset, position.consumed or 0)
                    message = None
                    reader.finish(chunk)
                    continue
                except SwitchToColumns:
                    reader.finish_for_columns()
                except NotReturned:
                    reader.retract()
                except Exception as e:  # noqa: BLE001 (every error goes to the user)
                    # the chunk stays taken: its error comes again, rather than a silent gap
                    error = reader.handle_error(e, in_hand=message is None)
                    if error is None:
                        limit, first = limit if first is None else None, None
                        continue
                    # raised through the map: it ends this loop, and neither the generator nor the stream
                    ends = self._ends and isinstance(error, ConsumerTimeoutException)
                    failure = RaiseInstead(StopIteration() if ends else error)
                position = message = None
                self._turned = True
                yield failure
                self._turned = False
                limit = first = None
                self._columns.settle()
        except BaseException:
            # an interrupt: a message that was announced and not handed out is held by nobody, and comes again
            if position is not None and message is not None:
                position.held_until = NOTHING_HELD
            raise
        self._ended()

    def skip(self) -> int:
        """Give up an unreadable place, after this stream raised InvalidMessageException or
        MessageSizeTooLargeException.

        The place is logged, counted in ``queue.skipped``, and reading goes on after it.

        Returns: the offset at which the partition is read on. Raises: ValueError if the last read raised neither error,
        or the partition has left meanwhile.
        """
        return self._reader.skip()
