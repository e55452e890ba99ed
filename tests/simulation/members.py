"""A member of the package in a simulated group: a process with a connector, and the calls of its application."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tests.simulation.applications import APPLICATIONS, CALL
from tests.simulation.scheduler import Interrupted, Process
from tests.simulation.zookeeper import SimulatedSession
from zkconsumer import ConsumerConfig
from zkconsumer.errors import ZkConsumerError
from zkconsumer.model import TopicPartition

if TYPE_CHECKING:
    from tests.simulation.scenario import Scenario

LATE = 1.5
"""Seconds by which a call may be late: the margin of its last request."""


class MemberProcess:
    """The process of a member, of the package or of a model, as the scenario and its faults use it."""

    kind_of_name = "m"
    kind = "old"
    """The kind of member in a group that migrates."""

    def __init__(self, scenario: Scenario, number: int) -> None:
        self.scenario = scenario
        self.name = f"{self.kind_of_name}{number}"
        self.process = Process(self.name)
        self.consumer = f"{scenario.group}_{self.name}"
        self.left = False

    @property
    def usable(self) -> bool:
        """Whether the process lives and has not been asked to leave."""
        return self.process.alive and not self.left

    def start(self) -> None:
        """Begin the process."""
        self.scenario.world.spawn(f"{self.name}-main", self._main, self.process)

    def _main(self) -> None:
        raise NotImplementedError

    def consume(self, positions: dict[TopicPartition, int]) -> None:
        """Finish one message at these positions if there is one, as members of other clients do, and wait a while."""
        here = self.scenario.world
        ready = [tp for tp, offset in positions.items() if offset < self.scenario.produced[tp]]
        if ready:
            tp = here.random.choice(ready)
            here.note(f"handed {tp} {positions[tp]}")
            self.scenario.observer.finished(tp, positions[tp])
            positions[tp] += 1
        here.sleep(here.random.random() ** 4 * 0.3 if ready else 0.1)


class Member(MemberProcess):
    """A process with a connector and the threads of its application."""

    def __init__(self, scenario: Scenario, number: int) -> None:
        super().__init__(scenario, number)
        self.ended = False
        self.consumer = ""
        self.connector: Any = None
        self.error: BaseException | None = None
        """What the last call raised."""

    @property
    def session(self) -> SimulatedSession | None:
        return next((one for one in self.scenario.zookeeper.sessions if one.process is self.process), None)

    @property
    def in_contact(self) -> bool:
        """Whether the member hears of changes in its group now."""
        session = self.session
        return session is not None and session.connected

    @property
    def properties(self) -> dict[str, Any]:
        return {**self.scenario.properties, "consumer.id": self.name}

    def _main(self) -> None:
        scenario = self.scenario
        application = APPLICATIONS[scenario.setting.application](self)
        self.connector = application.connect(ConsumerConfig({**self.properties, **application.properties}))
        self.consumer = self.connector.consumer_id
        try:
            application.begin()
        except (ZkConsumerError, Interrupted) as e:
            scenario.world.note(f"cannot join: {type(e).__name__}")
            self.leave()

    def leave(self) -> None:
        """Shut the connector down, on the present task, within its time limit."""
        if self.left:
            return
        self.left = True
        while self.connector is None:
            self.scenario.world.sleep(0.05)
        for left in (0, 1, 2):  # a call goes on where the one before was left
            done = self.call("shutdown", lambda: self.connector.shutdown(CALL), CALL, interrupted=left < 2)
            if done or not self.scenario.setting.interrupts:
                break
        self.ended = True
        self.scenario.world.note("has left")

    def call(self, what: str, call: Callable[[], object], patience: float, *, interrupted: bool = True) -> bool:
        """Do a call of the application within ``patience`` seconds. Return whether it raised nothing.

        Arguments: ``interrupted`` says that an exception may leave it.
        """
        world = self.scenario.world
        with self.limited(what, patience):
            try:
                with world.interrupts(self.scenario.setting.interrupts * interrupted):
                    call()
                world.note(f"{what}: done")
            except (ZkConsumerError, ValueError, KeyError, TimeoutError, Interrupted) as e:
                world.note(f"{what}: {type(e).__name__}")
                self.error = e
                return False
        return True

    @contextmanager
    def limited(self, what: str, patience: float) -> Iterator[None]:
        """Let the block take ``patience`` seconds, and the time in which the process is frozen."""
        world, frozen = self.scenario.world, self.process.frozen_until
        began, stood = world.now, world.stood(self.process)
        try:
            yield
        finally:
            if (
                world.now - began > patience + LATE + world.stood(self.process) - stood
                and frozen == self.process.frozen_until
            ):
                self.scenario.broken(f"{what} with a time limit of {patience:g} s took {world.now - began:.1f} s")
