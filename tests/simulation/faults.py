"""The faults of a simulated group, each chosen by the seed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tests.simulation.zookeeper import SimulatedSession

if TYPE_CHECKING:
    from tests.simulation.members import Member
    from tests.simulation.scala_member import ScalaMember
    from tests.simulation.scenario import Scenario

MEMBERS = 4  # the most members that live at a time
_OF_A_MEMBER = ("leave", "kill", "freeze")
_OF_A_SESSION = ("expire", "lose answer", "cut zookeeper", "slow zookeeper")


class Faults:
    """Does faults to a scenario, and counts them. The faults with numbers of ``without`` are left out."""

    kinds: tuple[str, ...] = (
        "join", "join", "join", "leave", "kill", "freeze", "expire", "lose answer", "lose answer", "cut zookeeper",
        "slow zookeeper", "cut brokers", "slow network", "move leader", "no quorum", "stop broker",
    )  # fmt: skip
    count = 0
    ended = False

    def __init__(self, scenario: Scenario, without: Sequence[int] = ()) -> None:
        self._without = without
        self._scenario = scenario

    def burst(self) -> None:
        """Do a fault, and now and then further ones at nearly the same time."""
        world = self._scenario.world
        self.one()
        while world.random.random() < 0.3:
            world.sleep(world.random.random() ** 4)
            self.one()

    def one(self) -> None:
        """Do one fault, on the director's task. It may take some seconds."""
        scenario = self._scenario
        world, chance = scenario.world, scenario.world.random
        live = scenario.live()
        fault = chance.choice(scenario.setting.kinds or self.kinds)
        if fault == "join" or not live:
            if len(live) < MEMBERS:
                world.note("fault: join")
                scenario.join()
            return
        member = chance.choice(live)
        self.count += 1
        world.note(f"fault {self.count}: {fault} {member.name}")
        if self.count in self._without:
            return
        session = member.session
        if fault in _OF_A_MEMBER:
            self._member_fault(fault, member)
        elif session is not None and fault in _OF_A_SESSION:
            self._session_fault(fault, member, session)
        elif fault == "cut brokers":
            scenario.network.cut(member.process)
        elif fault == "slow network":
            scenario.network.slow = chance.choice([0.0, 0.05])
        elif fault == "move leader":
            number = chance.randrange(scenario.partitions)
            scenario.cluster.move_leader(scenario.topic, number, chance.randrange(scenario.brokers))
        elif fault == "stop broker":
            broker = chance.randrange(scenario.brokers)
            scenario.cluster.stop_broker(broker)
            world.sleep(chance.choice([0.5, 3.0, 8.0]))
            scenario.cluster.start_broker(broker)
        elif fault == "no quorum":
            scenario.zookeeper.reachable = False
            world.sleep(chance.choice([0.5, 3.0, 10.0]))
            scenario.zookeeper.reachable = True
        else:
            self._other(fault, member)

    def _other(self, fault: str, member: Any) -> None:
        """Do a fault of a further kind."""

    def end(self) -> None:
        """End the faults that last."""
        self.ended = True
        self._scenario.network.slow = 0.0

    def _member_fault(self, fault: str, member: Member | ScalaMember) -> None:
        scenario, world = self._scenario, self._scenario.world
        if fault == "leave":
            world.spawn(f"{member.name}-leaver", member.leave, member.process)
        elif fault == "kill":
            with scenario.zookeeper.at_once():  # the server ends what it does for the process
                member.process.alive = False
            scenario.network.cut(member.process)
            if member.session is not None:
                member.session.lose_watches()
        else:
            session_timeout = scenario.zookeeper.session_timeout
            seconds = world.random.choice([0.5, 3.0, 2 * session_timeout, 20.0])
            member.process.frozen_until = world.now + seconds
            member.process.stood += seconds

    def _session_fault(self, fault: str, member: Member | ScalaMember, session: SimulatedSession) -> None:
        world = self._scenario.world
        if fault == "expire" and session.session_id:
            self._scenario.observer.session_closed(member.consumer, session.lease.ends_at)
            session.expire_unnoticed()
        elif fault == "lose answer":
            session.lose_next = world.random.choice(["any", "claim"])
        elif fault == "cut zookeeper":
            session.cut(world.random.choice([0.2, 2.0, 2 * session.timeout]))
        elif fault == "slow zookeeper":
            session.slow_until = world.now + 5.0
