"""One partition of ours whose slots may be lent: its ledger, and what the lender's orders mean for the engine."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from zkconsumer.balance.engine import Engine
from zkconsumer.balance.open_partition import OpenPartition
from zkconsumer.balance.reader import Reader
from zkconsumer.balance.sharing.lender import (
    CloseSlots,
    Lender,
    LenderOrder,
    LenderView,
    LendSlots,
    TakeBack,
    TakeReport,
)
from zkconsumer.balance.sharing.shared_ledger import SharedLedger
from zkconsumer.core.finished_note import FinishedNote
from zkconsumer.core.key_slots import ALL_SLOTS, NO_SLOTS
from zkconsumer.core.partition_position import PartitionPosition
from zkconsumer.runtime.interruptible_wait import InterruptibleLock
from zkconsumer.zookeeper.session import Session


def slots_in_hand(homes: Collection[OpenPartition]) -> int:
    """Return the slots of the messages that handlers have. Any thread."""
    found = NO_SLOTS
    for home in homes:
        for work in home.hand.copy():
            found |= 1 << work.slot
    return found & ALL_SLOTS


class LentPartition:
    """One stay at a partition of ours.

    * ``ready``: the loans of an earlier owner are ours, so that the partition may be handled; ``opened``: it is
    * ``over``: the position goes on at another place of the log, in another stay
    """

    def __init__(self, position: PartitionPosition, lender: Lender, ledger: SharedLedger) -> None:
        self.position = position
        self.lender = lender
        self.ledger = ledger
        self.ready = False
        self.opened = False
        self.over = False
        self._closing = self._closed = NO_SLOTS

    @classmethod
    def of_stay(cls, position: PartitionPosition, lender: Lender, view: LenderView) -> LentPartition:
        """Begin a stay: take over the loans of an earlier owner."""
        start, note = position.consumed or 0, position.known_note
        beginning = lender.begin(start, note, view)
        pieces = (*(note.finished if note is not None else ()), *beginning.known)
        known = FinishedNote(start, pieces, {} if note is None else note.attempts)
        ledger = SharedLedger(position, start, known, position.known_pointers, beginning.slots, InterruptibleLock())
        ledger.begin(beginning, dict(lender.lent))
        return cls(position, lender, ledger)

    def in_session(self, session: Session) -> bool:
        """Return whether the session of our claim still lives, as far as we know."""
        return session.session_id == self.lender.session

    @property
    def pinned(self) -> int:
        """The slots that must stay here, because a message of them is parked, or has failed."""
        return self.ledger.parked_slots() | self.ledger.attempted_slots()

    @property
    def reopens(self) -> bool:
        """Whether slots stay closed that are not to be lent any more: call :meth:`obey` again."""
        return bool(self._closed & ~self._closing)

    def obey(
        self,
        orders: Sequence[LenderOrder],
        home: OpenPartition,
        engine: Engine,
        reader: Reader,
        wake: Callable[[], None],
    ) -> None:
        """Do what concerns the ledger and the engine. Called on the reader's thread."""
        ledger, again = self.ledger, None
        for order in orders:
            if isinstance(order, CloseSlots):
                engine.give_up(home, order.slots & ~self._closed, wake)
                self._closing = order.slots
                self._closed |= order.slots
            elif isinstance(order, LendSlots):
                ledger.lend_slots(order.borrower, order.slots)
            elif isinstance(order, TakeReport):
                ledger.reported(order.borrower, order.note)
            elif isinstance(order, TakeBack):
                again = _lower(again, ledger.end_loan(order.borrower, order.slots, keeps=order.keeps))
                engine.take_on(home, order.slots)
        reopened = self._closed & ~self._closing & ledger.slots
        opened, start = reopen(home, ledger, engine, reopened)
        self._closed = self._closing | reopened & ~opened
        if opened:
            again = _lower(again, start)
        if again is not None:
            reader.read_again(home, again)


def reopen(home: OpenPartition, ledger: SharedLedger, engine: Engine, slots: int) -> tuple[int, int]:
    """Handle slots again whose waiting messages were forgotten, but for some that must wait.

    Returns those that are open now, and the offset to read again from.
    """
    # The engine first: until then it forgets a message that a worker gives back, and afterwards it begins it again.
    slots, in_hand = engine.reopen(home, slots)
    return slots, ledger.forget_waiting(slots, in_hand) if slots else 0


def _lower(one: int | None, other: int) -> int:
    return other if one is None else min(one, other)
