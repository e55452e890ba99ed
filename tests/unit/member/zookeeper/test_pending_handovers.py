"""When to look at partitions that were given up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zkconsumer.member.zookeeper.orphaned_partitions import LONGEST, NEVER, PendingHandovers
from zkconsumer.model import ThreadId, TopicPartition

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
X, Y = ThreadId("x-0"), ThreadId("y-0")


def test_nothing_is_due_at_first() -> None:
    assert (PendingHandovers(9.0).next_look, PendingHandovers(9.0).due(1e9)) == (NEVER, {})


def test_a_released_partition_is_looked_at_after_the_tries() -> None:
    """A released partition is looked at once the member that should own it has used up its tries."""
    hand_overs = PendingHandovers(9.0)
    hand_overs.gave({A: X}, 100.0)
    assert (hand_overs.next_look, hand_overs.due(108.9), hand_overs.due(109.0)) == (109.0, {}, {A: X})
    assert hand_overs.overdue() == {}
    hand_overs.looked([A], 109.0)
    assert hand_overs.overdue() == {A: 9.0}
    assert hand_overs.next_look == 127.0


def test_a_look_that_failed_tells_nothing_and_only_comes_later() -> None:
    hand_overs = PendingHandovers(9.0)
    hand_overs.gave({A: X}, 100.0)
    hand_overs.postponed([A], 109.0)
    assert (hand_overs.overdue(), hand_overs.next_look, hand_overs.nudges(A)) == ({}, 127.0, 0)


def test_wakings_count_and_not_looks() -> None:
    hand_overs = PendingHandovers(9.0)
    hand_overs.gave({A: X, B: X}, 0.0)
    hand_overs.looked([A, B], 9.0)
    hand_overs.nudged([A])
    assert (hand_overs.nudges(A), hand_overs.nudges(B)) == (1, 0)
    hand_overs.assigned({A: Y, B: X}, [])
    assert hand_overs.nudges(A) == 0


def test_an_orphan_is_left_first_to_the_member_that_released_it() -> None:
    hand_overs = PendingHandovers(9.0)
    hand_overs.found({A: X}, 100.0)
    assert hand_overs.next_look == 127.0
    hand_overs.found({A: X}, 120.0)
    assert (hand_overs.next_look, hand_overs.overdue()) == (127.0, {A: 20.0})


def test_what_has_an_owner_or_is_ours_or_nobodys_is_no_hand_over() -> None:
    hand_overs = PendingHandovers(9.0)
    for settle in (
        lambda: hand_overs.settled([A]),
        lambda: hand_overs.assigned({A: X}, [A]),
        lambda: hand_overs.assigned({}, []),
    ):
        hand_overs.gave({A: X, B: X}, 0.0)
        settle()
        assert A not in hand_overs


def test_another_assignment_changes_the_owner_and_not_the_time() -> None:
    """Another assignment changes who should own it and not since when nobody does."""
    hand_overs = PendingHandovers(9.0)
    hand_overs.gave({A: X}, 0.0)
    hand_overs.assigned({A: Y}, [])
    assert hand_overs.due(9.0) == {A: Y}


@given(st.lists(st.floats(0.0, 1000.0), max_size=30), st.floats(0.01, 100.0))
def test_looks_are_ever_further_apart_and_never_cease(moments: list[float], patience: float) -> None:
    hand_overs = PendingHandovers(patience)
    hand_overs.gave({A: X}, 0.0)
    now, pauses = 0.0, [patience]
    for moment in moments:
        now = max(now, hand_overs.next_look) + moment
        assert A in hand_overs.due(now)
        hand_overs.looked([A], now)
        pauses.append(hand_overs.next_look - now)
    assert pauses == pytest.approx(sorted(pauses))
    assert max(pauses) <= max(LONGEST, patience) + 1e-6
