"""The scenario ``followers``: members in a rack, whose followers come, fall behind and lead."""

from __future__ import annotations

from typing import Any

from tests.simulation.faults import Faults
from tests.simulation.scenario import Scenario
from zkconsumer.fetch import replica_choice

NOT_AVAILABLE = 78


class FollowerFaults(Faults):
    """Changes the followers, too."""

    kinds = (*Faults.kinds, *["follower"] * 6)

    def _other(self, fault: str, member: Any) -> None:
        del fault, member
        cluster, topic, chance = self._scenario.cluster, self._scenario.topic, self._scenario.world.random
        number, broker = chance.randrange(self._scenario.partitions), chance.randrange(self._scenario.brokers)
        end = cluster.end_offset(topic, number)
        what = chance.choice(["behind", "behind", "catch up", "remove", "error", "lead"])
        if what == "lead":
            cluster.move_leader(topic, number, broker)
        elif what == "error":
            cluster.fail("Fetch", NOT_AVAILABLE, broker=broker)
        elif what == "remove":
            cluster.remove_follower(topic, number, broker)
        else:
            lost = chance.randrange(end + 1) if what == "behind" else None
            cluster.add_follower(topic, number, broker, rack="b", end=lost)

    def end(self) -> None:
        super().end()
        for number in range(self._scenario.partitions):
            for broker in range(self._scenario.brokers):
                self._scenario.cluster.add_follower(self._scenario.topic, number, broker, rack="b")


class FollowersScenario(Scenario):
    """Members that read from the follower in rack b. The pauses are short, so that the replica changes often."""

    faults_class = FollowerFaults

    def choose_properties(self) -> dict[str, Any]:
        vars(replica_choice).update(LEADER_STAYS=3.0, REPLICA_STAYS=10.0)
        return {**super().choose_properties(), "client.rack": "b"}
