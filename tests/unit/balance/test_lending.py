"""Lenders and borrowers against a simulated registry: members die, freeze, take over, and act on old views.

Nobody ever begins a message of a slot that another live session has in hand, or that the store's note tells to be
finished, and what is committed never passes a message that nobody handled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from zkconsumer.balance.sharing.borrower import Borrower, BorrowerOrder, BorrowerView, EndLoan, GiveUp, TakeOn
from zkconsumer.balance.sharing.lender import (
    CloseSlots,
    DeleteLoan,
    Lender,
    LenderOrder,
    LenderView,
    LendSlots,
    SeenLoan,
    TakeBack,
    TakeReport,
    WriteLoan,
)
from zkconsumer.balance.sharing.loan_nodes import (
    Loan,
    LoanReport,
    decode_loan,
    decode_report,
    encode_loan,
    encode_report,
)
from zkconsumer.balance.sharing.shared_ledger import SharedLedger
from zkconsumer.balance.sharing.slot_plan import SharingMember, slot_quotas
from zkconsumer.core.finished_note import Attempts, FinishedNote
from zkconsumer.core.key_slots import ALL_SLOTS
from zkconsumer.core.partition_position import PartitionPosition
from zkconsumer.core.unfinished_offsets import Finished
from zkconsumer.model import ThreadId, TopicPartition

TP = TopicPartition("t", 0)
MESSAGES = 120
TOPICS = frozenset({"t"})


def slot_of(offset: int) -> int:
    return offset % 8 * 32 + 5


@dataclass
class Registry:
    """The nodes of one partition, with their versions."""

    sessions: dict[str, int] = field(default_factory=dict)
    owner: tuple[str, int] | None = None
    loans: dict[str, SeenLoan] = field(default_factory=dict)
    offset: int = 0
    note: FinishedNote | None = field(default_factory=lambda: FinishedNote(0))
    handled: set[int] = field(default_factory=set)
    capacity: dict[str, int] = field(default_factory=lambda: dict.fromkeys("abc", 10))
    deleted: bool = False
    ids: int = 0

    def next_id(self) -> int:
        self.ids += 1
        return self.ids

    def write(self, order: WriteLoan | DeleteLoan, note: FinishedNote | None) -> None:
        """Do a lender's transaction, or nothing. It cannot tell one owner from another."""
        seen = self.loans.get(order.borrower)
        if self.owner is None or (None if seen is None else seen.version) != order.version:
            return
        if isinstance(order, DeleteLoan):
            del self.loans[order.borrower]
        elif self.sessions.get(order.borrower) == order.loan.borrower_session:
            assert note is not None
            loan = decode_loan(encode_loan(replace(order.loan, note=note)))
            self.loans[order.borrower] = SeenLoan(loan, self.next_id(), seen.report if seen else None)


def slots_of(in_hand: list[tuple[int, SharedLedger]]) -> int:
    found = 0
    for offset, _ in in_hand:
        found |= 1 << slot_of(offset)
    return found


class Member:
    """One member: perhaps the owner, perhaps a borrower."""

    def __init__(self, name: str, registry: Registry, random: Random) -> None:
        self.name = name
        self.registry = registry
        self.random = random
        self.session = 0
        self.restart()

    def restart(self) -> None:
        self.session = self.registry.next_id()
        self.registry.sessions[self.name] = self.session
        self.lender: Lender | None = None
        self.own: SharedLedger | None = None
        self.closed, self.ready = 0, False
        self.borrower = Borrower("key")
        self.borrowed: SharedLedger | None = None
        self.in_hand: list[tuple[int, SharedLedger]] = []
        self.zombies: list[tuple[int, SharedLedger]] = []
        """What it has in hand since an earlier session."""
        self.view: LenderView | None = None
        self.loan: SeenLoan | None = None
        self.owner_session: int | None = None
        self.allowed = 0
        self.looked = True
        self.acting: Iterator[None] | None = None
        """What its sharing thread is about: a death or a freeze may come between any two of its effects."""
        self.blind = 0
        """Turns for which its sharing thread gets nowhere, while its handlers go on."""

    def wake_up(self) -> None:
        """Go on in another session, with all that it knew in the one that has ended."""
        self.session = self.registry.next_id()
        self.registry.sessions[self.name] = self.session
        self.lender = self.own = self.view = None
        self.zombies += self.in_hand
        self.in_hand = []
        self.blind = self.random.choice((0, 10, 30))
        self.looked = False  # as long as it has not, nothing that was borrowed begins

    @property
    def slots_in_hand(self) -> int:
        """All that this process knows to be in hand, also since an earlier session."""
        return slots_of([*self.in_hand, *self.zombies])

    # ---- the owner

    def act(self, action: Callable[[], Iterator[None]]) -> None:
        """Go on with what the sharing thread is about, or begin this."""
        if self.acting is None:
            self.acting = action()
        try:
            next(self.acting)
        except StopIteration:
            self.acting = None

    def claim(self) -> None:
        registry = self.registry
        registry.owner = self.name, self.session
        position = PartitionPosition(TP, ThreadId(f"{self.name}-0"), registry.offset)
        self.lender = Lender(self.name, self.session, "key", f"{self.session}-{registry.next_id()}")
        note = registry.note
        view, us = self.look(), self.borrower
        if (seen := view.loans.get(self.name)) is not None:
            word = LoanReport(us.number, us.stay, us.session, us.held, us.note(self.borrowed))
            view = replace(view, loans={**view.loans, self.name: replace(seen, report=word)})
        found = self.lender.begin(registry.offset, note, view)
        known = FinishedNote(registry.offset, (*(note.finished if note else ()), *found.known))
        self.own = SharedLedger(position, registry.offset, known, slots=found.slots)
        self.own.begin(found, dict(self.lender.lent))
        self.borrowed, self.borrower = None, Borrower("key")
        self.closed, self.view, self.ready = 0, None, False

    def look(self) -> LenderView:
        registry = self.registry
        members = {name: SharingMember(registry.capacity[name], TOPICS) for name in registry.sessions}
        quotas = slot_quotas(members, {TP: self.name}).get(TP, {})
        return LenderView(dict(registry.sessions), dict(registry.loans), quotas, 0, self.slots_in_hand)

    def lend(self) -> Iterator[None]:
        """Act on the view that was taken the last time, or take a new one."""
        lender, own, session = self.lender, self.own, self.session
        if lender is None or own is None:
            return
        view, self.view = self.view, None
        if view is None:
            self.view = self.look()
            if self.random.random() < 0.5:
                return
            view = self.view
            self.view = None
        self.ready = self.ready or lender.ready(view)
        orders = lender.step(replace(view, in_hand=self.slots_in_hand))
        for order in orders:
            if not isinstance(order, WriteLoan | DeleteLoan):
                self.obey(order, own)
        assert own.slots == lender.own
        for order in orders:
            if isinstance(order, WriteLoan | DeleteLoan):
                yield
                if self.session == session and self.random.random() < 0.8:  # else the request is lost
                    note = own.lent_note(order.borrower) if isinstance(order, WriteLoan) else None
                    self.registry.write(order, note)

    def obey(self, order: LenderOrder, ledger: SharedLedger) -> None:
        if isinstance(order, CloseSlots):
            reopened = self.closed & ~order.slots & ledger.slots
            ledger.forget_waiting(reopened, {offset for offset, of in self.in_hand if of is ledger})
            self.closed = order.slots
        elif isinstance(order, LendSlots):
            assert not order.slots & self.slots_in_hand
            ledger.lend_slots(order.borrower, order.slots)
        elif isinstance(order, TakeReport):
            ledger.reported(order.borrower, order.note)
        elif isinstance(order, TakeBack):
            ledger.take_back(order.borrower, order.slots, keeps=order.keeps)

    def commit(self) -> None:
        registry = self.registry
        if self.own is None or not self.ready or registry.owner != (self.name, self.session):
            return
        point = self.own.point()
        assert point.offset >= registry.offset
        missing = [o for o in range(point.offset) if o not in registry.handled]
        assert not missing, f"the base {point.offset} has passed {missing}"
        for one in point.note.finished:
            for offset in range(one.start, min(one.end, MESSAGES)):
                assert not one.covers(offset, slot_of(offset)) or offset in registry.handled
        registry.offset, registry.note = point.offset, point.note
        self.own.stored(point)

    # ---- the borrower

    def borrow(self) -> Iterator[None]:
        registry, session = self.registry, self.session
        if self.random.random() < 0.7 or self.own is not None or not self.looked:
            self.loan = registry.loans.get(self.name)
            self.owner_session = registry.owner[1] if registry.owner else None
        seen, loan = self.loan, self.loan.loan if self.loan else None
        view = BorrowerView(session, self.owner_session, loan, self.slots_in_hand)
        orders = self.borrower.step(view)
        yield
        self.obey_loan(orders)
        self.looked = self.looked or session == self.session
        yield
        if self.borrower.reports is None or seen is None or self.random.random() < 0.3:
            return
        there = registry.loans.get(self.name)
        if there is not None and there.version == seen.version:
            note = self.borrower.note(self.borrowed)
            report = LoanReport(self.borrower.number, self.borrower.stay, session, self.borrower.reports, note)
            registry.loans[self.name] = replace(there, report=decode_report(encode_report(report)))

    def obey_loan(self, orders: list[BorrowerOrder]) -> None:
        for order in orders:
            if isinstance(order, EndLoan):
                self.borrowed = None
            elif isinstance(order, TakeOn):
                if self.borrowed is None:
                    position = PartitionPosition(TP, ThreadId(f"{self.name}-0"), order.note.base)
                    self.borrowed = SharedLedger(position, order.note.base, order.note, slots=order.slots)
                else:
                    self.borrowed.take_on(order.slots, order.note)
            elif isinstance(order, GiveUp) and self.borrowed is not None:
                self.borrower.gave_up(order.slots, self.borrowed.give_up(order.slots))
        self.allowed = self.borrower.allowed

    # ---- messages

    def read(self) -> None:
        for ledger in (self.own if self.ready else None, self.borrowed):
            if ledger is not None:
                end = min(MESSAGES, ledger.read_to + 20)
                ledger.read([o for o in range(ledger.read_to, end) if ledger.wants(o, slot_of(o))], end)

    def work(self, others: list[Member]) -> None:
        """Begin one message, or finish one."""
        hand = self.random.choice((self.in_hand, self.zombies))
        if hand and self.random.random() < 0.3:
            offset, ledger = hand.pop(self.random.randrange(len(hand)))
            ledger.finish([offset])
            self.registry.handled.add(offset)
            return
        startable = []
        if self.own is not None and self.lender is not None:
            startable += [(offset, self.own) for offset in self.own.offsets_of(self.own.slots & ~self.closed)]
        if self.borrowed is not None and self.looked:
            startable += [(offset, self.borrowed) for offset in self.borrowed.offsets_of(self.allowed)]
        startable = [(o, ledger) for o, ledger in startable if not self.slots_in_hand >> slot_of(o) & 1]
        if startable:
            offset, ledger = self.random.choice(startable)
            if not self.registry.deleted:
                self.check_start(offset, others)
            self.in_hand.append((offset, ledger))

    def check_start(self, offset: int, others: list[Member]) -> None:
        slot, note = slot_of(offset), self.registry.note
        for other in others:
            assert not slots_of(other.in_hand) >> slot & 1, f"{self.name} and {other.name} have slot {slot}"
        finished = offset in self.registry.handled and note is not None and note.covers(offset, slot)
        assert not finished, f"{self.name} begins {offset} again, which is finished and noted"


class World:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.registry = Registry()
        self.members = [Member(name, self.registry, self.random) for name in "abc"]
        self.frozen: list[Member] = []
        """Members whose sessions have ended, and who do not know it yet."""
        self.meddles = seed % 4 == 0
        """Whether somebody deletes loans."""

    def turn(self, faults: bool = True) -> None:
        random = self.random
        member = random.choice(self.members)
        if member in self.frozen:
            if random.random() < 0.1 or not faults:
                self.frozen.remove(member)
                member.wake_up()
        elif member.blind:
            member.blind -= 1
        elif not (faults and self.fault(member, random.random())):
            self.look_and_act(member, faults)
        for one in self.members:
            if one not in self.frozen and (not faults or random.random() < 0.2):
                one.work([other for other in self.members if other not in (one, *self.frozen)])

    def fault(self, member: Member, chance: float) -> bool:
        """Perhaps let something go wrong. Returns whether it did."""
        random, registry = self.random, self.registry
        if chance < 0.008:
            self.end_session(member)
            member.restart()
        elif chance < 0.02:
            self.end_session(member)
            self.frozen.append(member)
        elif chance < 0.025 and registry.owner is None:
            self.rewind()
        elif chance < 0.03 and registry.loans and self.meddles:
            # the next owner cannot know that such a borrower still has messages in hand
            del registry.loans[random.choice(sorted(registry.loans))]
            registry.deleted = True
        elif chance < 0.04:
            member.blind = random.randint(1, 40)
        elif chance < 0.08:
            registry.capacity[member.name] = random.choice((1, 10, 30))
        else:
            return False
        return True

    def look_and_act(self, member: Member, faults: bool) -> None:
        if self.registry.owner is None:
            if member.acting is None and (self.random.random() < 0.2 or not faults):
                member.claim()
            else:
                member.act(member.borrow)
        elif self.random.random() < 0.5:
            member.act(member.borrow if member.own is None else member.lend)
        else:
            self.random.choice((member.read, member.commit))()

    def end_session(self, member: Member) -> None:
        if self.registry.owner == (member.name, member.session):
            self.registry.owner = None
        del self.registry.sessions[member.name]

    def rewind(self) -> None:
        """Let an operator set the offset back: what was handled from there on is to be handled again."""
        self.registry.offset = self.random.randint(0, self.registry.offset)
        self.registry.note = None
        self.registry.handled -= set(range(self.registry.offset, MESSAGES))
        for member in self.members:
            member.in_hand, member.zombies = [], []


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1 << 32))
def test_no_slot_is_handled_twice_and_nothing_is_passed(seed: int) -> None:
    world = World(seed)
    for _ in range(500):
        world.turn()
    for _ in range(3000):
        world.turn(faults=False)
        if world.registry.offset == MESSAGES:
            break
    assert world.registry.offset == MESSAGES


def test_a_borrower_repeats_nothing_when_its_lender_comes_back() -> None:
    loan = Loan(1, "s", "a", 10, 20, "key", 3, 0, FinishedNote(5))
    borrower = Borrower("key")
    assert borrower.step(BorrowerView(20, 10, loan)) == [TakeOn(3, loan.note)]
    for owner in (None, 11, None, 10):
        assert borrower.step(BorrowerView(20, owner, loan)) == []
        assert (borrower.held, borrower.allowed) == (3, 3 if owner == 10 else 0)


def test_slots_that_come_back_keep_what_was_finished() -> None:
    """The lender wrote the loan again before it saw the report of slots given back, and they were handled anew."""
    borrower = Borrower("key")

    def look(number: int, refused: int = 0) -> list[BorrowerOrder]:
        loan = Loan(number, "s", "a", 10, 20, "key", 3, 0, FinishedNote(5))
        return borrower.step(BorrowerView(20, 10, loan, refused=refused))

    assert look(7) == [TakeOn(3, FinishedNote(5))]
    look(7, refused=1)
    assert look(7, refused=1) == [GiveUp(1)]
    finished = Finished(9, 50, (20,), 1)
    borrower.gave_up(1, FinishedNote(9, (finished,), {20: Attempts(3, 1)}))
    (taken,) = look(8)
    assert isinstance(taken, TakeOn)
    assert (taken.slots, taken.note.base, taken.note.attempts) == (1, 5, {20: Attempts(3, 1)})
    assert set(taken.note.finished) == {Finished(5, 9, (), 1), finished}


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
