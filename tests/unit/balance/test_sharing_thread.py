"""The order in which the sharing thread looks, decides and lets messages begin, without servers."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from zkconsumer.balance.sharing import sharing_thread
from zkconsumer.balance.sharing.borrowed_partition import BorrowedPartition
from zkconsumer.balance.sharing.lender import SeenLoan
from zkconsumer.balance.sharing.loan_nodes import Loan, LoanReport
from zkconsumer.balance.sharing.loan_store import GroupSight, Owner
from zkconsumer.balance.sharing.sharing_thread import Sharing, SharingAccess
from zkconsumer.core.finished_note import FinishedNote
from zkconsumer.core.registration import AdvertisedShare
from zkconsumer.model import ConsumerId, TopicPartition

TP = TopicPartition("t", 0)


class Obeying(BorrowedPartition):
    """Notes whether messages may begin while the orders of a look are not yet obeyed."""

    begins: list[bool]
    made: Obeying

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.begins, Obeying.made = [], self

    def obey(self, *_: Any) -> None:
        self.begins.append(self.current())


class Store:
    """Shows what a test has put there, and keeps reports."""

    def __init__(self) -> None:
        self.sight = GroupSight()
        self.reports: list[LoanReport] = []

    def look(self, *_: object) -> GroupSight:
        return self.sight

    def refresh(self) -> None:
        pass

    def report(self, _: TopicPartition, __: int, report: LoanReport, *, exists: bool) -> bool:
        self.reports.append(report)
        return True


def sharing() -> tuple[Sharing, Store, Any]:
    """Return the sharing of a member in session 20, whose reader does at once what it is told."""
    session = SimpleNamespace(session_id=20, lease=SimpleNamespace(epoch=1))
    access = SharingAccess(
        session=cast(Any, session),
        group="g",
        consumer=ConsumerId("b"),
        topics=lambda: ["t"],
        positions=dict,
        stream=cast(Any, None),
        fetch=cast(Any, None),
        forget=lambda: None,
    )

    def submit(call: Callable[[], None]) -> None:
        call()

    reader = SimpleNamespace(submit=submit, wake=lambda: None, lends=None)
    store = Store()
    made = Sharing(access, cast(Any, None), cast(Any, reader), AdvertisedShare("key", 2), cast(Any, store))
    return made, store, session


def seen(number: int, session: int, *, reported: bool = False) -> GroupSight:
    loan = Loan(number, "s", "a", 10, session, "key", 3, 0, FinishedNote(5))
    return GroupSight(owners={TP: Owner("a", 10, True)}, mine={TP: SeenLoan(loan, number, None, reported)})


def test_what_was_borrowed_waits_for_its_own_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """After another session the group alone was seen: what the former session borrowed is ended only afterwards."""
    monkeypatch.setattr(sharing_thread, "BorrowedPartition", Obeying)
    made, store, session = sharing()
    store.sight = seen(1, 20)
    made.step()
    one = Obeying.made
    assert one.current()
    session.lease.epoch, session.session_id = 2, 30
    store.sight = seen(2, 30)
    assert not one.current()
    made.step()
    assert one.begins == [False, False]
    assert one.current()
