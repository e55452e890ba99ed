"""A rolling restart, simulated: with a plan and names that last no partition changes its owner."""

from __future__ import annotations

import pytest

from scripts.measurements.scale.changes import GROUP, OURS, TOPIC, SimulatedGroup
from scripts.measurements.scale.ours import NEVER, OurMember
from scripts.measurements.scale.rolling import rolling_restart
from zkconsumer.assignors.placement import RETRY_S
from zkconsumer.core.registration import PLAN_KEY
from zkconsumer.zookeeper import paths
from zkconsumer.zookeeper.node_codecs import decode_registration


@pytest.mark.parametrize("crash", [False, True])
def test_a_rolling_restart_moves_nothing(crash: bool) -> None:
    """The figures of the page on placement: 500 partitions, 10 members, each restarted once."""
    done = rolling_restart("sticky", lasting=True, crash=crash)
    assert (done.moves, done.unowned, done.most_of_one) == (0, 0, 50)


def test_lag_aware_members_that_last_keep_their_partitions() -> None:
    done = rolling_restart("lag-aware", lasting=True, partitions=100, members=5)
    assert (done.moves, done.unowned) == (0, 0)


def test_without_lasting_names_only_the_restarted_share_moves() -> None:
    """Away to the others, and back from them."""
    done = rolling_restart("sticky", lasting=False, partitions=100, members=5)
    assert (done.moves, done.unowned, done.most_of_one) == (2 * 100, 0, 20)
    assert rolling_restart("range", lasting=False, partitions=100, members=5).moves > 2 * done.moves - 100


def test_timers_alone_end_the_grace_time_and_a_withdrawal() -> None:
    """Nothing changes in ZooKeeper when these times are over, so only the members' own timers can tell."""
    grace = 30.0
    group = SimulatedGroup(OURS, 20, counts_cpu=False, interval=NEVER)
    with group.simulation.clocks():
        try:
            for name in ("a", "b", "c"):
                own: dict[str, str | int] = {
                    "partition.assignment.strategy": "sticky",
                    "group.instance.id": name,
                    "group.instance.grace.ms": int(grace * 1000),
                }
                group.members[name] = OurMember(group.server, GROUP, name, TOPIC, properties=own)
                group.simulation.run(group.simulation.now + 1.0)
            group.members.pop("b").stop()
            group.simulation.run(group.simulation.now + grace - 1)
            assert len(group.owners()) == 13
            group.simulation.run(group.simulation.now + 2.0)
            assert len(group.owners()) == 20
            group.server.refuse(paths.placement(GROUP), "write", "create")
            listed = ",".join(f'"{n}":[0]' for n in range(22))
            group.server.put(paths.topic(TOPIC), f'{{"version":1,"partitions":{{{listed}}}}}'.encode())
            group.simulation.run(group.simulation.now + 10.0)
            assert len(group.owners()) == 22, "no plan can be written, and all use range"
            assert not advertise(group)
            group.server.refuse(paths.placement(GROUP))
            group.simulation.run(group.simulation.now + RETRY_S)
            assert advertise(group), "they try again"
            assert len(group.owners()) == 22
        finally:
            group.simulation.close()


def advertise(group: SimulatedGroup) -> bool:
    found = group.server.tree(paths.ids(GROUP))
    return all(PLAN_KEY in decode_registration(data, path).extra for path, data in found.items())
