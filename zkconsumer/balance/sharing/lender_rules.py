"""Decides which slots of one owned partition are lent, moved and taken back. Pure; one thread.

The owner of a partition has a :class:`Lender` for each stay. :meth:`Lender.begin` takes over the loans of an earlier
owner. :meth:`Lender.step` gets what the nodes say, and returns orders for the owner's ledger and for ZooKeeper.

A slot is the owner's or one borrower's. A slot leaves the owner once none of its messages is in hand. The owner
gets a slot back when the borrower no longer reports the slot, or when the borrower's session has ended. The lender
counts a slot as lent before the loan is written. So a write with an unknown outcome harms nothing, and is repeated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from zkconsumer.balance.sharing.loan_format import Loan, LoanReport
from zkconsumer.balance.sharing.slot_plan import deal_slots
from zkconsumer.core.finished_note import FinishedNote
from zkconsumer.core.key_slots import ALL_SLOTS, NO_SLOTS, slots_in
from zkconsumer.core.unfinished_offsets import Finished

KEEP_RETURNED = 300.0
"""Seconds for which a slot stays with the owner after a borrower gave it back unasked, because a message failed."""


@dataclass(frozen=True, slots=True)
class SeenLoan:
    """A loan's node: ``loan`` is its content, None if unreadable, and ``version`` its data version.

    ``report`` is the borrower's answer, None if unreadable; ``reported`` says whether the answer has a node.
    """

    loan: Loan | None
    version: int
    report: LoanReport | None = None
    reported: bool = False


@dataclass(frozen=True, slots=True)
class LenderView:
    """The inputs of the lender's decisions.

    * ``sessions``: the session of every registered consumer; ``loans``: the partition's loan nodes, by borrower
    * ``quotas``: how many slots each member should have (``slot_plan``); empty: nothing is lent
    * ``pinned``: slots that must be the owner's; ``in_hand``: slots with messages in hand here
    * ``now``: monotonic seconds
    * ``in_hand_before``: slots with messages in hand here since before this stay, when the owner was a borrower
    """

    sessions: Mapping[str, int]
    loans: Mapping[str, SeenLoan]
    quotas: Mapping[str, int]
    pinned: int = NO_SLOTS
    in_hand: int = NO_SLOTS
    now: float = 0.0
    in_hand_before: int = NO_SLOTS


@dataclass(frozen=True, slots=True)
class CloseSlots:
    """Begin no message of exactly these slots any more: they are to be lent."""

    slots: int


@dataclass(frozen=True, slots=True)
class LendSlots:
    """Count these slots of the ledger as lent."""

    borrower: str
    slots: int


@dataclass(frozen=True, slots=True)
class TakeReport:
    """Count as finished what a borrower says."""

    borrower: str
    note: FinishedNote


@dataclass(frozen=True, slots=True)
class TakeBack:
    """Count these slots as the owner's again; the borrower keeps ``keeps``."""

    borrower: str
    slots: int
    keeps: int


@dataclass(frozen=True, slots=True)
class WriteLoan:
    """Write a loan, with the ledger's note in it. ``version`` is the node's, None if there is no node."""

    borrower: str
    loan: Loan
    version: int | None


@dataclass(frozen=True, slots=True)
class DeleteLoan:
    """Delete a loan and its report."""

    borrower: str
    version: int


LenderOrder = CloseSlots | LendSlots | TakeReport | TakeBack | WriteLoan | DeleteLoan


@dataclass(frozen=True, slots=True)
class Beginning:
    """The beginning of a stay: the owner's own slots, each borrower's finished messages, and ``known`` others."""

    slots: int
    lent: Mapping[str, FinishedNote] = field(default_factory=dict)
    known: tuple[Finished, ...] = ()


class Lender:
    """The loans of one stay at a partition.

    Arguments: ``consumer`` and ``session`` are the owner's; ``order`` of its messages; ``stay`` names the life of the
    offsets, and is different for every stay of every member.
    """

    def __init__(self, consumer: str, session: int, order: str, stay: str) -> None:
        self._consumer = consumer
        self.session = session
        self._order = order
        self.stay = stay
        self._number = 0
        self._loans: dict[str, Loan] = {}
        """What the nodes should say; ``lent`` is all that the borrower may have."""
        self._closed = NO_SLOTS
        self._taken: dict[str, LoanReport] = {}
        self._returned: dict[int, float] = {}
        self._leaving: dict[str, int] = {}

    @property
    def own(self) -> int:
        """The slots that are the owner's."""
        lent = NO_SLOTS
        for loan in self._loans.values():
            lent |= loan.lent
        return ALL_SLOTS & ~lent

    @property
    def lent(self) -> Mapping[str, int]:
        """The slots that each borrower may have."""
        return {borrower: loan.lent for borrower, loan in self._loans.items()}

    # ---- the beginning

    def begin(self, start: int, note: FinishedNote | None, view: LenderView) -> Beginning:
        """Take over the loans of an earlier owner. Nothing of the partition may be handled before.

        Reports of borrowers count only if the note of the earlier owner counts. Otherwise somebody else has written
        the offset, perhaps to have messages handled again, and the borrowers begin anew as well.

        Arguments: ``start`` is the offset to begin at; ``note`` is that of the store, None if it does not count.
        """
        readable = {name: seen for name, seen in view.loans.items() if seen.loan is not None}
        self._number = max((seen.loan.number for seen in readable.values() if seen.loan), default=0)
        latest = max((seen.loan for seen in readable.values() if seen.loan), key=lambda one: one.number, default=None)
        if note is not None and latest is not None:
            self.stay = latest.stay
        lent: dict[str, FinishedNote] = {}
        known: list[Finished] = []
        for borrower, seen in sorted(readable.items()):
            loan = seen.loan
            if loan is None:
                continue
            # slots of another order are those of other messages
            same_stay = loan.stay == self.stay and loan.order == self._order
            told = _told(start, note, seen, loan, same_stay=same_stay)
            gone = view.sessions.get(borrower) != loan.borrower_session or loan.order != self._order
            held = NO_SLOTS if gone else self._possibly_held(loan, seen.report) & self.own
            if not held or borrower == self._consumer:
                known += told.finished
                continue
            known += told.of_slots(loan.lent & ~held).finished
            self._adopt(borrower, loan, held, view.pinned)
            lent[borrower] = told.of_slots(held)
        return Beginning(self.own, lent, tuple(known))

    def ready(self, view: LenderView) -> bool:
        """Return whether the partition may be handled and committed: no loan of an earlier stay or another
        order is left.

        Otherwise the note of this stay would make such a loan count again for the next owner.
        """
        loans = [seen.loan for seen in view.loans.values() if seen.loan is not None]
        return all(loan.stay == self.stay and loan.order == self._order for loan in loans)

    def outdated(self, view: LenderView) -> bool:
        """Return whether a borrower that was there at the beginning has gone. Its loan cannot be written any more."""
        return any(view.sessions.get(name) != loan.borrower_session for name, loan in self._loans.items())

    def _possibly_held(self, loan: Loan, report: LoanReport | None) -> int:
        """Return the slots that the borrower may have, whatever its messages are worth."""
        if report is not None and loan.answered_by(report):
            return loan.lent & report.held
        return loan.lent

    def _adopt(self, borrower: str, loan: Loan, held: int, pinned: int) -> None:
        # a borrower that was the owner meanwhile may have parked messages of slots that it had on loan before
        slots = loan.slots & held & ~pinned
        self._loans[borrower] = replace(
            loan,
            number=self._next(),
            stay=self.stay,
            lender=self._consumer,
            lender_session=self.session,
            slots=slots,
            recalled=held & ~slots,
        )

    def _next(self) -> int:
        self._number += 1
        return self._number

    # ---- each step

    def step(self, view: LenderView) -> list[LenderOrder]:
        """Return what is to be done now, in this order."""
        orders: list[LenderOrder] = []
        for borrower in sorted(self._loans):
            self._look_at(borrower, view, orders)
        self._move(view, orders)
        return [*orders, *self.writes(view)]

    def writes(self, view: LenderView) -> list[LenderOrder]:
        """Return the writes and deletions by which the nodes of the loans become up to date."""
        orders: list[LenderOrder] = []
        for borrower, loan in sorted(self._loans.items()):
            seen = view.loans.get(borrower)
            if seen is None or seen.loan is None or not _same(seen.loan, loan):
                orders.append(WriteLoan(borrower, loan, None if seen is None else seen.version))
        gone = sorted(view.loans.keys() - self._loans.keys())
        orders += [DeleteLoan(name, view.loans[name].version) for name in gone if not self._still_borrows(name, view)]
        return orders

    def _still_borrows(self, borrower: str, view: LenderView) -> bool:
        """Return whether the owner itself has messages of an earlier loan in hand.

        The loan tells the next owner so, which could begin a later message of the same key otherwise.
        """
        loan = view.loans[borrower].loan
        return (
            loan is not None
            and borrower == self._consumer
            and (loan.borrower_session, loan.stay, loan.order) == (self.session, self.stay, self._order)
            and bool(loan.lent & view.in_hand_before)
        )

    def _look_at(self, borrower: str, view: LenderView, orders: list[LenderOrder]) -> None:
        """Take over the report of one borrower, and take back the slots that the report no longer names."""
        loan, seen = self._loans[borrower], view.loans.get(borrower)
        report = seen.report if seen is not None else None
        # A report on an earlier loan says nothing of slots that were lent since: its base may be beyond theirs.
        answer = report if loan.answered_by(report) else None
        if answer is not None and self._taken.get(borrower) != answer:
            self._taken[borrower] = answer
            orders.append(TakeReport(borrower, answer.note.of_slots(loan.lent)))
        if view.sessions.get(borrower) != loan.borrower_session:
            back = loan.lent
        elif answer is not None:
            back = loan.lent & ~answer.held
            if answer.leaving:
                self._leaving[borrower] = loan.borrower_session
            else:
                self._returned.update((slot, view.now + KEEP_RETURNED) for slot in slots_in(back & loan.slots))
        else:
            return
        kept = loan.lent & ~back
        if back:
            orders.append(TakeBack(borrower, back, kept))
        if not kept:
            del self._loans[borrower]
            self._taken.pop(borrower, None)
        elif back:
            # With a higher number the borrower no longer reports the slots that came back.
            self._loans[borrower] = replace(
                loan, number=self._next(), slots=loan.slots & kept, recalled=loan.recalled & kept
            )

    def _move(self, view: LenderView, orders: list[LenderOrder]) -> None:
        """Recall slots, and lend those that are free."""
        target = self._target(view)
        own, close = self.own, NO_SLOTS
        for borrower in sorted({*target, *self._loans} - {self._consumer}):
            wanted, loan = target.get(borrower, NO_SLOTS), self._loans.get(borrower)
            if loan is not None and loan.slots & ~wanted:
                kept = loan.slots & wanted
                loan = replace(loan, number=self._next(), slots=kept, recalled=loan.lent & ~kept)
                self._loans[borrower] = loan
            session = view.sessions.get(borrower)
            if session is None or (loan is not None and loan.borrower_session != session):
                continue
            leaving = wanted & own
            close |= leaving
            free = leaving & self._closed & ~view.in_hand
            if free:
                orders.append(LendSlots(borrower, free))
                close &= ~free
                made = loan or Loan(0, self.stay, self._consumer, self.session, session, self._order)
                self._loans[borrower] = replace(made, number=self._next(), slots=made.slots | free)
        if close != self._closed:
            # before the ledger gives slots up: otherwise one that is no longer to be lent stays closed
            self._closed = close
            orders.append(CloseSlots(close))

    def _target(self, view: LenderView) -> dict[str, int]:
        self._returned = {slot: until for slot, until in self._returned.items() if until > view.now}
        pinned = view.pinned
        for slot in self._returned:
            pinned |= 1 << slot
        quotas = {
            borrower: slots
            for borrower, slots in view.quotas.items()
            if borrower in view.sessions and self._leaving.get(borrower) != view.sessions[borrower]
        }
        present = {borrower: loan.slots for borrower, loan in self._loans.items()}
        return deal_slots(quotas, present, self._consumer, pinned)


def _same(seen: Loan, wanted: Loan) -> bool:
    """Return whether a node says what it should. The note may be older."""
    return replace(seen, note=wanted.note) == wanted


def _told(start: int, note: FinishedNote | None, seen: SeenLoan, loan: Loan, *, same_stay: bool) -> FinishedNote:
    """Return what is finished of a loan's slots from ``start`` on: by the store's note, the loan and its report.

    Those of another stay say nothing.
    """
    if note is None:
        return FinishedNote(start)
    pieces = list(note.of_slots(loan.lent).finished)
    attempts = dict(note.attempts)
    report = seen.report
    sayings = [loan.note] if same_stay else []
    if same_stay and report is not None and loan.answered_by(report):
        sayings.append(report.note)
    for said in sayings:
        pieces += said.told_from(start, loan.lent)
        attempts.update(said.attempts)
    return FinishedNote(start, tuple(rest for one in pieces if (rest := one.beyond(start)) is not None), attempts)
