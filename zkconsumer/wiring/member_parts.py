"""The parts that every member has, whichever way its group is coordinated: fetching, streams, listener, metrics.

Threads: the application's thread makes the parts. They guard themselves.
"""

from __future__ import annotations

import os
import socket
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from zkconsumer.assignors.group_strategy import GroupStrategy, advertisement
from zkconsumer.cluster.cluster_client import BrokerChannels, Brokers, zookeeper_session
from zkconsumer.cluster.offset_lookup import OffsetLookup
from zkconsumer.config import ConsumerConfig
from zkconsumer.core.registration import CONFLICT_KEY, PROCESS_KEY, Registration
from zkconsumer.errors import ZkConsumerError
from zkconsumer.fetch.broker_fetch import FetchSettings
from zkconsumer.fetch.fetcher_manager import FetcherManager
from zkconsumer.kafka import Security
from zkconsumer.member.events import CommitsRefused, ListenerReturned, OffsetsMoved, StartsResolved
from zkconsumer.member.group_thread import CoordinationHealth, Inbox, PartitionGroupThread
from zkconsumer.member.interfaces import Source
from zkconsumer.member.listener import ConsumerRebalanceListener, ListenerCalls, ListenerThread
from zkconsumer.member.owned_partitions import OwnedPartitions
from zkconsumer.member.revocation import Revocation, RevocationSettings, UserRequests
from zkconsumer.member.zookeeper.rebalance_round import RebalanceSettings
from zkconsumer.model import EARLIEST, LATEST, ConsumerId
from zkconsumer.offsets.commit_schedule import CommitSettings
from zkconsumer.offsets.committer import Committer
from zkconsumer.offsets.member_store import MemberStore
from zkconsumer.ownership.partition_position import PartitionPosition
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.runtime.metrics import Backlog, Meter, MetricName, Metrics
from zkconsumer.streams.byte_budget import QueueBudget
from zkconsumer.streams.chunk_reader import ChunkReader, read_settings
from zkconsumer.streams.kafka_stream import KafkaStream
from zkconsumer.streams.member_streams import ANY_TOPIC, MemberStreams
from zkconsumer.streams.message import MessageAndMetadata
from zkconsumer.streams.rate_limit import HandOutGate, RateLimitedLease
from zkconsumer.streams.stream_queue import StreamQueue
from zkconsumer.version import VERSION
from zkconsumer.zookeeper.lease import Lease
from zkconsumer.zookeeper.ownership_transactions import Outcome
from zkconsumer.zookeeper.session import Session, SessionChanged

if TYPE_CHECKING:
    from zkconsumer.fetch.message_lookup import MessageLookup

StreamT = TypeVar("StreamT", bound=KafkaStream[Any, Any])


def stamped(config: ConsumerConfig, session: Session, registration: Registration) -> Registration:
    """Return the registration with the present time, the keys that strategies use, ``offset.conflict`` and pid."""
    extra = dict(registration.extra) | advertisement(
        config, host=socket.gethostname(), address=session.local_address, room=config.machine_room, version=VERSION
    )
    extra[CONFLICT_KEY] = config.offset_conflict
    extra[PROCESS_KEY] = str(os.getpid())
    return replace(registration, timestamp=str(time.time_ns() // 1_000_000), extra=extra)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberEnvironment:
    """The outside world of a member, and its replaceable parts. The defaults are production's.

    Arguments: ``session`` makes a ZooKeeper session; ``events`` makes the queue that the group thread waits on;
    ``stamp`` completes a registration; ``timing`` adjusts the limits of rebalances; ``committer`` is the committer's
    class. ``delivery`` replaces the streams, ``source`` the fetching, and ``strategy`` the configured one (ZooKeeper
    only). ``joins_patiently``: a join may take as long as the rebalance timeout (brokers only).
    """

    session: Callable[[ConsumerConfig, Callable[[SessionChanged], None]], Session] = zookeeper_session
    events: Callable[[], SimpleQueue[Any]] = SimpleQueue
    stamp: Callable[[ConsumerConfig, Session, Registration], Registration] = stamped
    timing: Callable[[RebalanceSettings], RebalanceSettings] = lambda settings: settings
    committer: type[Committer] = Committer
    delivery: Any = None
    source: Source | None = None
    strategy: GroupStrategy | None = None
    joins_patiently: bool = False


class Ownership(NamedTuple):
    """The parts of an engine that do not depend on its coordinator."""

    inbox: Inbox
    owned: OwnedPartitions
    revocation: Revocation


class MemberParts:
    """The parts of one member that do not depend on the coordinator of its group. Nothing is connected or started.

    Arguments: ``lease`` says how long messages may be handed out; ``brokers`` returns the brokers there are now, and
    may raise RegistryError or BrokerError; ``events`` is the queue of the group thread.
    """

    balanced = False
    """Whether messages are finished in any order, so that claims read the notes of those that are. Set it before the
    streams are made.
    """
    slots_by_key = True
    """Whether the slots of messages follow from their keys, or from their offsets."""

    def __init__(
        self,
        config: ConsumerConfig,
        consumer: ConsumerId,
        *,
        lease: Lease,
        brokers: Brokers,
        channels: BrokerChannels,
        events: SimpleQueue[Any],
        listener: ConsumerRebalanceListener | None,
        environment: MemberEnvironment,
    ) -> None:
        self.config = config
        self.consumer = consumer
        self.lease = lease
        self.brokers = brokers
        self.channels = channels
        self.events = events
        self.environment = environment
        self.metrics = Metrics()
        self._consumed: Backlog[tuple[str, int, int]] = Backlog(self.metrics, self._tell_consumed)
        self.budget = QueueBudget(config.queued_max_bytes)
        settings = fetch_settings(config, channels.security)
        self.delivery: MemberStreams = environment.delivery or MemberStreams(consumer, lease)
        self.fetching = FetcherManager(
            consumer,
            settings,
            brokers,
            fetchers_per_broker=config.num_consumer_fetchers,
            resolved=lambda starts: events.put(StartsResolved(starts)),
            refused=self.delivery.refuse,
            metrics=self.metrics,
            budget=self.budget,
        )
        rate = config.consumed_max_per_second
        self.gate: HandOutGate = RateLimitedLease(lease, rate) if rate else lease
        self.lookup = OffsetLookup(brokers, settings.channel, settings.backoff, settings.isolation_level)
        self.listener = None if listener is None else ListenerThread(listener, consumer, self._listener_returned)

    def message_lookup(self) -> MessageLookup:
        """Return what reads single messages, with connections of its own."""
        from zkconsumer.fetch.message_lookup import MessageLookup

        config = self.config
        return MessageLookup(
            fetch_settings(config, self.channels.security),
            self.brokers,
            check_crc=config.check_crcs,
            expanded=config.batch_expanded_max_bytes,
        )

    def _listener_returned(self) -> None:
        self.events.put(ListenerReturned())

    def committer(self, offsets: MemberStore, request_timeout: float) -> Committer:
        """Return a committer that is not open yet."""
        config = self.config
        return self.environment.committer(
            self.consumer,
            offsets,
            self.lease,
            CommitSettings(
                interval=config.auto_commit_interval_ms / 1000 if config.auto_commit_enable else None,
                timeout=request_timeout,
                count_held=config.consumed_on == "return",
                retry=config.offsets_channel_backoff_ms / 1000,
                refresh=config.offsets_refresh_interval_ms / 1000 if config.offsets_refresh_interval_ms >= 0 else None,
                balanced=lambda: self.balanced,
                by_key=lambda: self.slots_by_key,
            ),
            refused=self._commits_refused,
            moved=lambda offsets: self.events.put(OffsetsMoved(offsets)),
            barred=self.delivery.refuse,
        )

    def _commits_refused(self, outcomes: Mapping[PartitionPosition, Outcome]) -> None:
        tags = (("clientId", self.config.client_id),)
        self.metrics.meter(MetricName("zkconsumer", "Member", "CommitsRefused", tags)).mark(len(outcomes))
        self.events.put(CommitsRefused(outcomes))

    def ownership(self, committer: Committer, keep_alive: Callable[[], object] = lambda: None) -> Ownership:
        """Return the parts of an engine that do not depend on its coordinator.

        Arguments: ``keep_alive`` is called while the group thread waits for the user.
        """
        config, inbox = self.config, Inbox(self.events)
        owned = OwnedPartitions(self.environment.source or self.fetching, self.delivery, committer, self.events.put)
        requests = UserRequests(inbox, owned, keep_alive)
        calls = ListenerCalls(self.consumer, requests.serve, self.listener, config.rebalance_listener_timeout_ms / 1000)
        settings = RevocationSettings(config.rebalance_drain_timeout_ms / 1000, config.auto_commit_enable)
        return Ownership(inbox, owned, Revocation(settings, inbox, owned, requests, calls))

    def borrowing_stream(self, topic: str) -> KafkaStream[Any, Any]:
        """Return a stream for messages of other members' partitions, decoded as those of the topic's own streams."""
        of_topic = {name: stream.message_class for name, _, stream in self.delivery.streams()}
        message = of_topic.get(topic) or of_topic[ANY_TOPIC]
        return self.new_stream(f"{topic}/{self.consumer}-borrowed", message, lambda: None, KafkaStream)

    def new_stream(
        self,
        name: str,
        message: type[MessageAndMetadata[Any, Any]],
        ended: Callable[[], None],
        kind: type[StreamT],
        why: Callable[[], str] = lambda: "",
    ) -> StreamT:
        """Return a new stream of this class, which nothing flows into yet."""
        config = self.config
        settings = read_settings(config)
        queue = StreamQueue(config.queued_max_message_chunks, self.fetching.wake, self.budget, why)
        return kind(
            ChunkReader(name, queue, self.gate, settings, self._count),
            timeout=read_timeout(config),
            ends_on_timeout=config.consumer_timeout_action == "end",
            message_class=message,
            ended=ended,
        )

    # ---- metrics

    def meter(self, name: str) -> Meter:
        """Return one of the connector's meters."""
        return self.metrics.meter(self._named(name))

    @property
    def round_timer(self) -> Callable[[float], None]:
        """The metric of the durations of rebalances, in seconds."""
        return self.metrics.timer(self._named("RebalanceRateAndTime")).update

    def _named(self, name: str) -> MetricName:
        tags = (("clientId", self.config.client_id),)
        return MetricName("kafka.consumer", "ZookeeperConsumerConnector", name, tags)

    def _count(self, topic: str, messages: int, size: int) -> None:
        """Count the messages that a stream has handed out; a stream calls this at the end of each chunk."""
        self._consumed.add((topic, messages, size))

    def _tell_consumed(self, chunks: Sequence[tuple[str, int, int]]) -> None:
        """Mark the meters for several chunks at once."""
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
        """Return the meters of messages and bytes: of all topics, and of this one."""
        client = (("clientId", self.config.client_id),)
        kind = ("kafka.consumer", "ConsumerTopicMetrics")
        return tuple(
            (
                self.metrics.meter(MetricName(*kind, "MessagesPerSec", tags)),
                self.metrics.meter(MetricName(*kind, "BytesPerSec", tags)),
            )
            for tags in (client, (*client, ("topic", topic)))
        )


class Coordination(ABC):
    """The parts of a member that depend on the coordinator of its group: ZooKeeper, the brokers, or both.

    Arguments: ``coordinator`` is its name in words; ``session`` is None if the member needs no ZooKeeper.
    """

    def __init__(self, parts: MemberParts, session: Session | None, coordinator: str) -> None:
        self.parts = parts
        self.session = session
        self._coordinator = coordinator
        self._engine: PartitionGroupThread | None = None

    @property
    @abstractmethod
    def request_timeout(self) -> float:
        """The limit of a request that the coordinator answers at once, in seconds."""

    @property
    def trouble(self) -> str:
        """A problem between the member and the coordinator, for the user; empty if there is none."""
        return "" if self.session is None else self.session.trouble

    @property
    def concern(self) -> str:
        """A warning about the group, as a text for the user; empty if there is none."""
        return ""

    @property
    def incremental(self) -> bool:
        """Whether a partition that another member gives up for us comes with a later generation."""
        return False

    @property
    def sides(self) -> Sequence[CoordinationHealth]:
        """The coordinations of this member, none before its engine is made. Any thread; takes no lock."""
        made = self._engine
        return () if made is None else (CoordinationHealth(self._coordinator, made, self.parts.lease, self.concern),)

    @property
    def threads(self) -> Sequence[Thread]:
        """The threads that talk to the coordinator, beside group threads. Any thread; takes no lock."""
        return ()

    @abstractmethod
    def connect(self) -> None:
        """Connect. Raises RegistryError, ConsumerRebalanceFailedException."""

    @abstractmethod
    def disconnect(self, deadline: Deadline) -> None:
        """Close all connections to the coordinator. May be called again."""

    @abstractmethod
    def offsets(self) -> MemberStore:
        """Return the store of the group's offsets."""

    @abstractmethod
    def engine(self, registration: Registration, committer: Committer) -> PartitionGroupThread:
        """Return the engine, not started. The coordinator is connected."""

    @abstractmethod
    def joining_limit(self) -> float:
        """Return the seconds that joining may take; asked again when they are over."""

    def why_not_joined(self, detail: str) -> ZkConsumerError | None:
        """Return a better error for a failed join than the general one, if there is one."""
        return None


def read_timeout(config: ConsumerConfig) -> float | None:
    """Return the seconds that a read waits for a message, None for ever."""
    return config.consumer_timeout_ms / 1000 if config.consumer_timeout_ms >= 0 else None


def fetch_settings(config: ConsumerConfig, security: Security | None = None) -> FetchSettings:
    """Return the settings of fetching. Arguments: ``security`` of the connections."""
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
        security=security,
        rack=config.client_rack,
    )
