"""``AsyncZookeeperConsumerConnector``: the connector for applications that run on asyncio.

It has the parts of the other connector. Streams are read on the application's loop (``streams.async_stream``).
Commits are requests to the committer's thread. Other calls that block run on a thread.

Threads: every method is for the thread of one event loop, the one on which streams were created.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import warnings
from collections.abc import Callable, Coroutine, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from threading import Thread, get_native_id
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

from zkconsumer.balance.loop_bridge import LoopAccess
from zkconsumer.config import ConsumerConfig
from zkconsumer.connector.cluster_queries import ClusterQueries
from zkconsumer.connector.lifecycle import CLOSE_WITHIN, Lifecycle, check_seconds, in_signal_handler
from zkconsumer.connector.partition_control import (
    PartitionControl,
    PromptCalls,
    begin_commit,
    given_offsets,
    seek_to,
    seek_to_time,
)
from zkconsumer.connector.subscribed_streams import Subscription
from zkconsumer.core.foreign_names import NamesMissingCoroutines
from zkconsumer.core.topic_filter import TopicFilter
from zkconsumer.errors import OffsetCommitError, ZkConsumerError
from zkconsumer.member.listener import ConsumerRebalanceListener
from zkconsumer.model import ConsumerId, PartitionLike, ThreadId, TopicPartition
from zkconsumer.offsets.commit_schedule import GivenOffset
from zkconsumer.offsets.committer import NOT_ANSWERED
from zkconsumer.offsets.store import OffsetStore
from zkconsumer.ownership.partition_position import NONE_HELD, Held, PartitionPosition
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.streams.async_stream import AsyncMessages, AsyncStream, calling_task
from zkconsumer.streams.kafka_stream import KafkaStream
from zkconsumer.streams.message import Decoder, K, V
from zkconsumer.wiring import GroupMember, consumer_id
from zkconsumer.wiring.member_parts import read_timeout

log = logging.getLogger(__name__)

T = TypeVar("T")
LOOK_FOR_LOOP = 0.5
"""Seconds between two looks of a waiting listener thread whether the event loop still exists."""
_in_listener: ContextVar[bool] = ContextVar("_in_listener", default=False)


class AsyncConsumerRebalanceListener:
    """Base class of a listener for asyncio, as :class:`ConsumerRebalanceListener`. The defaults do nothing.

    The coroutines run on the event loop, one at a time, and may await ``commit`` and ``seek`` of the connector. The
    rebalance waits for each, up to ``rebalance.listener.timeout.ms``.
    """

    async def before_releasing_partitions(self, partitions: Mapping[str, frozenset[int]]) -> None:
        """Called before these partitions (numbers by topic) leave this member."""

    async def before_starting_fetchers(
        self, consumer_id: str, assignment: Mapping[TopicPartition, ThreadId]
    ) -> Mapping[TopicPartition, int] | None:
        """Called when the assignment changed; may return offsets at which to start partitions that came just now."""

    async def on_partitions_lost(self, partitions: Mapping[str, frozenset[int]]) -> None:
        """Called after these partitions were lost. Nothing of them can be committed."""


Listener = AsyncConsumerRebalanceListener | ConsumerRebalanceListener


class AsyncZookeeperConsumerConnector(PromptCalls, NamesMissingCoroutines):
    """A member of a consumer group for asyncio: :class:`ZookeeperConsumerConnector` with coroutines::

        async with AsyncZookeeperConsumerConnector(zookeeper_connect="127.0.0.1:2181", group_id="loop") as connector:
            async for message in (await connector.create_message_streams({"events": 1}))["events"][0]:
                print(message.partition, message.offset, message.value)

    Leaving ``async with`` shuts down. The message in the leaving task's hands then counts as finished
    unless an exception is what leaves. Arguments, errors and promises are those of the connector.

    A task that is cancelled in any ``await`` here loses no message. A request that it made (a commit, a seek) goes
    on.
    """

    def __init__(
        self,
        config: ConsumerConfig | Mapping[str, Any] | None = None,
        /,
        *,
        offset_store: OffsetStore | None = None,
        **properties: Any,
    ) -> None:
        if isinstance(config, ConsumerConfig):
            self.config = config.replace(**properties) if properties else config
        else:
            self.config = ConsumerConfig(config, **properties)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the line above has warned
            # reads return at once, and coroutines wait in their place
            inner = self.config.replace({"consumer.timeout.ms": 0, "consumer.timeout.action": "end"})
        super().__init__(Lifecycle(inner, consumer_id(inner)))
        self._partitions = PartitionControl(self.lifecycle)
        self._queries = ClusterQueries(self.lifecycle)
        self._subscription = Subscription(self.lifecycle, offset_store)
        self._timeout = read_timeout(self.config)
        self._ends_on_timeout = self.config.consumer_timeout_action == "end"
        self._listener: Listener | None = None
        # kept also if the application drops a stream: readers tell which task holds a message
        self._readers: list[AsyncMessages[Any, Any]] = []
        self._merged: AsyncMessages[Any, Any] | None = None

    @property
    def consumer_id(self) -> ConsumerId:
        """The member's name."""
        return self.lifecycle.consumer_id

    # ---- streams ----

    def set_consumer_rebalance_listener(self, listener: Listener | None) -> None:
        """Have an object told when partitions come and go; None takes it back. Its methods run on the event loop.

        Raises: :class:`MessageStreamsExistException` once streams were created.
        """
        self._subscription.set_listener(None)
        self._listener = listener

    async def create_message_streams(
        self,
        topics: Mapping[str, int],
        key_decoder: Decoder[K] | None = None,
        value_decoder: Decoder[V] | None = None,
        until: Any = None,
    ) -> dict[str, list[AsyncStream[K | None, V | None]]]:
        """Join the group and return streams, for each topic as many as asked for.

        As :meth:`ZookeeperConsumerConnector.create_message_streams`. If it is cancelled, the connector is shut down.
        """
        made = await self._join(partial(self._subscription.create, topics, (key_decoder, value_decoder), until))
        return {topic: [self._reading(stream) for stream in streams] for topic, streams in made.items()}

    async def create_message_streams_by_filter(
        self,
        topic_filter: TopicFilter,
        streams: int = 1,
        key_decoder: Decoder[K] | None = None,
        value_decoder: Decoder[V] | None = None,
    ) -> list[AsyncStream[K | None, V | None]]:
        """Join the group for all topics that a filter allows, and return ``streams`` streams over them."""
        create, decoders = self._subscription.create_by_filter, (key_decoder, value_decoder)
        made = await self._join(partial(create, topic_filter, streams, decoders))
        return [self._reading(stream) for stream in made]

    async def add_topics(
        self,
        topics: Mapping[str, int],
        key_decoder: Decoder[K] | None = None,
        value_decoder: Decoder[V] | None = None,
        timeout: float | None = None,
    ) -> dict[str, list[AsyncStream[K | None, V | None]]]:
        """Subscribe to further topics, and return their streams. Not in a listener.

        If it is cancelled, they are unsubscribed again.
        """
        if not self.lifecycle.created:
            return await self.create_message_streams(topics, key_decoder, value_decoder)
        member, subscription = self.lifecycle.live(), self._subscription
        deadline, held = member.change_deadline(timeout), self._held_by(asyncio.current_task())
        add = partial(subscription.add, topics, (key_decoder, value_decoder), deadline, held)
        made = await self._join(add, partial(_leave_again, member, subscription, list(topics)), deadline)
        return {topic: [self._reading(stream) for stream in streams] for topic, streams in made.items()}

    async def unsubscribe(self, topics: Iterable[str], timeout: float | None = None) -> None:
        """Leave these topics, and end their streams. A message of them in the task's hands counts as finished."""
        member, leaving = self.lifecycle.live(), [topics] if isinstance(topics, str) else list(topics)
        deadline, held = member.change_deadline(timeout), self._held_by(asyncio.current_task())
        await self._call(partial(self._subscription.leave, leaving, deadline, held), deadline)
        streams = [stream for _, _, stream in member.delivery.streams()]
        merged = self._merged  # it will read what is added later too, also if nothing is left now
        self._readers = [one for one in self._readers if one is merged or any(map(one.reads, streams))]

    def messages(self) -> AsyncMessages[Any, Any]:
        """Return all streams as one: ``async for message in connector.messages()``. Streams are served in turn.

        Raises: as :meth:`ZookeeperConsumerConnector.messages`.
        """
        merged = self._subscription.all_streams()
        if self._merged is None:
            self._merged = AsyncMessages(merged, timeout=self._timeout, ends_on_timeout=self._ends_on_timeout)
            self._readers.append(self._merged)
        return self._merged

    def _reading(self, stream: KafkaStream[K, V]) -> AsyncStream[K, V]:
        made = AsyncStream(stream, timeout=self._timeout, ends_on_timeout=self._ends_on_timeout)
        self._readers.append(made)
        return made

    async def _join(
        self, create: Callable[[], T], undo: Callable[[], object] | None = None, deadline: Deadline | None = None
    ) -> T:
        if self._listener is not None:
            access = LoopAccess(self.consumer_id, asyncio.get_running_loop())
            listener, self._listener = self._listener, None
            self._subscription.set_listener(_LoopListener(listener, access))
        created = self._begin_call(create)
        try:
            return await outcome(created, deadline)
        except asyncio.CancelledError:
            # else nobody would have the streams, and the member would keep partitions
            if undo is None:
                self.begin_shutdown()
            else:
                self._begin_call(lambda: created.exception() is None and undo())
            raise

    # ---- committing ----

    def commit(
        self,
        offsets: Mapping[TopicPartition, int] | Mapping[tuple[str, int], int] | None = None,
        timeout: float | None = None,
    ) -> Coroutine[Any, Any, None]:
        """Write the progress of all owned partitions now, or the given offsets as they are.

        Without ``offsets``, messages that the calling task holds now count as finished. Messages that other tasks hold
        do not count. Neither do messages that the calling task takes between this call and its ``await``.
        Arguments and errors: as :meth:`ZookeeperConsumerConnector.commit_offsets`.
        """
        # now: in a separate task, the commit may run when the caller has the next message in hand
        return self._commit(given_offsets(self.lifecycle, offsets), self._held_by(calling_task()), timeout)

    async def _commit(
        self, given: Mapping[TopicPartition, GivenOffset] | None, held: Held, timeout: float | None
    ) -> None:
        life = self.lifecycle
        done, deadline = begin_commit(life, given, held, timeout, in_listener=_in_listener.get())
        limit = asyncio.timeout(deadline.remaining())
        try:
            async with limit:
                await outcome(done, deadline)
        except TimeoutError:
            if not limit.expired():
                raise
            raise OffsetCommitError(NOT_ANSWERED) from None
        if life.end.begun and life.member is not None:
            # the streams hand nothing out any more: the shutdown need not wait for a message that is committed
            life.member.settle_positions(held, finished=False)

    def _held_by(self, task: asyncio.Task[Any] | None) -> Held:
        """Return the messages that a task has in its hands."""
        return {position: position.range_in_hand for position, reader in self._in_hand() if reader.task is task}

    def _in_hand(self) -> list[tuple[PartitionPosition, AsyncMessages[Any, Any]]]:
        """Return the positions with messages in the hands of tasks, and the readers that these came from.

        A stream may have been read alone and with others (:meth:`messages`). The reader that was asked last has it.
        """
        member = self.lifecycle.member
        found: list[tuple[PartitionPosition, AsyncMessages[Any, Any]]] = []
        if member is None:
            return found
        for position in member.in_hand(get_native_id()):
            with suppress(KeyError):  # its stream has just been retired
                stream = member.delivery.stream_of(position)
                readers = [reader for reader in self._readers if reader.task and reader.reads(stream)]
                found += [(position, max(readers, key=lambda reader: reader.asked))] if readers else []
        return found

    # ---- looking ----

    async def committed(self, partition: PartitionLike, timeout: float | None = None) -> int | None:
        """Return the committed offset of the group for a partition; None if nothing is stored yet."""
        return await self._call(partial(self._partitions.committed, partition, timeout))

    async def topics(self, timeout: float | None = None) -> frozenset[str]:
        """Return the names of all topics."""
        return await self._call(partial(self._queries.topics, timeout))

    async def partitions_for(self, topic: str, timeout: float | None = None) -> list[TopicPartition]:
        """Return the partitions of a topic in ascending order."""
        return await self._call(partial(self._queries.partitions_for, topic, timeout))

    async def beginning_offsets(
        self, partitions: Iterable[PartitionLike], timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """Return the first offset that the log of each partition still has."""
        return await self._call(partial(self._queries.beginning_offsets, partitions, timeout))

    async def end_offsets(
        self, partitions: Iterable[PartitionLike], timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """Return for each partition the offset after the last message that may be read."""
        return await self._call(partial(self._queries.end_offsets, partitions, timeout))

    async def offsets_for_times(
        self, times: Mapping[TopicPartition, int] | Mapping[tuple[str, int], int], timeout: float | None = None
    ) -> dict[TopicPartition, int | None]:
        """Return the offset of the first message that is not older than a time in ms since 1970; None without one."""
        return await self._call(partial(self._partitions.offsets_for_times, times, timeout))

    # ---- moving ----

    async def seek(
        self,
        partition: PartitionLike,
        offset: int | Literal["earliest", "latest", "smallest", "largest"],
        timeout: float | None = None,
    ) -> None:
        """Go on at another offset of a partition, as :meth:`ZookeeperConsumerConnector.seek` does."""
        deadline = self.lifecycle.deadline(timeout)
        await self._call(partial(seek_to, self.lifecycle, partition, offset, deadline), deadline)

    async def seek_to_timestamp(
        self, timestamp: int, partitions: Iterable[PartitionLike] | None = None, timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """Go on at the first message that is not older than a time in ms since 1970, or at the end."""
        deadline = self.lifecycle.deadline(timeout)
        return await self._call(partial(seek_to_time, self.lifecycle, timestamp, partitions, deadline), deadline)

    # ---- the end ----

    def begin_shutdown(self, timeout: float = CLOSE_WITHIN) -> None:
        """Begin to leave the group, and return at once. For a signal: ``loop.add_signal_handler(SIGTERM, ...)``.

        Loops end once their message in hand is finished, which is committed. Leaving ``async with`` waits for the end.
        """
        check_seconds(timeout)
        self.lifecycle.begin_shutdown(timeout)
        member = self.lifecycle.member
        if member is not None and not in_signal_handler():  # a handler may have interrupted who holds a queue's lock
            member.end_streams()  # now: until its thread did so, tasks would be handed further messages

    def shutdown(self, timeout: float = CLOSE_WITHIN) -> Coroutine[Any, Any, None]:
        """Leave the group; a message that the calling task holds counts as finished. Other tasks may finish theirs.

        As :meth:`ZookeeperConsumerConnector.shutdown`. If it is cancelled, the shutdown goes on. The message of a task
        that has ended, or was cancelled, is consumed again. In a listener it returns at once.
        """
        return self._shut_down(calling_task(), finished=True, timeout=timeout)

    async def _shut_down(
        self, caller: asyncio.Task[Any] | None, *, finished: bool, timeout: float = CLOSE_WITHIN
    ) -> None:
        member, held = self.lifecycle.member, self._held_by(caller)
        # a task that has ended will not finish what it got
        left = [one for one, reader in self._in_hand() if one not in held and reader.task and reader.task.done()]
        self.begin_shutdown(timeout)
        if member is not None:  # only now: the streams hand nothing out any more
            member.settle_positions(held, finished=finished)
            member.settle_positions(left, finished=False)
        if _in_listener.get():
            return  # the end waits for this listener, and each would wait for the other
        await self._call(partial(self.lifecycle.shut_down, finished=False, timeout=timeout))
        if finished:
            self.lifecycle.end.raise_failure()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._shut_down(asyncio.current_task(), finished=kind is None)

    def __repr__(self) -> str:
        return f"<AsyncZookeeperConsumerConnector {self.consumer_id} {self.state}>"

    async def _call(self, function: Callable[[], T], deadline: Deadline | None = None) -> T:
        """Call a function that blocks, on a thread of its own; see :func:`outcome`."""
        return await outcome(self._begin_call(function), deadline)

    def _begin_call(self, function: Callable[[], T]) -> Future[T]:
        done: Future[T] = Future()

        def work() -> None:
            try:
                done.set_result(function())
            except BaseException as error:  # noqa: BLE001 (the coroutine raises it)
                done.set_exception(error)

        Thread(target=work, name=f"{self.consumer_id}-call", daemon=True).start()
        return done


def _leave_again(member: GroupMember, subscription: Subscription, topics: list[str]) -> None:
    """Leave topics whose subscription was cancelled."""
    try:
        subscription.leave(topics, member.change_deadline(None), NONE_HELD)
    except ZkConsumerError as error:
        log.warning("topics whose subscription was cancelled could not be left again: %s", error)


class _LoopListener(ConsumerRebalanceListener):
    """Runs the methods of a listener on the event loop. The listener's thread waits for them."""

    def __init__(self, listener: Listener, access: LoopAccess) -> None:
        self._listener = listener
        self._access = access

    def before_releasing_partitions(self, partitions: Mapping[str, frozenset[int]]) -> None:
        self._run("before_releasing_partitions", partitions)

    def before_starting_fetchers(
        self, consumer_id: str, assignment: Mapping[TopicPartition, Any]
    ) -> Mapping[TopicPartition, int] | None:
        starts: Mapping[TopicPartition, int] | None = self._run("before_starting_fetchers", consumer_id, assignment)
        return starts

    def on_partitions_lost(self, partitions: Mapping[str, frozenset[int]]) -> None:
        self._run("on_partitions_lost", partitions)

    def _run(self, method: str, *arguments: Any) -> Any:
        called = self._called(method, *arguments)
        done = self._access.submit(called)
        while True:
            try:
                return done.result(LOOK_FOR_LOOP)
            except TimeoutError:
                if done.done():
                    return done.result()  # it is the listener's own error, or the listener has returned just now
                if not self._access.call(lambda: None):
                    if inspect.getcoroutinestate(called) == inspect.CORO_CREATED:
                        called.close()  # it came amid the loop's end, and Python would warn of it later
                    raise RuntimeError(f"{method}: the event loop has ended") from None

    async def _called(self, method: str, *arguments: Any) -> Any:
        _in_listener.set(True)  # in the context of this call alone
        found = getattr(self._listener, method)(*arguments)
        return await found if inspect.isawaitable(found) else found


async def outcome(future: Future[T], deadline: Deadline | None = None) -> T:
    """Wait for a future of another thread.

    Cancelling this ends the ``deadline``: work that has not begun by then is never done, and other work goes on.
    Raises: the future's error; RuntimeError for a StopIteration, for which a task would wait for ever in Python 3.11.
    """
    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[T] = loop.create_future()

    def settle() -> None:
        if waiter.done():
            return
        error = future.exception()
        if isinstance(error, StopIteration):
            error, error.__cause__ = RuntimeError(f"the call raised {error!r}"), error
        if error is None:
            waiter.set_result(future.result())
        else:
            waiter.set_exception(error)

    def hand_over(_: Future[T]) -> None:
        with suppress(RuntimeError):  # the loop is closed, and nobody waits any more
            loop.call_soon_threadsafe(settle)

    future.add_done_callback(hand_over)
    try:
        return await waiter
    except asyncio.CancelledError:
        if deadline is not None:
            deadline.expire()
        raise
