"""When to look at what was given up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zkconsumer.member.zookeeper.pending_handovers import LONGEST, NEVER, PendingHandovers
from zkconsumer.model import ThreadId, TopicPartition

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
X, Y = ThreadId("x-0"), ThreadId("y-0")


def test_nothing_is_due_at_first() -> None:
    assert (PendingHandovers(9.0).next_look, PendingHandovers(9.0).due(1e9)) == (NEVER, {})


def test_what_was_given_up_is_looked_at_once_its_taker_has_given_up() -> None:
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


def test_what_counts_is_how_often_a_thread_was_woken_and_not_how_often_was_looked() -> None:
    hand_overs = PendingHandovers(9.0)
    hand_overs.gave({A: X, B: X}, 0.0)
    hand_overs.looked([A, B], 9.0)
    hand_overs.nudged([A])
    assert (hand_overs.nudges(A), hand_overs.nudges(B)) == (1, 0)
    hand_overs.assigned({A: Y, B: X}, [])
    assert hand_overs.nudges(A) == 0


def test_what_was_found_without_an_owner_is_left_to_whoever_gave_it_up_first() -> None:
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


def test_another_assignment_changes_who_should_own_it_and_not_since_when_nobody_does() -> None:
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
