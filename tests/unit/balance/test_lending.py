"""Lenders and borrowers decide: what a loan, a report and another stay say of slots.

The simulation runs them in whole members (its scenario ``sharing``).
"""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import pytest

from zkconsumer.balance.sharing.borrower_rules import Borrower, BorrowerView, EndLoan, GiveUp, TakeOn
from zkconsumer.balance.sharing.lender_rules import Beginning, DeleteLoan, Lender, LenderView, SeenLoan, WriteLoan
from zkconsumer.balance.sharing.lent_partition import LentPartition, LentPartitions
from zkconsumer.balance.sharing.loan_format import Loan, LoanReport
from zkconsumer.balance.sharing.shared_ledger import SharedLedger
from zkconsumer.core.finished_note import FinishedNote
from zkconsumer.core.key_slots import ALL_SLOTS
from zkconsumer.core.message_pointers import Pointer, PointerKind
from zkconsumer.core.unfinished_offsets import Finished
from zkconsumer.model import ThreadId, TopicPartition
from zkconsumer.ownership.partition_position import PartitionPosition


def test_a_borrower_repeats_nothing_when_its_lender_comes_back() -> None:
    loan = Loan(1, "s", "a", 10, 20, "key", 3, 0, FinishedNote(5))
    borrower = Borrower("key")
    assert borrower.step(BorrowerView(20, 10, loan)) == [TakeOn(3, loan.note)]
    for owner in (None, 11, None, 10):
        assert borrower.step(BorrowerView(20, owner, loan)) == []
        assert (borrower.held, borrower.reports) == (3, 3 if owner == 10 else None)


def test_slots_that_left_the_loan_hold_back_no_base() -> None:
    """Bug: a new owner had left them out of the loan. The base that they had stayed in all reports, and in commits."""
    borrower = Borrower("key")
    borrower.step(BorrowerView(20, 10, Loan(1, "s", "a", 10, 20, "key", 3, 0, FinishedNote(5))))
    loan = Loan(2, "s", "a", 11, 20, "key", 1, 0, FinishedNote(5))
    assert borrower.step(BorrowerView(20, 11, loan)) == []
    assert borrower.step(BorrowerView(20, 11, loan)) == [GiveUp(2)]
    borrower.gave_up(2, FinishedNote(5))
    assert borrower.note(None) == FinishedNote(0), "nothing of it is reported"


def test_a_loan_to_another_session_begins_anew() -> None:
    """The owner had all of it back in between, though the borrower has never seen that."""
    borrower = Borrower("key")
    borrower.step(BorrowerView(20, 10, Loan(1, "s", "a", 10, 20, "key", 3, 0, FinishedNote(5))))
    again = Loan(2, "s", "a", 10, 30, "key", 3, 0, FinishedNote(90))
    assert borrower.step(BorrowerView(30, 10, again)) == [EndLoan(), TakeOn(3, again.note)]
    assert borrower.number == 2


def test_a_second_run_begins_nothing_that_the_first_gave_back() -> None:
    """Bug: the second run took on all slots of the loan. The lender had lent on what the first had given back."""
    loan = Loan(7, "s", "a", 10, 20, "key", 7, 0, FinishedNote(5))
    finished = Finished(9, 50, (20,), 7)
    report = LoanReport(7, "s", 20, 3, FinishedNote(9, (finished,)))
    borrower = Borrower("key")
    (taken,) = borrower.step(BorrowerView(20, 10, loan, report=report))
    assert isinstance(taken, TakeOn)
    assert (taken.slots, set(taken.note.finished)) == (3, {Finished(5, 9, (), 3), finished.of_slots(3)})
    assert (borrower.held, borrower.closing, borrower.reports) == (3, 0, 3)
    assert borrower.note(None) == FinishedNote(9, (Finished(9, 50, (20,), 4),)), "of what was given back"
    (again,) = borrower.step(BorrowerView(20, 10, replace(loan, number=8), report=report))
    assert isinstance(again, TakeOn)
    assert again.slots == 4, "the lender has lent it once more"


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


def test_a_loan_that_outlives_a_seek_tells_of_parked_messages() -> None:
    """Bug: the log was read again up to a parked message without a key, and its borrower handled it as well."""
    position = PartitionPosition(TopicPartition("t", 0), ThreadId("a-0"), 2)
    owner = SharedLedger(position, 2, None, {5: Pointer(5), 6: Pointer(6, PointerKind.DEAD)}, 1)
    owner.begin(Beginning(1, {"b": FinishedNote(2)}), {"b": 0b10})
    assert [owner.lent_note("b").covers(offset, 1) for offset in (4, 5, 6)] == [False, True, False]
    owner.read([], 9)
    assert owner.end_loan("b", 0b10) == 2
    assert [owner.wants(offset, 1) for offset in (4, 5, 6)] == [True, False, True]


def test_a_new_owner_recalls_slots_with_parked_messages() -> None:
    """Bug: a borrower that had been the owner for a while went on with its former loan, past what it had parked."""
    seen = SeenLoan(Loan(1, "s", "a", 10, 20, "key", 0b110, 0b1000), 0)
    view = LenderView({"b": 20}, {"b": seen}, {}, pinned=0b11)
    lender = Lender("d", 40, "key", "new")
    lender.begin(5, FinishedNote(5), view)
    (write,) = lender.writes(view)
    assert isinstance(write, WriteLoan)
    assert (write.loan.slots, write.loan.recalled) == (0b100, 0b1010)


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


class ReadyMeanwhile(LentPartition):
    """A stay that becomes ready right after it was looked at."""

    _looks = 0

    @property
    def ready(self) -> bool:
        self._looks += 1
        return self._looks > 1

    @ready.setter
    def ready(self, ready: bool) -> None:
        pass


def test_a_stay_is_open_once_its_ledger_was_given() -> None:
    """Bug: it became ready between two looks. The partition was open, and nobody followed its loans."""
    position = PartitionPosition(TopicPartition("t", 0), ThreadId("a-0"))
    ledger = cast("SharedLedger", object())
    stay = ReadyMeanwhile(position, cast("Lender", None), ledger)
    lent = LentPartitions()
    lent.begin(position, stay)
    assert lent.ledger_of(position) is None
    assert not stay.opened
    assert lent.ledger_of(position) is ledger
    assert stay.opened
