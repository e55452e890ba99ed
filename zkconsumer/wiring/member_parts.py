"""One member's parts, however its group is coordinated: fetching, delivery, committer, listener. No algorithm.

Threads: a member is made and opened by the application's thread, closed by whichever shuts down; in between it only
holds the parts, which guard themselves.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import ExitStack, suppress
from dataclasses import replace
from queue import SimpleQueue
from threading import get_native_id
from time import monotonic
from typing import Any, Protocol

from zkconsumer.config import ConsumerConfig
from zkconsumer.core.partition_position import NOTHING_HELD, PartitionPosition
from zkconsumer.core.registration import Registration
from zkconsumer.deadline import Deadline
from zkconsumer.errors import (
    ConnectorClosedException,
    ConsumerRebalanceFailedException,
    NoReachableEndpointError,
    RegistryUnavailableError,
    ZkConsumerError,
)
from zkconsumer.fetch.fetcher import EARLIEST, LATEST, FetchSettings
from zkconsumer.fetch.fetcher_manager import FetcherManager
from zkconsumer.fetch.offset_lookup import OffsetLookup
from zkconsumer.interruptible_wait import Answer
from zkconsumer.kafka import BrokerChannel, channel_security, choose_endpoint
from zkconsumer.member.connector_state import ConnectorState
from zkconsumer.member.events import (
    LEAVING,
    CommitsRefused,
    ListenerReturned,
    OffsetsMoved,
    SeekRequested,
    StartsResolved,
    StopRequested,
    SubscriptionChanged,
)
from zkconsumer.member.listener import ConsumerRebalanceListener, ListenerThread
from zkconsumer.metrics import Backlog, Meter, MetricName, Metrics
from zkconsumer.model import ConsumerId, Endpoint, TopicPartition
from zkconsumer.offsets.committer import Committer
from zkconsumer.offsets.dual_store import OwnedOffsets
from zkconsumer.stream_delivery import Delivery
from zkconsumer.streams import KafkaStream, QueueBudget
from zkconsumer.streams.rate_limit import HandOutGate, RateLimitedLease
from zkconsumer.zookeeper.broker_directory import registered_brokers
from zkconsumer.zookeeper.lease import Lease
from zkconsumer.zookeeper.node_codecs import BrokerNode
from zkconsumer.zookeeper.session import Session

log = logging.getLogger(__name__)

SPARE = 0.3
"""Seconds of a close that no step is given: on a busy machine each ends a little later than it should."""
A_STEP = 0.15
"""Seconds that each step of a close has at least, also where those before it took all that they were given."""
FORCED = 0.9
"""Seconds before the end of a close at which the group's thread is waited for no more."""
LONGEST = 86_400.0
"""Seconds that a close may take at most."""
SHORTEST = SPARE + FORCED + LEAVING
"""Seconds below which all of these shrink with the time that a close has; what is beyond them is the drain's."""


class GroupThread(Protocol):
    """The one thread that owns what concerns the group, as the façade sees it."""

    @property
    def state(self) -> ConnectorState:
        """Where the member stands."""

    first_round: Future[None]
    """Done when the first rebalance has run; an error where there cannot be one."""

    def start(self) -> None:
        """Start it."""

    def join(self, deadline: Deadline) -> bool:
        """Wait for its end after a :class:`StopRequested`; returns whether it ended."""

    def positions(self) -> Mapping[TopicPartition, PartitionPosition]:
        """What is owned now (a copy)."""

    @property
    def left(self) -> Sequence[PartitionPosition]:
        """What was owned when the member left; empty before that."""


class MemberParts:
    """The parts of one member of a group that are the same whoever coordinates it.

    Nothing is connected or started before :meth:`open`. Raises ConfigException where a file that the configuration
    names cannot be used, MissingExtraError where a login needs a library.
    """

    def __init__(
        self, config: ConsumerConfig, consumer: ConsumerId, lease: Lease, listener: ConsumerRebalanceListener | None
    ) -> None:
        self.config = config
        self.consumer = consumer
        self.lease = lease
        self.metrics = Metrics()
        self._consumed: Backlog[tuple[str, int, int]] = Backlog(self.metrics, self._tell_consumed)
        self.events: SimpleQueue[Any] = SimpleQueue()
        self._security = channel_security(config)
        self.budget = QueueBudget(config.queued_max_bytes)
        self.fetching = FetcherManager(
            consumer,
            replace(fetch_settings(config), security=self._security),
            self._brokers,
            fetchers_per_broker=config.num_consumer_fetchers,
            resolved=lambda starts: self.events.put(StartsResolved(starts)),
            refused=lambda error: self.delivery.refuse(error),
            metrics=self.metrics,
            budget=self.budget,
        )
        rate = config.consumed_max_per_second
        self.gate: HandOutGate = RateLimitedLease(lease, rate) if rate else lease
        self.delivery = Delivery(consumer, self.fetching, lease)
        self.lookup = OffsetLookup(replace(fetch_settings(config), security=self._security), self._brokers)
        self.listener = (
            ListenerThread(listener, consumer, lambda: self.events.put(ListenerReturned()))
            if listener is not None
            else None
        )
        self.committer: Committer | None = None
        self.rebalancer: GroupThread | None = None
        self._closing = False
        self.not_committed: Sequence[str] = ()
        """After the end: the places from which on messages are consumed again, although a commit was due."""

    # ---- what depends on who coordinates

    @property
    def request_timeout(self) -> float:
        """Seconds that a request on whoever coordinates may take."""
        raise NotImplementedError

    @property
    def trouble(self) -> str:
        """What is wrong between us and whoever coordinates, in words for the user; empty where nothing is."""
        raise NotImplementedError

    @property
    def concern(self) -> str:
        """What is strange in the group, in words for the user; empty where nothing is."""
        return ""

    def _connect(self) -> None:
        raise NotImplementedError

    def _disconnect(self, deadline: Deadline) -> None:
        raise NotImplementedError

    def _brokers(self, deadline: Deadline) -> Sequence[Endpoint]:
        raise NotImplementedError

    def _offsets(self) -> OwnedOffsets:
        raise NotImplementedError

    def _rebalancer(self, registration: Registration, committer: Committer) -> GroupThread:
        raise NotImplementedError

    def _registering(self, registration: Registration) -> Callable[[], Registration]:
        raise NotImplementedError

    def _joining_limit(self) -> float:
        """Seconds that joining may take; looked at again when they are over."""
        raise NotImplementedError

    def _why_not_joined(self, detail: str) -> ZkConsumerError | None:
        """A better error than that the group could not be joined, where there is one."""
        return None

    # ---- its life

    def open(self, registration: Registration) -> None:
        """Connect, start all threads, and wait for the first rebalance.

        It is awaited so that a wrong set-up is an exception here and not a silent stream.
        Raises: what :meth:`ZookeeperConsumerConnector.create_message_streams` raises; close the member then.
        """
        log.debug("%s: effective configuration: %s", self.consumer, self.config.masked())
        self._check_open()
        self._connect()
        self.committer = self._committer()
        self.rebalancer = self._rebalancer(registration, self.committer)
        self._check_open()  # from here on close() finds the rebalancer, and stops it
        if self.listener is not None:
            self.listener.open()
        self.committer.open()
        self.fetching.open()
        self.rebalancer.start()
        self._await_first_round(self.rebalancer)
        self._check_open()

    def _check_open(self) -> None:
        if self._closing:
            raise ConnectorClosedException("the connector was shut down while it joined the group")

    def close(self, deadline: Deadline, *, finished: bool) -> None:
        """End everything within the deadline. ``finished``: the message in the calling thread's hands is finished.

        Each step leaves time to those after it, so that none is cut short by the one before. May be called again, for
        what :meth:`open` began at the same time. From the beginning on nothing is handed out any more, and readers that
        wait for a message end.
        """
        self._closing = True
        scale = min(1.0, deadline.bounded(SHORTEST) / SHORTEST)
        end, step = Deadline(deadline.bounded(LONGEST)).earlier(SPARE * scale), A_STEP * scale
        with ExitStack() as last:  # in reverse, and each step also if one before it failed
            if self.listener is not None:
                last.callback(self.listener.close, end)
            last.callback(self._disconnect, end.earlier(step))
            if self.committer is not None:
                last.callback(self.committer.close, end.earlier(2 * step))
            last.callback(self.fetching.close, end.earlier(3 * step))
            last.callback(self.lookup.close)
            last.callback(self.delivery.end)
            if self.rebalancer is not None:
                last.callback(self._end_group, self.rebalancer, end, scale)
                self.put_down(get_native_id(), finished=finished)
                # the group's thread does so too, but it may be waiting for an answer, and readers are not to
                self.delivery.end()
                self.delivery.revoke(list(self.rebalancer.positions().values()), Deadline(0.0))

    def _end_group(self, rebalancer: GroupThread, end: Deadline, scale: float) -> None:
        """Have the group's thread leave; where it waits for an answer that does not come, take away what it waits
        for.
        """
        patience, last = end.earlier(FORCED * scale), end.earlier(4 * A_STEP * scale)
        self.events.put(StopRequested(deadline=patience))
        if not rebalancer.join(patience):
            if self.committer is not None:
                self.committer.interrupt()
            self._disconnect(last.earlier(A_STEP * scale))
            rebalancer.join(last)
        if self.config.auto_commit_enable:
            positions = rebalancer.left or rebalancer.positions().values()
            self.not_committed = [text for text in map(_not_committed, positions) if text]
            if self.not_committed:
                log.warning(
                    "%s was shut down; these messages are consumed again, for they are not committed: %s",
                    self.consumer,
                    ", ".join(self.not_committed),
                )

    def hurry(self) -> None:
        """Wait for no messages in hand any more, in a close that is under way. Any thread; returns at once."""
        self.events.put(StopRequested(hurried=True))

    def in_hand(self, thread: int) -> Sequence[PartitionPosition]:
        """The positions whose message, or rows, that thread (its native identifier) has in its hands."""
        found = []
        for position in () if self.rebalancer is None else self.rebalancer.positions().values():
            with suppress(KeyError):  # its stream has just been retired
                if position.held and self.delivery.held_by(position, thread):
                    found.append(position)
        return found

    def put_down(self, thread: int, *, finished: bool) -> None:
        """Take messages out of the calling thread's hands, for it waits for the end and asks for nothing more.

        Arguments: ``thread`` is its native identifier; ``finished``: its message counts as finished. Otherwise it is
        consumed again, unless it was committed explicitly already: that is not taken back.
        """
        for position in self.in_hand(thread):
            end = position.finished(including_held=True)
            committed = self.committer is not None and self.committer.counted_in_hand(position) == end
            if (finished or committed) and end is not None:
                position.held_until = end  # finished and no longer held at once, by what follows
                position.consumed = end
            else:
                position.held_until = NOTHING_HELD
            self.delivery.stream_of(position).queue.let_go()

    def _await_first_round(self, rebalancer: GroupThread) -> None:
        began, limit = monotonic(), self._joining_limit()
        try:
            while True:
                try:
                    rebalancer.first_round.result(max(0.0, began + limit - monotonic()))
                    return
                except FutureTimeoutError:
                    if limit >= (limit := self._joining_limit()):
                        raise
        except (FutureTimeoutError, CancelledError) as e:
            detail = rebalancer.state.detail
            better = self._why_not_joined(detail)
            if better is not None:
                raise better from e
            raise ConsumerRebalanceFailedException(
                f"{self.consumer} could not join group {self.config.group_id!r} within {limit:.0f} s: "
                f"{detail or rebalancer.state}"
            ) from e

    # ---- what may be asked

    def count(self, topic: str, messages: int, size: int) -> None:
        """Note what a stream has handed out; called at the end of each chunk."""
        self._consumed.add((topic, messages, size))

    def _tell_consumed(self, chunks: Sequence[tuple[str, int, int]]) -> None:
        """Feed the meters of what was handed out; of many small chunks at once."""
        messages: Counter[str] = Counter()
        sizes: Counter[str] = Counter()
        for topic, count, size in chunks:
            messages[topic] += count
            sizes[topic] += size
        for topic in messages:
            for of_messages, of_bytes in self._meters_of(topic):
                of_messages.mark(messages[topic])
                of_bytes.mark(sizes[topic])

    def _meters_of(self, topic: str) -> tuple[tuple[Meter, Meter], ...]:
        """Messages and bytes of all topics, and of this one."""
        client = (("clientId", self.config.client_id),)
        kind = ("kafka.consumer", "ConsumerTopicMetrics")
        return tuple(
            (
                self.metrics.meter(MetricName(*kind, "MessagesPerSec", tags)),
                self.metrics.meter(MetricName(*kind, "BytesPerSec", tags)),
            )
            for tags in (client, (*client, ("topic", topic)))
        )

    def lags(self) -> dict[TopicPartition, int | None]:
        """The lag of each partition of ours; None where it is not known: nothing was fetched, or nobody leads it."""
        leaderless = self.fetching.leaderless
        positions = {} if self.rebalancer is None else self.rebalancer.positions()
        return {
            tp: None if tp in leaderless or position.lag < 0 else position.lag for tp, position in positions.items()
        }

    def _named(self, name: str) -> MetricName:
        tags = (("clientId", self.config.client_id),)
        return MetricName("kafka.consumer", "ZookeeperConsumerConnector", name, tags)

    def _meter(self, name: str) -> Meter:
        return self.metrics.meter(self._named(name))

    @property
    def in_listener(self) -> bool:
        """Whether the caller is the application's listener, for which the group's thread waits."""
        return self.listener is not None and self.listener.is_current

    def seek(self, offsets: Mapping[TopicPartition, int], deadline: Deadline) -> frozenset[TopicPartition]:
        """Go on at these offsets; returns the partitions that are not ours. Raises TimeoutError."""
        request = SeekRequested(dict(offsets), Answer())
        self.events.put(request)
        try:
            return request.done.result(deadline.remaining())
        except FutureTimeoutError:
            raise TimeoutError(
                f"{self.consumer}: the group's thread did not seek {', '.join(map(str, offsets))} in time; it does so"
                f" later: {self.rebalancer.state if self.rebalancer is not None else ''}"
            ) from None

    def subscribe(
        self, registration: Registration, leaving: Collection[str] = (), retired: Collection[KafkaStream[Any, Any]] = ()
    ) -> Future[None]:
        """Register another subscription; ``retired`` streams end once what they handed out is released. Returns at
        once; the future is set when it is so.
        """
        change = SubscriptionChanged(
            self._registering(registration),
            frozenset(leaving),
            get_native_id(),
            lambda: self.delivery.retire(retired),
            Answer(),
        )
        self.events.put(change)
        return change.done

    def await_change(self, done: Future[None], timeout: float | None) -> None:
        """Wait until the group knows the subscription; from inside the listener there is no waiting, since the
        rebalance waits for it.

        Raises: RegistryUnavailableError at the timeout (seconds), ConnectorClosedException.
        """
        if self.in_listener:
            return
        config = self.config
        users = config.rebalance_drain_timeout_ms + 2 * config.rebalance_listener_timeout_ms
        try:
            done.result(2 * self.request_timeout + users / 1000 if timeout is None else timeout)
        except FutureTimeoutError:
            raise RegistryUnavailableError(
                f"{self.consumer}: the group could not be told in time of the other topics; it is tried further: "
                f"{self.rebalancer.state if self.rebalancer is not None else ''}"
            ) from None

    def _committer(self) -> Committer:
        config = self.config
        return Committer(
            self.consumer,
            self._offsets(),
            self.lease,
            interval=config.auto_commit_interval_ms / 1000 if config.auto_commit_enable else None,
            timeout=self.request_timeout,
            count_held=config.consumed_on == "return",
            refused=lambda outcomes: self.events.put(CommitsRefused(outcomes)),
            retry=config.offsets_channel_backoff_ms / 1000,
            refresh=config.offsets_refresh_interval_ms / 1000 if config.offsets_refresh_interval_ms >= 0 else None,
            barred=self.delivery.refuse,
            moved=lambda offsets: self.events.put(OffsetsMoved(offsets)),
        )

    def _coordinator_channel(self, endpoint: Endpoint) -> BrokerChannel:
        return BrokerChannel(
            endpoint,
            client_id=self.config.client_id,
            socket_timeout=self.config.offsets_channel_socket_timeout_ms / 1000,
            security=self._security,
        )


def _not_committed(position: PartitionPosition) -> str:
    """What of a partition is not committed after the end although it is finished or in hand; empty where nothing is."""
    finished, committed = position.finished(including_held=False), position.committed
    if finished is None or committed == position.finished(including_held=True):
        return ""
    if position.held:
        return f"{position.tp} at {finished} (it was still in hand when time was up)"
    return "" if finished == committed else f"{position.tp} at {finished if committed is None else committed}"


def registered_endpoints(session: Session, config: ConsumerConfig, deadline: Deadline) -> list[Endpoint]:
    """The brokers that are registered in ZooKeeper, each with the address at which to reach it. Raises RegistryError;
    NoReachableEndpointError where none of them has one.
    """
    return reachable(registered_brokers(session, deadline), config)


def reachable(brokers: Iterable[BrokerNode], config: ConsumerConfig) -> list[Endpoint]:
    """Where these brokers are to be reached. Raises NoReachableEndpointError where there is no address for any."""
    found: list[Endpoint] = []
    unreachable: NoReachableEndpointError | None = None
    for broker in brokers:
        try:
            found.append(choose_endpoint(broker.endpoints, config.security_protocol, config.broker_addresses))
        except NoReachableEndpointError as e:
            unreachable = e  # it harms only its own partitions (in the original: those of all brokers)
    if not found and unreachable is not None:
        raise unreachable
    return found


def fetch_settings(config: ConsumerConfig) -> FetchSettings:
    """What of the configuration concerns fetching."""
    return FetchSettings(
        client_id=config.client_id,
        max_wait=config.fetch_wait_max_ms / 1000,
        min_bytes=config.fetch_min_bytes,
        partition_bytes=config.fetch_message_max_bytes,
        max_bytes=min(config.fetch_max_bytes, config.queued_max_bytes),
        reset_to=EARLIEST if config.auto_offset_reset == "smallest" else LATEST,
        socket_timeout=config.socket_timeout_ms / 1000,
        receive_buffer=config.socket_receive_buffer_bytes,
        backoff=config.refresh_leader_backoff_ms / 1000,
        isolation_level=1 if config.isolation_level == "read_committed" else 0,
        skip_corrupt=config.corrupt_message_policy == "skip",
        largest_batch=config.fetch_max_bytes,
        raise_truncated=config.log_truncation_policy == "raise",
    )
