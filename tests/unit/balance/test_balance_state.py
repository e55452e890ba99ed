"""The texts that a balanced member shows of itself."""

from __future__ import annotations

import pytest

from zkconsumer.balance.balance_state import BalanceState, HeldMessage, PartitionBalance
from zkconsumer.model import TopicPartition
from zkconsumer.runtime.metrics import BOUNDS, Buckets

T3 = TopicPartition("events", 3)


@pytest.mark.parametrize(
    ("held", "text"),
    [
        (HeldMessage(1200), "1,200 (waiting)"),
        (HeldMessage(1200, in_hand=12.4), "1,200 (in hand for 12 s)"),
        (HeldMessage(1200, 4, 38.2, "TimeoutError"), "1,200 (attempt 4, next in 38 s: TimeoutError)"),
        (HeldMessage(1200, 1, -2.0, "KeyError"), "1,200 (attempt 1, next in 0 s: KeyError)"),
        (HeldMessage(1200, passing=True), "1,200 (passed by the next commit)"),
        (HeldMessage(1200, where="g_b"), "1,200 (on loan to g_b)"),
    ],
)
def test_the_message_that_holds_a_base(held: HeldMessage, text: str) -> None:
    assert str(held) == text


def test_the_line_of_a_partition() -> None:
    held = HeldMessage(1200, 4, 38.0, "TimeoutError")
    one = PartitionBalance(T3, 1200, held, 812, 40, 16, lent={"g_b": 128})
    assert str(one) == (
        "events-3: base 1,200 held by 1,200 (attempt 4, next in 38 s: TimeoutError), 812 finished beyond, 16 in hand,"
        " 128 slots lent to g_b"
    )


def test_the_line_tells_pointers_loans_and_a_stop() -> None:
    one = PartitionBalance(
        T3, 7, parked=2, dead=1, lender="g_a", borrowed=64, full=True, stopped="stopped at 7: no room"
    )
    assert str(one) == (
        "events-3: base 7, 0 finished beyond, 0 in hand, 2 parked, 1 dead, 64 slots borrowed from g_a, full,"
        " stopped at 7: no room"
    )


def test_only_partitions_with_news_have_a_line() -> None:
    quiet, busy = PartitionBalance(T3, 7), PartitionBalance(TopicPartition("events", 4), 9, in_hand=1)
    state = BalanceState(8, (quiet, busy))
    assert state.lines() == (str(busy),)
    assert state.in_hand == 1
    assert BalanceState(8, (quiet,), troubles=("a",), warnings=("b",)).lines() == ("a", "b")


def test_problems_are_stops_and_troubles() -> None:
    state = BalanceState(
        8, (PartitionBalance(T3, 7, stopped="stopped at 7: no room"),), troubles=("a handler does not return",)
    )
    assert state.problems == ("events-3 stopped at 7: no room", "a handler does not return")
    assert BalanceState(8, (PartitionBalance(T3, 7, in_hand=1),)).problems == ()


def test_buckets_count_a_bound_as_within() -> None:
    buckets = Buckets()
    buckets.add(BOUNDS[0], 2)
    buckets.add(BOUNDS[0] + 1e-9)
    buckets.add(1e9)
    value = buckets.value()
    assert (value.counts[0], value.counts[1], value.counts[-1], value.count) == (2, 1, 1, 4)
    assert value.total == pytest.approx(1e9 + 3 * BOUNDS[0])
    assert len(value.counts) == len(value.bounds) + 1
