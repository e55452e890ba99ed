"""What of one owned partition is finished, where its messages are finished in any order.

A :class:`MessageLedger` belongs to one :class:`~zkconsumer.core.partition_position.PartitionPosition`, and so to one
stay: a late outcome of an earlier stay goes to that stay's ledger, and touches nothing of this one. It moves
``consumed`` of its position, which is the base.

Threads: readers, workers and the committer call it. The lock that its maker gives guards everything, and is never held
over a call that may wait.

A commit takes one :class:`CommitPoint`, in which base, note and pointers belong together, and returns it with
:meth:`MessageLedger.stored` when it is written. The base passes an unfinished message only in the commit that stores
its pointer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from zkconsumer.core.finished_note import Attempts, FinishedNote
from zkconsumer.core.key_slots import ALL_SLOTS
from zkconsumer.core.message_pointers import MOST_POINTERS, Fate, Pointer
from zkconsumer.core.partition_position import PartitionPosition
from zkconsumer.core.unfinished_offsets import UnfinishedOffsets


@dataclass(frozen=True, slots=True)
class CommitPoint:
    """What one commit writes of a partition: all of it, or nothing.

    ``offset`` is the base once the pointers are stored. ``pointers`` are all those of the partition; None: unchanged.
    """

    offset: int
    note: FinishedNote
    pointers: tuple[Pointer, ...] | None
    passed: frozenset[int]
    changes: Mapping[int, Pointer | None]
    serial: int


class MessageLedger:
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
        self._serial = 0
        self._stored = 0
        self._lent: dict[str, FinishedNote] = {}

    # ---- the reader

    def wants(self, offset: int, slot: int) -> bool:
        """Return whether the message is to be handled here, and is not counted yet."""
        with self._lock:
            pointer = self._pointers.get(offset)
            # A dead letter is read again: its topic may have been made anew, and then it is another message.
            return (pointer is None or pointer.fate is Fate.DEAD) and self._unfinished.wants(offset, slot)

    def read(self, wanted: Iterable[int], to: int) -> None:
        """Count these messages as read and unfinished; ``to`` is the offset after what was read."""
        with self._lock:
            self._unfinished.read(wanted, to)
            self._moved()

    @property
    def plain(self) -> bool:
        """Whether :meth:`wants` is true of every message that is read next."""
        return self._unfinished.plain and not self._pointers

    def begin_again(self) -> int:
        """Forget what was read and is not finished, so that it is read again. Returns the offset to read from."""
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

    def finish(self, offsets: Iterable[int]) -> None:
        """Count these messages as finished. An offset that is not unfinished here is ignored."""
        with self._lock:
            for offset in offsets:
                known = self._unfinished.finish(offset)
                if offset in self._pointers:
                    del self._pointers[offset]
                    self._changes[offset] = None
                    self._passing.discard(offset)
                elif not known:
                    continue
                self._attempts.pop(offset, None)
                self._serial += 1
            self._moved()

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
            added = [p for p in pointers if p.offset not in self._pointers or self._fate(p.offset) is not p.fate]
            for fate in Fate:
                room = MOST_POINTERS - sum(one.fate is fate for one in self._pointers.values())
                if sum(one.fate is fate for one in added) > room:
                    return False
            for pointer in pointers:
                self._pointers[pointer.offset] = self._changes[pointer.offset] = pointer
                if pointer.offset in self._unfinished:
                    self._passing.add(pointer.offset)
            self._serial += 1
            return True

    def _fate(self, offset: int) -> Fate:
        return self._pointers[offset].fate

    # ---- the committer

    def point(self) -> CommitPoint:
        """Return what a commit writes now."""
        with self._lock:
            passed = frozenset(self._passing)
            base, finished = self._unfinished.base_without(passed), self._unfinished.finished(passed)
            attempts = {o: a for o, a in self._attempts.items() if o >= base and o not in passed}
            for note in self._lent.values():
                base = min(base, note.base)
                finished = (*finished, *note.finished)
                attempts |= note.attempts
            pointers = tuple(self._pointers.values()) if self._changes else None
            return CommitPoint(
                base, FinishedNote(base, finished, attempts), pointers, passed, dict(self._changes), self._serial
            )

    @property
    def dirty(self) -> bool:
        """Whether something changed since the last commit that was stored."""
        return self._serial != self._stored

    def stored(self, point: CommitPoint) -> None:
        """Note that this was written."""
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
            self._stored = point.serial
            self._moved()

    def pointers_read(self, stored: Mapping[int, Pointer]) -> None:
        """Take over pointers that somebody else has written, for instance a replay. Changes of ours go on top."""
        with self._lock:
            merged = dict(stored)
            for offset, change in self._changes.items():
                if change is None:
                    merged.pop(offset, None)
                else:
                    merged[offset] = change
            self._pointers = merged
            self._serial += 1

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

    @property
    def unfinished(self) -> int:
        """Number of messages that were read and are not finished."""
        return len(self._unfinished)

    @property
    def finished_beyond(self) -> int:
        """Number of offsets beyond the base that are finished, as far as this member has read."""
        with self._lock:
            beyond = self._unfinished.highest - self._unfinished.base
            return max(0, beyond - len(self._unfinished)) if beyond > 0 else 0

    def unfinished_of(self, offsets: Collection[int]) -> list[int]:
        """Return those of the offsets that are unfinished here."""
        with self._lock:
            return [offset for offset in offsets if offset in self._unfinished]
