"""The finished messages of one owned partition, where messages are finished in any order.

A :class:`BalancedLedger` belongs to one :class:`~zkconsumer.ownership.partition_position.PartitionPosition`, and so to
one ownership. A late outcome of an earlier ownership goes to the earlier ledger alone. A ledger moves ``consumed`` of
its position, which is the base.

Threads: readers, workers and the committer call it. The lock that its maker gives guards everything, and is never held
over a call that may wait.

A commit takes one :class:`CommitPoint`, in which base, note and pointers belong together, and returns it with
:meth:`BalancedLedger.stored` when it is written. The base passes an unfinished message only in the commit that stores
its pointer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from zkconsumer.core.finished_note import Attempts, FinishedNote, together
from zkconsumer.core.key_slots import ALL_SLOTS, NO_SLOTS
from zkconsumer.core.message_pointers import MOST_POINTERS, Pointer, PointerKind, lost_from
from zkconsumer.core.unfinished_offsets import Finished, UnfinishedOffsets, joined
from zkconsumer.ownership.partition_position import PartitionPosition


@dataclass(frozen=True, slots=True)
class CommitPoint:
    """The values that one commit writes of a partition: all or nothing.

    ``offset`` is the base once ``changes`` are stored: pointers that are added or replaced, None for removed ones. The
    store applies the changes to the pointers in the node, so that no pointer of somebody else is overwritten.
    ``pointers`` are all those of the partition with the changes; None: unchanged. ``passed`` are the messages that the
    base or the note passes only because of their pointers.
    """

    offset: int
    note: FinishedNote
    pointers: tuple[Pointer, ...] | None
    passed: frozenset[int]
    changes: Mapping[int, Pointer | None]
    serial: int
    maker: object = None
    """The ledger that it is of."""


class BalancedLedger:
    """The messages of one stay at a partition.

    Arguments: ``start`` is the base to begin at; ``note`` tells what is finished beyond it; ``pointers`` are those of
    the partition as stored; ``slots`` are those whose messages are handled here; ``lock`` is not entered twice by one
    thread (None: one thread alone uses the ledger).
    """

    def __init__(
        self,
        position: PartitionPosition,
        start: int,
        note: FinishedNote | None = None,
        pointers: Mapping[int, Pointer] | None = None,
        slots: int = ALL_SLOTS,
        lock: AbstractContextManager[object] | None = None,
    ) -> None:
        self.position = position
        self._lock = nullcontext() if lock is None else lock
        known = note.finished if note is not None else ()
        self._unfinished = UnfinishedOffsets(start, known, slots)
        self._attempts: dict[int, Attempts] = dict(note.attempts) if note is not None else {}
        self._pointers: dict[int, Pointer] = dict(pointers or {})
        self._changes: dict[int, Pointer | None] = {}
        self._passing: set[int] = set()
        self._ahead: set[int] = set()  # messages of pointers that were finished before the log is read to them
        self._serial = 0
        self._stored = 0
        self._looked_at = (0, 0.0)
        self._lent: dict[str, FinishedNote] = {}
        self._lent_slots: dict[str, int] = {}

    # ---- the reader

    def wants(self, offset: int, slot: int) -> bool:
        """Return whether the message is to be handled here, and is not counted yet."""
        with self._lock:
            pointer = self._pointers.get(offset)
            # A dead letter is read again: its topic may have been made anew, and then it is another message.
            if offset in self._ahead or (pointer is not None and pointer.kind is PointerKind.PARKED):
                return False
            return self._unfinished.wants(offset, slot)

    def read(self, wanted: Iterable[int], to: int) -> None:
        """Count these messages as read and unfinished; ``to`` is the offset after what was read."""
        with self._lock:
            if self._passing:  # read again before their pointers are stored: nothing may pass them until then
                wanted = [*wanted, *(offset for offset in self._passing if self._unfinished.read_to <= offset < to)]
            self._unfinished.read(wanted, to)
            if self._ahead:
                self._ahead = {offset for offset in self._ahead if offset >= to}
            self._moved()

    @property
    def plain(self) -> bool:
        """Whether :meth:`wants` is true of every message that is read next."""
        return self._unfinished.plain and not self._pointers and not self._ahead

    def forget_from(self, log_end: int) -> None:
        """Believe nothing that the note says of messages after the log's end: it was of a log that is gone."""
        with self._lock:
            self._unfinished.forget_from(log_end)

    def begin_again(self) -> int:
        """Forget unfinished messages, so that a reader gets them again. Returns the offset to read from."""
        with self._lock:
            old = self._unfinished
            base = old.base
            self._unfinished = UnfinishedOffsets(base, old.finished(), old.slots)
            return base

    def leave_position(self) -> None:
        """Move ``consumed`` of the position no more: the partition goes on at another place of another log."""
        with self._lock:
            old = self.position
            self.position = PartitionPosition(old.tp, old.thread, old.consumed)
            self.position.revoked = True

    # ---- outcomes

    def finish(self, offsets: Collection[int]) -> None:
        """Count these messages as finished. An offset that is not unfinished here is ignored."""
        with self._lock:
            if not self._pointers and not self._attempts and self._unfinished.finish_together(offsets):
                self._serial += len(offsets)
                offsets = ()
            for offset in offsets:
                known = self._unfinished.finish(offset)
                if offset in self._pointers:
                    del self._pointers[offset]
                    self._changes[offset] = None
                    self._passing.discard(offset)
                    if offset >= self._unfinished.read_to:
                        self._ahead.add(offset)
                elif not known:
                    continue
                self._attempts.pop(offset, None)
                self._serial += 1
            self._moved()

    def _finished_ahead(self, slots: int) -> tuple[Finished, ...]:
        """Return what tells of messages of pointers that were finished before the log is read to them."""
        return joined(Finished(offset, offset + 1, (), slots) for offset in self._ahead)

    def _parked_ahead(self, slots: int) -> tuple[Finished, ...]:
        """Return what tells a borrower not to handle parked messages to which the log is not read yet.

        After a seek back the log is read again up to them. They stay with the owner, which has their pointers. A
        parked message without a key closes no slot, so a borrower would handle the message beside the owner.
        """
        ahead = (one.offset for one in self._pointers.values() if one.kind is PointerKind.PARKED)
        read_to = self._unfinished.read_to
        return joined(Finished(offset, offset + 1, (), slots) for offset in ahead if offset >= read_to)

    def failed(self, offset: int, attempts: Attempts) -> None:
        """Note that so many attempts at an unfinished message have failed."""
        with self._lock:
            self._attempts[offset] = attempts
            self._serial += 1

    def attempts(self, offset: int) -> Attempts | None:
        """Return the failed attempts at a message, None if there are none."""
        return self._attempts.get(offset)

    def point_at(self, pointers: Sequence[Pointer]) -> bool:
        """Have the next commits pass these messages, parked or dead, and store their pointers.

        A pointer that is there already is replaced. Returns False, and changes nothing, if there is no room.
        """
        with self._lock:
            added = [p for p in pointers if p.offset not in self._pointers or self._kind(p.offset) is not p.kind]
            for kind in PointerKind:
                room = MOST_POINTERS - sum(one.kind is kind for one in self._pointers.values())
                if sum(one.kind is kind for one in added) > room:
                    return False
            for pointer in pointers:
                self._pointers[pointer.offset] = self._changes[pointer.offset] = pointer
                if pointer.offset in self._unfinished:
                    self._passing.add(pointer.offset)
            self._serial += 1
            return True

    def lose_cut(self, now_ms: int) -> int:
        """Make lost dead letters of the pointers to a log that is another one now, from the cut of
        ``position.ledger_start`` on.

        Its messages of the same offsets are read then. There may be more dead letters than a partition may have:
        otherwise another message would be handled in place of a lost one. Returns how many were lost.
        """
        begins = self.position.ledger_start
        start, begins.cut = begins.cut, -1
        if start < 0:
            return 0
        with self._lock:
            reason = "its log was truncated, or its topic was made anew"
            return self._change(lost_from(self._pointers.values(), start, reason, now_ms))

    def lose(self, pointer: Pointer, why: str, now_ms: int) -> None:
        """Make a lost dead letter of a pointer, whose message is no longer in the log."""
        gone = pointer.lost(why, now_ms)
        with self._lock:
            self._change({pointer.place: None, gone.place: gone})

    def _change(self, changes: Mapping[int, Pointer | None]) -> int:
        """Change pointers. Returns how many are added. The caller holds the lock."""
        self._pointers = applied(self._pointers, changes)
        self._changes |= changes
        self._passing.difference_update(changes)
        self._serial += bool(changes)
        return sum(one is not None for one in changes.values())

    def _kind(self, offset: int) -> PointerKind:
        return self._pointers[offset].kind

    # ---- the committer

    def point(self, *, pointers: bool = True) -> CommitPoint:
        """Return what a commit writes now.

        Arguments: ``pointers`` False: none can be stored, so the messages that wait for theirs are not passed.
        """
        with self._lock:
            changes = dict(self._changes) if pointers else {}
            passed = frozenset(self._passing) if pointers else frozenset()
            base, finished = (self._unfinished.base_without(passed), self._unfinished.finished(passed))
            attempts = {o: a for o, a in self._attempts.items() if o >= base and o not in passed}
            note = FinishedNote(base, (*finished, *self._finished_ahead(self._unfinished.slots)), attempts)
            if self._lent:
                loans = [(lent, self._lent_slots[name]) for name, lent in self._lent.items()]
                note = together([(note, self._unfinished.slots), *loans])
            kept = tuple(self._pointers.values()) if changes else None
            return CommitPoint(note.base, note, kept, passed, changes, self._serial, self)

    @property
    def unnoted(self) -> int:
        """The number of changes, mostly acknowledgements, since the last commit that was stored."""
        return self._serial - self._stored

    @property
    def pointer_count(self) -> int:
        """The number of pointers there are now. Any thread; takes no lock."""
        return len(self._pointers)

    def unnoted_since(self, now: float) -> float:
        """Return since when a change waits to be stored: ``now`` if none does.

        Times are monotonic seconds. A change counts from the first call after it. One thread calls this.
        """
        if self._stored >= self._looked_at[0]:
            self._looked_at = self._serial, now
        return self._looked_at[1]

    def stored(self, point: CommitPoint) -> bool:
        """Note that this was written. Returns False, and notes nothing, if it is of an earlier ledger."""
        if point.maker is not self:
            return False
        with self._lock:
            for offset in point.passed:
                self._unfinished.finish(offset)
                self._passing.discard(offset)
                self._attempts.pop(offset, None)
            self._changes = {
                offset: change
                for offset, change in self._changes.items()
                if offset not in point.changes or point.changes[offset] != change
            }
            self._stored = max(self._stored, point.serial)
            # what was lent or came back while this was written begins below the messages that only now are passed
            self._unfinished.read((), point.offset)
            self._lent = {name: note.raised(point.offset) for name, note in self._lent.items()}
            base = self._unfinished.base
            self._attempts = {offset: attempts for offset, attempts in self._attempts.items() if offset >= base}
            self._moved()
        return True

    def pointers_read(self, stored: Mapping[int, Pointer]) -> None:
        """Take over pointers that somebody else has written, for instance a replay. Changes of ours go on top."""
        with self._lock:
            self._pointers = applied(stored, self._changes)

    def touch(self) -> None:
        """Have the next commit write all values, because the stored values are gone."""
        with self._lock:
            self._serial += 1

    # ---- slots on loan

    def lend(self, borrower: str, slots: int, offsets: Iterable[int]) -> FinishedNote:
        """Count these slots as on loan from now on. Returns what the borrower has to know of them.

        The base waits for the borrower. The slots must be free: no message of them is in hand.

        Arguments: ``offsets`` are the unfinished messages of the slots. Messages that wait for their pointers stay here
        as well. So do not lend their slots, or the borrower repeats the messages.
        """
        with self._lock:
            base = self._unfinished.base
            given = [offset for offset in offsets if offset not in self._passing]
            pieces = self._unfinished.give_up(slots, given)
            attempts = {o: self._attempts.pop(o) for o in given if o in self._attempts}
            note = FinishedNote(base, (*pieces, *self._finished_ahead(slots), *self._parked_ahead(slots)), attempts)
            had, had_slots = (self._lent.get(borrower), self._lent_slots.get(borrower, NO_SLOTS))
            self._lent[borrower] = note if had is None else together([(had, had_slots), (note, slots)])
            self._lent_slots[borrower] = had_slots | slots
            self._serial += 1
            self._moved()
            return note

    def take_over(self, borrower: str, note: FinishedNote) -> None:
        """Take over what a borrower has finished of all the slots that it has."""
        with self._lock:
            self._lent[borrower] = note
            self._serial += 1
            self._moved()

    def end_loan(self, borrower: str, slots: int, *, keeps: int = 0) -> int:
        """Count these slots here again, from the borrower's last report on.

        Arguments: ``keeps`` are the slots that the borrower still has.
        Returns the offset from which the log must be read again.
        """
        with self._lock:
            note = self._lent.pop(borrower)
            self._lent_slots.pop(borrower)
            again = self._unfinished.take_on(slots, note.base, note.finished)
            self._attempts.update(note.attempts)
            if keeps:
                self._lent[borrower] = note.of_slots(keeps)
                self._lent_slots[borrower] = keeps
            self._serial += 1
            return again

    def _moved(self) -> None:
        position, base = self.position, self._unfinished.base
        for note in self._lent.values():
            base = min(base, note.base)
        if position.consumed is None or base > position.consumed:
            position.consumed = base

    # ---- what others see

    @property
    def base(self) -> int:
        """The lowest unfinished offset."""
        return self.position.consumed or 0

    @property
    def pointers(self) -> Mapping[int, Pointer]:
        """The pointers there are now (a copy)."""
        with self._lock:
            return dict(self._pointers)

    def comes_first(self, offset: int, key: str) -> bool:
        """Return whether no message of this key (its mark) is parked at an earlier offset. Any thread."""
        with self._lock:
            return not any(
                pointer.offset < offset and pointer.key == key and pointer.kind is PointerKind.PARKED
                for pointer in self._pointers.values()
            )

    @property
    def slots(self) -> int:
        """The slots whose messages are handled here."""
        return self._unfinished.slots

    @property
    def lent_slots(self) -> Mapping[str, int]:
        """The slots on loan, by borrower (a copy)."""
        return dict(self._lent_slots)

    @property
    def lent_bases(self) -> Mapping[str, int]:
        """For each borrower the lowest offset that it has not finished, as it last reported (a copy)."""
        return {name: note.base for name, note in list(self._lent.items())}

    @property
    def unfinished(self) -> int:
        """Number of messages that were read and are not finished."""
        return len(self._unfinished)

    @property
    def finished_beyond(self) -> int:
        """Number of offsets beyond the base that are finished; an estimate where slots are on loan."""
        with self._lock:
            return self._unfinished.finished_beyond


def applied(pointers: Mapping[int, Pointer], changes: Mapping[int, Pointer | None]) -> dict[int, Pointer]:
    """Return the pointers with these changes: added and replaced pointers, and None for removed pointers."""
    merged = {**pointers, **changes}
    return {offset: pointer for offset, pointer in merged.items() if pointer is not None}
