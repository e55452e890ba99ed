"""A change costs what it moves: counted in the simulation at small sizes, beside the original's algorithm."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from scripts.measurements.scale.changes import CHANGES, ORIGINAL, OURS, Cost, simulate
from scripts.measurements.scale.report import draw, table
from zkconsumer.member.zookeeper.group_registration import DOUBTED

SMALL, LARGE = (40, 8), (160, 32)


@cache
def cost(side: str, change: str, size: tuple[int, int]) -> Cost:
    return simulate(side, change, *size)


@pytest.mark.parametrize("size", [SMALL, LARGE, (10, 30)])
@pytest.mark.parametrize("change", ["join", "leave", "kill"])
def test_a_change_costs_what_moves_and_a_little_for_each_member(change: str, size: tuple[int, int]) -> None:
    """Each partition that moves is looked at, released, waited for and claimed; each member hears of the change and
    looks who is there. Nothing grows with all partitions, or with the square of the members.
    """
    found = cost(OURS, change, size)
    assert found.unowned == 0
    assert found.moved > 0
    assert found.total <= 6 * found.moved + 6 * found.members + 20, found
    assert found.parts <= 10 * found.moved


@pytest.mark.parametrize(("change", "most"), [("join", 10), ("leave", 4), ("kill", 4)])
def test_what_can_be_asked_together_is(change: str, most: int) -> None:
    """With a slow link only round trips count. A member that takes over lists the members, releases with a last commit,
    reads owners and offsets, and claims. Watching its claims holds up nothing. A joining member connects, reads and
    registers before that, and reads again for partitions that other members still own.
    """
    assert cost(OURS, change, (8, 3)).trips <= most


@pytest.mark.parametrize("change", ["join", "leave", "kill", "restart"])
def test_what_stays_is_not_even_looked_at(change: str) -> None:
    assert cost(OURS, change, LARGE).untouched


def test_members_that_did_not_change_are_not_read_again() -> None:
    _, members = LARGE
    own = 5  # its own registration, made and armed
    assert cost(OURS, "join", LARGE).registrations_read <= 2 * members + own, "the new one by all, and all by it"
    assert cost(OURS, "leave", LARGE).registrations_read <= own
    assert cost(OURS, "kill", LARGE).registrations_read == 0
    assert cost(ORIGINAL, "leave", LARGE).registrations_read >= (members - 1) ** 2


@pytest.mark.parametrize("change", ["join", "leave", "kill"])
def test_ours_costs_the_change_and_the_original_the_group(change: str) -> None:
    """Both sizes have five partitions a member. The larger size has four times the members and partitions."""
    small, large = cost(OURS, change, SMALL), cost(OURS, change, LARGE)
    grown = max(large.moved / small.moved, large.members / small.members)
    assert large.total / small.total <= 1.25 * grown
    original = cost(ORIGINAL, change, LARGE)
    assert original.unowned == 0
    assert original.moved == large.moved
    assert large.total < original.total / 2
    assert large.bytes < original.bytes / 2


@pytest.mark.parametrize("side", [OURS, ORIGINAL])
@pytest.mark.parametrize("change", CHANGES)
def test_every_change_ends_with_every_partition_at_its_thread(side: str, change: str) -> None:
    assert cost(side, change, SMALL).unowned == 0


def test_a_start_of_all_is_not_a_contest_of_transactions() -> None:
    found = cost(OURS, "all start", LARGE)
    assert found.parts <= 30 * found.partitions, "what others forestalled is taken out at once"


def test_rest_costs_a_look_at_what_is_believed() -> None:
    """Of the registrations each member reads its own and, in turn, a few: the cost grows with the members, not with
    their square.
    """
    for size in (SMALL, LARGE):
        partitions, members = size
        found = cost(OURS, "rest", size)
        read = min(members, DOUBTED + 1)
        assert found.registrations_read <= members * read
        assert 0 < found.total <= members * (read + 5) + 2 * partitions
        assert found.parts == 0
    assert cost(ORIGINAL, "rest", SMALL).total == 0


def test_the_original_releases_and_claims_everything() -> None:
    partitions, members = SMALL
    requests = cost(ORIGINAL, "leave", SMALL).requests
    leaver = partitions // members
    assert requests["create"] >= partitions, "all partitions claimed one by one"
    assert requests["delete"] >= partitions - leaver
    assert requests["write"] == partitions, "each commits what it consumed before it stops, the leaver too"


def test_a_run_is_the_same_every_time() -> None:
    again = simulate(OURS, "restart", *SMALL)
    assert replace(again, cpu=0.0) == replace(cost(OURS, "restart", SMALL), cpu=0.0)


def test_the_report_tells_both_sides(tmp_path: Path) -> None:
    costs = [cost(side, change, size) for side in (OURS, ORIGINAL) for change in CHANGES for size in (SMALL,)]
    text = table(costs)
    ours, original = (cost(side, "join", SMALL).total for side in (OURS, ORIGINAL))
    assert f"| 40 x 8 | one joins | {cost(OURS, 'join', SMALL).moved} | {ours} / {original} |" in text
    picture = tmp_path / "scale.png"
    draw(costs, picture)
    assert picture.read_bytes().startswith(b"\x89PNG")
