"""Placement, simulated: a rolling restart moves nothing, and ``lag-aware`` settles under a skewed load."""

from __future__ import annotations

import pytest

from scripts.measurements.scale.changes import GROUP, OURS, TOPIC, SimulatedGroup
from scripts.measurements.scale.ours import NEVER, OurMember
from scripts.measurements.scale.rolling import rolling_restart
from scripts.measurements.scale.skewed import skewed_load
from zkconsumer.assignors.placement_decision import RETRY_S
from zkconsumer.core.registration import PLAN_KEY
from zkconsumer.zookeeper import paths
from zkconsumer.zookeeper.node_codecs import decode_registration


@pytest.mark.parametrize(("crash", "partitions", "members"), [(False, 500, 10), (True, 100, 5)])
def test_a_rolling_restart_moves_nothing(crash: bool, partitions: int, members: int) -> None:
    """Each member is restarted once. The page on placement has the figures of the larger group."""
    done = rolling_restart("sticky", lasting=True, crash=crash, partitions=partitions, members=members)
    assert (done.moves, done.unowned, done.most_of_one) == (0, 0, partitions // members)


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


@pytest.mark.parametrize(("case", "most"), [("all are fast", 0), ("one partition is hot", 3)])
def test_noise_moves_nothing_and_a_hot_partition_stays(case: str, most: int) -> None:
    assert skewed_load(case, hours=2.0).moves <= most


@pytest.mark.parametrize("seed", [1, 2])
def test_partitions_of_a_slow_member_do_not_flap(seed: int) -> None:
    """In each of these four hours ten partitions moved before relieved members were left alone for a while."""
    done = skewed_load("the planner is slow", noise=0.0, hours=4.0, seed=seed)
    assert done.moves <= 16, done
    assert done.rates["a"] <= 150, "it is relieved"


def test_a_hot_partition_leaves_a_slow_member() -> None:
    """No move lessens the load of a member whose only partition is hot. It is moved all the same, as it lags there."""
    done = skewed_load("the member with the hot one is slow", hours=3.0)
    assert done.rates["a"] <= 200, done
    assert done.moves <= 24, done
