"""The parts of a member whose group is coordinated through ZooKeeper. No algorithm, no decision; threads: ``parts``."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from queue import SimpleQueue
from typing import Any

from zkconsumer.assignors.group_strategy import advertisement, assignment_strategy
from zkconsumer.config import ConsumerConfig
from zkconsumer.core.registration import Registration
from zkconsumer.deadline import Deadline
from zkconsumer.errors import (
    ConsumerIdInUseError,
    ZkConsumerError,
)
from zkconsumer.kafka.coordinator_search import CoordinatorSearch
from zkconsumer.member.engine import Engine
from zkconsumer.member.events import NodeChanged
from zkconsumer.member.inbox import Inbox
from zkconsumer.member.interfaces import Commits, Hold, Source
from zkconsumer.member.listener import ConsumerRebalanceListener, ListenerCalls, ListenerThread
from zkconsumer.member.offset_conflicts import OffsetConflicts
from zkconsumer.member.owned_partitions import OwnedPartitions
from zkconsumer.member.revocation import Revocation, RevocationSettings
from zkconsumer.member.user_requests import UserRequests
from zkconsumer.member.zookeeper.message_model import ModelRegistration
from zkconsumer.member.zookeeper.orphaned_partitions import OrphanedPartitions
from zkconsumer.member.zookeeper.owner_nodes import OwnerNodes
from zkconsumer.member.zookeeper.planner import Assign
from zkconsumer.member.zookeeper.rebalance_round import RebalanceRounds
from zkconsumer.member.zookeeper.rebalancer import Rebalancer
from zkconsumer.member.zookeeper.registration import GroupRegistration
from zkconsumer.member.zookeeper.round_schedule import RebalanceSettings
from zkconsumer.member.zookeeper.session_monitor import SessionMonitor
from zkconsumer.member.zookeeper.status import Status
from zkconsumer.member.zookeeper.strategy import AppliedStrategy
from zkconsumer.model import ConsumerId, Endpoint
from zkconsumer.offsets.committer import Committer
from zkconsumer.offsets.dual_store import DualStore
from zkconsumer.offsets.kafka_store import KafkaOffsets
from zkconsumer.offsets.store import OffsetStore
from zkconsumer.offsets.zookeeper_store import ZooKeeperOffsets
from zkconsumer.version import VERSION
from zkconsumer.wiring.member_parts import MemberParts, reachable
from zkconsumer.zookeeper import paths
from zkconsumer.zookeeper.broker_directory import BrokerDirectory
from zkconsumer.zookeeper.node_cache import NodeCache
from zkconsumer.zookeeper.security import registry_security
from zkconsumer.zookeeper.session import Session

BACKOFF_MAX = 10.0


class Member(MemberParts):
    """The parts of one member of a group that is coordinated through ZooKeeper: a session, and the group's thread.

    Arguments: ``offset_store`` is the user's own. Raises as :class:`MemberParts`.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        consumer: ConsumerId,
        offset_store: OffsetStore | None = None,
        listener: ConsumerRebalanceListener | None = None,
    ) -> None:
        self._offset_store = offset_store
        self.group = own_group(config)
        self.strategy = assignment_strategy(config)
        self.session = Session(
            config.zookeeper_connect,
            timeout=config.zookeeper_session_timeout_ms / 1000,
            on_change=lambda change: self.events.put(change),
            security=registry_security(config),
        )
        self._directory = BrokerDirectory(self.session)
        self._membership: ModelRegistration | None = None
        super().__init__(config, consumer, self.session.lease, listener)

    @property
    def request_timeout(self) -> float:
        """Seconds that a request on ZooKeeper may take."""
        return max(self.session.timeout, 5.0)

    @property
    def trouble(self) -> str:
        """What is wrong between us and ZooKeeper, in words for the user; empty where nothing is."""
        return self.session.trouble

    @property
    def concern(self) -> str:
        """What is strange in the group, in words for the user; empty where nothing is."""
        return "" if self._membership is None else self._membership.concern

    def _connect(self) -> None:
        self.session.open(Deadline(self.config.zookeeper_connection_timeout_ms / 1000))

    def _disconnect(self, deadline: Deadline) -> None:
        self.session.close(deadline)

    def _joining_limit(self) -> float:
        config = self.config
        attempts = config.rebalance_max_retries * config.rebalance_backoff_ms
        return max(attempts, 1.5 * config.zookeeper_session_timeout_ms) / 1000

    def _why_not_joined(self, detail: str) -> ZkConsumerError | None:
        if self._membership is not None and self._membership.refusal is not None:
            return self._membership.refusal
        return ConsumerIdInUseError(detail) if "consumer.id" in detail else None

    def _offsets(self) -> DualStore:
        """Where offsets are kept, by ``offsets.storage`` or the user's own store."""
        config = self.config
        nodes = ZooKeeperOffsets(self.session, self.group, self._meter("ZooKeeperCommitsPerSec").mark)
        in_kafka = config.offsets_storage == "kafka" and self._offset_store is None
        elsewhere = self._kafka_offsets() if in_kafka else self._offset_store
        return DualStore(
            nodes,
            nodes if elsewhere is None or config.dual_commit_enabled else None,
            elsewhere,
            expires=in_kafka,
            backoff=config.offsets_channel_backoff_ms / 1000,
            max_retries=config.offsets_commit_max_retries,
        )

    def _kafka_offsets(self) -> OffsetStore:
        search = CoordinatorSearch(
            self.group, self._brokers, self._coordinator_channel, self.fetching.load, offsets_only=True
        )
        return KafkaOffsets(search, self._meter("KafkaCommitsPerSec").mark)

    def _rebalancer(self, registration: Registration, committer: Committer) -> Engine:
        config = self.config
        cache = NodeCache(self.session, lambda path: self.events.put(NodeChanged(path)))
        self._membership = membership = ModelRegistration(
            self.session,
            cache,
            self.group,
            self.consumer,
            self._registering(registration),
            shared=config.group_id,
            exclude_internal_topics=config.exclude_internal_topics,
            wants_racks=self.strategy.wants_racks,
        )
        strategy = AppliedStrategy(
            self.consumer,
            self._assign(),
            exclude_internal_topics=config.exclude_internal_topics,
            name=self.strategy.name,
            concern=self.strategy.concern,
        )
        return zookeeper_engine(
            rebalance_settings(config, self.request_timeout),
            events=self.events,
            session=self.session,
            cache=cache,
            membership=membership,
            source=self.fetching,
            hold=self.delivery,
            commits=committer,
            strategy=strategy,
            listener=self.listener,
            listener_limit=config.rebalance_listener_timeout_ms / 1000,
            rebalanced=self._round_ended(),
        )

    def _assign(self) -> Assign:
        """What decides who shall own what."""
        return self.strategy

    def _round_ended(self) -> Callable[[float], None]:
        """What is told the seconds of each round, at its end."""
        return self.metrics.timer(self._named("RebalanceRateAndTime")).update

    def _registering(self, registration: Registration) -> Callable[[], Registration]:
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

    def _brokers(self, deadline: Deadline) -> Sequence[Endpoint]:
        return reachable(self._directory.brokers(deadline), self.config)


def zookeeper_engine(
    settings: RebalanceSettings,
    *,
    events: SimpleQueue[Any],
    session: Session,
    cache: NodeCache,
    membership: GroupRegistration,
    source: Source,
    hold: Hold,
    commits: Commits,
    strategy: AppliedStrategy,
    listener: ListenerThread | None = None,
    listener_limit: float = 3.0,
    rebalanced: Callable[[float], None] = lambda _: None,
) -> Engine:
    """Put the engine of a member in ZooKeeper together; :meth:`Engine.start` starts it."""
    group, consumer = membership.group, membership.consumer
    inbox, owned = Inbox(events), OwnedPartitions(source, hold, commits, events.put)
    owner_nodes = OwnerNodes(session, cache, group, reads_offsets=commits.reads_nodes)
    requests = UserRequests(inbox, owned, owner_nodes.keep_alive)
    calls = ListenerCalls(consumer, requests.serve, listener, listener_limit)
    revocation = Revocation(RevocationSettings(settings.drain, settings.auto_commit), owned, requests, calls)
    rounds = RebalanceRounds(
        settings,
        registration=membership,
        owner_nodes=owner_nodes,
        strategy=strategy,
        owned=owned,
        revocation=revocation,
        listener=calls,
        inbox=inbox,
    )
    rebalancer = Rebalancer(
        settings,
        inbox=inbox,
        owned=owned,
        conflicts=OffsetConflicts(settings.conflict, owned, owner_nodes, settings.request_timeout),
        monitor=SessionMonitor(session),
        rounds=rounds,
        orphaned=OrphanedPartitions(session, membership, settings.patience),
        status=Status(group, consumer, owned.positions, rebalanced),
    )
    return Engine(consumer, inbox, rebalancer, owned)


def own_group(config: ConsumerConfig) -> str:
    """Where a member registers, owns and commits: its group, or, broadcasting, a group of its own."""
    if config.message_model == "broadcasting" and config.consumer_id is not None:
        return paths.broadcast_group(config.group_id, config.consumer_id)
    return config.group_id


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
        raise_truncated=config.log_truncation_policy == "raise",
    )
