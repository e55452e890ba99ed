"""The ledger of a partition whose slots come and go: it knows the slot of each unfinished message.

Threads: those of :class:`~zkconsumer.ownership.balanced_ledger.BalancedLedger`. Slots come and go on the thread of the
reader, so that none comes or goes between the question whether a message is wanted and the note that it was read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import AbstractContextManager

from zkconsumer.balance.sharing.lender_rules import Beginning
from zkconsumer.core.finished_note import FinishedNote
from zkconsumer.core.key_slots import ALL_SLOTS, NO_SLOTS
from zkconsumer.core.message_pointers import Pointer, PointerKind, slot_of_mark
from zkconsumer.ownership.balanced_ledger import BalancedLedger
from zkconsumer.ownership.partition_position import PartitionPosition


class SharedLedger(BalancedLedger):
    """The messages of one stay at a partition, or of the slots that are borrowed from its owner.

    Arguments: as for BalancedLedger.
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
        super().__init__(position, start, note, pointers, slots, lock)
        self._slots: dict[int, int] = {}

    # ---- the reader

    def wants(self, offset: int, slot: int) -> bool:
        """Return whether the message is to be handled here, and is not counted yet."""
        wanted = super().wants(offset, slot)
        if wanted:
            self._slots[offset] = slot
        return wanted

    def read(self, wanted: Iterable[int], to: int) -> None:
        """Count these messages as read and unfinished, if :meth:`wants` is still true of them."""
        unfinished, slots = self._unfinished, self._slots
        # a slot may have been given up since the reader asked: nobody here would ever finish its message
        super().read([o for o in wanted if unfinished.slots >> slots.get(o, 0) & 1], to)
        if len(slots) > 2 * len(unfinished) + 1024:
            with self._lock:
                self._slots = {offset: slot for offset, slot in slots.items() if offset in unfinished}

    @property
    def plain(self) -> bool:
        """Always False: the slot of each message is needed."""
        return False

    def attempted_slots(self) -> int:
        """Return the slots of messages that have failed here, or wait for their pointers to be stored."""
        with self._lock:
            found = NO_SLOTS
            for offset in (*self._attempts, *self._passing):
                if offset in self._unfinished:
                    found |= 1 << self._slots.get(offset, 0)
            return found

    # ---- the owner

    def begin(self, beginning: Beginning, lent: dict[str, int]) -> None:
        """Take over the loans of an earlier owner. Arguments: ``lent`` are the slots of each borrower."""
        with self._lock:
            for borrower, note in beginning.lent.items():
                finished = (*note.finished, *self._parked_ahead(lent[borrower]))
                self._lent[borrower] = FinishedNote(note.base, finished, note.attempts)
                self._lent_slots[borrower] = lent[borrower]

    def lend_slots(self, borrower: str, slots: int) -> None:
        """Count slots as lent; no message of them may be in hand."""
        self.lend(borrower, slots, self._offsets_of(slots))

    def lent_note(self, borrower: str) -> FinishedNote:
        """Return what a borrower has finished, as far as it is known here."""
        with self._lock:
            return self._lent[borrower]

    def reported(self, borrower: str, note: FinishedNote) -> None:
        """Take over what a borrower reports. Its base never goes back, since what it said before is still true."""
        self.take_over(borrower, note.raised(self.lent_note(borrower).base))

    # ---- the borrower

    def give_up(self, slots: int) -> FinishedNote:
        """Count these slots no more. Returns what is finished of them."""
        offsets = self._offsets_of(slots)
        with self._lock:
            base = self._unfinished.base
            pieces = self._unfinished.give_up(slots, offsets)
            attempts = {o: self._attempts.pop(o) for o in offsets if o in self._attempts}
            self._serial += 1
            return FinishedNote(base, pieces, attempts)

    def take_on(self, slots: int, note: FinishedNote) -> int:
        """Count these slots from now on. Returns the offset from which the log must be read again."""
        with self._lock:
            again = self._unfinished.take_on(slots, note.base, note.finished)
            self._attempts.update(note.attempts)
            self._serial += 1
            return again

    def forget_waiting(self, slots: int, in_hand: Collection[int]) -> int:
        """Have unfinished messages of these slots read again. Returns the offset from which to read.

        Those in hand, and those that wait for their pointers, count on. Otherwise an outcome that comes before they are
        read would be lost, and they would be handled again.
        """
        with self._lock:
            base = self._unfinished.base
            offsets = [o for o in self._offsets_of(slots) if o not in in_hand and o not in self._passing]
            return self._unfinished.take_on(slots, base, self._unfinished.give_up(slots, offsets))

    def _offsets_of(self, slots: int) -> list[int]:
        """Return the unfinished messages of these slots."""
        with self._lock:
            unfinished = self._unfinished
            return [o for o, slot in list(self._slots.items()) if slots >> slot & 1 and o in unfinished]


def parked_slots(pointers: Iterable[Pointer]) -> int:
    """Return the slots of keys with parked messages."""
    found = NO_SLOTS
    for pointer in pointers:
        slot = slot_of_mark(pointer.key)
        if pointer.kind is PointerKind.PARKED and slot is not None:
            found |= 1 << slot
    return found
