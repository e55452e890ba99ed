"""Hands the messages of fetched chunks to the application, one by one or as columns.

Threads: exactly one application thread at a time iterates a stream. A thread that takes a stream over calls ``iter`` on
it again. Other threads put chunks into the stream's queue and take them away.

A message counts as consumed later than in the original, on purpose. The original consumes a message at the moment of
its return, so a crash during processing loses the message. Here a message is finished when the next one is asked for;
see :class:`KafkaStream`.

The code that runs for each message is the generator of ``data_plane.hand_out``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from threading import get_native_id
from typing import Any, ClassVar

from zkconsumer.data_plane.hand_out import HandOut, stream_messages
from zkconsumer.errors import ConsumerTimeoutException
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.streams.arrow_api import ColumnStream
from zkconsumer.streams.chunk_reader import ChunkReader, WaitForToken
from zkconsumer.streams.message import K, MessageAndMetadata, V
from zkconsumer.streams.message_iterator import busy_text, log_in_hand
from zkconsumer.streams.stream_queue import LOOK_FOR_END

log = logging.getLogger(__name__)


class KafkaStream(ColumnStream[K, V]):
    """The messages of the partitions that one thread of this member owns, in the order of each partition::

        for message in stream:
            print(message.topic, message.partition, message.offset, message.key, message.value)
        message = stream.get(timeout=5)  # or ConsumerTimeoutException
        messages = stream.take(500, timeout=1)

    All continue the same single pass, also over several ``for`` loops. A message is finished when the next one is asked
    for on the stream. A commit never passes the first unfinished message. Iteration ends when the connector is shut
    down. After ``consumer.timeout.ms`` without a message it raises :class:`ConsumerTimeoutException`, or ends the loop
    with ``consumer.timeout.action=end``. Iterate on in either case. ``next(stream)`` loses its message if a signal
    handler raises right after it.

    Made by the connector; used by one thread at a time. Arguments: ``timeout`` in seconds is ``consumer.timeout.ms``;
    ``ends_on_timeout`` is ``consumer.timeout.action=end``; ``ended`` is called at the end of the stream.
    """

    shown: ClassVar[Collection[str]] = ("batches", "get", "name", "queue", "skip", "take", "to_arrow", "to_dataframe")

    def __init__(
        self,
        reader: ChunkReader,
        *,
        timeout: float | None,
        ends_on_timeout: bool = False,
        message_class: type[MessageAndMetadata[Any, Any]] = MessageAndMetadata,
        ended: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(
            reader, timeout=timeout, ends_on_timeout=ends_on_timeout, message_class=message_class, ended=ended
        )
        self.wait_for_token: WaitForToken | None = None
        """Waits for the token of a message, in a turn."""
        self._messages = HandOut(self, stream_messages)

    def __iter__(self) -> Iterator[MessageAndMetadata[K, V]]:
        self.log_message_in_hand()
        return self._begin()

    def _begin(self) -> Iterator[MessageAndMetadata[K, V]]:
        if self._being_read:
            raise RuntimeError(busy_text(self.name, self._holder))
        if not self.returned:
            self._return_last()
        self._patience, self.ends_quietly, self.wait_for_token = self._timeout, self._ends_on_timeout, None
        self._holder = get_native_id()
        if self._messages.ended and not self.queue.closed:
            # an interrupt (Ctrl-C) inside the generator ended it; the message that it had not handed out comes again
            self._messages = HandOut(self, stream_messages)
        return filter(None, self._messages.generator)

    # ---- in turn with other streams (MergedStreams)

    def turn(self, wait_for_token: WaitForToken) -> Iterator[MessageAndMetadata[K, V]]:
        """Return an iterator over the messages that have arrived; it does not wait for more.

        With a rate limit, which all streams share, a message may lack its token. The iterator then calls
        ``wait_for_token`` with the seconds to wait, until it returns False. :meth:`settle` must follow.
        """
        messages = self._begin()
        self._patience, self.ends_quietly, self.wait_for_token = 0.0, True, wait_for_token
        return messages

    def settle(self) -> None:
        """Finish the last message although this stream is not asked for another: the next comes from another stream."""
        self._finish_in_hand()
        self._patience, self.ends_quietly, self.wait_for_token = self._timeout, self._ends_on_timeout, None
        self.queue.wake_revocation()

    def return_last(self) -> None:
        """Hand the last message out again: it did not reach the caller of :class:`MergedStreams`."""
        self._return_last()
        self._patience, self.ends_quietly, self.wait_for_token = self._timeout, self._ends_on_timeout, None

    def wait_at_gate(self, deadline: Deadline) -> None:
        """Wait until a message may be handed out, or something changed. Raises: ConsumerTimeoutException."""
        self.chunk_reader.wait_at_gate(deadline)

    def held_by(self, thread: int) -> bool:
        """Return whether that thread (a native identifier) read this stream last, and is not reading now."""
        return self._holder == thread and not self._being_read and not self._withheld

    @property
    def _withheld(self) -> bool:
        """Whether the last message or rows have not reached their caller."""
        return not self.returned or self._columns.withheld

    def left_to_parent(self, error: Exception) -> None:
        """Raise ``error`` from each read on, in a forked process."""
        self._reading = None
        if self._messages.running:  # on a thread that the child process does not have
            self._messages = HandOut(self, stream_messages)
        self.chunk_reader.left_to_parent(error)

    def log_message_in_hand(self) -> None:
        """Log what becomes of a message that is still in hand, perhaps half processed, when a new loop begins."""
        chunk = self.queue.taken
        if chunk is None or self._withheld or not (self._messages.yielded or self._columns.in_hand):
            return
        if chunk.position.held and not chunk.position.revoked:
            log_in_hand(log, self.name, chunk.position)

    # ---- for a reader that does not wait in a read

    @property
    def pending(self) -> bool:
        """Whether a read has something to look at."""
        return self.queue.taken is not None or self.queue.ready

    @property
    def look_again(self) -> float | None:
        """Seconds after which to read again, although nothing has woken the reader; None: never."""
        return None if self.queue.end is None else LOOK_FOR_END

    def nothing_came(self) -> ConsumerTimeoutException:
        """Return the error of a read that got no message in time."""
        return self.queue.nothing_came()

    def watch(self, watcher: Callable[[], None]) -> None:
        """Call ``watcher``, on any thread, when something may be pending."""
        self.queue.watch(watcher)

    def __repr__(self) -> str:
        # must not iterate (KAFKA-1146: printing a stream blocked for ever)
        return f"<KafkaStream {self.name} queued={len(self.queue)}>"

    # ---- for the generator of messages (data_plane.hand_out)

    def note_reader(self) -> None:
        """Note the calling thread as the one that reads this stream."""
        self._holder = get_native_id()

    def settle_columns(self) -> None:
        """Finish the rows in the user's hands."""
        self._columns.settle()

    def note_end(self) -> None:
        """Tell the owner of the stream that it has ended."""
        self._ended()

    def skip(self) -> int:
        """Give up an unreadable place, after this stream raised InvalidMessageException or
        MessageSizeTooLargeException.

        The place is logged, counted in ``queue.skipped``, and reading goes on after it.

        Returns: the offset at which the partition is read on. Raises: ValueError if the last read raised neither error,
        or the partition has left meanwhile.
        """
        return self.chunk_reader.skip()
