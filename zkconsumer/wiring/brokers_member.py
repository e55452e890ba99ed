"""The parts of a member whose group the brokers coordinate. No algorithm, no decision.

Imported only for ``group.coordination=kafka``. The member connects to ZooKeeper only without ``bootstrap.servers``, to
read the brokers' addresses.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from queue import SimpleQueue
from threading import Thread
from typing import Any

from zkconsumer.assignors.group_strategy import advertisement
from zkconsumer.assignors.java_consumer_assignors import GroupAssignor
from zkconsumer.config import ConsumerConfig
from zkconsumer.core.registration import STATIC, Registration
from zkconsumer.errors import ConfigException, ConsumerRebalanceFailedException, UnknownAssignorError
from zkconsumer.kafka.coordinator_client import CoordinatorSearch
from zkconsumer.kafka.group_channel import Membership
from zkconsumer.member.brokers.assignment import OwnedAssignment
from zkconsumer.member.brokers.coordinator_requests import CoordinatorRequests
from zkconsumer.member.brokers.generation import Generation
from zkconsumer.member.brokers.heartbeats import HeartbeatFailed, Heartbeats, LeaseRenewal
from zkconsumer.member.brokers.join_protocol import JoinProtocol, MemberSettings
from zkconsumer.member.brokers.leader_assignment import GROUP_ASSIGNORS, group_assignor
from zkconsumer.member.brokers.rebalancer import BrokersRebalancer
from zkconsumer.member.brokers.status import CoordinatedStatus
from zkconsumer.member.brokers.topic_interest import TopicInterest
from zkconsumer.member.brokers.zkconsumer_assignor import ZkconsumerAssignor
from zkconsumer.member.group_thread import PartitionGroupThread
from zkconsumer.member.migration_bridge import members_beside
from zkconsumer.member.offset_conflicts import OffsetConflicts
from zkconsumer.model import ConsumerId, TopicPartition
from zkconsumer.offsets.committer import Committer
from zkconsumer.offsets.kafka_store import MemberOffsets
from zkconsumer.offsets.member_store import MemberStore
from zkconsumer.ownership.partition_position import PartitionPosition
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.version import VERSION
from zkconsumer.wiring.member_parts import Coordination, MemberParts
from zkconsumer.zookeeper.lease import Lease
from zkconsumer.zookeeper.session import Session

BACKOFF = 0.1
BACKOFF_MAX = 1.0
"""Seconds between two attempts to join: the first pause and the longest, as in the Java consumer. The joins of all
other members wait for a pausing one, and its session goes on meanwhile.
"""


class BrokerGroup:
    """A member's dealings with a group that the brokers coordinate: subscription, generation, requests, heartbeats.

    Arguments: ``config`` names the brokers' strategies; ``name`` names the threads; ``events`` is the queue of the
    group thread; heartbeats renew ``lease``; ``timeout`` limits a request, in seconds; ``client_id`` replaces the
    configured one.
    Raises: UnknownAssignorError, ConfigException for ``partition.assignment.strategy``.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        parts: MemberParts,
        name: str,
        *,
        events: SimpleQueue[Any],
        lease: Lease,
        timeout: float,
        client_id: str | None = None,
    ) -> None:
        self._lease = lease
        self.interest = TopicInterest(Registration(STATIC, {}), exclude_internal=config.exclude_internal_topics)
        self.generation = Generation(
            config.group_id,
            config.group_instance_id,
            assignors(config, parts.consumer, lambda topic: self.interest.streams.get(topic, 0)),
            self.interest,
        )
        self.requests = CoordinatorRequests(name, coordinator_search(parts, client_id), events.put, timeout=timeout)
        self._heartbeats = Heartbeats(
            name,
            coordinator_search(parts, client_id),
            LeaseRenewal(lease, config.session_timeout_ms / 1000, config.max_poll_interval_ms / 1000),
            events.put,
            config.heartbeat_interval_ms / 1000,
        )

    def open(self) -> None:
        """Start the threads of requests and heartbeats."""
        for thread in self.threads:
            thread.start()

    @property
    def threads(self) -> Sequence[Thread]:
        """The threads of requests and heartbeats."""
        return (self.requests.thread, self._heartbeats.thread)

    def close(self, deadline: Deadline) -> None:
        """End these threads. May be called again."""
        self._heartbeats.close(deadline)
        self.requests.close(deadline)

    def join_protocol(self, settings: MemberSettings) -> JoinProtocol:
        """Return the protocol by which the group thread joins."""
        return JoinProtocol(settings, self.requests, self._heartbeats, self._lease, self.generation, self.interest)


class BrokerCoordination(Coordination):
    """The requests, the offsets and the group thread of a member whose group the brokers coordinate.

    Arguments: ``session`` reads the brokers from ZooKeeper; None with ``bootstrap.servers``.
    Raises: UnknownAssignorError, ConfigException for ``partition.assignment.strategy``.
    """

    def __init__(self, parts: MemberParts, session: Session | None) -> None:
        super().__init__(parts, session, "the brokers")
        self.group = BrokerGroup(
            parts.config, parts, parts.consumer, events=parts.events, lease=parts.lease, timeout=self.request_timeout
        )

    @property
    def request_timeout(self) -> float:
        """The limit of an exchange with a coordinator that answers at once, in seconds."""
        return request_timeout(self.parts.config)

    @property
    def incremental(self) -> bool:
        """Whether a partition that another member gives up for us comes with a later generation."""
        return self.group.generation.incremental

    @property
    def threads(self) -> Sequence[Thread]:
        """The threads of requests and heartbeats."""
        return self.group.threads

    def connect(self) -> None:
        """Connect to ZooKeeper, if brokers are read from there, and start the threads of the requests."""
        if self.session is not None:
            self.session.open(Deadline(self.parts.config.zookeeper_connection_timeout_ms / 1000))
            self._refuse_beside(self.session)
        self.group.open()

    def _refuse_beside(self, session: Session) -> None:
        """Refuse to join beside members that know ZooKeeper alone: both kinds would consume everything."""
        group = self.parts.config.group_id
        others = members_beside(session, group, Deadline(self.request_timeout))
        if others:
            raise ConsumerRebalanceFailedException(
                f"group {group!r} has members that ZooKeeper alone coordinates: {', '.join(others[:3])}; both"
                " kinds would consume everything. Move the group with group.migration=true, or stop them"
            )

    def disconnect(self, deadline: Deadline) -> None:
        """End the threads of the requests, and close the session."""
        self.group.close(deadline)
        if self.session is not None:
            self.session.close(deadline)

    def offsets(self) -> MemberStore:
        """Return the store of the group's offsets: its coordinator."""
        config, parts = self.parts.config, self.parts

        def refused(who: Membership, error: Exception) -> None:
            parts.events.put(HeartbeatFailed(who, error))

        store = MemberOffsets(
            coordinator_search(parts),
            self.group.generation,
            refused,
            parts.meter("KafkaCommitsPerSec").mark,
            self._positions,
        )
        return MemberStore(
            store,
            elsewhere=store,
            expires=True,
            backoff=min(config.offsets_channel_backoff_ms / 1000, 0.2),
            max_retries=config.offsets_commit_max_retries,
        )

    def _positions(self) -> Mapping[TopicPartition, PartitionPosition]:
        return {} if self._engine is None else self._engine.positions()

    def engine(self, registration: Registration, committer: Committer) -> PartitionGroupThread:
        """Return the engine, not started."""
        parts, settings = self.parts, member_settings(self.parts.config)
        self.group.interest.join_with(registration)
        inbox, owned, revocation = parts.ownership(committer)
        rebalancer = BrokersRebalancer(
            settings,
            inbox=inbox,
            join=self.group.join_protocol(settings),
            lease=parts.lease,
            assignment=OwnedAssignment(parts.consumer, owned, revocation, settings.request_timeout),
            status=CoordinatedStatus(settings, parts.delivery.refuse, parts.round_timer),
            conflicts=OffsetConflicts(settings.conflict, owned, None, settings.request_timeout),
            readers=parts.delivery if parts.environment.delivery is None else None,
        )
        self._engine = made = PartitionGroupThread(parts.consumer, inbox, rebalancer, owned)
        return made

    def joining_limit(self) -> float:
        """Return the seconds that joining may take.

        A patient member waits for the rebalance timeout once it has found the coordinator: the group is complete only
        when other members have finished their batches.
        """
        config = self.parts.config
        attempts = config.rebalance_max_retries * config.rebalance_backoff_ms
        limit = max(attempts, 1.5 * config.session_timeout_ms) / 1000
        patient = self.parts.environment.joins_patiently and self.group.requests.found
        return max(limit, config.max_poll_interval_ms / 1000) if patient else limit


def coordinator_search(parts: MemberParts, client_id: str | None = None) -> CoordinatorSearch:
    """Return a search for the coordinator of the group; ``client_id`` is by default the configured one."""
    return CoordinatorSearch(
        parts.config.group_id,
        parts.brokers,
        lambda endpoint: parts.channels(endpoint, client_id),
        parts.fetching.fetchers.load,
    )


def request_timeout(config: ConsumerConfig) -> float:
    """Return the seconds that an exchange may take with a coordinator that answers at once."""
    return max(config.offsets_channel_socket_timeout_ms / 1000, 5.0)


def member_settings(config: ConsumerConfig, limit: float | None = None) -> MemberSettings:
    """Return the settings of the group thread; ``limit`` replaces the seconds of a request."""
    limit = request_timeout(config) if limit is None else limit
    return MemberSettings(
        session=config.session_timeout_ms / 1000,
        max_poll=config.max_poll_interval_ms / 1000,
        interval=config.rebalance_interval_ms / 1000,
        backoff=BACKOFF,
        backoff_max=BACKOFF_MAX,
        request_timeout=limit,
        drain=config.rebalance_drain_timeout_ms / 1000,
        auto_commit=config.auto_commit_enable,
        conflict=config.offset_conflict,
    )


def assignors(config: ConsumerConfig, consumer: ConsumerId, streams: Callable[[str], int]) -> list[GroupAssignor]:
    """Return the strategies of ``partition.assignment.strategy``, the preferred one first.

    A strategy that only groups in ZooKeeper know is offered as ``zkconsumer``, which computes it for streams.
    Raises: UnknownAssignorError, ConfigException.
    """
    key = "partition.assignment.strategy"
    found: list[GroupAssignor] = []
    for name in (part.strip() for part in config.partition_assignment_strategy.split(",")):
        ours = name == ZkconsumerAssignor.name or name not in GROUP_ASSIGNORS
        inner = config.replace({key: "range" if name == ZkconsumerAssignor.name else name}) if ours else config
        extra = advertisement(inner, host=socket.gethostname(), room=config.machine_room, version=VERSION)
        try:
            made = group_assignor(ZkconsumerAssignor.name if ours else name, inner, consumer, streams, extra)
        except UnknownAssignorError as error:
            also = (
                f"with group.coordination=kafka also {', '.join(sorted({*GROUP_ASSIGNORS, ZkconsumerAssignor.name}))}"
            )
            raise UnknownAssignorError(f"{key}: {error}; {also}") from error
        if made.name in [other.name for other in found]:
            raise ConfigException(key, f"{made.name!r} is offered twice, by {config.partition_assignment_strategy!r}")
        found.append(made)
    return found
