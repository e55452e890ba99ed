"""Hands out one message at a time: ``get`` and ``__next__`` of a stream, and of several merged streams.

Threads: exactly one application thread at a time.

A generator announces a message right before the yield, and counts the message as finished when it is resumed. A ``for``
loop takes the message in C, so nothing can come between. Here a Python function takes it. An interrupt in that function
(Ctrl-C, a signal handler that raises) may throw away a message that the caller never got. So a message counts as handed
out only when the function returns. Until then the next read hands it out again.

Python runs signal handlers also after built-in ``next()`` has returned, and before the caller's variable is set. A
handler that raises there loses the message, which no stream can see. So ``for`` and ``get`` are the ways to read.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Collection, Iterator
from threading import get_native_id
from typing import ClassVar, Generic

from zkconsumer.data_plane.hand_out import HandOut, NotReturned
from zkconsumer.errors import ConsumerTimeoutException
from zkconsumer.ownership.partition_position import PartitionPosition
from zkconsumer.streams.chunk_reader import ReadDeadline
from zkconsumer.streams.message import K, MessageAndMetadata, V
from zkconsumer.streams.stream_queue import StreamQueue


class MessageIterator(Generic[K, V]):
    """The part of a stream that hands out one message at a time.

    Arguments: ``timeout`` in seconds is ``consumer.timeout.ms``; with ``ends_on_timeout`` a loop ends after it.
    ``_patience`` and ``ends_quietly`` are the same two values for the read under way.
    """

    _messages: HandOut
    shown: ClassVar[Collection[str]] = ("get", "skip")
    """The names for tab completion. The other public names are for other parts of the member."""

    def __init__(self, timeout: float | None, ends_on_timeout: bool) -> None:
        self._timeout = self._patience = timeout
        self._ends_on_timeout = self.ends_quietly = ends_on_timeout
        self._holder = 0  # the native identifier of the thread that read last
        self.returned = True
        """Whether the last message has reached its caller."""

    def _begin(self) -> Iterator[MessageAndMetadata[K, V]]:
        """Return an iterator over the coming messages. Raises RuntimeError if another thread is reading."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[MessageAndMetadata[K, V]]:
        raise NotImplementedError

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if name in self.shown or name.startswith("__")]

    def __next__(self) -> MessageAndMetadata[K, V]:
        """Return the next message for built-in ``next()``, which may lose it at an interrupt: call :meth:`get`."""
        messages = self._begin()  # a refusal here must not change a read that is under way
        message = None
        try:
            self.returned = False
            message = next(messages)
            self.returned = True
            return message
        except BaseException:
            if message is not None or not self.returned:
                self._return_last()
            raise

    def get(self, timeout: float | None = None) -> MessageAndMetadata[K, V]:
        """Return the next message. A ``for`` loop is faster, and repeats less after an interrupt.

        Arguments: ``timeout`` in seconds; None waits for ever, 0 takes only a message that is already fetched. Raises:
        :class:`ConsumerTimeoutException` if no message came in time, :class:`ConnectorClosedException` at the end.
        """
        messages = self._begin()  # a refusal here must not change a read that is under way
        message = None
        try:
            self._patience, self.ends_quietly = timeout, False
            self.returned = False
            message = next(messages)
            self._patience, self.ends_quietly = self._timeout, self._ends_on_timeout
            self.returned = True
            return message
        except BaseException as e:
            if message is not None or not self.returned:
                self._return_last()
            self._patience, self.ends_quietly = self._timeout, self._ends_on_timeout
            if isinstance(e, StopIteration):
                raise self._closed_error() from None
            raise

    def new_deadline(self) -> ReadDeadline:
        """Return the deadline of a read that begins now."""
        return ReadDeadline(self._patience)

    # ---- for a reader that does not wait in a read (streams.async_stream)

    @property
    def over(self) -> bool:
        """Whether the last read found the end."""
        return self._messages.ended

    @property
    def pending(self) -> bool:
        """Whether a read has something to look at: a message, perhaps one that must wait, an error or the end."""
        raise NotImplementedError

    @property
    def look_again(self) -> float | None:
        """Seconds after which to read again, although nothing has woken the reader; None: never."""
        raise NotImplementedError

    def nothing_came(self) -> ConsumerTimeoutException:
        """Return the error of a read that got no message in time."""
        raise NotImplementedError

    def watch(self, watcher: Callable[[], None]) -> None:
        """Call ``watcher``, on any thread, when something may be pending."""
        raise NotImplementedError

    def settle(self) -> None:
        """Finish the last message, although the next one is not read."""
        raise NotImplementedError

    def hand_out_again(self) -> None:
        """Have the last message handed out again: it did not reach its caller."""
        self._return_last()

    @property
    def _being_read(self) -> bool:
        return self._messages.running

    @property
    def _withheld(self) -> bool:
        """Whether the last message has not reached its caller."""
        return not self.returned

    def interrupted(self, thread: int) -> bool:
        """Return whether the calling thread interrupts its own read here, as a signal handler does."""
        return self._holder == thread and self._being_read

    def returning(self, thread: int) -> bool:
        """Return whether that thread is in a read whose message, or rows, have not reached its caller yet."""
        return self._holder == thread and self._withheld

    def _return_last(self) -> None:
        """Have the last message handed out again: it has not reached its caller."""
        if self._messages.yielded:
            self._messages.throw(NotReturned())
        self.returned = True

    def _closed_error(self) -> Exception:
        raise NotImplementedError


def busy_text(name: str, holder: int) -> str:
    """Return the error text for a stream that is being read by thread ``holder`` (its native identifier)."""
    if holder == get_native_id():
        return f"{name} is being asked by this very thread: a signal handler must not read a stream that it interrupts"
    return (
        f"{name} is being read by another thread: a stream is read by one thread at a time; create more streams"
        " (one for each thread), or use run(handler, workers=n)"
    )


def end_text(queue: StreamQueue | None) -> str:
    """Return why a read of this queue found the end."""
    return "everything before its end is read" if queue is not None and queue.at_end else "its connector was shut down"


def log_in_hand(log: logging.Logger, name: str, position: PartitionPosition) -> None:
    """Log that the message in hand counts as finished when a new loop goes on.

    It is a warning if the session is interactive (a notebook) and has just shown a KeyboardInterrupt.
    """
    interrupted = isinstance(getattr(sys, "last_value", None), KeyboardInterrupt)
    log.log(
        logging.WARNING if interrupted else logging.INFO,
        "%s: a new loop begins: %s at offset %s, which is still in hand, counts as finished; to have it again,"
        " connector.seek(%r, %s) first",
        name,
        position.tp,
        position.consumed,
        tuple(position.tp),
        position.consumed,
    )
