"""A member of ours on the simulated ZooKeeper: the real rebalancer with everything it decides and asks for, on a task
instead of a thread, with its defaults. Only fetching is left out.
"""

from __future__ import annotations

from dataclasses import replace

from tests.concurrency.group import InlineCommitter, RecordingDelivery
from tests.scale.clock import Mailbox
from tests.scale.wire import LATENESS_S, Costs, CountedServer
from zkconsumer.assignors.group_strategy import advertisement, assignment_strategy
from zkconsumer.config import ConsumerConfig
from zkconsumer.core.registration import STATIC, Registration
from zkconsumer.deadline import Deadline
from zkconsumer.member.connector_state import Phase
from zkconsumer.member.engine import Engine
from zkconsumer.member.events import CommitsRefused, Event, NodeChanged, StopRequested
from zkconsumer.member.zookeeper.message_model import ModelRegistration
from zkconsumer.member.zookeeper.strategy import AppliedStrategy
from zkconsumer.model import ConsumerId
from zkconsumer.offsets.commit_schedule import CommitSettings
from zkconsumer.offsets.dual_store import DualStore
from zkconsumer.offsets.zookeeper_store import ZooKeeperOffsets
from zkconsumer.version import VERSION
from zkconsumer.wiring import rebalance_settings
from zkconsumer.wiring.zookeeper_member import zookeeper_engine
from zkconsumer.zookeeper.node_cache import NodeCache

REQUEST_TIMEOUT = 6.0
NEVER = 1e6

COSTS = Costs(client=0.00002)
"""Kazoo, pipelined, takes 10 ms for 500 reads on the machine on which this was written."""


class OurMember:
    """One member, from its start."""

    def __init__(self, server: CountedServer, group: str, name: str, topic: str, *, interval: float = NEVER) -> None:
        """``interval`` in seconds between two reconciliations; without, a change's cost is seen alone."""
        self._interval = interval
        self.consumer = f"{group}_{name}"
        self._group = group
        self._topic = topic
        self._simulation = server.simulation
        self._events: Mailbox[Event] = Mailbox(server.simulation)
        self._late = server.simulation.chance.uniform(0.0, LATENESS_S)
        self.session = server.connect(self._events.put, COSTS)
        self._rebalancer: Engine | None = None
        self.task = server.simulation.start(self.consumer, self._run)

    def _run(self) -> None:
        self.session.open(Deadline(REQUEST_TIMEOUT))
        rebalancer = self._rebalancer = self._made()
        rebalancer.begin()
        while rebalancer.state.phase is not Phase.CLOSED:
            rebalancer.step()
        self.session.close(Deadline(REQUEST_TIMEOUT))

    def _made(self) -> Engine:
        config = ConsumerConfig({"zookeeper.connect": "fake:2181", "group.id": self._group})
        strategy = assignment_strategy(config)
        extra = advertisement(config, host="host", address="127.0.0.1", version=VERSION)
        cache = NodeCache(self.session, self._noticed)
        membership = ModelRegistration(
            self.session,
            cache,
            self._group,
            ConsumerId(self.consumer),
            lambda: Registration(STATIC, {self._topic: 1}, timestamp="1795230310008", extra=extra),
            shared=self._group,
            exclude_internal_topics=True,
            wants_racks=strategy.wants_racks,
        )
        delivery = RecordingDelivery()
        nodes = ZooKeeperOffsets(self.session, self._group)
        committer = InlineCommitter(
            self.consumer,
            DualStore(nodes, nodes),
            self.session.lease,
            CommitSettings(interval=None, timeout=REQUEST_TIMEOUT),
            refused=lambda outcomes: self._events.put(CommitsRefused(outcomes)),
        )
        return zookeeper_engine(
            replace(rebalance_settings(config, REQUEST_TIMEOUT), interval=self._interval),
            events=self._events,
            session=self.session,
            cache=cache,
            membership=membership,
            source=delivery,
            hold=delivery,
            commits=committer,
            strategy=AppliedStrategy(
                membership.consumer,
                strategy,
                exclude_internal_topics=True,
                name=strategy.name,
                concern=strategy.concern,
            ),
        )

    def _noticed(self, path: str) -> None:
        self._simulation.at(self._simulation.now + self._late, lambda: self._events.put(NodeChanged(path)))

    def progress(self) -> None:
        """Something was consumed of every partition it owns."""
        assert self._rebalancer is not None
        for position in self._rebalancer.positions().values():
            position.consumed = (position.consumed or 0) + 1

    def stop(self) -> None:
        """Ask it to leave cleanly."""
        self._events.put(StopRequested())

    def crash(self) -> None:
        """Its process is gone; its session lives until :meth:`expire`."""
        self._simulation.end(self.task)
        self.session._up = False

    def expire(self) -> None:
        """ZooKeeper ends its session."""
        self.session.expire_unnoticed()
