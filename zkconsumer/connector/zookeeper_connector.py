"""``ZookeeperConsumerConnector``, the class that applications use.

``wiring`` builds its member, and ``stream_delivery`` has its streams.

Threads: a connector may be used from several application threads; each stream by one at a time. The lock guards the
subscription and the creation of streams. No thread waits while it holds the lock.
:meth:`ZookeeperConsumerConnector.shutdown` takes no lock on entry, so that a signal handler may call it.

Mirrors the original's class of this name. There the constructor connects; here nothing happens before streams are
created.
"""

from __future__ import annotations

import socket
import time
import uuid
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from inspect import currentframe
from threading import Thread, current_thread, get_native_id, main_thread
from types import TracebackType
from typing import Any, Self
from weakref import WeakSet, ref

from zkconsumer.balance.balance_state import BalanceState, ShowsBalance
from zkconsumer.balance.balanced_run import BalancedRun
from zkconsumer.balance.lanes import Order
from zkconsumer.balance.until import RunEndRequest, requested_end, stop_streams_at
from zkconsumer.config import ConsumerConfig
from zkconsumer.connector.cluster_queries import ClusterQueries
from zkconsumer.connector.gauges import member_gauges
from zkconsumer.connector.handler_loop import RunLoop
from zkconsumer.connector.health import Health, health_of
from zkconsumer.connector.partition_control import PartitionControl
from zkconsumer.connector.shutdown import CLOSE_WITHIN, Closing, check_seconds
from zkconsumer.connector.signal_shutdown import in_signal_handler
from zkconsumer.connector.subscription_state import Subscription, check_subscribed, check_topics
from zkconsumer.core.other_clients import NamesMissingMethods
from zkconsumer.core.partition_position import Held
from zkconsumer.core.registration import STATIC, Registration
from zkconsumer.core.topic_filter import TopicFilter
from zkconsumer.errors import (
    ConnectorClosedException,
    ConsumerRebalanceFailedException,
    ForkedProcessError,
    MessageStreamsExistException,
    OffsetCommitError,
    RegistryError,
    ZkConsumerError,
)
from zkconsumer.member.connector_state import ConnectorState, Phase
from zkconsumer.member.listener import ConsumerRebalanceListener
from zkconsumer.model import PLACEMENTS, ConsumerId
from zkconsumer.offsets.store import OffsetStore
from zkconsumer.runtime import fork_guard
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.runtime.interruptible_wait import InterruptibleLock
from zkconsumer.streams import KafkaStream, MessageAndMetadata
from zkconsumer.streams.decoders import Decoder, K, V
from zkconsumer.streams.message import message_class
from zkconsumer.streams.message_iterator import public_names
from zkconsumer.streams.stream_delivery import ANY_TOPIC
from zkconsumer.wiring import GroupMember, build_member
from zkconsumer.wiring.partition_stream import PartitionReading

__all__ = ["CLOSE_WITHIN", "ZkConsumerError", "ZookeeperConsumerConnector", "consumer_id"]


def consumer_id(config: ConsumerConfig) -> ConsumerId:
    """Return the member's name: ``<group>_<consumer.id>``, or a generated one in the original's form.

    With a strategy that follows a plan, ``group.instance.id`` takes the place of ``consumer.id``.

    The eight hexadecimal digits of a generated name are the first ones of the unpadded upper half of a random UUID.
    """
    lasts = not config.coordinated_by_brokers and config.partition_assignment_strategy in PLACEMENTS
    name = config.group_instance_id if lasts and config.group_instance_id is not None else config.consumer_id
    if name is not None:
        return ConsumerId(f"{config.group_id}_{name}")
    digits = format(uuid.uuid4().int >> 64, "x")[:8]
    return ConsumerId(f"{config.group_id}_{socket.gethostname()}-{time.time_ns() // 1_000_000}-{digits}")


class ZookeeperConsumerConnector(PartitionControl, ClusterQueries, RunLoop, NamesMissingMethods):
    """One member of a consumer group: coordinated through ZooKeeper, or by the brokers (``group.coordination=kafka``).

    Arguments: a :class:`ConsumerConfig`, or what makes one (a mapping of properties, or keywords with underscores).
    ``offset_store`` keeps the group's offsets in place of ``offsets.storage``; :class:`OffsetStore` says what it must
    promise. With ``dual.commit.enabled=true`` they are kept in ZooKeeper as well.

    Use it as a context manager: leaving it shuts down, and counts the message in the leaving thread's hands as
    finished unless an exception is what leaves. Nothing is connected or started before streams are created. One that is
    dropped without that gives a ResourceWarning: its threads live on, and it stays a member that nobody can end.
    """

    _created = False

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
        self.consumer_id = consumer_id(self.config)
        self._create_lock = InterruptibleLock()
        self._end = Closing()
        self._forked: ForkedProcessError | None = None
        self._restorers: list[Callable[[], None]] = []
        self._member: GroupMember | None = None
        self._offset_store = offset_store
        self._readings: WeakSet[PartitionReading] = WeakSet()
        self._listener: ConsumerRebalanceListener | None = None
        self._subscription = Subscription()
        self._advertised: dict[str, object] = {}

    # ---- streams ----

    def set_consumer_rebalance_listener(self, listener: ConsumerRebalanceListener | None) -> None:
        """Have an object told when partitions come and go; None takes it back.

        Raises: :class:`MessageStreamsExistException` once streams were created.
        """
        with self._create_lock:
            if self._created:
                raise MessageStreamsExistException("the rebalance listener must be set before streams are created")
            self._listener = listener

    def create_message_streams(
        self,
        topics: Mapping[str, int],
        key_decoder: Decoder[K] | None = None,
        value_decoder: Decoder[V] | None = None,
        until: Any = None,
    ) -> dict[str, list[KafkaStream[K | None, V | None]]]:
        """Join the group and return streams, for each topic as many as asked for, in thread order.

        Arguments: ``topics`` maps each topic to its number of streams (at least 1). A topic that does not exist yet
        is waited for. An empty mapping makes a member that owns nothing. ``key_decoder`` and ``value_decoder`` make of
        bytes what ``message.key`` and ``message.value`` give (``zkconsumer.StringDecoder()``, or any callable).
        With ``until`` a stream ends, as at a shutdown, when all before an end is finished in each of its partitions. It
        is given as for :meth:`run`; streams of topics that are added later do not stop there.
        Returns when the first rebalance has run; partitions that another member has not released yet come later by
        themselves.
        Raises: :class:`MessageStreamsExistException` when streams were created before;
        :class:`RegistryUnavailableError`, :class:`ChrootMissingError`, :class:`ConsumerIdInUseError`,
        :class:`MessageModelConflictError`, :class:`OffsetStoreConflictError`,
        :class:`ConsumerRebalanceFailedException`, :class:`BrokerUnavailableError` if ends cannot be looked up (the
        connector is shut down then); ValueError and TypeError for a bad topic, number or end.
        """
        check_topics(topics)
        end = None if until is None else requested_end(until, time.time_ns() // 1_000_000)
        registration = Registration(STATIC, dict(topics))
        member = self._create_once("message streams")
        streams = self._make_streams(member, topics, message_class(key_decoder, value_decoder))
        self._join_group(member, registration, end)
        return streams

    def add_topics(
        self,
        topics: Mapping[str, int],
        key_decoder: Decoder[K] | None = None,
        value_decoder: Decoder[V] | None = None,
        timeout: float | None = None,
    ) -> dict[str, list[KafkaStream[K | None, V | None]]]:
        """Subscribe to further topics on the live connector, and return their streams. Other streams flow on.

        The registration is made anew in one transaction, so that Scala members see it too. The first call may be this
        one, in place of :meth:`create_message_streams`.

        Arguments: as for :meth:`create_message_streams`; ``timeout`` in seconds to wait until the group knows, by
        default as long as a rebalance may take.
        Raises: ValueError for a bad topic, for one that is subscribed already, or if the connector follows a filter.
        :class:`RegistryUnavailableError` if the group could not be told in time. The error says whether the
        subscription stays as it was, or the member has begun to tell the group and goes on.
        :class:`ConnectorClosedException`; as :meth:`create_message_streams` if it is the first call.
        """
        if not self._created:
            return self.create_message_streams(topics, key_decoder, value_decoder)
        member = self._live()
        deadline, held = member.change_deadline(timeout), member.held_by(get_native_id())
        return self._add_topics(member, topics, key_decoder, value_decoder, deadline, held)

    def _add_topics(
        self,
        member: GroupMember,
        topics: Mapping[str, int],
        key_decoder: Decoder[K] | None,
        value_decoder: Decoder[V] | None,
        deadline: Deadline,
        held: Held,
    ) -> dict[str, list[KafkaStream[K | None, V | None]]]:
        check_topics(topics)
        run = self._running
        works = run.in_hand_of(get_native_id()) if isinstance(run, BalancedRun) else ()
        streams: dict[str, list[KafkaStream[K | None, V | None]]] = {}

        def make() -> Mapping[str, list[KafkaStream[K | None, V | None]]]:
            streams.update(self._make_streams(member, topics, message_class(key_decoder, value_decoder)))
            return streams

        try:
            with self._create_lock:
                asked = self._subscription.add(member, topics, make, deadline, held, works)
            member.await_change(asked)
        except BaseException:
            deadline.expire()  # before the member begins, nothing changes for a caller that has gone
            raise
        return streams

    def unsubscribe(self, topics: Iterable[str], timeout: float | None = None) -> None:
        """Leave these topics, and end their streams.

        Messages in hand may be finished. Finished ones are committed (with ``auto.commit.enable``), then the partitions
        are released. A message of these topics that the calling thread holds counts as finished. The next owner reads
        what was fetched and not handed out. The last topic may go too; the member then owns nothing.

        Arguments: ``topics`` by name; ``timeout`` as for :meth:`add_topics`.
        Raises: ValueError for a topic that is not subscribed; otherwise as :meth:`add_topics`.
        """
        member = self._live()
        self._unsubscribe(member, topics, member.change_deadline(timeout), member.held_by(get_native_id()))

    def _unsubscribe(self, member: GroupMember, topics: Iterable[str], deadline: Deadline, held: Held) -> None:
        """Leave these topics. The messages of them that the caller ``held`` count as finished."""
        leaving = [topics] if isinstance(topics, str) else list(topics)
        run = self._running
        works = run.in_hand_of(get_native_id()) if isinstance(run, BalancedRun) else ()
        done = [work for work in works if work.ledger.position.topic in leaving]

        def begun() -> None:
            if done and isinstance(run, BalancedRun):
                run.finish(done)  # the group thread waits for what handlers have in hand

        try:
            with self._create_lock:
                asked = self._subscription.leave(member, leaving, deadline, held, begun, works)
            member.await_change(asked)
        except BaseException:
            deadline.expire()  # as in _add_topics
            raise

    def create_message_streams_by_filter(
        self,
        topic_filter: TopicFilter,
        streams: int = 1,
        key_decoder: Decoder[K] | None = None,
        value_decoder: Decoder[V] | None = None,
    ) -> list[KafkaStream[K | None, V | None]]:
        """Join the group for all topics that a filter allows, those to come included, and return ``streams`` streams
        over them.

        Arguments: decoders as for :meth:`create_message_streams`.
        Raises: as :meth:`create_message_streams`.
        """
        if not isinstance(topic_filter, TopicFilter):
            raise ValueError(f"a filter must be a Whitelist or a Blacklist, not {topic_filter!r}")
        check_subscribed(topic_filter.regex, streams)
        registration = Registration(topic_filter.pattern, {topic_filter.regex: streams})
        member = self._create_once("message streams by filter")
        made = self._make_streams(member, {ANY_TOPIC: streams}, message_class(key_decoder, value_decoder))[ANY_TOPIC]
        self._join_group(member, registration)
        return made

    def _create_once(self, what: str) -> GroupMember:
        with self._create_lock:
            if self._end.begun:
                raise self._forked or ConnectorClosedException("the connector was shut down; make a new one")
            if self._created:
                raise MessageStreamsExistException(
                    f"{what}: this connector has created its streams, which can be done once; for more topics call"
                    " add_topics, or make another connector"
                )
            member = build_member(
                self.config, self.consumer_id, offset_store=self._offset_store, listener=self._listener
            )
            member.parts.balanced, member.parts.slots_by_key = self._balanced, self._run_order in (None, Order.KEY)
            # the member lives as long as its threads: it must not keep a connector that was dropped
            me = ref(self)
            member.metrics.gauges(lambda: member_gauges(member, None if (one := me()) is None else one.balance))
            self._member = member
            self._created = True
            fork_guard.watch(self)
            return member

    def _make_streams(
        self, member: GroupMember, topics: Mapping[str, int], message: type[MessageAndMetadata[Any, Any]]
    ) -> dict[str, list[KafkaStream[Any, Any]]]:
        ended = self._end.await_stream_end
        return {topic: member.streams(topic, count, message, ended) for topic, count in topics.items()}

    def _join_group(self, member: GroupMember, registration: Registration, end: RunEndRequest | None = None) -> None:
        registration = replace(registration, extra={**registration.extra, **self._advertised})
        self._subscription.join(registration)
        try:
            if self._end.begun:
                raise ConnectorClosedException("the connector was shut down before it joined the group")
            member.open(registration)
            if end is not None:
                stop_streams_at(end, member)
        except BaseException as e:
            interrupted = self._end.begun
            self._shut_down(finished=False)
            if interrupted:
                # whoever shut down meanwhile (a signal handler, another thread) could not see what came after
                member.close(Deadline(CLOSE_WITHIN), finished=False)
                if isinstance(e, RegistryError | ConsumerRebalanceFailedException):
                    raise ConnectorClosedException("the connector was shut down while it joined the group") from e
            raise

    # ---- state ----

    @property
    def state(self) -> ConnectorState:
        """The present state of the member, and what it waits for."""
        member = self._member
        state = None if member is None else member.state
        if member is None or state is None:
            detail = "" if self._forked is None else str(self._forked)
            return ConnectorState(Phase.CLOSED if self._end.begun else Phase.STARTING, detail=detail)
        if state.phase is Phase.CLOSED:
            return state
        return state if (balance := self.balance) is None else replace(state, balance=tuple(balance.lines()))

    @property
    def balance(self) -> BalanceState | None:
        """What a run with ``concurrency`` does at this moment, None while there is none. Any thread."""
        run = self._running
        return run.state() if isinstance(run, ShowsBalance) else None

    def health(self) -> Health:
        """Return whether this member is live and ready, and why not; for the probes of a scheduler.

        Any thread, also a signal handler: this takes no lock and waits for nothing.
        """
        run = self._running
        return health_of(self._member, self._end, self._forked, run.problems() if isinstance(run, ShowsBalance) else ())

    # ---- the end ----

    def shutdown(self, timeout: float = CLOSE_WITHIN) -> None:
        """Leave the group: readers wake and end, offsets are committed, nodes deleted, threads ended.

        A message that the calling thread holds counts as finished. Other threads may finish theirs until 1.8 s before
        the timeout, and commit them. Messages that are not finished by then are logged, raised here, and consumed again
        by the next owner. A second call, from any thread, waits for the first.

        May be called from a signal handler, though :func:`zkconsumer.shutdown_on_signal` does it better. If the handler
        interrupted its thread in the middle of a message, or while the thread asks for one, the call returns at once.
        The message counts as finished only when that thread asks for the next one. A second call in a handler waits for
        no message any more.

        Arguments: ``timeout`` in seconds, in which this returns in any state of ZooKeeper and the brokers.
        Raises: :class:`OffsetCommitError` naming the offsets that could not be committed (with ``auto.commit.enable``),
        in one thread that waits; everything is closed then.
        """
        self._shut_down(finished=True, timeout=timeout)
        self._end.raise_failure()

    def _shut_down(self, *, finished: bool, timeout: float = CLOSE_WITHIN) -> None:
        """End everything, and wait for that. ``finished``: the calling thread's message is finished."""
        check_seconds(timeout)
        thread, interrupting = get_native_id(), self._interrupting()
        if self._end.begin(0 if interrupting else thread, timeout):
            if interrupting:
                # locks of ours may be held below us: what they guard must go on, and the message is not finished
                self._end.ends_streams = True
                self._close_in_background()
                return
            self._close(finished)
        elif interrupting:
            self._hurry()
            return
        elif not self._shutting_down_below():  # a handler that interrupted it would wait for itself
            if self._end.closer != thread:
                if self._member is not None:
                    self._member.settle_in_hand(thread, finished=finished)
                self._end.wait()
            if self._end.left_undone(thread):
                # else threads would run on for ever, and a session that keeps partitions from other members
                self._close(finished, Deadline(timeout))
        if current_thread() is main_thread():
            for restore in self._restorers:
                restore()

    def _interrupting(self) -> bool:
        """Return whether this is a signal handler that interrupted its thread in an ask, or with a message in hand."""
        member, thread = self._member, get_native_id()
        if member is None:
            return False
        return member.delivery.interrupted(thread) or (
            in_signal_handler() and (member.delivery.returning(thread) or bool(member.in_hand(thread)))
        )

    def _shutting_down_below(self) -> bool:
        """Return whether this shutdown interrupts another one of its thread. A flag could be left behind; a frame
        cannot.
        """
        frame, found = currentframe(), 0
        while frame is not None:
            found += frame.f_code is _SHUT_DOWN and frame.f_locals.get("self") is self
            frame = frame.f_back
        return found > 1

    def _begin_shutdown(self, timeout: float) -> None:
        """Begin to end everything, on a thread of its own. Any thread."""
        if self._end.begin(0, timeout):
            self._close_in_background()

    def _hurry(self) -> None:
        """Wait for no message any more, and for no handler of ``run``. Any thread, also a signal handler."""
        if self._member is not None:
            self._member.hurry()
        run = self._running
        if run is not None:
            run.hurry()

    def _restores(self, restore: Callable[[], None]) -> None:
        """Have this called when the main thread has shut the connector down."""
        self._restorers.append(restore)

    def _close_in_background(self) -> None:
        closing = Thread(target=self._close, args=(False,), name=f"{self.consumer_id}-closing", daemon=False)
        try:
            closing.start()
        except RuntimeError:  # the system gives no thread: the next shutdown closes, else nobody ever would
            self._end.end(complete=False)
            raise

    def _close(self, finished: bool, deadline: Deadline | None = None) -> None:
        failure, complete = None, False
        try:
            self._close_readings()
            if self._member is not None:
                running = self._running  # once: the thread of the run sets it to None when the run ends
                if isinstance(running, BalancedRun):
                    running.give_back()  # while the session still lives
                self._member.close(deadline or Deadline(self._end.remaining), finished=finished)
                if self._member.not_committed:
                    failure = OffsetCommitError(
                        f"{self.consumer_id} was shut down; these messages are consumed again, for they are not"
                        f" committed: {', '.join(self._member.not_committed)}"
                    )
            complete = True
        finally:
            self._end.end(failure, complete=complete)

    def left_to_parent(self, parent: int) -> None:
        """Become an empty shell in a forked process; process ``parent`` reads on. See ``fork_guard``."""
        member = self._left = self._member  # kept: nothing of it is to be finalised here
        self._create_lock = InterruptibleLock()
        self._forked = ForkedProcessError(
            f"{self.consumer_id} belongs to process {parent}, from which this one was forked: make a connector here, "
            "or fork before streams are created"
        )
        self._member, self._end = None, Closing()
        self._end.begin(0, 0.0)
        self._end.end()
        for restore in self._restorers:
            restore()
        if isinstance(self._running, BalancedRun):
            self._running.left_to_parent()
        if member is not None:
            member.delivery.left_to_parent(self._forked)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._shut_down(finished=kind is None)
        if kind is None:
            self._end.raise_failure()

    def __del__(self) -> None:
        if self._created and not self._end.begun:
            warnings.warn(
                f"{self.consumer_id} was dropped without shutdown(): its threads live on, and it keeps its partitions"
                f" of group {self.config.group_id!r} from other members; use `with`, or call shutdown()",
                ResourceWarning,
                stacklevel=1,
                source=self,
            )

    def __dir__(self) -> list[str]:
        return public_names(super().__dir__(), ("left_to_parent",))

    def __repr__(self) -> str:
        return f"<ZookeeperConsumerConnector {self.consumer_id} {self.state}>"


_SHUT_DOWN = ZookeeperConsumerConnector._shut_down.__code__
