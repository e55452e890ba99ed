"""The parts of a member whose group the brokers coordinate. No algorithm, no decision; threads: see ``parts``.

Imported only where ``group.coordination=kafka`` asks for it. ZooKeeper is connected to only where ``bootstrap.servers``
is not given, to read the brokers' addresses.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence

from zkconsumer.assignors.group_strategy import advertisement
from zkconsumer.config import ConsumerConfig
from zkconsumer.core.registration import STATIC, Registration
from zkconsumer.deadline import Deadline
from zkconsumer.errors import ConfigException, ConsumerRebalanceFailedException, UnknownAssignorError
from zkconsumer.kafka.cluster_metadata import BootstrapBrokers
from zkconsumer.kafka.coordinator_search import CoordinatorSearch
from zkconsumer.kafka.group_channel import Membership
from zkconsumer.member.bridge import members_beside
from zkconsumer.member.coordinator.assignment import ShareSettings
from zkconsumer.member.coordinator.coordinator_requests import Line
from zkconsumer.member.coordinator.events import HeartbeatFailed
from zkconsumer.member.coordinator.generation import Generation
from zkconsumer.member.coordinator.group_thread import CoordinatedMember, MemberSettings
from zkconsumer.member.coordinator.heartbeats import Heartbeats
from zkconsumer.member.coordinator.leader_assignment import GROUP_ASSIGNORS, group_assignor
from zkconsumer.member.coordinator.leader_assignors import GroupAssignor
from zkconsumer.member.coordinator.streams_assignor import StreamsAssignor
from zkconsumer.member.coordinator.topic_interest import Interest
from zkconsumer.member.listener import ConsumerRebalanceListener, Listening
from zkconsumer.model import ConsumerId, Endpoint
from zkconsumer.offsets.committer import Committer
from zkconsumer.offsets.coordinator_store import CoordinatorOffsets, EpochFence
from zkconsumer.offsets.dual_store import DualStore
from zkconsumer.version import VERSION
from zkconsumer.wiring.member_parts import GroupThread, MemberParts, registered_endpoints
from zkconsumer.zookeeper.lease import Lease
from zkconsumer.zookeeper.security import registry_security
from zkconsumer.zookeeper.session import Session

BACKOFF = 0.1
BACKOFF_MAX = 1.0
"""Seconds between two tries to get into the group: the first pause and the longest, as the Java consumer's. Everybody
else's join waits for who pauses, and a session goes on meanwhile.
"""


class KafkaMember(MemberParts):
    """The parts of one member of a group that the brokers coordinate.

    Raises as :class:`MemberParts`; UnknownAssignorError, ConfigException for ``partition.assignment.strategy``.
    """

    def __init__(
        self, config: ConsumerConfig, consumer: ConsumerId, listener: ConsumerRebalanceListener | None = None
    ) -> None:
        self._zookeeper: Session | None = None
        if not config.bootstrap_servers:
            self._zookeeper = Session(
                config.zookeeper_connect,
                timeout=config.zookeeper_session_timeout_ms / 1000,
                on_change=lambda _: None,
                security=registry_security(config),
            )
        self._interest = Interest(Registration(STATIC, {}), exclude_internal=config.exclude_internal_topics)
        self._generation = Generation(
            config.group_id, config.group_instance_id, assignors(config, consumer, self._streams), self._interest
        )
        super().__init__(config, consumer, Lease(), listener)
        self._bootstrap = BootstrapBrokers(
            config.bootstrap_addresses, self._coordinator_channel, config.security_protocol, config.broker_addresses
        )
        self._line = Line(consumer, self._search(), self.events.put, timeout=self.request_timeout)
        self._heartbeats = Heartbeats(
            consumer,
            self._search(),
            self.lease,
            self.events.put,
            interval=config.heartbeat_interval_ms / 1000,
            session=config.session_timeout_ms / 1000,
            rebalance=config.max_poll_interval_ms / 1000,
        )

    @property
    def request_timeout(self) -> float:
        """Seconds that an exchange with the coordinator may take, where it answers at once."""
        return max(self.config.offsets_channel_socket_timeout_ms / 1000, 5.0)

    @property
    def trouble(self) -> str:
        """What is wrong between us and ZooKeeper, where brokers are read from it; empty where nothing is."""
        return "" if self._zookeeper is None else self._zookeeper.trouble

    def _streams(self, topic: str) -> int:
        return self._interest.streams.get(topic, 0)

    def _search(self) -> CoordinatorSearch:
        return CoordinatorSearch(
            self.config.group_id, self._brokers, self._coordinator_channel, lambda: self.fetching.load()
        )

    def _connect(self) -> None:
        if self._zookeeper is not None:
            self._zookeeper.open(Deadline(self.config.zookeeper_connection_timeout_ms / 1000))
            self._refuse_beside(self._zookeeper)
        self._line.open()
        self._heartbeats.open()

    def _refuse_beside(self, session: Session) -> None:
        """Members that know ZooKeeper alone would consume everything as well."""
        config = self.config
        others = members_beside(session, config.group_id, Deadline(self.request_timeout))
        if others:
            raise ConsumerRebalanceFailedException(
                f"group {config.group_id!r} has members that ZooKeeper alone coordinates: {', '.join(others[:3])}; both"
                " kinds would consume everything. Move the group with group.migration=true, or stop them"
            )

    def _disconnect(self, deadline: Deadline) -> None:
        self._heartbeats.close(deadline)
        self._line.close(deadline)
        if self._zookeeper is not None:
            self._zookeeper.close(deadline)

    def _brokers(self, deadline: Deadline) -> Sequence[Endpoint]:
        if self._zookeeper is None:
            return self._bootstrap(deadline)
        return registered_endpoints(self._zookeeper, self.config, deadline)

    def _offsets(self) -> DualStore:
        config = self.config

        def refused(who: Membership, error: Exception) -> None:
            self.events.put(HeartbeatFailed(who, error))

        store = CoordinatorOffsets(
            self._search(),
            self._generation,
            refused,
            self._meter("KafkaCommitsPerSec").mark,
            lambda: {} if self.rebalancer is None else self.rebalancer.positions(),
        )
        return DualStore(
            EpochFence(lambda: self._generation.held),
            elsewhere=store,
            expires=True,
            backoff=min(config.offsets_channel_backoff_ms / 1000, 0.2),
            max_retries=config.offsets_commit_max_retries,
        )

    def _rebalancer(self, registration: Registration, committer: Committer) -> GroupThread:
        config = self.config
        self._interest.subscribe(registration)
        return CoordinatedMember(
            self.consumer,
            member_settings(config, self.request_timeout),
            events=self.events,
            line=self._line,
            heartbeats=self._heartbeats,
            lease=self.lease,
            generation=self._generation,
            interest=self._interest,
            delivery=self.delivery,
            offsets=committer,
            listening=Listening(self.listener, config.rebalance_listener_timeout_ms / 1000),
            rebalanced=self.metrics.timer(self._named("RebalanceRateAndTime")).update,
        )

    def _registering(self, registration: Registration) -> Callable[[], Registration]:
        return lambda: registration

    def _joining_limit(self) -> float:
        config = self.config
        attempts = config.rebalance_max_retries * config.rebalance_backoff_ms
        return max(attempts, 1.5 * config.session_timeout_ms) / 1000


def member_settings(config: ConsumerConfig, request_timeout: float) -> MemberSettings:
    """What of the configuration concerns the group; ``request_timeout`` in seconds."""
    return MemberSettings(
        session=config.session_timeout_ms / 1000,
        max_poll=config.max_poll_interval_ms / 1000,
        interval=config.rebalance_interval_ms / 1000,
        backoff=BACKOFF,
        backoff_max=BACKOFF_MAX,
        request_timeout=request_timeout,
        shares=ShareSettings(
            drain=config.rebalance_drain_timeout_ms / 1000,
            commit=request_timeout,
            auto_commit=config.auto_commit_enable,
        ),
        conflict=config.offset_conflict,
    )


def assignors(config: ConsumerConfig, consumer: ConsumerId, streams: Callable[[str], int]) -> list[GroupAssignor]:
    """The strategies of ``partition.assignment.strategy``, the most wanted first.

    A name that only groups in ZooKeeper know is offered as ``zkconsumer``, which computes it for streams.
    Raises UnknownAssignorError, ConfigException.
    """
    key = "partition.assignment.strategy"
    found: list[GroupAssignor] = []
    for name in (part.strip() for part in config.partition_assignment_strategy.split(",")):
        ours = name == StreamsAssignor.name or name not in GROUP_ASSIGNORS
        inner = config.replace({key: "range" if name == StreamsAssignor.name else name}) if ours else config
        extra = advertisement(inner, host=socket.gethostname(), room=config.machine_room, version=VERSION)
        try:
            made = group_assignor(StreamsAssignor.name if ours else name, inner, consumer, streams, extra)
        except UnknownAssignorError as error:
            also = f"with group.coordination=kafka also {', '.join(sorted({*GROUP_ASSIGNORS, StreamsAssignor.name}))}"
            raise UnknownAssignorError(f"{key}: {error}; {also}") from error
        if made.name in [other.name for other in found]:
            raise ConfigException(key, f"{made.name!r} is offered twice, by {config.partition_assignment_strategy!r}")
        found.append(made)
    return found
