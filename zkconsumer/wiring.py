"""One member's parts, made from a configuration and put together. No algorithm, no decision.

Threads: :class:`Member` is made and opened by the application's thread, closed by whichever shuts down; in between it
only holds the parts, which guard themselves.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import ExitStack
from dataclasses import replace
from queue import SimpleQueue
from threading import get_native_id
from typing import Any

from zkconsumer.brokers import BrokerChannel, channel_security, choose_endpoint
from zkconsumer.config import ConsumerConfig
from zkconsumer.core.assignors.strategy import advertisement, assignment_strategy
from zkconsumer.core.registration import Registration
from zkconsumer.deadline import Deadline
from zkconsumer.delivery import Delivery
from zkconsumer.errors import (
    ConnectorClosedException,
    ConsumerIdInUseError,
    ConsumerRebalanceFailedException,
    NoReachableEndpointError,
    RegistryUnavailableError,
)
from zkconsumer.fetch.fetcher import EARLIEST, LATEST, FetchSettings
from zkconsumer.fetch.lookup import OffsetLookup
from zkconsumer.fetch.manager import FetchManager
from zkconsumer.group.events import (
    CommitsRefused,
    Event,
    ListenerReturned,
    NodeChanged,
    SeekRequested,
    StartResolved,
    StopRequested,
    SubscriptionChanged,
)
from zkconsumer.group.listener import ConsumerRebalanceListener, ListenerThread, Listening
from zkconsumer.group.model import ModelMembership
from zkconsumer.group.rebalancer import Rebalancer, RebalanceSettings
from zkconsumer.group.reports import Reports
from zkconsumer.metrics import Meter, MetricName, Metrics
from zkconsumer.model import ConsumerId, Endpoint, TopicPartition
from zkconsumer.offsets.committer import Committer
from zkconsumer.offsets.kafka import KafkaOffsets
from zkconsumer.offsets.owned import OwnedOffsets
from zkconsumer.offsets.store import OffsetStore
from zkconsumer.offsets.zookeeper import ZooKeeperOffsets
from zkconsumer.registry import paths
from zkconsumer.registry.brokers import registered_brokers
from zkconsumer.registry.security import registry_security
from zkconsumer.registry.session import Session
from zkconsumer.registry.watches import NodeCache
from zkconsumer.streams import KafkaStream, PacedLease, QueueBudget
from zkconsumer.streams.pace import Gate
from zkconsumer.version import VERSION

log = logging.getLogger(__name__)

BACKOFF_MAX = 10.0


class Member:
    """The parts of one member of a group: session, fetching, delivery, and once opened committer and rebalancer.

    Nothing is connected or started before :meth:`open`. Raises ConfigException where a file that the configuration
    names cannot be used, MissingExtraError where a login needs a library.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        consumer: ConsumerId,
        offset_store: OffsetStore | None = None,
        listener: ConsumerRebalanceListener | None = None,
    ) -> None:
        self.config = config
        self._offset_store = offset_store
        self.consumer = consumer
        self.group = own_group(config)
        self.strategy = assignment_strategy(config)
        self.metrics = Metrics()
        self.events: SimpleQueue[Event] = SimpleQueue()
        self._security = channel_security(config)
        self.session = Session(
            config.zookeeper_connect,
            timeout=config.zookeeper_session_timeout_ms / 1000,
            on_change=self.events.put,
            security=registry_security(config),
        )
        self.budget = QueueBudget(config.queued_max_bytes)
        self.fetching = FetchManager(
            consumer,
            replace(fetch_settings(config), security=self._security),
            self._brokers,
            fetchers_per_broker=config.num_consumer_fetchers,
            resolved=lambda position, offset: self.events.put(StartResolved(position, offset)),
            refused=lambda error: self.delivery.refuse(error),
            metrics=self.metrics,
            budget=self.budget,
        )
        lease, rate = self.session.lease, config.consumed_max_per_second
        self.gate: Gate = PacedLease(lease, rate) if rate else lease
        self.delivery = Delivery(consumer, self.fetching, lease)
        self.lookup = OffsetLookup(replace(fetch_settings(config), security=self._security), self._brokers)
        self.listener = (
            ListenerThread(listener, consumer, lambda: self.events.put(ListenerReturned()))
            if listener is not None
            else None
        )
        self.committer: Committer | None = None
        self.rebalancer: Rebalancer | None = None
        self._membership: ModelMembership | None = None
        self._closing = False

    @property
    def request_timeout(self) -> float:
        """Seconds that a request on ZooKeeper may take."""
        return max(self.session.timeout, 5.0)

    def open(self, registration: Registration) -> None:
        """Connect, start all threads, and wait for the first rebalance.

        It is awaited so that a wrong set-up is an exception here and not a silent stream.
        Raises: what :meth:`ZookeeperConsumerConnector.create_message_streams` raises; close the member then.
        """
        log.debug("%s: effective configuration: %s", self.consumer, self.config.masked())
        self._check_open()
        self.session.open(Deadline(self.config.zookeeper_connection_timeout_ms / 1000))
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

        May be called again, for what :meth:`open` began at the same time.
        """
        self._closing = True
        with ExitStack() as last:  # in reverse, and each step also if one before it failed
            if self.listener is not None:
                last.callback(self.listener.close, deadline)
            last.callback(self.session.close, deadline)
            if self.committer is not None:
                last.callback(self.committer.close, deadline)
            last.callback(self.fetching.close, deadline)
            last.callback(self.lookup.close)
            last.callback(self.delivery.end)
            if self.rebalancer is not None:
                self.events.put(StopRequested(get_native_id(), finished))
                if not self.rebalancer.join(Deadline(max(0.0, deadline.bounded(60.0) - 1.5))):
                    # it waits for an answer that does not come: take the session away under it
                    self.session.close(Deadline(deadline.bounded(1.0)))
                    self.rebalancer.join(deadline)

    @property
    def concern(self) -> str:
        """What is strange in the group, in words for the user; empty where nothing is."""
        return "" if self._membership is None else self._membership.concern

    def count(self, topic: str, messages: int, size: int) -> None:
        """Note what a stream has handed out; called at the end of each chunk."""
        client = (("clientId", self.config.client_id),)
        for tags in (client, (*client, ("topic", topic))):
            for name, events in (("MessagesPerSec", messages), ("BytesPerSec", size)):
                self.metrics.meter(MetricName("kafka.consumer", "ConsumerTopicMetrics", name, tags)).mark(events)

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
        request = SeekRequested(dict(offsets), Future())
        self.events.put(request)
        return request.done.result(deadline.remaining())

    def subscribe(
        self, registration: Registration, leaving: Collection[str] = (), retired: Collection[KafkaStream[Any, Any]] = ()
    ) -> Future[None]:
        """Register another subscription; ``retired`` streams end once what they handed out is released. Returns at
        once; the future is set when it is so.
        """
        change = SubscriptionChanged(
            self._advertising(registration),
            frozenset(leaving),
            get_native_id(),
            lambda: self.delivery.retire(retired),
            Future(),
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
            self.session.lease,
            interval=config.auto_commit_interval_ms / 1000 if config.auto_commit_enable else None,
            timeout=self.request_timeout,
            count_held=config.consumed_on == "return",
            refused=lambda outcomes: self.events.put(CommitsRefused(outcomes)),
            retry=config.offsets_channel_backoff_ms / 1000,
            refresh=config.offsets_refresh_interval_ms / 1000 if config.offsets_refresh_interval_ms >= 0 else None,
            barred=self.delivery.refuse,
        )

    def _offsets(self) -> OwnedOffsets:
        """Where offsets are kept, by ``offsets.storage`` or the user's own store."""
        config = self.config
        in_kafka = config.offsets_storage == "kafka" and self._offset_store is None
        return OwnedOffsets(
            ZooKeeperOffsets(self.session, self.group, self._meter("ZooKeeperCommitsPerSec").mark),
            KafkaOffsets(
                self.group,
                self._brokers,
                self._coordinator_channel,
                self._meter("KafkaCommitsPerSec").mark,
                self.fetching.load,
            )
            if in_kafka
            else self._offset_store,
            dual=config.dual_commit_enabled,
            expires=in_kafka,
            backoff=config.offsets_channel_backoff_ms / 1000,
            max_retries=config.offsets_commit_max_retries,
        )

    def _coordinator_channel(self, endpoint: Endpoint) -> BrokerChannel:
        return BrokerChannel(
            endpoint,
            client_id=self.config.client_id,
            socket_timeout=self.config.offsets_channel_socket_timeout_ms / 1000,
            security=self._security,
        )

    def _rebalancer(self, registration: Registration, committer: Committer) -> Rebalancer:
        config = self.config
        cache = NodeCache(self.session, lambda path: self.events.put(NodeChanged(path)))
        self._membership = membership = ModelMembership(
            self.session,
            cache,
            self.group,
            self.consumer,
            self._advertising(registration),
            shared=config.group_id,
            exclude_internal_topics=config.exclude_internal_topics,
            wants_racks=self.strategy.wants_racks,
        )
        return Rebalancer(
            self.consumer,
            self.group,
            rebalance_settings(config, self.request_timeout),
            events=self.events,
            session=self.session,
            cache=cache,
            membership=membership,
            delivery=self.delivery,
            offsets=committer,
            assign=self.strategy,
            reports=Reports(self.strategy.name, self.strategy.concern),
            rebalanced=self.metrics.timer(self._named("RebalanceRateAndTime")).update,
            listening=Listening(self.listener, config.rebalance_listener_timeout_ms / 1000),
        )

    def _advertising(self, registration: Registration) -> Callable[[], Registration]:
        """What to register: the subscription, what strategies may want to know of us, and the time of the call."""

        def stamped() -> Registration:
            known = advertisement(
                self.config,
                host=socket.gethostname(),
                address=self.session.local_address,
                room=self.config.machine_room,
                version=VERSION,
            )
            return replace(registration, timestamp=str(time.time_ns() // 1_000_000), extra=known)

        return stamped

    def _await_first_round(self, rebalancer: Rebalancer) -> None:
        config = self.config
        attempts = config.rebalance_max_retries * config.rebalance_backoff_ms
        limit = max(attempts, 1.5 * config.zookeeper_session_timeout_ms) / 1000
        try:
            rebalancer.first_round.result(limit)
        except (FutureTimeoutError, CancelledError) as e:
            if self._membership is not None and self._membership.refusal is not None:
                raise self._membership.refusal from e
            detail = rebalancer.state.detail
            if "consumer.id" in detail:
                raise ConsumerIdInUseError(detail) from e
            raise ConsumerRebalanceFailedException(
                f"{self.consumer} could not join group {config.group_id!r} within {limit:.0f} s: "
                f"{detail or rebalancer.state}"
            ) from e

    def _brokers(self, deadline: Deadline) -> Sequence[Endpoint]:
        config = self.config
        found: list[Endpoint] = []
        unreachable: NoReachableEndpointError | None = None
        for broker in registered_brokers(self.session, deadline):
            try:
                found.append(choose_endpoint(broker.endpoints, config.security_protocol, config.broker_addresses))
            except NoReachableEndpointError as e:
                unreachable = e  # it harms only its own partitions (in the original: those of all brokers)
        if not found and unreachable is not None:
            raise unreachable
        return found


def own_group(config: ConsumerConfig) -> str:
    """Where a member registers, owns and commits: its group, or, broadcasting, a group of its own."""
    if config.message_model == "broadcasting" and config.consumer_id is not None:
        return paths.broadcast_group(config.group_id, config.consumer_id)
    return config.group_id


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
    )


def rebalance_settings(config: ConsumerConfig, request_timeout: float) -> RebalanceSettings:
    """What of the configuration concerns the group; ``request_timeout`` in seconds."""
    return RebalanceSettings(
        quiet=config.rebalance_quiet_ms / 1000,
        backoff=min(0.2, config.rebalance_backoff_ms / 1000),
        backoff_max=min(BACKOFF_MAX, max(0.2, config.rebalance_backoff_ms / 1000)),
        drain=config.rebalance_drain_timeout_ms / 1000,
        interval=config.rebalance_interval_ms / 1000,
        request_timeout=request_timeout,
        auto_commit=config.auto_commit_enable,
        exclude_internal_topics=config.exclude_internal_topics,
        patience=config.rebalance_max_retries * config.rebalance_backoff_ms / 1000 + 1.0,
        conflict=config.offset_conflict,
    )
