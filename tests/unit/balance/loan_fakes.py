"""The nodes of loans as the thread that shares a partition sees them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from zkconsumer.balance.sharing.lender_rules import WriteLoan
from zkconsumer.balance.sharing.loan_format import Loan, LoanReport
from zkconsumer.balance.sharing.loan_store import GroupSight
from zkconsumer.core.finished_note import FinishedNote
from zkconsumer.model import TopicPartition

TP = TopicPartition("t", 0)


class Store:
    """Shows what a test has put there, and keeps what is written."""

    def __init__(self) -> None:
        self.sight = GroupSight()
        self.looked: Callable[[], None] = lambda: None
        self.reports: list[LoanReport] = []
        self.loans: list[tuple[Loan, FinishedNote]] = []

    def look(self, *_: object) -> GroupSight:
        self.looked()
        return self.sight

    def refresh(self) -> None:
        pass

    def forget(self, _: object) -> None:
        pass

    def report(self, _: TopicPartition, __: int, report: LoanReport, *, exists: bool) -> bool:
        self.reports.append(report)
        return True

    def write(self, _: TopicPartition, order: WriteLoan, note: FinishedNote) -> bool:
        self.loans.append((order.loan, note))
        return True

    def delete(self, *_: object, reported: bool) -> None:
        assert not reported
        self.sight = replace(self.sight, loans={TP: {}})
