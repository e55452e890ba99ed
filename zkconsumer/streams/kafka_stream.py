"""The stream that hands the messages of fetched chunks out, one by one or as columns.

Threads: exactly one application thread at a time iterates a stream (a thread that takes a stream over calls ``iter``
on it again); its queue is where the others put and take away.

What counts as consumed differs from the original on purpose. There a message is consumed the moment it is returned,
so a crash while it is processed loses it. Here it is finished when the next one is asked for; see :class:`KafkaStream`.

The hand-out path runs for each message and is written for speed: one generator per stream keeps everything in local
names, and an iterator over it is ``map(MessageAndMetadata, generator)``, which makes the message object in C. An
error for the user, such as a timeout, is yielded as a :class:`_Raise`, which raises when the map unpacks it. So neither
the generator nor the iterator ends by an error. A request for columns throws :class:`SwitchToColumns` into the
generator, which lets go of its chunk and begins anew there. This costs messages nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator
from threading import get_native_id
from time import monotonic
from typing import Any, NoReturn

from zkconsumer.core.partition_position import NOTHING_HELD, PartitionPosition
from zkconsumer.deadline import Deadline
from zkconsumer.decoders import K, V
from zkconsumer.errors import ConsumerTimeoutException
from zkconsumer.streams.arrow_api import ColumnStream, SwitchToColumns
from zkconsumer.streams.chunk_reader import ChunkReader, ReadDeadline, WaitForToken
from zkconsumer.streams.message import MessageAndMetadata
from zkconsumer.streams.message_iterator import (
    NotReturned,
    as_generator,
    busy_text,
    log_in_hand,
    public_names,
)

log = logging.getLogger(__name__)

_FOR_MEMBERS = (
    "being_asked",
    "held_by",
    "interrupted",
    "left_to_parent",
    "returning",
    "settle",
    "take_back",
    "log_message_in_hand",
    "turn",
    "wait_at_gate",
)
"""What is public to the member's other parts, and nothing for its users."""


class _Raise:
    """Yielded in place of a message: raises when the iterator tries to make a message of it."""

    __slots__ = ("_error",)

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __iter__(self) -> NoReturn:
        raise self._error


class KafkaStream(ColumnStream[K, V]):
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
        if self._asked:
            raise RuntimeError(busy_text(self.name, self._holder))
        if not self._returned:
            self._take_back()
        self._patience, self._ends, self._wait_for_token = self._timeout, self._ends_on_timeout, None
        self._holder = get_native_id()
        if self._messages.gi_frame is None and not self.queue.closed:
            # an interrupt (Ctrl-C) inside the generator ended it: what it had not handed out comes again
            self._messages = as_generator(self._hand_out())
        return map(self._message_class, self._messages)

    # ---- in turn with other streams (MergedStreams)

    def turn(self, wait_for_token: WaitForToken) -> Iterator[MessageAndMetadata[K, V]]:
        """The messages that there are now; ends where one would have to be waited for. Only for the pace, which
        is that of all streams, is waited, by ``wait_for_token``, until that returns False. :meth:`settle` must follow.
        """
        messages = self._begin()
        self._patience, self._ends, self._wait_for_token = 0.0, True, wait_for_token
        return messages

    def settle(self) -> None:
        """What was handed out is finished, though this stream is not asked for more: another one is."""
        self._finish_in_hand()
        self._patience, self._ends, self._wait_for_token = self._timeout, self._ends_on_timeout, None
        self.queue.let_go()

    def take_back(self) -> None:
        """What was handed out last did not reach the caller of :class:`MergedStreams`: it comes again."""
        self._take_back()
        self._patience, self._ends, self._wait_for_token = self._timeout, self._ends_on_timeout, None

    def wait_at_gate(self, deadline: Deadline) -> None:
        """Wait until something may be handed out, or something changed. Raises: ConsumerTimeoutException."""
        self._reader.wait_at_gate(deadline)

    def held_by(self, thread: int) -> bool:
        """Whether that thread (its native identifier) was the last to ask this stream, and is not asking now."""
        return self._holder == thread and not self._asked and not self._withheld

    def returning(self, thread: int) -> bool:
        """Whether that thread is in an ask whose message, or rows, have not reached its caller yet."""
        return self._holder == thread and self._withheld

    @property
    def _withheld(self) -> bool:
        """Whether what was read last has not reached its caller."""
        return not self._returned or self._columns.withheld

    def interrupted(self, thread: int) -> bool:
        """Whether that thread, which calls this, is asking this stream for a message: then a signal handler calls."""
        return self._holder == thread and self._asked

    def left_to_parent(self, error: Exception) -> None:
        """In a forked process: raise ``error`` from each ask on."""
        self._asking = None
        if self._messages.gi_running:  # by a thread that does not exist here
            self._messages = as_generator(self._hand_out())
        self._reader.left_to_parent(error)

    def log_message_in_hand(self) -> None:
        """A loop begins: log what becomes of the message that is still in hand, perhaps interrupted half-way."""
        chunk = self.queue.taken
        if chunk is None or self._withheld or not (self._yielded or self._columns.in_hand):
            return
        if chunk.position.held and not chunk.position.revoked:
            log_in_hand(log, self.name, chunk.position)

    def __dir__(self) -> list[str]:
        return public_names(super().__dir__(), _FOR_MEMBERS)

    def __repr__(self) -> str:
        # never iterates (KAFKA-1146: printing a stream blocked for ever)
        return f"<KafkaStream {self.name} queued={len(self.queue)}>"

    def _hand_out(self) -> Generator[Any, None, None]:  # noqa: C901
        # one function for speed: whatever it calls for each message costs more than all it does itself
        queue, lease, reader = self.queue, self._lease, self._reader
        ask: ReadDeadline | None = None
        # The first offset of a batch of which something was handed out, so that another ask has begun since ``ask`` was
        # made; nothing is done for each message to tell that
        first: int | None = None
        position: PartitionPosition | None = None
        message = None  # what is announced and not handed out yet
        self._turned = False
        try:
            self._columns.settle()
            while not queue.closed:
                failure: _Raise | None = None
                try:
                    # if an ask has begun there was no message in the chunk before
                    chunk = (
                        reader.next_chunk(ask)
                        if ask
                        else queue.taken or queue.take(ask := ReadDeadline(self._patience))
                    )
                    if chunk is None:
                        break
                    self._holder = get_native_id()
                    position = chunk.position
                    start = reader.begin(chunk)
                    if start is None:
                        continue
                    for batch in reader.batches(chunk, start):
                        if position.halted or queue.closed:
                            break
                        for record in batch:
                            # the clock first: from the announcement to the yield nothing is called, so no interrupt and
                            # no signal handler finds a message announced that was never handed out, and counts it
                            now = monotonic()
                            message = (record, position, record.value)
                            position.consumed = record.offset
                            if first is None:
                                first = record.offset
                                position.held_until = batch.next_offset
                            if position.halted or now >= lease.until:
                                position.held_until = NOTHING_HELD
                                ask, first = (
                                    ask if ask and first == record.offset else ReadDeadline(self._patience),
                                    None,
                                )
                                if not reader.wait_to_hand_out(position, batch.next_offset, ask, self._wait_for_token):
                                    break
                                ask = None
                            yield message
                            message = None
                        else:
                            # the last message is finished: at once "no longer held" and "consumed up to here", so that
                            # who waits for it to be let go commits it as well
                            position.consumed = batch.next_offset
                            ask, first = ask if first is None else None, None
                            continue
                        break
                    else:
                        # what follows was compacted away, or a chunk came twice
                        position.consumed = max(chunk.next_offset, position.consumed or 0)
                    message = None
                    reader.finish(chunk)
                    continue
                except SwitchToColumns:
                    reader.finish_for_columns()
                except NotReturned:
                    reader.retract()
                except Exception as e:  # noqa: BLE001 (whatever it is, the user's next ask raises it)
                    # the chunk stays taken: its error comes again rather than a silent gap
                    error = reader.handle_error(e, in_hand=message is None)
                    if error is None:
                        ask, first = ask if first is None else None, None
                        continue
                    # raised through the map, which ends this loop and neither the generator nor the stream
                    ends = self._ends and isinstance(error, ConsumerTimeoutException)
                    failure = _Raise(StopIteration() if ends else error)
                position = message = None
                self._turned = True
                yield failure
                self._turned = False
                ask = first = None
                self._columns.settle()
        except BaseException:
            # an interrupt: what was announced and not handed out comes again, and is in nobody's hands
            if position is not None and message is not None:
                position.held_until = NOTHING_HELD
            raise
        self._ended()

    def skip(self) -> int:
        """Give up what cannot be read, after this stream raised InvalidMessageException or
        MessageSizeTooLargeException, and go on after it. It is logged and counted in ``queue.skipped``.

        Returns: the offset at which the partition is read on. Raises ValueError if the last ask raised neither, or
        the partition has left meanwhile.
        """
        return self._reader.skip()
