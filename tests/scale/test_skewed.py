"""``lag-aware`` with a hot partition, a slow member and noise, simulated: it settles, and does not flap."""

from __future__ import annotations

import pytest

from scripts.measurements.scale.skewed import skewed_load


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
