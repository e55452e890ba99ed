"""The account of ``scripts/demo --balance`` notices everything that it is to notice."""

from __future__ import annotations

import pytest

from scripts.demonstration.balanced_account import BalancedTotals, balanced_totals
from scripts.demonstration.balanced_member import Attempt

PRODUCED = {(0, 0): 10, (0, 1): 11, (0, 2): 12, (1, 0): 20}
DAMAGED = 20


def attempt(begun: int, offset: int, *, partition: int = 0, failed: bool = False, carrier: bytes = b"UA") -> Attempt:
    return Attempt(begun, begun + 5, offset, partition, PRODUCED[partition, offset], failed, carrier)


def totals(*attempts: Attempt, dead: tuple[tuple[int, int], ...] = ((1, 0),)) -> BalancedTotals:
    return balanced_totals(PRODUCED, {DAMAGED}, dead, {"ann": attempts[::2], "ben": attempts[1::2]})


def test_all_in_order_and_one_dead_letter_is_good() -> None:
    found = totals(attempt(0, 0), attempt(10, 1, failed=True), attempt(20, 1), attempt(30, 2))

    assert found.good
    assert (found.handled, found.dead, found.failed_attempts, found.repeated) == (3, 1, 1, 0)
    assert found.by_member == {"ann": 2, "ben": 1}


def test_a_repetition_is_counted_and_is_good() -> None:
    found = totals(attempt(0, 0), attempt(10, 1), attempt(20, 0), attempt(30, 1), attempt(40, 2))

    assert found.good
    assert found.repeated == 2


def test_carriers_and_partitions_do_not_wait_for_each_other() -> None:
    assert totals(attempt(0, 1), attempt(2, 0, carrier=b"DL"), attempt(20, 2)).good


@pytest.mark.parametrize(
    ("found", "name"),
    [
        (totals(attempt(0, 0), attempt(20, 2)), "lost"),
        (totals(attempt(0, 1), attempt(10, 0), attempt(20, 2)), "overtaken"),
        (totals(attempt(0, 0), attempt(3, 1), attempt(20, 2)), "overlapping"),
        (totals(attempt(0, 0), attempt(10, 1), dead=((0, 2), (1, 0))), "unexpected"),
    ],
    ids=["a lost flight", "handled before an earlier one", "two handlers of one carrier", "a whole flight is dead"],
)
def test_a_broken_promise_is_counted_and_is_not_good(found: BalancedTotals, name: str) -> None:
    assert not found.good
    assert getattr(found, name) == 1
