"""The parts of a member whose group ZooKeeper coordinates. No algorithm, no decision."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from zkconsumer.assignors.group_strategy import GroupStrategy
from zkconsumer.cluster.cluster_client import reachable
from zkconsumer.config import ConsumerConfig
from zkconsumer.core.registration import PLAN_KEY, STORE_KEY, Registration
from zkconsumer.errors import ConsumerIdInUseError, ZkConsumerError
from zkconsumer.member.events import NodeChanged
from zkconsumer.member.group_thread import PartitionGroupThread
from zkconsumer.member.offset_conflicts import OffsetConflicts
from zkconsumer.member.zookeeper.claim_plan import Assign
from zkconsumer.member.zookeeper.group_registration import GroupReader, OwnRegistration
from zkconsumer.member.zookeeper.model_registration import ModelRegistration
from zkconsumer.member.zookeeper.orphaned_partitions import OrphanedPartitions
from zkconsumer.member.zookeeper.owner_nodes import OwnerNodes
from zkconsumer.member.zookeeper.rebalance_round import AppliedStrategy, RebalanceRounds, RebalanceSettings
from zkconsumer.member.zookeeper.rebalancer import Rebalancer
from zkconsumer.member.zookeeper.session_monitor import SessionMonitor
from zkconsumer.member.zookeeper.status import Status
from zkconsumer.model import LAG_AWARE, ConsumerId, Endpoint
from zkconsumer.offsets.committer import Committer
from zkconsumer.offsets.member_store import MemberStore
from zkconsumer.offsets.store import FencedStore, OffsetStore
from zkconsumer.offsets.zookeeper_store import ZooKeeperOffsets
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.wiring.member_parts import Coordination, MemberParts
from zkconsumer.zookeeper import paths
from zkconsumer.zookeeper.broker_directory import BrokerDirectory
from zkconsumer.zookeeper.node_cache import NodeCache
from zkconsumer.zookeeper.session import Session

if TYPE_CHECKING:
    from zkconsumer.assignors.placement_decision import Placement
    from zkconsumer.member.zookeeper.placement_node import PlacementNode
    from zkconsumer.wiring.database_member import RecordedOffsets

BACKOFF_MAX = 10.0


class ZooKeeperCoordination(Coordination):
    """The session, the offsets and the group thread of a member whose group ZooKeeper coordinates.

    Arguments: ``strategy`` says which member should own which partition; ``offset_store`` is the user's own.
    """

    session: Session

    def __init__(
        self, parts: MemberParts, session: Session, strategy: GroupStrategy, offset_store: OffsetStore | None = None
    ) -> None:
        super().__init__(parts, session, "ZooKeeper")
        self.group = own_group(parts.config)
        self._strategy = strategy
        self._offset_store = offset_store
        self._recorded: RecordedOffsets | None = None
        if isinstance(offset_store, FencedStore):
            from zkconsumer.wiring.database_member import RecordedOffsets

            self._recorded = RecordedOffsets(parts, session, offset_store)
        self._placement = _placement(parts.config, parts.consumer) if strategy.places else None
        self.cache = NodeCache(session, lambda path: parts.events.put(NodeChanged(path)))
        self.membership: ModelRegistration | None = None
        self.store_expires = False
        """Whether the user's own store forgets offsets after a while."""

    @property
    def request_timeout(self) -> float:
        """The limit of a request to ZooKeeper, in seconds."""
        return max(self.session.timeout, 5.0)

    @property
    def concern(self) -> str:
        """A warning about the group, as a text for the user; empty if there is none."""
        return "" if self.membership is None else self.membership.concern

    def connect(self) -> None:
        """Open the session."""
        self.session.open(Deadline(self.parts.config.zookeeper_connection_timeout_ms / 1000))
        if self._recorded is not None:
            self._recorded.open(self.group, self.request_timeout)

    def disconnect(self, deadline: Deadline) -> None:
        """Close the session."""
        try:
            if self._recorded is not None:
                self._recorded.close()
        finally:
            self.session.close(deadline)

    def joining_limit(self) -> float:
        """Return the seconds that joining may take."""
        config = self.parts.config
        attempts = config.rebalance_max_retries * config.rebalance_backoff_ms
        return max(attempts, 1.5 * config.zookeeper_session_timeout_ms) / 1000

    def why_not_joined(self, detail: str) -> ZkConsumerError | None:
        """Return the refusal of the group, or the error for a consumer id that is in use."""
        if self.membership is not None and self.membership.refusal is not None:
            return self.membership.refusal
        return ConsumerIdInUseError(detail) if "consumer.id" in detail else None

    def offsets(self) -> MemberStore:
        """Return the store of ``offsets.storage``, or the user's own."""
        config, parts = self.parts.config, self.parts
        nodes = ZooKeeperOffsets(self.session, self.group, parts.meter("ZooKeeperCommitsPerSec").mark)
        in_kafka = config.offsets_storage == "kafka" and self._offset_store is None
        elsewhere = self._kafka_offsets() if in_kafka else self._offset_store
        return MemberStore(
            nodes,
            nodes if elsewhere is None or config.dual_commit_enabled or self._recorded is not None else None,
            elsewhere,
            expires=in_kafka or self.store_expires,
            backoff=config.offsets_channel_backoff_ms / 1000,
            max_retries=config.offsets_commit_max_retries,
        )

    def _kafka_offsets(self) -> OffsetStore:
        from zkconsumer.kafka.coordinator_client import CoordinatorSearch
        from zkconsumer.offsets.kafka_store import KafkaOffsets

        parts = self.parts
        search = CoordinatorSearch(
            self.group, parts.brokers, parts.channels, parts.fetching.fetchers.load, offsets_only=True
        )
        return KafkaOffsets(search, parts.meter("KafkaCommitsPerSec").mark)

    def engine(self, registration: Registration, committer: Committer) -> PartitionGroupThread:
        """Return the engine, not started."""
        assign: Assign = self._strategy if self._recorded is None else self._recorded.agreed(self._strategy, self.group)
        return self.engine_of(registration, committer, assign, self.parts.round_timer)

    def _owner_nodes(self, committer: Committer) -> OwnerNodes:
        parts = self.parts
        return OwnerNodes(
            self.session,
            self.cache,
            self.group,
            reads_offsets=committer.reads_nodes,
            balanced=lambda: parts.balanced,
            by_key=lambda: parts.slots_by_key,
        )

    def engine_of(
        self, registration: Registration, committer: Committer, assign: Assign, round_ended: Callable[[float], None]
    ) -> PartitionGroupThread:
        """Return the engine, not started.

        Arguments: ``assign`` says which member should own which partition; ``round_ended`` gets the seconds of each
        round, at its end.
        """
        parts, membership = self.parts, self._registration(registration)
        settings = parts.environment.timing(rebalance_settings(parts.config, self.request_timeout))
        self.strategy = self._applied(assign)
        owner_nodes = self._owner_nodes(committer)
        inbox, owned, revocation = parts.ownership(committer, owner_nodes.keep_alive)
        rounds = RebalanceRounds(
            settings,
            registration=membership,
            reader=self._group_reader(),
            owner_nodes=owner_nodes,
            strategy=self.strategy,
            owned=owned,
            revocation=revocation,
            inbox=inbox,
        )
        rebalancer = Rebalancer(
            settings,
            inbox=inbox,
            owned=owned,
            conflicts=OffsetConflicts(settings.conflict, owned, owner_nodes, settings.request_timeout),
            monitor=SessionMonitor(self.session),
            rounds=rounds,
            orphaned=OrphanedPartitions(self.session, membership, settings.patience),
            status=Status(self.group, parts.consumer, owned.positions, round_ended),
        )
        self._engine = made = PartitionGroupThread(parts.consumer, inbox, rebalancer, owned)
        return made

    def _applied(self, assign: Assign) -> AppliedStrategy:
        return AppliedStrategy(
            self.parts.consumer,
            assign,
            exclude_internal_topics=self.parts.config.exclude_internal_topics,
            name=self._strategy.name,
            concern=self._strategy.concern,
            placement=None if self._placement is None else self._placement_node(self._placement),
        )

    def _placement_node(self, placement: Placement) -> PlacementNode:
        """Return the plan of the group."""
        from zkconsumer.member.zookeeper.placement_node import LoadReports, PlacementNode

        consumer = self.parts.consumer
        return PlacementNode(
            self.session,
            self.cache,
            self.group,
            consumer,
            self._strategy,
            placement,
            LoadReports(self.session, self.group, consumer, publishes=self._strategy.name == LAG_AWARE),
            exclude_internal_topics=self.parts.config.exclude_internal_topics,
        )

    def _registration(self, registration: Registration) -> ModelRegistration:
        parts, own = self.parts, OwnRegistration(registration, self.completed)
        self.membership = made = ModelRegistration(
            self.session, self.cache, self.group, parts.consumer, own, parts.config.group_id
        )
        return made

    def _group_reader(self) -> GroupReader:
        return GroupReader(
            self.session,
            self.cache,
            self.group,
            self.parts.consumer,
            exclude_internal_topics=self.parts.config.exclude_internal_topics,
            wants_racks=self._strategy.wants_racks,
        )

    def completed(self, registration: Registration) -> Registration:
        """Return the registration with the time and the keys for strategies. The member calls this as it registers."""
        complete = self.parts.environment.stamp(self.parts.config, self.session, registration)
        if self._recorded is not None:
            complete = replace(complete, extra={**complete.extra, STORE_KEY: self._recorded.name})
        if self._placement is None or not self._placement.withdrawn_until:
            return complete
        return replace(complete, extra={key: v for key, v in complete.extra.items() if key != PLAN_KEY})


class RegisteredBrokers:
    """The brokers that are registered in ZooKeeper, with the addresses to reach them at."""

    def __init__(self, session: Session, config: ConsumerConfig) -> None:
        self._directory = BrokerDirectory(session)
        self._config = config

    def __call__(self, deadline: Deadline) -> Sequence[Endpoint]:
        """Return the brokers there are now. Raises RegistryError, NoReachableEndpointError."""
        return reachable(self._directory.brokers(deadline), self._config)


def _placement(config: ConsumerConfig, consumer: ConsumerId) -> Placement:
    """Return the decisions about the group's plan. The planner may be in a round that waits for the user."""
    from zkconsumer.assignors.placement_decision import Placement

    busy = config.rebalance_drain_timeout_ms + config.rebalance_listener_timeout_ms
    wait = (2 * config.zookeeper_session_timeout_ms + busy) / 1000
    return Placement(consumer, wait=wait, grace=config.group_instance_grace_ms / 1000)


def own_group(config: ConsumerConfig) -> str:
    """Return the group in which a member registers: ``group.id``, or the broadcasting member's own group."""
    if config.message_model == "broadcasting" and config.consumer_id is not None:
        return paths.broadcast_group(config.group_id, config.consumer_id)
    return config.group_id


def rebalance_settings(config: ConsumerConfig, request_timeout: float) -> RebalanceSettings:
    """Return the settings of rebalances; ``request_timeout`` in seconds."""
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
        raise_truncated=config.log_truncation_policy == "raise",
    )
