"""``ZookeeperConsumerConnector``: the façade. Wiring only; whatever decides is in ``core``, whatever does in
``group``, ``offsets``, ``fetch``.

Threads: a connector may be used from several application threads; each stream by one at a time. The lock guards that
streams are created once and nothing else. :meth:`ZookeeperConsumerConnector.shutdown` takes no lock on entry, so that
a signal handler may call it.

Mirrors the original's class of this name. There the constructor connects; here nothing happens before streams are
created.
"""

from __future__ import annotations

import logging
import socket
import time
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import CancelledError
from concurrent.futures import TimeoutError as FutureTimeoutError
from queue import Empty, SimpleQueue
from threading import Lock, get_ident
from types import TracebackType
from typing import Any, Self

from zkconsumer.brokers import choose_endpoint
from zkconsumer.config import ConsumerConfig
from zkconsumer.core.assignors.strategy import assignment_strategy
from zkconsumer.core.positions import PartitionPosition
from zkconsumer.core.registration import STATIC, Registration
from zkconsumer.core.topic_filter import TopicFilter
from zkconsumer.deadline import Deadline
from zkconsumer.errors import (
    ConnectorClosedException,
    ConsumerIdInUseError,
    ConsumerRebalanceFailedException,
    MessageStreamsExistException,
    NoReachableEndpointError,
    ZkConsumerError,
)
from zkconsumer.fetch.fetcher import EARLIEST, LATEST, FetchSettings
from zkconsumer.fetch.manager import FetchManager
from zkconsumer.group.events import CommitsRefused, Event, NodeChanged, StartResolved, StopRequested
from zkconsumer.group.membership import Membership
from zkconsumer.group.rebalancer import Rebalancer, RebalanceSettings
from zkconsumer.group.state import ConnectorState, Phase
from zkconsumer.model import ConsumerId, Endpoint, TopicPartition
from zkconsumer.offsets.committer import Committer
from zkconsumer.offsets.zookeeper import ZooKeeperOffsets
from zkconsumer.registry.brokers import registered_brokers
from zkconsumer.registry.session import Session
from zkconsumer.registry.watches import NodeCache
from zkconsumer.streams import KafkaStream, StreamQueue

log = logging.getLogger(__name__)

CLOSE_WITHIN = 5.0
"""Seconds within which :meth:`ZookeeperConsumerConnector.shutdown` returns, in any state of ZooKeeper and the
brokers.
"""

BACKOFF_MAX = 10.0


def consumer_id(config: ConsumerConfig) -> ConsumerId:
    """The member's name: ``<group>_<consumer.id>``, or a generated one in the original's form.

    Its eight hexadecimal digits are the first of the unpadded form of a random UUID's upper half.
    """
    if config.consumer_id is not None:
        return ConsumerId(f"{config.group_id}_{config.consumer_id}")
    digits = format(uuid.uuid4().int >> 64, "x")[:8]
    return ConsumerId(f"{config.group_id}_{socket.gethostname()}-{time.time_ns() // 1_000_000}-{digits}")


class ZookeeperConsumerConnector:
    """One member of a consumer group that is coordinated through ZooKeeper.

    Arguments: a :class:`ConsumerConfig`, or what makes one (a mapping of properties, or keywords with underscores).

    Use it as a context manager: leaving it shuts down, and counts the message in the leaving thread's hands as
    finished unless an exception is what leaves. Nothing is connected or started before streams are created.
    """

    def __init__(self, config: ConsumerConfig | Mapping[str, Any] | None = None, /, **properties: Any) -> None:
        if isinstance(config, ConsumerConfig):
            self.config = config.replace(**properties) if properties else config
        else:
            self.config = ConsumerConfig(config, **properties)
        self.consumer_id = consumer_id(self.config)
        self._create_lock = Lock()
        self._created = False
        self._closing = False
        self._closed: SimpleQueue[bool] = SimpleQueue()
        self._events: SimpleQueue[Event] = SimpleQueue()
        self._streams: dict[tuple[str, int], KafkaStream[Any, Any]] = {}
        self._any_topic: list[KafkaStream[Any, Any]] = []
        self._session: Session | None = None
        self._rebalancer: Rebalancer | None = None
        self._committer: Committer | None = None
        self._fetching: FetchManager | None = None

    # ---- streams ----

    def create_message_streams(
        self, topics: Mapping[str, int]
    ) -> dict[str, list[KafkaStream[bytes | None, bytes | None]]]:
        """Join the group and return streams, for each topic as many as asked for, in thread order.

        Arguments: ``topics`` maps each topic to its number of streams (at least 1). A topic that does not exist yet
        is waited for. An empty mapping makes a member that owns nothing.
        Returns when the first rebalance has run; partitions that another member has not released yet come later by
        themselves.
        Raises: :class:`MessageStreamsExistException` when streams were created before;
        :class:`RegistryUnavailableError`, :class:`ChrootMissingError`, :class:`ConsumerIdInUseError`,
        :class:`ConsumerRebalanceFailedException` (the connector is shut down then); ValueError for a bad topic or
        number.
        """
        for topic, count in topics.items():
            _check_subscription(topic, count)
        registration = Registration(STATIC, dict(topics))
        self._create_once("message streams")
        for topic, count in topics.items():
            for number in range(count):
                self._streams[topic, number] = self._stream(f"{topic}/{self.consumer_id}-{number}")
        self._join_group(registration)
        return {topic: [self._streams[topic, number] for number in range(count)] for topic, count in topics.items()}

    def create_message_streams_by_filter(
        self, topic_filter: TopicFilter, streams: int = 1
    ) -> list[KafkaStream[bytes | None, bytes | None]]:
        """Join the group for all topics that a filter allows, those to come included, and return ``streams`` streams
        over them.

        Raises: as :meth:`create_message_streams`.
        """
        _check_subscription(topic_filter.regex, streams)
        registration = Registration(topic_filter.pattern, {topic_filter.regex: streams})
        self._create_once("message streams by filter")
        self._any_topic = [self._stream(f"{self.consumer_id}-{number}") for number in range(streams)]
        self._join_group(registration)
        return list(self._any_topic)

    def _create_once(self, what: str) -> None:
        with self._create_lock:
            if self._closing:
                raise ConnectorClosedException("the connector was shut down; make a new one")
            if self._created:
                raise MessageStreamsExistException(
                    f"{what}: this connector has created its streams; one connector does so once"
                )
            self._created = True

    def _stream(self, name: str) -> KafkaStream[Any, Any]:
        config = self.config
        queue = StreamQueue(config.queued_max_message_chunks, self._wake_fetchers)
        session = self._open_session()
        return KafkaStream(
            name,
            queue,
            session.lease,
            timeout=config.consumer_timeout_ms / 1000 if config.consumer_timeout_ms >= 0 else None,
            check_crc=config.check_crcs,
            read_committed=config.isolation_level == "read_committed",
        )

    def _open_session(self) -> Session:
        if self._session is None:
            self._session = Session(
                self.config.zookeeper_connect,
                timeout=self.config.zookeeper_session_timeout_ms / 1000,
                on_change=self._events.put,
            )
        return self._session

    def _join_group(self, registration: Registration) -> None:
        config, session = self.config, self._open_session()
        try:
            session.open(Deadline(config.zookeeper_connection_timeout_ms / 1000))
            self._start(registration, session)
            self._await_first_round()
        except BaseException:
            self._shut_down(finished=False)
            raise

    def _start(self, registration: Registration, session: Session) -> None:
        config, events = self.config, self._events
        request_timeout = max(session.timeout, 5.0)
        self._committer = Committer(
            self.consumer_id,
            ZooKeeperOffsets(session, config.group_id),
            session.lease,
            interval=config.auto_commit_interval_ms / 1000 if config.auto_commit_enable else None,
            timeout=request_timeout,
            count_held=config.consumed_on == "return",
            refused=lambda outcomes: events.put(CommitsRefused(outcomes)),
        )
        self._fetching = FetchManager(
            self.consumer_id,
            _fetch_settings(config),
            self._brokers,
            fetchers_per_broker=config.num_consumer_fetchers,
            resolved=lambda position, offset: events.put(StartResolved(position, offset)),
        )
        cache = NodeCache(session, lambda path: events.put(NodeChanged(path)))
        self._rebalancer = Rebalancer(
            self.consumer_id,
            config.group_id,
            _rebalance_settings(config, request_timeout),
            events=events,
            session=session,
            cache=cache,
            membership=Membership(
                session,
                cache,
                config.group_id,
                self.consumer_id,
                lambda: _stamped(registration),
                exclude_internal_topics=config.exclude_internal_topics,
            ),
            delivery=self,
            offsets=self._committer,
            assign=assignment_strategy(config),
        )
        self._committer.open()
        self._fetching.open()
        self._rebalancer.start()

    def _await_first_round(self) -> None:
        """The first rebalance is awaited, so that a wrong set-up is an exception here and not a silent stream."""
        rebalancer, config = self._rebalancer, self.config
        assert rebalancer is not None
        limit = (
            max(config.rebalance_max_retries * config.rebalance_backoff_ms, 1.5 * config.zookeeper_session_timeout_ms)
            / 1000
        )
        try:
            rebalancer.first_round.result(limit)
        except (FutureTimeoutError, CancelledError) as e:
            detail = rebalancer.state.detail
            if "consumer.id" in detail:
                raise ConsumerIdInUseError(detail) from e
            raise ConsumerRebalanceFailedException(
                f"{self.consumer_id} could not join group {config.group_id!r} within {limit:.0f} s: "
                f"{detail or rebalancer.state}"
            ) from e

    def _brokers(self, deadline: Deadline) -> Sequence[Endpoint]:
        session, config = self._session, self.config
        assert session is not None
        found: list[Endpoint] = []
        unreachable: NoReachableEndpointError | None = None
        for broker in registered_brokers(session, deadline):
            try:
                found.append(choose_endpoint(broker.endpoints, config.security_protocol, config.broker_addresses))
            except NoReachableEndpointError as e:
                unreachable = e  # it harms only its own partitions (in the original: those of all brokers)
        if not found and unreachable is not None:
            raise unreachable
        return found

    # ---- offsets and state ----

    def commit_offsets(self, timeout: float | None = None) -> None:
        """Write the progress of all owned partitions now.

        A message that the calling thread holds counts as finished, so ``process(m); connector.commit_offsets()``
        means what it says; messages that other threads hold do not.

        Arguments: ``timeout`` in seconds, by default the session timeout (at least 5).
        Raises: :class:`OffsetCommitError` naming what could not be written; :class:`ConnectorClosedException`.
        """
        committer, session = self._committer, self._session
        if self._closing or committer is None or session is None:
            if self._closing:
                raise ConnectorClosedException("the connector was shut down; its last commit is done")
            return
        thread = get_ident()
        deadline = Deadline(timeout if timeout is not None else max(session.timeout, 5.0))
        committer.commit(lambda position: self.held_by(position, thread), deadline)

    @property
    def state(self) -> ConnectorState:
        """What the member is doing now, and what it waits for."""
        if self._rebalancer is None:
            return ConnectorState(Phase.CLOSED if self._closing else Phase.STARTING)
        state = self._rebalancer.state
        trouble = self._fetching.trouble if self._fetching is not None and state.phase is not Phase.CLOSED else ""
        if not trouble:
            return state
        detail = "; ".join(filter(None, (state.detail, trouble)))
        return ConnectorState(state.phase, state.owned, state.wanted, state.blocked, detail, state.rebalances)

    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that this member owns now."""
        return frozenset(self._rebalancer.positions()) if self._rebalancer is not None else frozenset()

    # ---- the end ----

    def shutdown(self) -> None:
        """Leave the group: readers wake and end, offsets are committed, nodes deleted, threads ended.

        Returns within about five seconds in any state; a second call, from whatever thread, waits for the first. May
        be called from a signal handler. A message that the calling thread holds counts as finished; other threads
        have ``rebalance.drain.timeout.ms`` to finish theirs, after which those are consumed again by the next owner.
        """
        self._shut_down(finished=True)

    def _shut_down(self, *, finished: bool) -> None:
        if self._closing:
            self._await_closed()
            return
        self._closing = True  # no lock: the only thing that a second entry must see
        try:
            self._close(finished)
        finally:
            self._closed.put(True)

    def _await_closed(self) -> None:
        try:
            self._closed.get(timeout=CLOSE_WITHIN)
        except Empty:
            return
        self._closed.put(True)

    def _close(self, finished: bool) -> None:
        deadline = Deadline(CLOSE_WITHIN)
        rebalancer, session = self._rebalancer, self._session
        if rebalancer is not None:
            self._events.put(StopRequested(get_ident(), finished))
            if not rebalancer.join(Deadline(deadline.bounded(CLOSE_WITHIN - 1.5))) and session is not None:
                # it waits for an answer that does not come: take the session away under it
                session.close(Deadline(deadline.bounded(1.0)))
                rebalancer.join(deadline)
        self.end()
        if self._fetching is not None:
            self._fetching.close(deadline)
        if self._committer is not None:
            self._committer.close(deadline)
        if session is not None:
            session.close(deadline)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._shut_down(finished=kind is None)

    def __repr__(self) -> str:
        return f"<ZookeeperConsumerConnector {self.consumer_id} {self.state}>"

    # ---- fetching and streams, for the group's thread (group.rebalancer.Delivery) ----

    def _stream_of(self, position: PartitionPosition) -> KafkaStream[Any, Any]:
        number = int(position.thread[len(self.consumer_id) + 1 :])
        return self._any_topic[number] if self._any_topic else self._streams[position.topic, number]

    def start(self, positions: Sequence[PartitionPosition]) -> None:
        """Fetch these partitions into their streams."""
        assert self._fetching is not None
        self._fetching.start([(position, self._stream_of(position).queue) for position in positions])

    def revoke(self, positions: Sequence[PartitionPosition], drain: Deadline) -> None:
        """Hand out nothing more of these; wait until the deadline for messages of theirs in the user's hands."""
        assert self._fetching is not None
        assert self._session is not None
        by_queue: dict[StreamQueue, list[PartitionPosition]] = {}
        for position in positions:
            position.revoked = True
            by_queue.setdefault(self._stream_of(position).queue, []).append(position)
        self._fetching.forget()
        self._session.lease.wake()
        for queue, of_queue in by_queue.items():
            queue.discard_revoked()
            if not queue.wait_let_go(of_queue, drain) and drain.at is not None:
                log.debug("a message of %s is still in the user's hands", of_queue[0].tp)

    def wake(self) -> None:
        """A start position is known: fetch from there."""
        self._wake_fetchers()

    def end(self) -> None:
        """End all streams."""
        for stream in [*self._streams.values(), *self._any_topic]:
            stream.queue.close()
        if self._session is not None:
            self._session.lease.wake()

    def held_by(self, position: PartitionPosition, thread: int) -> bool:
        """Whether that thread reads the stream of this partition."""
        return self._stream_of(position).held_by(thread)

    def _wake_fetchers(self) -> None:
        if self._fetching is not None:
            self._fetching.wake()


def _check_subscription(name: str, count: int) -> None:
    if not isinstance(name, str) or not name:
        raise ValueError(f"a topic or expression must be a non-empty text, not {name!r}")
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ValueError(f"{name}: the number of streams must be a whole number of at least 1, not {count!r}")


def _stamped(registration: Registration) -> Registration:
    return Registration(
        registration.pattern,
        registration.subscription,
        timestamp=str(time.time_ns() // 1_000_000),
        extra=registration.extra,
    )


def _fetch_settings(config: ConsumerConfig) -> FetchSettings:
    return FetchSettings(
        client_id=config.client_id,
        max_wait=config.fetch_wait_max_ms / 1000,
        min_bytes=config.fetch_min_bytes,
        partition_bytes=config.fetch_message_max_bytes,
        max_bytes=config.fetch_max_bytes,
        reset_to=EARLIEST if config.auto_offset_reset == "smallest" else LATEST,
        socket_timeout=config.socket_timeout_ms / 1000,
        receive_buffer=config.socket_receive_buffer_bytes,
        backoff=config.refresh_leader_backoff_ms / 1000,
        isolation_level=1 if config.isolation_level == "read_committed" else 0,
    )


def _rebalance_settings(config: ConsumerConfig, request_timeout: float) -> RebalanceSettings:
    return RebalanceSettings(
        quiet=config.rebalance_quiet_ms / 1000,
        backoff=min(0.2, config.rebalance_backoff_ms / 1000),
        backoff_max=min(BACKOFF_MAX, max(0.2, config.rebalance_backoff_ms / 1000)),
        drain=config.rebalance_drain_timeout_ms / 1000,
        interval=config.rebalance_interval_ms / 1000,
        request_timeout=request_timeout,
        auto_commit=config.auto_commit_enable,
        exclude_internal_topics=config.exclude_internal_topics,
    )


__all__ = ["ZkConsumerError", "ZookeeperConsumerConnector", "consumer_id"]
