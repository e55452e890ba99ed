"""Merges several streams, so that one thread can take all messages.

Threads: one thread at a time iterates a :class:`MergedStreams` and its streams. Fetchers call ``wake`` when a
chunk has come; any thread may call ``stop``.

The original has nothing like it: there each stream takes a thread of its own. Streams are served in turn. A turn lasts
while its stream has messages. If other streams wait, it lasts :data:`TURN` seconds at most. Otherwise a busy stream or
a slow application would keep the others waiting for ever. A turn ends between two messages, with the last one finished.
So at most one message is in the user's hands at any time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from threading import get_native_id
from time import monotonic
from typing import Any, ClassVar

from zkconsumer.data_plane.hand_out import HandOut, NotReturned, merged_messages
from zkconsumer.errors import ConnectorClosedException, ConsumerTimeoutException
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.runtime.interruptible_wait import WakeFlag
from zkconsumer.streams.kafka_stream import KafkaStream
from zkconsumer.streams.message import K, MessageAndMetadata, V
from zkconsumer.streams.message_iterator import MessageIterator, busy_text, end_text
from zkconsumer.streams.stream_queue import nothing_came

TURN = 0.05
"""Seconds. A return to the middle of a chunk costs up to a millisecond, because its batch is decoded anew."""
LOOK_AGAIN = 0.5
"""Seconds after which a waiting reader looks whether there are other streams now."""

Streams = Callable[[], Sequence[KafkaStream[K, V]]]
"""Returns the streams to read now; ended streams may be among them."""


class MergedStreams(MessageIterator[K, V]):
    """The messages of several streams, in the order of each partition::

        connector.create_message_streams({"events": 2})
        for message in connector.messages():
            print(message.topic, message.value)

    A message is finished when the next one is asked for, whichever stream that comes from. Timeouts and ends are those
    of a stream. With given streams, iteration ends when all streams have ended.

    Made by :meth:`ZookeeperConsumerConnector.messages`; used by one thread at a time, which must not use the streams
    themselves meanwhile.
    """

    shown: ClassVar[Collection[str]] = ("get", "skip", "stop")

    def __init__(
        self,
        streams: Streams[K, V],
        *,
        timeout: float | None,
        ends_on_timeout: bool = False,
        ended: Callable[[], None] = lambda: None,
        lasting: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__(timeout, ends_on_timeout)
        self._lasting = lasting
        self._streams = streams
        self._ended = ended
        self._wake = WakeFlag()
        self._watcher: Callable[[], None] = lambda: None
        self.stopped = False
        self._watched: Sequence[KafkaStream[K, V]] = ()
        self._last: KafkaStream[K, V] | None = None
        self._messages = HandOut(self, merged_messages)

    def __iter__(self) -> Iterator[MessageAndMetadata[K, V]]:
        if self._last is not None and not self.withholds(self._last):
            self._last.log_message_in_hand()
        return self._begin()

    def _begin(self) -> Iterator[MessageAndMetadata[K, V]]:
        if self._messages.running:
            raise RuntimeError(busy_text("messages()", self._holder))
        if not self.returned or self._messages.owes:
            self._return_last()
        self._patience, self.ends_quietly = self._timeout, self._ends_on_timeout
        self._holder = get_native_id()
        if self._messages.ended and not self.stopped:
            self._messages = HandOut(self, merged_messages)  # an interrupt ended it, or all streams had ended
        return filter(None, self._messages.generator)

    def skip(self) -> int:
        """Give up the unreadable place that the last read raised, as :meth:`KafkaStream.skip` does."""
        if self._last is None:
            raise ValueError("nothing to skip: no stream was read yet")
        return self._last.skip()

    def stop(self) -> None:
        """End the iteration at the next read, or at once if a read is waiting. The streams stay usable."""
        self.stopped = True
        self._rouse()

    def _rouse(self) -> None:
        self._wake.set()
        self._watcher()

    # ---- for a reader that does not wait in a read

    @property
    def pending(self) -> bool:
        """Whether a read has something to look at."""
        return self.stopped or any(stream.pending for stream in self._streams())

    @property
    def look_again(self) -> float | None:
        """Seconds after which to read again, although nothing has woken the reader."""
        return LOOK_AGAIN

    def watch(self, watcher: Callable[[], None]) -> None:
        """Call ``watcher``, on any thread, when something may be pending."""
        self._watcher = watcher

    def nothing_came(self) -> ConsumerTimeoutException:
        """Return the error of a read that got no message in time."""
        streams = self._watched or self._current()
        return streams[0].nothing_came() if streams else nothing_came("")

    def settle(self) -> None:
        """Finish the last message, although the next one is not read."""
        if self._last is not None and self._messages.yielded:
            self._last.settle()

    def withholds(self, stream: KafkaStream[Any, Any]) -> bool:
        """Return whether a message of that stream was read through this and has not reached its caller yet."""
        return self._last is stream and (not self.returned or self._messages.owes)

    def left_to_parent(self) -> None:
        """Go on in a forked process, to raise the errors that the streams raise there."""
        self._wake = WakeFlag()
        if self._messages.running:  # on a thread that the child process does not have
            self._messages, self._last = HandOut(self, merged_messages), None

    def __repr__(self) -> str:
        return f"<MergedStreams of {len(self._watched)}>"

    def _closed_error(self) -> ConnectorClosedException:
        last = None if self._last is None else self._last.queue
        return ConnectorClosedException(f"all streams have ended: {end_text(last)}")

    def _return_last(self) -> None:
        if self._messages.yielded:
            self._messages.throw(NotReturned())
        elif self._messages.owes:  # an interrupt ended the generator before it could
            self.return_last()
            self._messages.owes = False
        self.returned = True

    # ---- for the generator of messages (data_plane.hand_out)

    def count(self) -> int:
        """Return the number of streams that are read now."""
        return len(self._watched)

    def note_end(self) -> None:
        """Let the streams go; tell the owner if they have ended."""
        self._unwatch(self._watched)
        if not self.stopped:
            self._ended()

    def turn_end(self) -> float:
        """Return the time until which a turn that begins now may last (monotonic seconds)."""
        return monotonic() + TURN

    def return_last(self) -> None:
        """Have the last stream hand its last message out again."""
        if self._last is not None:
            self._last.return_last()

    def waited(self, seconds: float, deadline: Deadline) -> bool:
        """Wait for a token of the rate limit inside a turn; returns whether there is time left. All streams share the
        limit, so no other stream could hand out a message meanwhile. A turn that ended here would decode its batch
        anew, which costs several times as much for each message as all the rest.
        """
        self._wake.clear()
        if self.stopped or deadline.expired:
            return False
        for other in self._watched:
            if other is not self._last:
                other.queue.asks += 1  # for the poll watchdog: the reader is here, and would take theirs if it might
        self._wake.wait(deadline.bounded(seconds))
        return True

    def ready(self, deadline: Deadline) -> KafkaStream[K, V] | None:
        """Return the next stream that has a message or an error; None when all have ended, or after ``stop``. Raises:
        ConsumerTimeoutException.
        """
        while not self.stopped:
            self._wake.clear()
            streams = self._current()
            if not streams and not self._lasting():
                return None
            after = streams.index(self._last) + 1 if self._last in streams else 0
            # Ask no queue while some stream has a message. Otherwise all would be fetched beyond the byte budget.
            for ask in (False, True):
                for stream in (*streams[after:], *streams[:after]):
                    queue = stream.queue
                    if queue.taken is not None or (queue.ask() if ask else queue.ready):
                        self._last = stream
                        for other in streams:
                            other.queue.withdraw_ask()
                        return stream
            if streams and all(stream.queue.at_end for stream in streams):
                return None
            left = deadline.remaining()
            if left is not None and left <= 0:
                raise self.nothing_came()
            self._wake.wait(deadline.bounded(LOOK_AGAIN))
        return None

    def _current(self) -> list[KafkaStream[K, V]]:
        streams = [stream for stream in self._streams() if not stream.queue.closed]
        if streams != self._watched:
            self._unwatch([stream for stream in self._watched if stream not in streams])
            self._watched = streams
        for stream in streams:  # each time: another MergedStreams may have read them meanwhile
            stream.queue.watch(self._rouse)
        return streams

    @staticmethod
    def _unwatch(streams: Sequence[KafkaStream[K, V]]) -> None:
        for stream in streams:
            stream.queue.watch(None)

    def others_wait(self, served: KafkaStream[K, V]) -> bool:
        """Return whether another stream than the served one has messages."""
        return any(
            stream is not served and (stream.queue.taken is not None or len(stream.queue)) for stream in self._watched
        )
