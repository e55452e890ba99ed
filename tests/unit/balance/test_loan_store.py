"""The nodes of loans in ZooKeeper: who may write what, and what is read."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from zkconsumer.balance.sharing.lender_rules import DeleteLoan, WriteLoan
from zkconsumer.balance.sharing.loan_format import Loan, LoanReport
from zkconsumer.balance.sharing.loan_store import LoanStore
from zkconsumer.core.finished_note import FinishedNote
from zkconsumer.errors import NotPermittedError
from zkconsumer.model import TopicPartition
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.testing.fake_zookeeper import FakeSession, FakeZooKeeper
from zkconsumer.zookeeper import paths

TP = TopicPartition("t", 0)
LENDER, BORROWER = "g_a", "g_b"
NOTE = FinishedNote(5)
LOAN = Loan(1, "s", LENDER, 1, 2, "key", 3, 0, NOTE)
REPORT = LoanReport(1, "s", 2, 3, FinishedNote(9))
OWNER, MEMBER, NODE = paths.owner("g", TP), paths.member("g", BORROWER), paths.loan("g", TP, BORROWER)


class Group:
    """An owner of ours and a registered borrower, each with its store."""

    def __init__(self) -> None:
        self.server = FakeZooKeeper()
        self.sessions = {name: self.open(name) for name in (LENDER, BORROWER)}
        self.lender, self.borrower = (
            LoanStore(self.sessions[name], "g", name, lambda: None) for name in (LENDER, BORROWER)
        )
        self.server.put(OWNER, b"g_a-0", ephemeral_owner=self.sessions[LENDER].session_id)
        self.server.put(OWNER, b"g_a-0")  # version 1: one of ours

    def open(self, name: str) -> FakeSession:
        made = self.server.session()
        made.open(Deadline(1))
        subscription = b'{"pattern":"static","subscription":{"t":1},"share":"key:10"}'
        self.server.put(paths.member("g", name), subscription, ephemeral_owner=made.session_id)
        return made

    def lend(self, version: int | None = None) -> bool:
        return self.lender.write(TP, WriteLoan(BORROWER, LOAN, version), NOTE)


def test_loans_and_reports_are_seen_by_the_other_side() -> None:
    group = Group()
    assert group.lend()
    (seen,) = [group.borrower.look(["t"], []).mine[TP]]
    assert (seen.loan, seen.report) == (LOAN, None)
    assert group.borrower.report(TP, seen.version, REPORT, exists=False)
    assert group.lender.look(["t"], [TP]).loans[TP][BORROWER].report == REPORT
    again = LoanReport(1, "s", 2, 1, FinishedNote(12))
    assert group.borrower.report(TP, seen.version, again, exists=True)
    sight = group.lender.look(["t"], [TP])
    assert sight.loans[TP][BORROWER].report == again
    assert sight.owners[TP].consumer == LENDER
    assert sight.owners[TP].ours
    assert sight.sessions == {name: session.session_id for name, session in group.sessions.items()}
    assert group.lender.delete(TP, DeleteLoan(BORROWER, 0), reported=True)
    assert group.borrower.look(["t"], []).mine == {}


def test_nothing_is_asked_while_nothing_changes() -> None:
    group = Group()
    assert group.lend()
    assert group.borrower.report(TP, 0, REPORT, exists=False)
    for store, lent in ((group.lender, [TP]), (group.borrower, [])):
        store.look(["t"], lent)
        before = dict(group.server.operations)
        store.look(["t"], lent)
        assert group.server.operations == before


def test_a_loan_is_seen_while_nobody_owns_its_partition() -> None:
    group = Group()
    assert group.lend()
    group.server.remove(OWNER)
    sight = group.borrower.look(["t"], [], [TP])
    assert (sight.owners, sight.mine[TP].loan) == ({}, LOAN)
    group.server.put(OWNER, b"g_a-0", ephemeral_owner=group.sessions[LENDER].session_id)
    assert group.borrower.look(["t"], [], [TP]).owners[TP].consumer == LENDER


def refused(change: Callable[[Group], object]) -> bool:
    group = Group()
    change(group)
    return not group.lend() and group.server.node(NODE) is None


def test_a_loan_is_written_by_the_owner_to_a_member_only() -> None:
    assert refused(lambda group: group.server.remove(OWNER))
    assert refused(lambda group: group.server.remove(MEMBER))

    def scala_owner(group: Group) -> None:
        group.server.remove(OWNER)
        group.server.put(OWNER, b"g_scala-0", ephemeral_owner=99)

    assert refused(scala_owner)


def test_a_changed_loan_is_not_overwritten_nor_reported_on() -> None:
    group = Group()
    assert group.lend()
    assert group.lend(version=0)
    assert not group.lend(version=0)
    assert not group.lend()
    assert not group.borrower.report(TP, 0, REPORT, exists=False)
    assert group.server.node(f"{NODE}/report") is None
    assert not group.lender.delete(TP, DeleteLoan(BORROWER, 0), reported=False)


def test_foreign_bytes_are_no_loan_and_no_report() -> None:
    group = Group()
    group.server.put(NODE, b"\xff")
    seen = group.borrower.look(["t"], []).mine[TP]
    assert (seen.loan, seen.report, seen.reported) == (None, None, False)
    group.server.put(f"{NODE}/report", b"{}")
    seen = group.lender.look(["t"], [TP]).loans[TP][BORROWER]
    assert (seen.loan, seen.report, seen.reported) == (None, None, True)


def test_a_forbidden_loan_says_so() -> None:
    """It was tried again and again without a word."""
    group = Group()
    group.server.refuse(NODE, "create")
    with pytest.raises(NotPermittedError, match="ACL"):
        group.lend()
