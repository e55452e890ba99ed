"""The parts of a member of both groups, ZooKeeper's and the brokers', while its group moves (``group.migration``).

No algorithm, no decision; ``member.migration_bridge`` tells how it works. Threads: those of the brokers' side run
beside the group thread.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from queue import SimpleQueue
from threading import Thread
from typing import Any

from zkconsumer.assignors.assignor import known_assignors
from zkconsumer.assignors.group_strategy import GroupStrategy
from zkconsumer.config import ConsumerConfig
from zkconsumer.core.generation_fence import GenerationEpochs
from zkconsumer.core.registration import Registration
from zkconsumer.kafka.group_channel import Membership
from zkconsumer.member.brokers.generation import Generation
from zkconsumer.member.brokers.heartbeats import HeartbeatFailed
from zkconsumer.member.brokers.rebalancer import BrokersRebalancer
from zkconsumer.member.brokers.status import CoordinatedStatus
from zkconsumer.member.events import StopRequested
from zkconsumer.member.group_thread import CoordinationHealth, GroupThread, Inbox, PartitionGroupThread
from zkconsumer.member.migration_bridge import Bridge, BrokersWish, Lookout, WishedPartitions
from zkconsumer.member.migration_rules import ADVERTISED, BY_BROKERS
from zkconsumer.model import PLACEMENTS
from zkconsumer.offsets.committer import Committer
from zkconsumer.offsets.kafka_store import BridgeOffsets
from zkconsumer.offsets.member_store import MemberStore
from zkconsumer.offsets.zookeeper_store import ZooKeeperOffsets
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.wiring.brokers_member import BrokerGroup, coordinator_search, member_settings
from zkconsumer.wiring.member_parts import MemberParts
from zkconsumer.wiring.zookeeper_member import ZooKeeperCoordination
from zkconsumer.zookeeper.lease import Lease
from zkconsumer.zookeeper.session import Session

STRATEGY = "partition.assignment.strategy"
LEAVE_WITHIN = 2.0
"""Seconds of a shutdown that leaving the brokers' group may take."""


class BridgeCoordination(ZooKeeperCoordination):
    """ZooKeeper's coordination of a member, with the brokers' side beside it.

    Arguments: ``strategy`` is ZooKeeper's; ``config`` names the strategies of the brokers' side.
    Raises: as :class:`BrokerGroup`.
    """

    def __init__(self, parts: MemberParts, session: Session, strategy: GroupStrategy, config: ConsumerConfig) -> None:
        super().__init__(parts, session, strategy)
        consumer = parts.consumer
        self._kafka_events: SimpleQueue[Any] = SimpleQueue()
        # channels carry our name in ZooKeeper: so other bridges tell us from members that only the brokers know
        self._search = coordinator_search(parts, consumer)
        self._lookout = Lookout(consumer, self._clients, parts.events.put)
        patience = config.rebalance_drain_timeout_ms / 1000 + 2 * self.request_timeout
        wish = BrokersWish(parts.events.put, patience)
        self._bridge = Bridge(consumer, strategy, self._kafka_events, wish, self._lookout)
        self._wished = WishedPartitions(wish)
        self._lease = Lease()
        name, inbox = f"{consumer}-bridge", Inbox(self._kafka_events)
        self._broker_group = BrokerGroup(
            config,
            parts,
            name,
            events=self._kafka_events,
            lease=self._lease,
            timeout=self.request_timeout,
            client_id=consumer,
        )
        # while ZooKeeper coordinates, the coordinator would refuse all commits because of a static member
        settings = replace(member_settings(config, self.request_timeout), static_leaves=True)
        rebalancer = BrokersRebalancer(
            settings,
            inbox=inbox,
            join=self._broker_group.join_protocol(settings),
            lease=self._lease,
            assignment=self._wished,
            status=CoordinatedStatus(settings, self._wished.refuse, lambda _: self._wished.settled()),
        )
        self._kafka = GroupThread(name, inbox, rebalancer)

    @property
    def trouble(self) -> str:
        """A problem between the member and ZooKeeper or the brokers' group, for the user; empty if there is none."""
        kafkas = self._wished.trouble or self._kafka.state.detail
        return "; ".join(filter(None, (super().trouble, kafkas)))

    @property
    def concern(self) -> str:
        """A warning about the group, as a text for the user; empty if there is none."""
        return "; ".join(filter(None, (super().concern, self._lookout.concern)))

    @property
    def sides(self) -> Sequence[CoordinationHealth]:
        """ZooKeeper's side and the brokers' side, once the engine is made."""
        doubt = self._wished.trouble
        return (
            (*super().sides, CoordinationHealth("the brokers", self._kafka, self._lease, doubt))
            if super().sides
            else ()
        )

    @property
    def threads(self) -> Sequence[Thread]:
        """The threads of requests and heartbeats of the brokers' side."""
        return self._broker_group.threads

    # ---- connections

    def connect(self) -> None:
        """Open the session, and start the brokers' side."""
        super().connect()
        self._broker_group.open()
        self._kafka.start()

    def disconnect(self, deadline: Deadline) -> None:
        """Leave the brokers' group after the last commit, because only a member may commit. Then close everything."""
        self._bridge.close()
        self._search.close()
        self._kafka_events.put(StopRequested())
        self._kafka.join(Deadline(deadline.bounded(LEAVE_WITHIN)))
        self._broker_group.close(deadline)
        super().disconnect(deadline)

    # ---- the two ends of the bridge

    def engine(self, registration: Registration, committer: Committer) -> PartitionGroupThread:
        """Return ZooKeeper's engine, not started: the bridge is its strategy."""
        count = self.parts.round_timer

        def ended(seconds: float) -> None:
            count(seconds)
            self._bridge.concluded()

        made = self.engine_of(registration, committer, self._bridge, ended)
        self._bridge.attach(made.positions)
        return made

    def completed(self, registration: Registration) -> Registration:
        """Return the complete registration, which marks this member as a bridge."""
        made = super().completed(registration)
        return replace(made, extra={**made.extra, ADVERTISED: BY_BROKERS})

    def _clients(self) -> Collection[str]:
        deadline, group = Deadline(self.request_timeout), self.parts.config.group_id
        channel = self._search.find(deadline)
        try:
            return [member.client_id for member in channel.describe([group], deadline)[group].members]
        finally:
            self._search.discard(channel)

    # ---- offsets

    def offsets(self) -> MemberStore:
        """Return both stores of offsets as one: ZooKeeper's first, then the coordinator's."""
        config, parts = self.parts.config, self.parts

        def refused(who: Membership, error: Exception) -> None:
            if who.member_id:
                self._kafka_events.put(HeartbeatFailed(who, error))

        nodes = ZooKeeperOffsets(self.session, self.group, parts.meter("ZooKeeperCommitsPerSec").mark)
        brokers_side = BridgeOffsets(
            coordinator_search(parts, parts.consumer),
            _Identity(self._broker_group.generation),
            refused,
            parts.meter("KafkaCommitsPerSec").mark,
        )
        return MemberStore(
            nodes,
            nodes,
            brokers_side,
            expires=True,
            backoff=min(config.offsets_channel_backoff_ms / 1000, 0.2),
            max_retries=config.offsets_commit_max_retries,
            zookeeper_first=True,
            brokers_side=brokers_side,
        )


class _Identity:
    """The identity of a commit: a member of the generation, or nobody. An empty group accepts a commit of nobody."""

    def __init__(self, generation: Generation) -> None:
        self._generation = generation

    @property
    def who(self) -> Membership:
        """The member to commit as."""
        who = self._generation.who
        return who if who.generation >= 0 else Membership(who.group)

    @property
    def settled(self) -> bool:
        """Whether no next generation is under way."""
        return self._generation.settled

    @property
    def held(self) -> GenerationEpochs:
        """The partitions that the brokers give us, and took back. ZooKeeper decides which we own."""
        return self._generation.held


def zookeepers_strategy(config: ConsumerConfig) -> str:
    """Return the first configured strategy that members in ZooKeeper know; ``range`` if there is none.

    A strategy that needs a plan is none of them: the bridge gives other members than the plan says what they own.
    """
    known = known_assignors().keys() - set(PLACEMENTS)
    names = [name.strip() for name in config.partition_assignment_strategy.split(",")]
    return next((name for name in names if name in known), "range")
