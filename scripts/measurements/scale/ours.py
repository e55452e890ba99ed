"""A member of ours on the simulated ZooKeeper: the real rebalancer with everything it decides and asks for, on a task
instead of a thread, with its defaults. Only fetching is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import cast

from scripts.measurements.scale.wire import LATENESS_S, Costs, CountedServer, CountedSession
from tests.concurrency.group import InlineCommitter, RecordingDelivery
from tests.simulated_clock import Mailbox, Simulation
from zkconsumer.assignors.group_strategy import advertisement
from zkconsumer.config import ConsumerConfig
from zkconsumer.core.registration import STATIC, Registration
from zkconsumer.member.connector_state import Phase
from zkconsumer.member.events import Event, NodeChanged, StopRequested
from zkconsumer.model import ConsumerId
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.version import VERSION
from zkconsumer.wiring import MemberEnvironment, build_member
from zkconsumer.wiring.zookeeper_member import ZooKeeperCoordination

REQUEST_TIMEOUT = 6.0
NEVER = 1e6
NOTHING: Mapping[str, str | int] = {}

COSTS = Costs(client=0.00002)
"""Kazoo, pipelined, takes 10 ms for 500 reads on the machine on which this was written."""


class _Events(Mailbox[Event]):
    """The queue of a group thread, on which watches tell a little late, as on kazoo's own thread."""

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(simulation)
        self._late = simulation.chance.uniform(0.0, LATENESS_S)

    def put(self, item: Event, block: bool = True, timeout: float | None = None) -> None:
        """Add an event; a watch's comes later."""
        put = super().put
        if isinstance(item, NodeChanged):
            self.simulation.at(self.simulation.now + self._late, lambda: put(item))
        else:
            put(item)


class OurMember:
    """One member, from its start."""

    def __init__(
        self,
        server: CountedServer,
        group: str,
        name: str,
        topic: str,
        *,
        interval: float = NEVER,
        properties: Mapping[str, str | int] = NOTHING,
    ) -> None:
        """``interval`` in seconds between two reconciliations; by default none adds to the cost of a change."""
        self.consumer = f"{group}_{name}"
        self._topic = topic
        self._simulation = server.simulation
        delivery = RecordingDelivery()
        self._member = build_member(
            ConsumerConfig({"zookeeper.connect": "fake:2181", "group.id": group, **properties}),
            ConsumerId(self.consumer),
            environment=MemberEnvironment(
                session=lambda _, told: server.connect(told, COSTS),
                events=lambda: _Events(server.simulation),
                stamp=_stamped,
                timing=lambda settings: replace(settings, request_timeout=REQUEST_TIMEOUT, interval=interval),
                committer=InlineCommitter,
                delivery=delivery,
                source=delivery,
            ),
        )
        self.session = cast(CountedSession, cast(ZooKeeperCoordination, self._member.coordination).session)
        self.task = server.simulation.start(self.consumer, self._run)

    def _run(self) -> None:
        engine, _ = self._member.prepare(Registration(STATIC, {self._topic: 1}))
        engine.coordinator.begin()
        while engine.state.phase is not Phase.CLOSED:
            engine.step()
        self.session.close(Deadline(REQUEST_TIMEOUT))

    def progress(self) -> None:
        """Something was consumed of every partition it owns."""
        for position in self._member.positions().values():
            position.consumed = (position.consumed or 0) + 1

    def stop(self) -> None:
        """Ask it to leave cleanly."""
        self._member.events.put(StopRequested())

    def crash(self) -> None:
        """Its process is gone; its session lives until :meth:`expire`."""
        self._simulation.end(self.task)

    def expire(self) -> None:
        """ZooKeeper ends its session."""
        self.session.expire_unnoticed()


def _stamped(config: ConsumerConfig, _: object, registration: Registration) -> Registration:
    extra = advertisement(config, host="host", address="127.0.0.1", version=VERSION)
    return replace(registration, timestamp="1795230310008", extra=extra)
