"""A group that the brokers coordinate, with other members of Kafka's protocol, and the faults of its coordinator."""

from __future__ import annotations

from typing import Any

from tests.simulation import scenario
from tests.simulation.brokers_observer import BrokersObserver
from tests.simulation.faults import Faults
from tests.simulation.kafka_member import KafkaMember
from tests.simulation.members import Member

STRATEGIES = ("range", "roundrobin", "sticky", "cooperative-sticky", "zkconsumer", "cooperative-sticky,range")
FOREIGN = 0.3
"""The part of members that are not of the package, unless the strategy is the package's own."""
INSTANCES = 0.3
"""The part of runs in which members have a ``group.instance.id``."""
LONGEST_SESSION = 10.0
"""Seconds: the longest ``session.timeout.ms``."""
_ANSWERS = ("JoinGroup", "SyncGroup", "Heartbeat", "OffsetCommit", "OffsetFetch", "LeaveGroup", "Fetch")


class BrokersMember(Member):
    """A member of the package in a group that the brokers coordinate."""

    instance = ""

    @property
    def in_contact(self) -> bool:
        """Whether the member hears of changes in its group: the coordinator takes no commit of one that does not."""
        return True

    @property
    def properties(self) -> dict[str, Any]:
        names = {"client.id": f"{self.scenario.group}_{self.name}"}
        return {**super().properties, **names, **({"group.instance.id": self.instance} if self.instance else {})}


class BrokersFaults(Faults):
    _scenario: Any

    kinds: tuple[str, ...] = (
        "join", "join", "join", "leave", "kill", "freeze", "cut brokers", "slow network", "move leader", "stop broker",
        "all brokers", "move coordinator", "load coordinator", "remove member",
        "lose broker answer", "lose broker answer",
    )  # fmt: skip

    def _other(self, fault: str, member: Any) -> None:
        scenario, world = self._scenario, self._scenario.world
        cluster, group, chance = scenario.cluster, scenario.group, world.random
        seconds = chance.choice([0.5, 3.0, 8.0])
        if fault == "all brokers":
            for broker in range(scenario.brokers):
                cluster.stop_broker(broker)
            world.sleep(seconds)
            for broker in range(scenario.brokers):
                cluster.start_broker(broker)
        elif fault in {"move coordinator", "load coordinator"}:
            loading = fault == "load coordinator"
            cluster.move_coordinator(group, chance.randrange(scenario.brokers), loading=loading)
            if loading:
                world.sleep(seconds)
                cluster.finish_loading(group)
        elif fault == "remove member":
            self._remove()
        elif fault == "lose broker answer":
            parked = cluster.park(chance.choice(_ANSWERS), client_id=member.consumer)
            world.spawn("thief", lambda: _lose(parked), world.system)

    def _remove(self) -> None:
        """Remove a member from the group, as an operator's request does."""
        scenario, group = self._scenario, self._scenario.group
        coordinator = scenario.cluster.coordinator(group)
        if coordinator is None:
            return
        groups = scenario.cluster.brokers[coordinator].groups
        members = sorted(groups.view(group).members)
        if members:
            chosen = scenario.world.random.choice(members)
            scenario.observer.removed(chosen, scenario.world.now + LONGEST_SESSION)
            groups.expire(group, chosen)


def _lose(parked: Any) -> None:
    """Close the connection of a request that was done, before it is answered."""
    try:
        parked.wait(20.0)
    except TimeoutError:
        parked.release()
    else:
        parked.drop()


class BrokersScenario(scenario.Scenario):
    faults_class, observer_class = BrokersFaults, BrokersObserver
    observer: Any

    def choose_properties(self) -> dict[str, Any]:
        chance = self.world.random
        properties = super().choose_properties()
        for key in ("offsets.storage", "dual.commit.enabled", "zookeeper.session.timeout.ms"):
            del properties[key]
        self.instances = chance.random() < INSTANCES
        return {
            **properties,
            "group.coordination": "kafka",
            "session.timeout.ms": chance.choice([6000, int(LONGEST_SESSION * 1000)]),
            "max.poll.interval.ms": chance.choice([10_000, 60_000]),
            "heartbeat.interval.ms": chance.choice([300, 300, 1000]),
            "partition.assignment.strategy": chance.choice(STRATEGIES),
        }

    def _begin(self) -> None:
        if self.world.random.random() < 0.5:
            self.properties["bootstrap.servers"] = self.cluster.bootstrap_servers
            del self.properties["zookeeper.connect"]

    def new_member(self, number: int, ours: bool) -> Any:
        strategies = self.properties["partition.assignment.strategy"]
        if not ours and strategies != "zkconsumer" and self.world.random.random() < FOREIGN:
            return KafkaMember(self, number, strategies)
        member = BrokersMember(self, number)
        if self.instances:
            brokers_members = [one for one in self.members if isinstance(one, BrokersMember)]
            used = {one.instance for one in brokers_members if one.process.alive and not one.ended}
            member.instance = next(name for name in map("i{}".format, range(10)) if name not in used)
            self.observer.instances[member.instance] = f"{self.group}_{member.name}"
        return member
