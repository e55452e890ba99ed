"""The parts of a member that is in ZooKeeper and in the brokers' group, while its group moves (``group.migration``).

No algorithm, no decision; threads: ``parts``, and those of the coordinated member that runs beside the group's thread.
What it does is told in ``member.bridge``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from queue import SimpleQueue
from typing import Any

from zkconsumer.assignors.assignor import known_assignors
from zkconsumer.config import ConsumerConfig
from zkconsumer.core.registration import STATIC, Registration
from zkconsumer.deadline import Deadline
from zkconsumer.errors import BrokerError, UnknownMemberIdError
from zkconsumer.kafka import BrokerChannel
from zkconsumer.kafka.coordinator_search import CoordinatorSearch
from zkconsumer.kafka.group_channel import Membership
from zkconsumer.member.bridge import Bridge, Shadow
from zkconsumer.member.bridge_rules import ADVERTISED, BY_BROKERS
from zkconsumer.member.coordinator.coordinator_requests import Line
from zkconsumer.member.coordinator.events import HeartbeatFailed
from zkconsumer.member.coordinator.generation import Generation
from zkconsumer.member.coordinator.group_thread import CoordinatedMember
from zkconsumer.member.coordinator.heartbeats import Heartbeats
from zkconsumer.member.coordinator.topic_interest import TopicInterest
from zkconsumer.member.events import StopRequested
from zkconsumer.member.listener import ConsumerRebalanceListener
from zkconsumer.member.zookeeper.planner import Assign
from zkconsumer.model import ConsumerId, Endpoint, TopicPartition
from zkconsumer.offsets.committer import Committer
from zkconsumer.offsets.coordinator_store import GroupOffsets
from zkconsumer.offsets.dual_store import OwnedOffsets
from zkconsumer.offsets.zookeeper_store import ZooKeeperOffsets
from zkconsumer.wiring.coordinator_member import assignors, member_settings
from zkconsumer.wiring.member_parts import GroupThread
from zkconsumer.wiring.zookeeper_member import Member
from zkconsumer.zookeeper.lease import Lease

STRATEGY = "partition.assignment.strategy"
LEAVE_WITHIN = 2.0
"""Seconds of a shutdown that leaving the brokers' group may take."""


class BridgeMember(Member):
    """The parts of a member whose group moves. Raises as :class:`Member`, and for strategies as ``KafkaMember``."""

    def __init__(
        self, config: ConsumerConfig, consumer: ConsumerId, listener: ConsumerRebalanceListener | None = None
    ) -> None:
        super().__init__(config.replace({STRATEGY: zookeepers_strategy(config)}), consumer, None, listener)
        self._kafka_events: SimpleQueue[Any] = SimpleQueue()
        self._lookout = self._search()
        self._bridge = Bridge(
            consumer,
            self.strategy,
            tell=self.events.put,
            kafka=self._kafka_events,
            clients=self._clients,
            patience=config.rebalance_drain_timeout_ms / 1000 + 2 * self.request_timeout,
        )
        self._shadow = Shadow(self._bridge)
        interest = TopicInterest(Registration(STATIC, {}), exclude_internal=config.exclude_internal_topics)
        self._generation = Generation(
            config.group_id,
            config.group_instance_id,
            assignors(config, consumer, lambda topic: interest.streams.get(topic, 0)),
            interest,
        )
        name, lease = f"{consumer}-bridge", Lease()
        self._line = Line(name, self._search(), self._kafka_events.put, timeout=self.request_timeout)
        self._heartbeats = Heartbeats(
            name,
            self._search(),
            lease,
            self._kafka_events.put,
            interval=config.heartbeat_interval_ms / 1000,
            session=config.session_timeout_ms / 1000,
            rebalance=config.max_poll_interval_ms / 1000,
        )
        self._kafka = CoordinatedMember(
            ConsumerId(name),
            # while ZooKeeper coordinates, the coordinator would refuse the others' commits for the sake of a static one
            replace(member_settings(config, self.request_timeout), static_leaves=True),
            events=self._kafka_events,
            line=self._line,
            heartbeats=self._heartbeats,
            lease=lease,
            generation=self._generation,
            interest=interest,
            delivery=self._shadow,
            offsets=self._shadow,
            rebalanced=lambda _: self._given(),
        )

    @property
    def trouble(self) -> str:
        """What is wrong between us and ZooKeeper, or the brokers' group, in words for the user."""
        kafkas = self._shadow.trouble or self._kafka.state.detail
        return "; ".join(filter(None, (super().trouble, kafkas)))

    @property
    def concern(self) -> str:
        """What is strange in the group, in words for the user; empty where nothing is."""
        return "; ".join(filter(None, (super().concern, self._bridge.concern)))

    # ---- its life

    def _connect(self) -> None:
        super()._connect()
        self._line.open()
        self._heartbeats.open()
        self._kafka.start()

    def _disconnect(self, deadline: Deadline) -> None:
        """Leave the brokers' group last: the last commit is made as a member of it."""
        self._bridge.close()
        self._lookout.close()
        self._kafka_events.put(StopRequested())
        self._kafka.join(Deadline(deadline.bounded(LEAVE_WITHIN)))
        self._heartbeats.close(deadline)
        self._line.close(deadline)
        super()._disconnect(deadline)

    # ---- the ends of the bridge

    def _assign(self) -> Assign:
        return self._bridge

    def _round_ended(self) -> Callable[[float], None]:
        count = super()._round_ended()

        def ended(seconds: float) -> None:
            count(seconds)
            self._bridge.concluded()

        return ended

    def _rebalancer(self, registration: Registration, committer: Committer) -> GroupThread:
        made = super()._rebalancer(registration, committer)
        self._bridge.attach(made)
        return made

    def _registering(self, registration: Registration) -> Callable[[], Registration]:
        stamped = super()._registering(registration)

        def advertising() -> Registration:
            made = stamped()
            return replace(made, extra={**made.extra, ADVERTISED: BY_BROKERS})

        return advertising

    def _given(self) -> None:
        positions = self._kafka.positions()
        self._bridge.given({tp: int(position.thread.rpartition("-")[2]) for tp, position in positions.items()})

    # ---- offsets

    def _offsets(self) -> OwnedOffsets:
        config = self.config

        def refused(who: Membership, error: Exception) -> None:
            if who.member_id:
                self._kafka_events.put(HeartbeatFailed(who, error))

        return OwnedOffsets(
            ZooKeeperOffsets(self.session, self.group, self._meter("ZooKeeperCommitsPerSec").mark),
            _BridgeOffsets(
                config.group_id,
                self._search(),
                _Identity(self._generation),
                refused,
                self._meter("KafkaCommitsPerSec").mark,
            ),
            dual=True,
            expires=True,
            backoff=min(config.offsets_channel_backoff_ms / 1000, 0.2),
            max_retries=config.offsets_commit_max_retries,
            zookeeper_first=True,
        )

    # ---- the brokers' group

    def _search(self) -> CoordinatorSearch:
        return CoordinatorSearch(
            self.config.group_id, self._brokers, self._bridge_channel, lambda: self.fetching.load()
        )

    def _bridge_channel(self, endpoint: Endpoint) -> BrokerChannel:
        """By our name in ZooKeeper: so other bridges tell us from members that the brokers alone know."""
        return BrokerChannel(
            endpoint,
            client_id=self.consumer,
            socket_timeout=self.config.offsets_channel_socket_timeout_ms / 1000,
            security=self._security,
        )

    def _clients(self) -> Collection[str]:
        deadline = Deadline(self.request_timeout)
        channel = self._lookout.find(deadline)
        try:
            described = channel.describe([self.config.group_id], deadline)[self.config.group_id]
            return [member.client_id for member in described.members]
        finally:
            self._lookout.discard(channel)


class _BridgeOffsets(GroupOffsets):
    """The brokers' side of the offsets. While the bridges leave one after the other, or join, those outside are refused
    for those inside: that passes, and is tried again. Who comes next may know this side alone.
    """

    def commit(self, offsets: Mapping[TopicPartition, int], timeout: float) -> Mapping[TopicPartition, Exception]:
        """As there. Raises BrokerError."""
        try:
            return super().commit(offsets, timeout)
        except UnknownMemberIdError as e:
            raise BrokerError(f"{e}: the brokers' group has members, and we are not in it") from e


class _Identity:
    """As whom to commit: as a member of the generation, or as nobody, which is let in while the group is empty."""

    def __init__(self, generation: Generation) -> None:
        self._generation = generation

    @property
    def who(self) -> Membership:
        """As whom to commit."""
        who = self._generation.who
        return who if who.generation >= 0 else Membership(who.group)

    @property
    def settled(self) -> bool:
        """Whether no next generation is under way."""
        return self._generation.settled

    @property
    def held(self) -> None:
        """What is ours ZooKeeper says, also where the brokers' group lost us."""
        return


def zookeepers_strategy(config: ConsumerConfig) -> str:
    """The first of the configured strategies that members in ZooKeeper know; ``range`` where none is."""
    known = known_assignors()
    names = [name.strip() for name in config.partition_assignment_strategy.split(",")]
    return next((name for name in names if name in known), "range")
