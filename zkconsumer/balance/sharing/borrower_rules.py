"""Decides what a member does with one loan: which slots it handles, and what it reports. Pure; one thread.

A borrower begins messages only while the owner node has the lender's session, and the loan is the one that it has seen.
It reports a loan's number only when it has taken on all new slots of that loan, and begins no message of the slots that
it does not report as held before it sees a higher number. A slot with a message that fails goes back to the lender:
``balance.failed_messages`` notes the slot as refused. What it has is of one stay and of one session of its own: it
forgets it with either, whether or not it saw the loan go.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from zkconsumer.balance.sharing.loan_format import Loan, LoanReport
from zkconsumer.core.finished_note import FinishedNote, together
from zkconsumer.core.key_slots import ALL_SLOTS, NO_SLOTS
from zkconsumer.ownership.balanced_ledger import BalancedLedger


@dataclass(frozen=True, slots=True)
class BorrowerView:
    """The inputs of a borrower's decisions.

    * ``session``: ours; ``owner_session``: that of the owner node, None if there is none
    * ``loan``: ours, None if there is none that can be read
    * ``in_hand``: slots of the partition with messages in hand, of whatever stay
    * ``refused``: slots to give back, since a message of them fails
    * ``leaving``: whether this member wants no loans any more
    * ``report``: our last report, None if there is none that can be read
    """

    session: int
    owner_session: int | None
    loan: Loan | None
    in_hand: int = NO_SLOTS
    refused: int = NO_SLOTS
    leaving: bool = False
    report: LoanReport | None = None


@dataclass(frozen=True, slots=True)
class EndLoan:
    """Forget all messages of the loan; those in hand may end."""


@dataclass(frozen=True, slots=True)
class TakeOn:
    """Handle these slots from now on; ``note`` tells what is finished of them. The first one begins to read."""

    slots: int
    note: FinishedNote


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Count these slots no more, and tell what is finished of them by :meth:`Borrower.gave_up`."""

    slots: int


BorrowerOrder = EndLoan | TakeOn | GiveUp


class Borrower:
    """One member's loan of one partition.

    * ``held``: the slots that its ledger counts; ``closing``: those of them of which no message may begin any more
    * ``reports``: the slots to report as held, None if nothing is to be reported; ``number`` of the loan it answers, of
      this ``stay`` and to this ``session`` of ours
    """

    def __init__(self, order: str) -> None:
        self._order = order
        self.stay = ""
        self.session = 0
        self.number = -1
        self.held = NO_SLOTS
        self.closing = NO_SLOTS
        self.reports: int | None = None
        self._declined = NO_SLOTS
        self._awaited = NO_SLOTS
        self._gone: list[tuple[int, FinishedNote]] = []

    def step(self, view: BorrowerView) -> list[BorrowerOrder]:
        """Return what is to be done now, in this order."""
        loan = view.loan
        orders: list[BorrowerOrder] = []
        strange = loan is None or loan.borrower_session != view.session or loan.order != self._order
        if loan is None or strange:
            if self.held or self.stay:
                orders.append(EndLoan())
            self._forget("", 0)
            return orders
        if (loan.stay, loan.borrower_session) != (self.stay, self.session):
            # Also if our session has ended and the lender has lent anew before we looked: everything went back to it
            # then, so what our ledger counts as unfinished may be finished elsewhere.
            if self.held:
                orders.append(EndLoan())
            self._forget(loan.stay, loan.borrower_session)
        if view.owner_session != loan.lender_session:
            # The owner has gone. The next one of ours takes the loan over; another one repeats what is not committed.
            # If it is this member, what is known here is kept until its own stay begins, which ends the loan.
            self.reports = None
            return orders
        self._answer(loan, view, orders)
        return orders

    def _forget(self, stay: str, session: int) -> None:
        self.stay, self.session, self.number = stay, session, -1
        self.held = self.closing = self._declined = self._awaited = NO_SLOTS
        self.reports = None
        self._gone = []

    def _answer(self, loan: Loan, view: BorrowerView, orders: list[BorrowerOrder]) -> None:
        if loan.number != self.number:
            self.number, self._declined = loan.number, NO_SLOTS
            # The lender has not heard yet that these slots were given back, so it is told again.
            self._awaited = loan.lent
            self._gone = [(kept, note) for slots, note in self._gone if (kept := slots & self._awaited)]
            if view.report is not None and loan.answered_by(view.report):
                # Of an earlier run of this member. The lender may have lent on what that run gave back.
                self._declined = loan.lent & ~view.report.held
                self._gone.append((loan.lent, view.report.note))
        self._declined |= ALL_SLOTS if view.leaving else view.refused & self.held
        wanted = loan.slots & ~self._declined
        new = wanted & ~self.held
        if new:
            orders.append(TakeOn(new, self._known_of(new, loan.note)))
            self._gone = [(kept, note) for slots, note in self._gone if (kept := slots & ~new)]
            self.held |= new
        # only what was closed before the view was taken: otherwise a message may have begun since
        gone = self.held & ~wanted & self.closing & ~view.in_hand
        if gone:
            orders.append(GiveUp(gone))
            self.held &= ~gone
        self._vouch(loan, gone)
        self.closing = self.held & ~wanted
        # Slots in hand since an earlier stay are reported too: nobody else may begin their keys.
        self.reports = self.held | view.in_hand & self._awaited

    def _known_of(self, new: int, note: FinishedNote) -> FinishedNote:
        """Return what is finished of slots that come back, by the loan and by what we finished of them before.

        The lender may write a loan again before it has seen our report.
        """
        pieces, attempts = list(note.finished), dict(note.attempts)
        for slots, gone in self._gone:
            if back := slots & new:
                pieces += gone.told_from(note.base, back)
                attempts.update(gone.attempts)
        return FinishedNote(note.base, tuple(pieces), attempts)

    def _vouch(self, loan: Loan, gone: int) -> None:
        """Report slots that we never had as the lender knows them: the report's base says nothing of them otherwise."""
        unknown = self._awaited & ~self.held & ~gone
        for slots, _ in self._gone:
            unknown &= ~slots
        if unknown:
            self._gone.append((unknown, loan.note))

    def gave_up(self, slots: int, note: FinishedNote) -> None:
        """Note what is finished of slots that are given back, until the lender has heard of it.

        The lender counts slots that are no longer in the loan itself. Their base would hold back that of all others.
        """
        if awaited := slots & self._awaited:
            self._gone.append((awaited, note))

    def cut(self, of_same_log: Callable[[FinishedNote], FinishedNote]) -> None:
        """Believe of slots that were given back only what ``of_same_log`` leaves of their notes."""
        self._gone = [(slots, of_same_log(note)) for slots, note in self._gone]

    def note(self, ledger: BalancedLedger | None) -> FinishedNote:
        """Return what to report: what is finished of the slots held, and of those given back."""
        parts = list(self._gone)
        if ledger is not None and self.held:
            parts.append((self.held, ledger.point().note))
        return together([(note.of_slots(slots), slots) for slots, note in parts])
