"""Partitions of ours whose slots may be lent: their ledgers, and what the lender's orders mean for waiting messages."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from zkconsumer.balance.chunk_intake import ChunkIntake
from zkconsumer.balance.message_intake import MessageIntake
from zkconsumer.balance.open_partition import OpenPartition
from zkconsumer.balance.sharing.lender_rules import (
    CloseSlots,
    Lender,
    LenderOrder,
    LenderView,
    LendSlots,
    TakeBack,
    TakeReport,
)
from zkconsumer.balance.sharing.shared_ledger import SharedLedger, parked_slots
from zkconsumer.core.finished_note import FinishedNote
from zkconsumer.core.key_slots import NO_SLOTS
from zkconsumer.model import TopicPartition
from zkconsumer.ownership.balanced_ledger import BalancedLedger
from zkconsumer.ownership.partition_position import PartitionPosition
from zkconsumer.runtime.interruptible_wait import InterruptibleLock, WakeFlag
from zkconsumer.zookeeper.session import Session


def slots_in_hand(partitions: Collection[OpenPartition]) -> int:
    """Return the slots of the messages that handlers have. Any thread."""
    found = NO_SLOTS
    for one in partitions:
        if one.slots is not None:
            found |= one.slots.in_hand
    return found


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
        start, note, pointers = position.consumed or 0, position.ledger_start.note, position.stored.pointers
        view = replace(view, pinned=parked_slots(pointers.values()))
        beginning = lender.begin(start, note, view)
        pieces = (*(note.finished if note is not None else ()), *beginning.known)
        known = FinishedNote(start, pieces, {} if note is None else note.attempts)
        ledger = SharedLedger(position, start, known, pointers, beginning.slots, InterruptibleLock())
        ledger.begin(beginning, dict(lender.lent))
        return cls(position, lender, ledger)

    def in_session(self, session: Session) -> bool:
        """Return whether the session of our claim still lives, as far as we know."""
        return session.session_id == self.lender.session

    @property
    def pinned(self) -> int:
        """The slots that must stay here, because a message of them is parked, or has failed."""
        return parked_slots(self.ledger.pointers.values()) | self.ledger.attempted_slots()

    @property
    def reopens(self) -> bool:
        """Whether slots stay closed that are not to be lent any more: call :meth:`obey` again."""
        return bool(self._closed & ~self._closing)

    def obey(
        self, orders: Sequence[LenderOrder], partition: OpenPartition, reader: ChunkIntake, wake: Callable[[], None]
    ) -> None:
        """Do what concerns the ledger and the waiting messages. Called on the reader's thread."""
        ledger, intake, again = self.ledger, reader.intake, None
        for order in orders:
            if isinstance(order, CloseSlots):
                intake.give_up(partition, order.slots & ~self._closed, wake)
                self._closing = order.slots
                self._closed |= order.slots
            elif isinstance(order, LendSlots):
                ledger.lend_slots(order.borrower, order.slots)
            elif isinstance(order, TakeReport):
                ledger.reported(order.borrower, order.note)
            elif isinstance(order, TakeBack):
                again = _lower(again, ledger.end_loan(order.borrower, order.slots, keeps=order.keeps))
                if again is not None:  # first: a parked message waits until the log is read up to it
                    partition.reading.at = min(partition.reading.at, again)
                intake.take_on(partition, order.slots)
        reopened = self._closed & ~self._closing & ledger.slots
        opened, start = reopen(partition, ledger, intake, reopened)
        self._closed = self._closing | reopened & ~opened
        if opened:
            again = _lower(again, start)
        if again is not None:
            reader.read_again(partition, again)


class LentPartitions:
    """Our partitions whose slots are or may be on loan; see :class:`~zkconsumer.balance.open_partition.Lending`.

    A partition is ``wanted`` until a stay at it begins here, or until it is known to stay whole, with nothing on loan.
    ``flag`` is set when one is wanted: the sharing thread waits for it. Threads: that one, and the reader's for
    :meth:`ledger_of` and :meth:`concerns`. A lock guards what is wanted; nothing waits under it.
    """

    def __init__(self) -> None:
        self.flag = WakeFlag()
        self._lock = InterruptibleLock()
        self.stays: dict[PartitionPosition, LentPartition] = {}
        self._wanted: dict[PartitionPosition, None] = {}  # in order, unlike a set
        self._whole: set[PartitionPosition] = set()

    def ledger_of(self, position: PartitionPosition) -> BalancedLedger | None:
        """Return the ledger of a partition of ours, None until it is known what is lent."""
        lent = self.stays.get(position)
        if lent is not None and not lent.over:
            if not lent.opened:
                # once: if it becomes ready in between, the partition would be open with loans that nobody follows
                lent.opened = ready = lent.ready
                return lent.ledger if ready else None
            lent.over = True  # it goes on at another place of its log, in a new stay
        with self._lock:
            # Otherwise a second stay could begin while the first one is open, and its loans would never come back.
            if self.stays.get(position) is lent and position not in self._wanted:
                self._wanted[position] = None
                self.flag.set()
        return None

    def concerns(self, position: PartitionPosition) -> bool:
        """Return whether slots of the partition are or may be on loan."""
        return position not in self._whole

    def want(self, positions: Iterable[PartitionPosition]) -> None:
        """Have it looked up what is lent of these."""
        with self._lock:
            self._wanted.update(dict.fromkeys(positions))

    def wanted(self, owned: Mapping[TopicPartition, PartitionPosition]) -> list[PartitionPosition]:
        """Return those of our present positions that wait for their stay."""
        with self._lock:
            return [p for p in self._wanted if owned.get(p.tp) is p and not p.revoked]

    def stay_whole(self, positions: Collection[PartitionPosition]) -> None:
        """Note that nothing of these is on loan."""
        with self._lock:
            self._wanted = {p: None for p in self._wanted if p not in positions}
        self._whole = {*positions, *(position for position in self._whole if not position.revoked)}

    def begin(self, position: PartitionPosition, stay: LentPartition) -> None:
        """Begin a stay."""
        with self._lock:
            self.stays[position] = stay
            self._wanted.pop(position, None)

    def begin_anew(self, position: PartitionPosition) -> None:
        """End a stay, and have another one begin."""
        with self._lock:
            del self.stays[position]
            self._wanted[position] = None
        self.flag.set()


def reopen(partition: OpenPartition, ledger: SharedLedger, intake: MessageIntake, slots: int) -> tuple[int, int]:
    """Handle slots again whose waiting messages were forgotten, but for some that must wait.

    Returns those that are open now, and the offset to read again from.
    """
    # first: until then a message that a worker gives back is forgotten, and afterwards it begins again
    slots, in_hand = intake.reopen(partition, slots)
    return slots, ledger.forget_waiting(slots, in_hand) if slots else 0


def _lower(one: int | None, other: int) -> int:
    return other if one is None else min(one, other)
