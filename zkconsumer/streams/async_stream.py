"""Reads streams on an asyncio event loop, in the shape of aiokafka's consumer.

Threads: all of it runs on the loop's thread, except the wake-up, which fetchers call. Fetching and everything else of
the member stays on its threads.

There is no second way to hand messages out. A read of the stream with a timeout of 0 never waits, so the loop reads the
stream as any thread does, with every promise of it. A coroutine waits only while nothing is there, and a fetcher wakes
it once for each wait, with a whole chunk. A coroutine is never suspended between the read and the hand-out. So a
cancellation finds a message that was handed out, or a message that was not read.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from itertools import count, islice
from time import monotonic
from typing import Any, Generic, TypeVar

from zkconsumer.errors import ConnectorClosedException
from zkconsumer.model import TopicPartition
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.streams.chunk_batches import by_partition
from zkconsumer.streams.kafka_stream import KafkaStream
from zkconsumer.streams.message import K, MessageAndMetadata, V
from zkconsumer.streams.message_iterator import MessageIterator, end_text

T = TypeVar("T")
_READS = count(1)

TURN = 0.01
"""Seconds after which a reader that always finds messages lets other coroutines of the loop run."""
SLICE = 256
"""Messages that are handed out between two looks at the clock."""
STALLED = 0.02
"""Seconds between two looks while messages are there that must wait: for the lease, or a rate limit."""
MAX_RECORDS = 8192
"""Messages that ``getmany`` returns at most unless told otherwise. More would keep the loop for too long."""


class AsyncMessages(Generic[K, V]):
    """Messages for one task at a time: ``async for message in messages``, or :meth:`getone`.

    A message is finished when the next one is asked for, as with :class:`KafkaStream`, and timeouts are the same.
    Cancelling a read, or leaving the loop, loses nothing. It ends when the connector is shut down.

    Made by the connector. Arguments: ``messages`` never wait in a read and end quietly, as with a timeout of 0;
    ``timeout`` in seconds is ``consumer.timeout.ms``; ``ends_on_timeout`` is ``consumer.timeout.action=end``.
    """

    def __init__(self, messages: MessageIterator[K, V], *, timeout: float | None, ends_on_timeout: bool) -> None:
        self._messages = messages
        self._timeout = timeout
        self._ends_on_timeout = ends_on_timeout
        self._waiter: asyncio.Future[None] | None = None
        self._waits = False
        self._turn_ends = 0.0
        self.task: asyncio.Task[Any] | None = None
        """The task that asked last, and has the messages in hand. None before the first read."""
        self.asked = 0
        """Which read this was asked for last, of the reads of all."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._messages!r}>"

    def __aiter__(self) -> AsyncIterator[MessageAndMetadata[K, V]]:
        return self._loop(calling_task())

    async def _loop(self, caller: asyncio.Task[Any] | None) -> AsyncGenerator[MessageAndMetadata[K, V], None]:
        self._enter(caller)
        messages, got, suspended = self._messages, False, False
        deadline: Deadline | None = None
        try:
            while True:
                if not got:  # a new iterator: an interrupt of another read may have ended the one before
                    ready = iter(messages)
                got = False
                for message in islice(ready, SLICE):
                    got = True
                    yield message
                if messages.over:
                    return
                suspended = True
                if got:
                    deadline = None
                    await self._share()
                else:
                    deadline = deadline or Deadline(self._timeout)
                    if not await self._wait(deadline):
                        if self._ends_on_timeout:
                            return
                        raise messages.nothing_came()
                suspended = False
        except GeneratorExit:  # the task has left its loop, with the message in its hands
            raise
        except BaseException:
            if not suspended:  # an interrupt: a message may have been read that the task did not get
                messages.hand_out_again()
            raise

    def getone(self, timeout: float | None = None) -> Coroutine[Any, Any, MessageAndMetadata[K, V]]:
        """Return the next message. ``async for`` is faster.

        Arguments: ``timeout`` in seconds; None waits for ever, 0 takes only a message that is already fetched. Raises:
        :class:`ConsumerTimeoutException` if no message came in time, :class:`ConnectorClosedException` at the end.
        """
        return self._getone(timeout, calling_task())

    async def _getone(self, timeout: float | None, caller: asyncio.Task[Any] | None) -> MessageAndMetadata[K, V]:
        self._enter(caller)
        deadline = Deadline(timeout)
        await self._share()
        while True:
            try:
                return next(self._messages)
            except StopIteration:
                pass
            except BaseException:  # an interrupt may have come after the read
                self._messages.hand_out_again()
                raise
            if self._messages.over:
                raise self._end_error()
            if not await self._wait(deadline):
                raise self._messages.nothing_came()

    # ---- for the connector

    def reads(self, stream: KafkaStream[Any, Any]) -> bool:
        """Return whether that stream is read through this."""
        return True

    # ---- inside

    def _enter(self, caller: asyncio.Task[Any] | None) -> None:
        """Begin a read for the task that asked for it. Raises: as :meth:`_refuse_another`."""
        self._refuse_another()
        self.task, self.asked = caller or asyncio.current_task(), next(_READS)

    def _refuse_another(self) -> None:
        """Raise RuntimeError if another task is waiting. Otherwise it would lose its wake-up, and sleep for ever."""
        if self._waits:
            raise RuntimeError(f"{self!r} is being read by another task: use one stream for each task")

    def _end_error(self) -> ConnectorClosedException:
        return ConnectorClosedException(f"{self!r} has ended: {end_text(None)}")

    async def _share(self) -> None:
        """Let other coroutines run, if this reader has not waited for a while."""
        now = monotonic()
        if now >= self._turn_ends:
            try:
                await self._pause(0)
            except asyncio.CancelledError:
                self._messages.settle()  # the task has asked to go on, so this would be consumed again for nothing
                raise
            self._turn_ends = monotonic() + TURN

    async def _pause(self, seconds: float) -> None:
        self._refuse_another()
        self._waits = True
        try:
            await asyncio.sleep(seconds)
        finally:
            self._waits = False

    async def _wait(self, deadline: Deadline) -> bool:
        """Wait until a read may find something, after one that did not. Return False when the time is over."""
        if deadline.expired:
            await self._share()
            return False
        self._refuse_another()
        messages, loop = self._messages, asyncio.get_running_loop()
        messages.watch(self._wake)
        if messages.pending:  # the gate is closed, or something came just now
            await self._pause(deadline.bounded(STALLED))
            return True
        waiter = self._waiter = loop.create_future()  # before the next look; what comes after that wakes it
        timer = None
        try:
            self._waits = True
            if not messages.pending:
                left, look = deadline.remaining(), messages.look_again
                if left is not None or look is not None:
                    seconds = min(one for one in (left, look) if one is not None)
                    timer = loop.call_later(seconds, _end_wait, waiter)
                await waiter
        finally:
            self._waits, self._waiter = False, None
            if timer is not None:
                timer.cancel()
        self._turn_ends = monotonic() + TURN
        return True

    def _wake(self) -> None:
        """Wake the waiting coroutine. Any thread."""
        waiter, self._waiter = self._waiter, None
        if waiter is not None:
            try:
                waiter.get_loop().call_soon_threadsafe(_end_wait, waiter)
            except RuntimeError:  # the loop is closed, and its coroutine with it
                pass


class AsyncStream(AsyncMessages[K, V]):
    """The messages of a stream of this member, for one task at a time::

        message = await stream.getone(timeout=5)
        messages_by_partition = await stream.getmany(timeout_ms=1000)

    Arguments: as for :class:`AsyncMessages`.
    """

    def __init__(self, stream: KafkaStream[K, V], *, timeout: float | None, ends_on_timeout: bool) -> None:
        super().__init__(stream, timeout=timeout, ends_on_timeout=ends_on_timeout)
        self._stream = stream

    def getmany(
        self, timeout_ms: int = 0, max_records: int | None = None
    ) -> Coroutine[Any, Any, dict[TopicPartition, list[MessageAndMetadata[K, V]]]]:
        """Return messages that are already fetched, in lists by partition; wait for the first if there are none.

        All are in the task's hands until the stream is asked again. Until then only ``await connector.commit()`` of
        this task passes the first message.

        Arguments: ``timeout_ms`` milliseconds to wait; ``max_records`` in all, by default 8,192. Returns: no lists if
        nothing came in time. Raises: :class:`ConnectorClosedException` at the end.
        """
        most = MAX_RECORDS if max_records is None else max_records
        return self._getmany(by_partition, Deadline(timeout_ms / 1000), most, calling_task())

    async def _getmany(
        self, make: Callable[[Any], T], deadline: Deadline, most: int, caller: asyncio.Task[Any] | None
    ) -> T:
        self._enter(caller)
        await self._share()
        stream = self._stream
        while True:
            taken = stream.take_as(make, most, 0)
            if taken:
                return taken
            if stream.queue.at_end:
                raise self._end_error()
            if not await self._wait(deadline):
                return taken

    def reads(self, stream: KafkaStream[Any, Any]) -> bool:
        """Return whether this is that stream."""
        return stream is self._stream

    def _end_error(self) -> ConnectorClosedException:
        return ConnectorClosedException(f"the stream {self._stream.name} has ended: {end_text(self._stream.queue)}")


def calling_task() -> asyncio.Task[Any] | None:
    """Return the task that makes a call, None outside of tasks.

    The coroutine of the call may run in another one: before Python 3.12 ``asyncio.wait_for`` makes one, which ends
    before its caller has used the message.
    """
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None  # no event loop runs here


def _end_wait(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
