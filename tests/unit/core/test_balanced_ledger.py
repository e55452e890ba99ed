"""A ledger against plain sets: whatever ends or dies, no message is passed that nobody handled."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zkconsumer.core.finished_note import Attempts, FinishedNote, decode_note, encode_note
from zkconsumer.core.message_pointers import MOST_POINTERS, Pointer, PointerKind, decode_pointers, encode_pointers
from zkconsumer.core.unfinished_offsets import Finished, UnfinishedOffsets
from zkconsumer.model import ThreadId, TopicPartition
from zkconsumer.ownership.balanced_ledger import BalancedLedger, CommitPoint, applied
from zkconsumer.ownership.partition_position import PartitionPosition
from zkconsumer.ownership.stored_offset import StoredNotes

END = 48
LOG = [offset for offset in range(END) if offset % 7 != 3]
"""The offsets that have messages; the others are holes."""


def slot_of(offset: int) -> int:
    return offset * 5 % 4


def ledger(start: int, note: FinishedNote | None = None, **more: object) -> BalancedLedger:
    position = PartitionPosition(TopicPartition("t", 0), ThreadId("c-0"), start)
    position.stored.notes = StoredNotes()
    return BalancedLedger(position, start, note, **more)  # type: ignore[arg-type]


class Owner:
    """The owner of one partition, with the stored offset, note and pointers; ``handled`` is the truth."""

    def __init__(self) -> None:
        self.handled: set[int] = set()
        self.base = 0
        self.note: FinishedNote | None = None
        self.pointers: dict[int, Pointer] = {}
        self.written: tuple[BalancedLedger, CommitPoint] | None = None
        """The last commit, if its answer has not come yet."""
        self.restart(0)

    # ---- steps, each with a number to choose by

    def restart(self, _: int) -> None:
        """Another member owns the partition."""
        self.ledger = ledger(self.base, self.note, pointers=self.pointers)
        self.at = self.base
        self.in_hand: set[int] = set()
        self.done: set[int] = set()
        """What this owner knows to be handled, so that it must not come again."""

    def overwritten(self, number: int) -> None:
        """Somebody writes an earlier offset."""
        self.base, self.note = min(self.base, number % END), None
        self.restart(0)

    def read(self, number: int) -> None:
        end = min(END, self.at + number % 9 + 1)
        wanted = [o for o in LOG if self.at <= o < end and self.ledger.wants(o, slot_of(o))]
        assert not (self.in_hand | self.done).intersection(wanted), "it is in hand, or handled"
        self.ledger.read(wanted, end)
        self.in_hand.update(wanted)
        self.at = max(self.at, end)

    def pick(self, number: int) -> list[int]:
        return sorted(self.in_hand)[number % len(self.in_hand) :][:1] if self.in_hand else []

    def finish(self, number: int) -> None:
        for offset in self.pick(number):
            self._finish(offset)

    def _finish(self, offset: int) -> None:
        self.handled.add(offset)
        self.done.add(offset)
        self.in_hand.discard(offset)
        self.ledger.finish([offset, offset, 1000])

    def fail(self, number: int) -> None:
        for offset in self.pick(number):
            self.ledger.failed(offset, Attempts(number % 3 + 1, 5))

    def park(self, number: int) -> None:
        for offset in self.pick(number):
            self.in_hand.remove(offset)
            kind = PointerKind.DEAD if number % 5 == 0 else PointerKind.PARKED
            assert self.ledger.point_at([Pointer(offset, kind, attempts=3)])

    def finish_parked(self, number: int) -> None:
        for offset in sorted(self.ledger.pointers.keys() - self.in_hand)[number % 3 :][:1]:
            self._finish(offset)

    def replay(self, number: int) -> None:
        """A tool changes a stored pointer."""
        for offset in sorted(self.pointers)[number % 3 :][:1]:
            self.pointers[offset] = Pointer(offset, PointerKind.PARKED, due_ms=number)
            self.ledger.pointers_read(self.pointers)

    def commit(self, number: int) -> None:
        """Store a point; each third time its answer is lost, and each fifth time pointers cannot be stored.

        Each second answer comes after further steps.
        """
        self.answer(0)
        point = self.ledger.point(pointers=number % 5 != 0)
        assert point.offset == point.note.base
        assert number % 5 != 0 or not point.changes
        if number % 7 == 0:
            return
        self.base = point.offset
        self.note = decode_note(encode_note(point.note, limit=None if number % 4 else 60))
        self.pointers = applied(self.pointers, point.changes)
        self.check()
        if number % 3:
            self.written = self.ledger, point
            if number % 2:
                self.answer(0)
                assert not point.changes or not self.ledger.point().changes

    def answer(self, _: int) -> None:
        """The answer to the last commit comes, to the ledger that made it."""
        if self.written is not None:
            made, point = self.written
            self.written = None
            made.stored(point)
            assert made.point().offset >= point.offset, "the next commit takes the offset back"

    # ---- what must be so

    def check(self) -> None:
        """Nothing is stored as finished that nobody handled, unless a pointer to it is stored."""
        for offset in LOG:
            noted = self.note is not None and self.note.covers(offset, slot_of(offset))
            if offset < self.base or noted:
                assert offset in self.handled or offset in self.pointers, (offset, self.base, self.note)

    def end(self) -> None:
        """A last owner finishes all."""
        self.restart(0)
        while self.at < END:
            self.read(8)
        for offset in list(self.in_hand):
            self._finish(offset)
        self.handled |= self.ledger.pointers.keys()
        assert self.handled.issuperset(LOG)
        assert self.ledger.base == END


STEPS: list[Callable[[Owner, int], None]] = [
    *(4 * [Owner.read]),
    *(6 * [Owner.finish]),
    *(3 * [Owner.commit]),
    Owner.answer,
    Owner.fail,
    Owner.park,
    Owner.finish_parked,
    Owner.replay,
    Owner.restart,
    Owner.overwritten,
]


@settings(max_examples=50)
@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 500)), min_size=25, max_size=80))
def test_nothing_is_lost_in_any_order(steps: list[tuple[Callable[[Owner, int], None], int]]) -> None:
    owner = Owner()
    for step, number in steps:
        step(owner, number)
    owner.end()


@settings(max_examples=30)
@given(st.integers(0, END), st.sets(st.integers(0, END - 1)), st.sets(st.integers(0, END - 1), max_size=4))
def test_the_next_owner_repeats_nothing_that_is_noted(to: int, done: set[int], parked: set[int]) -> None:
    read = {o for o in LOG if o < to}
    first = ledger(0)
    first.read(sorted(read), to)
    first.finish(done)
    first.point_at([Pointer(offset) for offset in parked & read - done])
    point = first.point()
    assert point.changes.keys() == parked & read - done
    second = ledger(point.offset, point.note, pointers=applied({}, point.changes))
    again = {o for o in LOG if o >= point.offset and second.wants(o, slot_of(o))}
    assert again == read.difference(done, parked).union(o for o in LOG if o >= to)


def test_a_base_during_reading_again_is_not_guessed() -> None:
    """Slots come back from before what is in hand: their messages were not read, and must not be passed."""
    owner = ledger(0)
    owner.read([], 4)
    note = owner.lend("b", 0b10, [])
    owner.read([10, 11], 12)
    assert owner.end_loan("b", 0b10) == note.base == 4
    owner.point_at([Pointer(10)])
    assert owner.point().offset == 4


@pytest.mark.parametrize("read_to", [4, 6])
def test_slots_that_come_back_stay_finished_beyond_ours(read_to: int) -> None:
    """The owner has read the log and finished nothing. The note lacked the messages that the borrower had finished."""
    owner = ledger(0)
    owner.lend("b", 0b10, [])
    owner.read([0, 3], read_to)
    owner.take_over("b", FinishedNote(4))
    assert owner.end_loan("b", 0b10) == 4
    assert [owner.point().note.covers(offset, 1) for offset in range(5)] == [False, True, True, False, False]


def test_a_parked_message_finished_ahead_is_noted() -> None:
    """Its owner has not read the log to it. The next owner, or a borrower of its slot, would handle it once more."""
    owner = ledger(0, pointers={5: Pointer(5)})
    owner.finish([5])
    assert [owner.point().note.covers(offset, 1) for offset in (4, 5, 6)] == [False, True, False]
    assert [owner.lend("b", 0b10, []).covers(offset, 1) for offset in (4, 5, 6)] == [False, True, False]
    assert [owner.point().note.covers(5, slot) for slot in (0, 1)] == [True, True]


def test_a_parked_message_stays_with_its_owner_after_a_seek() -> None:
    """The log is read again up to the message, and its slot is lent before: the borrower handled it as well."""
    owner = ledger(0, pointers={5: Pointer(5), 6: Pointer(6, PointerKind.DEAD)})
    given = owner.lend("b", 0b10, [])
    assert [given.covers(offset, 1) for offset in (4, 5, 6)] == [False, True, False]
    owner.take_over("b", given)
    assert owner.end_loan("b", 0b10) == 0
    assert not owner.wants(5, 1)


def test_a_message_read_again_waits_for_its_pointer() -> None:
    owner = ledger(0)
    owner.read([0, 1], 2)
    owner.point_at([Pointer(0)])
    assert owner.point(pointers=False).offset == 0
    assert owner.point().offset == 1


def test_a_loan_amid_a_commit_takes_no_offset_back() -> None:
    """The base passes a parked message once its pointer is stored; a loan made just before that begins below it."""
    owner = ledger(0)
    owner.read([0, 1, 2], 3)
    owner.finish([1, 2])
    owner.point_at([Pointer(0)])
    point = owner.point()
    given = owner.lend("b", 0b10, [])
    owner.stored(point)
    assert (point.offset, given.base, owner.base, owner.point().offset) == (3, 0, 3, 3)
    assert owner.lent_bases == {"b": 3}


def test_messages_after_a_cut_end_no_lost_dead_letter() -> None:
    """A dead letter of the log before was removed when another message with its offset was finished."""
    full = {n: Pointer(n, PointerKind.DEAD) for n in range(MOST_POINTERS)}
    parked = {n: Pointer(n, reason="no") for n in range(MOST_POINTERS, 2 * MOST_POINTERS)}
    owner = ledger(5, pointers=full | parked)
    owner.position.ledger_start.cut = 5
    assert owner.lose_cut(7_000) == 2 * MOST_POINTERS - 5
    lost = [one for one in owner.pointers.values() if one.lost_ms]
    assert {one.kind for one in lost} == {PointerKind.DEAD}
    assert lost[-1].reason.endswith("its log was truncated, or its topic was made anew; it was parked: no")
    assert (owner.position.ledger_start.cut, owner.lose_cut(8_000)) == (-1, 0)
    assert owner.wants(1500, 0)
    owner.read([5, 1500], 1501)
    owner.finish([5, 1500])
    point = owner.point()
    assert (point.offset, len(point.pointers or ())) == (1501, 2 * MOST_POINTERS)
    stored = decode_pointers(encode_pointers(point.pointers or ()))
    assert stored.keys() == owner.pointers.keys()
    assert all(stored[one.place].lost_ms == 7_000 for one in lost)
    assert applied(full | parked, point.changes) == dict(owner.pointers)


def test_pointers_that_others_wrote_are_taken_over() -> None:
    owner = ledger(0, pointers={1: Pointer(1, PointerKind.DEAD)})
    owner.pointers_read({1: Pointer(1)})
    assert not owner.unnoted, "nothing is to be written"
    assert owner.pointers == {1: Pointer(1)}


def test_lag_counts_what_is_finished_beyond_the_base() -> None:
    owner = ledger(100, FinishedNote(100, (Finished(100, 110, (100, 105)),)))
    assert owner.finished_beyond == 8
    owner.position.ledger, owner.position.cursor.log_end = owner, 120
    assert owner.position.lag == 12
    owner.read([100, 105, 110], 111)
    assert owner.finished_beyond == 8
    owner.finish([110])
    assert owner.finished_beyond == 9


def test_a_slow_borrower_costs_others_no_repetition() -> None:
    borrowed = 0b10
    owner = ledger(0)
    given = owner.lend("b", borrowed, [])
    owner.read([offset for offset in range(100) if not borrowed >> slot_of(offset) & 1], 100)
    owner.finish(range(100))
    point = owner.point()
    assert (point.offset, given.base) == (0, 0)
    for offset in range(100):
        assert point.note.covers(offset, slot_of(offset)) is not bool(borrowed >> slot_of(offset) & 1)
    owner.take_over("b", FinishedNote(100))
    owner.read(range(100, 110), 110)
    point = owner.point()
    assert (point.offset, point.note.covers(104, 1), point.note.covers(104, 0)) == (100, False, False)


def test_a_slow_owner_costs_borrowers_no_repetition() -> None:
    owner = ledger(0)
    owner.lend("b", 0b10, [])
    owner.take_over("b", FinishedNote(50))
    point = owner.point()
    assert point.offset == 0
    assert all(point.note.covers(offset, 1) and not point.note.covers(offset, 0) for offset in range(50))


OFFSETS = st.integers(0, 40)
IN_BULK = st.lists(
    st.one_of(
        st.tuples(st.just("read"), st.integers(1, 8)),
        st.tuples(st.just("again"), OFFSETS),
        st.tuples(st.just("finish"), st.lists(OFFSETS, max_size=6)),
    ),
    max_size=25,
)


def _finished_together(unfinished: UnfinishedOffsets, offsets: Sequence[int]) -> int:
    if unfinished.finish_together(offsets):
        return len(set(offsets))
    return sum(unfinished.finish(offset) for offset in offsets)


@settings(max_examples=150)
@given(IN_BULK)
def test_messages_finished_at_once_count_as_each_alone(steps: Sequence[tuple[str, object]]) -> None:
    bulk, single = UnfinishedOffsets(0), UnfinishedOffsets(0)
    for step, argument in steps:
        if step == "read":
            assert isinstance(argument, int)
            for one in (bulk, single):
                begin = one.read_to
                one.read([o for o in range(begin, begin + argument) if one.wants(o, 0)], begin + argument)
        elif step == "again":
            assert isinstance(argument, int)
            again = min(argument, bulk.read_to)
            assert [one.take_on(0, again, ()) for one in (bulk, single)] == [again, again]
        else:
            assert isinstance(argument, list)
            assert _finished_together(bulk, argument) == sum(single.finish(offset) for offset in argument)
        assert len(bulk) == len(single)
        assert bulk.base == single.base == min([o for o in range(60) if o in single] + [single.read_to])
