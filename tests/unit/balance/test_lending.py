"""Lenders and borrowers decide: what a loan, a report and another stay say of slots.

The simulation runs them in whole members (its scenario ``sharing``).
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from zkconsumer.balance.sharing.borrower import Borrower, BorrowerView, EndLoan, TakeOn
from zkconsumer.balance.sharing.lender import DeleteLoan, Lender, LenderView, SeenLoan
from zkconsumer.balance.sharing.loan_nodes import Loan, LoanReport
from zkconsumer.core.finished_note import FinishedNote
from zkconsumer.core.key_slots import ALL_SLOTS
from zkconsumer.core.unfinished_offsets import Finished


def test_a_borrower_repeats_nothing_when_its_lender_comes_back() -> None:
    loan = Loan(1, "s", "a", 10, 20, "key", 3, 0, FinishedNote(5))
    borrower = Borrower("key")
    assert borrower.step(BorrowerView(20, 10, loan)) == [TakeOn(3, loan.note)]
    for owner in (None, 11, None, 10):
        assert borrower.step(BorrowerView(20, owner, loan)) == []
        assert (borrower.held, borrower.allowed) == (3, 3 if owner == 10 else 0)


def test_a_loan_to_another_session_begins_anew() -> None:
    """The owner had all of it back in between, though the borrower has never seen that."""
    borrower = Borrower("key")
    borrower.step(BorrowerView(20, 10, Loan(1, "s", "a", 10, 20, "key", 3, 0, FinishedNote(5))))
    again = Loan(2, "s", "a", 10, 30, "key", 3, 0, FinishedNote(90))
    assert borrower.step(BorrowerView(30, 10, again)) == [EndLoan(), TakeOn(3, again.note)]
    assert borrower.number == 2


def test_a_loan_of_another_stay_keeps_what_is_noted() -> None:
    report = LoanReport(1, "earlier", 20, 3, FinishedNote(90))
    seen = SeenLoan(Loan(1, "earlier", "a", 10, 20, "key", 3, 0, FinishedNote(80)), 0, report, True)
    other = SeenLoan(Loan(2, "s", "a", 10, 30, "key", 4), 0)
    note = FinishedNote(5, (Finished(5, 50, (), 7),))
    view = LenderView({"b": 20, "c": 30}, {"b": seen, "c": other}, {})
    lender = Lender("d", 40, "key", "new")
    assert lender.begin(5, note, view).lent["b"] == FinishedNote(5, (Finished(5, 50, (), 3),))
    assert lender.stay == "s"
    assert Lender("d", 40, "key", "new").begin(5, None, view).lent["b"] == FinishedNote(5)


def test_a_loan_of_another_order_says_nothing() -> None:
    """Its slots follow from offsets, those of this run from keys: they name other messages, which would be passed."""
    told = FinishedNote(80, (Finished(80, 90, (), 3),))
    seen = SeenLoan(Loan(1, "s", "a", 10, 20, "none", 3, 0, told), 0, LoanReport(1, "s", 20, 3, told), True)
    view = LenderView({"b": 20}, {"b": seen}, {})
    lender = Lender("d", 40, "key", "new")
    begun = lender.begin(5, FinishedNote(5, (Finished(70, 75),)), view)
    assert begun.slots == ALL_SLOTS
    assert begun.lent == {}
    assert set(begun.known) <= {Finished(70, 75, (), 3)}
    assert lender.writes(view) == [DeleteLoan("b", 0)]
    assert not lender.ready(view)
    assert lender.ready(replace(view, loans={}))


def test_an_owner_tells_what_it_has_in_hand_of_its_own_loan() -> None:
    """The owner deleted that loan. The next owner could begin a later message of the key in hand."""
    seen = SeenLoan(Loan(1, "s", "a", 10, 20, "key", 3, 0, FinishedNote(5)), 0)
    view = LenderView({"b": 20, "c": 30}, {"b": seen}, {}, in_hand=1, in_hand_before=1)
    owner = Lender("b", 20, "key", "new")
    assert owner.begin(5, FinishedNote(5), view).slots == ALL_SLOTS
    assert owner.writes(view) == []
    assert owner.ready(view)
    assert Lender("c", 30, "key", "newer").begin(5, FinishedNote(5), view).slots == ALL_SLOTS & ~3
    assert owner.step(replace(view, in_hand_before=0)) == [DeleteLoan("b", 0)]


@pytest.mark.parametrize(("stay", "session", "order"), [("earlier", 20, "key"), ("s", 19, "key"), ("s", 20, "none")])
def test_an_owner_deletes_a_loan_that_says_nothing_of_its_stay(stay: str, session: int, order: str) -> None:
    loan = Loan(1, "s", "a", 10, 20, "key", 3, 0, FinishedNote(5))
    owner = Lender("b", 20, "key", "new")
    owner.begin(5, FinishedNote(5), LenderView({"b": 20}, {"b": SeenLoan(loan, 0)}, {}))
    other = replace(loan, stay=stay, borrower_session=session, order=order)
    view = LenderView({"b": 20}, {"b": SeenLoan(other, 0)}, {}, in_hand_before=1)
    assert owner.writes(view) == [DeleteLoan("b", 0)]
