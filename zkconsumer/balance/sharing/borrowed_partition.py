"""One partition of another member of which this one handles some slots: its position, its ledger, its reports."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from time import time
from typing import Any, cast

from zkconsumer.balance.chunk_intake import ChunkIntake
from zkconsumer.balance.open_partition import LoanSight, OpenPartition
from zkconsumer.balance.sharing.borrower_rules import Borrower, BorrowerOrder, EndLoan, GiveUp, TakeOn
from zkconsumer.balance.sharing.lent_partition import reopen
from zkconsumer.balance.sharing.loan_format import LoanReport
from zkconsumer.balance.sharing.shared_ledger import SharedLedger
from zkconsumer.core.finished_note import FinishedNote
from zkconsumer.core.key_slots import ALL_SLOTS, NO_SLOTS
from zkconsumer.model import ThreadId, TopicPartition
from zkconsumer.ownership.partition_position import PartitionPosition
from zkconsumer.runtime.interruptible_wait import InterruptibleLock
from zkconsumer.streams.kafka_stream import KafkaStream
from zkconsumer.streams.stream_queue import StreamQueue

REPORT_EVERY = 1.0
"""Seconds between two reports that tell only of progress."""


class BorrowedPartition:
    """A loan to this member.

    ``begun`` is a position to fetch from now on; ``ended``: one is to be forgotten; ``told`` is the last report, and
    ``word`` what was finished when this member became the owner.
    """

    def __init__(self, tp: TopicPartition, stream: Callable[[str], KafkaStream[Any, Any]], order: str) -> None:
        self.tp = tp
        self.borrower = Borrower(order)
        self.partition: OpenPartition | None = None
        self.begun: tuple[PartitionPosition, StreamQueue] | None = None
        self.ended = False
        self.left = False
        self.word: LoanReport | None = None
        self._make_stream = stream
        self._reader: ChunkIntake | None = None
        self._closed = NO_SLOTS
        self.told: LoanReport | None = None
        self._told_at = 0.0

    @property
    def _ledger(self) -> SharedLedger | None:
        return None if self.partition is None else cast(SharedLedger, self.partition.ledger)

    # ---- the reader's thread

    def obey(
        self, orders: Sequence[BorrowerOrder], reader: ChunkIntake, wake: Callable[[], None], lender: str = ""
    ) -> None:
        """Do what concerns the ledger and the waiting messages. Arguments: ``lender`` is the owner, for the state."""
        self._reader, before = reader, self.partition
        self._begin_anew(reader)
        for order in orders:
            if isinstance(order, EndLoan):
                self.end()
            elif isinstance(order, TakeOn):
                # the order may be older than the cut of the log
                self._take_on(replace(order, note=_of_same_log(before, order.note)), reader)
            elif isinstance(order, GiveUp) and self._ledger is not None and self.partition is not None:
                self.borrower.gave_up(order.slots, self._ledger.give_up(order.slots))
                self._closed &= ~order.slots
                self.partition.borrowed.refused &= ~order.slots
        partition, ledger = self.partition, self._ledger
        if partition is None or ledger is None:
            return
        if not self.borrower.held and self.borrower.reports is not None:
            self.end()
            return
        partition.borrowed.lender = lender
        closing = self.borrower.closing
        reopened = self._closed & ~closing & ledger.slots
        opened, start = reopen(partition, ledger, reader.intake, reopened)
        if opened:
            reader.read_again(partition, start)
        if closed := closing & ~self._closed:
            reader.intake.give_up(partition, closed, wake)
        self._closed = closing | reopened & ~opened
        paused = self.borrower.reports is None
        if paused != partition.position.paused:
            queue = partition.stream.queue
            (queue.pause if paused else queue.resume)(partition.position)

    def _begin_anew(self, reader: ChunkIntake) -> None:
        """Read the log anew if it was cut short. What is known of messages before that place is still true."""
        partition, ledger = self.partition, self._ledger
        if partition is None or ledger is None or partition.reading.cut < 0:
            return
        self.end()
        self.borrower.cut(lambda note: _of_same_log(partition, note))
        self._take_on(TakeOn(ledger.slots, _of_same_log(partition, ledger.point().note)), reader)

    def _take_on(self, order: TakeOn, reader: ChunkIntake) -> None:
        if self._ledger is not None and self.partition is not None:
            again = self._ledger.take_on(order.slots, order.note)
            reader.intake.take_on(self.partition, order.slots)
            reader.read_again(self.partition, again)
            return
        base = order.note.base
        position = PartitionPosition(self.tp, ThreadId("borrowed-0"), base)
        ledger = SharedLedger(position, base, order.note, slots=order.slots, lock=InterruptibleLock())
        position.ledger = ledger
        stream = self._make_stream(self.tp.topic)
        self.partition = reader.borrow(position, ledger, stream)
        if order.note.attempts:
            self.partition.reading.attempts_to = max(order.note.attempts) + 1
        self._closed = NO_SLOTS
        self.begun = (position, stream.queue)

    def end(self) -> None:
        """Read the partition no more. What is in hand ends by itself."""
        if self.partition is not None and self._reader is not None:
            queue, position = self.partition.stream.queue, self.partition.position
            queue.revoke([position])
            self._reader.return_borrowed(position)
            queue.close()
            self.ended = True
        self.partition = self.begun = None
        self._closed = NO_SLOTS

    def end_as_owner(self) -> None:
        """End, and keep the last ``word``: what is finished, for ourselves as the next owner. The report may be older.

        May be called again, if the caller could not wait for it.
        """
        if self.word is None:
            borrower, partition, ledger = self.borrower, self.partition, self._ledger
            self.end()  # first: a message that began after the last word would be repeated
            note = _of_same_log(partition, borrower.note(ledger))
            self.word = LoanReport(borrower.number, borrower.stay, borrower.session, borrower.held, note)

    # ---- the sharing thread

    def begin_while(self, loan: LoanSight) -> None:
        """Let messages of this loan begin as long as the session has the connection in which it was seen."""
        if (partition := self.partition) is not None:
            partition.borrowed.loan = loan

    @property
    def refused(self) -> int:
        """The slots to give back: of messages that fail, or all if the run has an end and everything before is done."""
        partition = self.partition
        if partition is None:
            return NO_SLOTS
        at_end = partition.reading.at >= partition.reading.limit
        return ALL_SLOTS if at_end and not partition.ledger.unfinished else partition.borrowed.refused

    def report(self, session: int, now: float, *, leaving: bool, in_hand: int) -> LoanReport | None:
        """Return the report to write now, None if there is nothing to tell."""
        borrower, told = self.borrower, self.told
        if borrower.reports is None:
            self.left = True
            return None
        note = _of_same_log(self.partition, borrower.note(self._ledger))
        report = LoanReport(
            borrower.number,
            borrower.stay,
            session,
            borrower.reports,
            note,
            leaving,
            in_hand.bit_count(),
            int(time() * 1000),
        )
        self.left = False  # a borrower that leaves waits until the lender has taken everything back
        if told is not None:
            same = _moves(told) == _moves(report)
            if same and (told.note == note or now - self._told_at < REPORT_EVERY):
                return None
        return report

    def reported(self, report: LoanReport, now: float) -> None:
        """Note that this was written."""
        self.told, self._told_at = report, now


def _of_same_log(partition: OpenPartition | None, note: FinishedNote) -> FinishedNote:
    """Return a note without what it says of messages of a log that was cut short."""
    if partition is None or partition.reading.cut < 0:
        return note
    return replace(note.before(partition.reading.cut), base=min(note.base, partition.reading.cut))


def _moves(report: LoanReport) -> tuple[object, ...]:
    """Return the part of a report that must not wait."""
    return report.number, report.stay, report.session, report.held, report.leaving
