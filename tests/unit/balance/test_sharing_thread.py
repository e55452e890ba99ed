"""The order in which the sharing thread looks, decides and lets messages begin, without servers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.unit.balance.loan_fakes import TP, Store
from zkconsumer.balance.open_partition import BorrowedSlots, LoanSight, ReadProgress, SharedSlots
from zkconsumer.balance.sharing import sharing_thread
from zkconsumer.balance.sharing.borrowed_partition import BorrowedPartition
from zkconsumer.balance.sharing.lender_rules import SeenLoan
from zkconsumer.balance.sharing.lent_partition import LentPartitions
from zkconsumer.balance.sharing.loan_format import Loan
from zkconsumer.balance.sharing.loan_store import GroupSight, Owner
from zkconsumer.balance.sharing.shared_ledger import SharedLedger
from zkconsumer.balance.sharing.sharing_thread import Sharing, SharingAccess
from zkconsumer.core.finished_note import FinishedNote
from zkconsumer.core.key_slots import ALL_SLOTS
from zkconsumer.core.registration import SHARE_KEY, AdvertisedShare, Registration
from zkconsumer.errors import RegistryError
from zkconsumer.model import ConsumerId, ThreadId
from zkconsumer.ownership.partition_position import PartitionPosition


class Obeying(BorrowedPartition):
    """Notes whether messages may begin while the orders of a look are not yet obeyed."""

    begins: list[bool]
    made: Obeying

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.begins, Obeying.made = [], self
        self.loan: LoanSight | None = None

    def current(self) -> bool:
        return self.loan is not None and self.loan.epoch == self.loan.lease.epoch

    def begin_while(self, loan: LoanSight) -> None:
        self.loan = loan

    def obey(self, *_: Any) -> None:
        self.begins.append(self.current())


class Reader:
    """Does at once what it is told, or later if it is stuck."""

    def __init__(self) -> None:
        self.stuck = False
        self.calls: list[Callable[[], None]] = []
        self.lent = LentPartitions()
        self.partition: Any = None
        self.thread = SimpleNamespace(is_alive=lambda: not self.stuck)
        self.read_from, self.begins_at = list[int](), list[int]()
        self.partitions = SimpleNamespace(of=lambda _: self.partition)
        self.intake = SimpleNamespace(give_up=lambda *_: None, reopen=lambda _, slots: (slots, set()))
        self.intake.take_on = lambda partition, _: self.begins_at.append(partition.reading.at)

    def submit(self, call: Callable[[], None]) -> None:
        self.calls.append(call)
        self.go_on()

    def go_on(self) -> None:
        while self.calls and not self.stuck:
            self.calls.pop(0)()

    def wake(self) -> None:
        pass

    def read_again(self, _: object, offset: int) -> None:
        self.read_from.append(offset)


def access(session: object, position: PartitionPosition | None = None) -> SharingAccess:
    return SharingAccess(
        session=cast(Any, session),
        group="g",
        consumer=ConsumerId("b"),
        topics=lambda: ["t"],
        positions=lambda: {} if position is None else {TP: position},
        stream=cast(Any, None),
        fetch=cast(Any, None),
        forget=lambda: None,
    )


def sharing(
    reader: Reader, position: PartitionPosition | None = None, store: Store | None = None
) -> tuple[Sharing, Store, Any]:
    """Return the sharing of member ``b`` in session 20."""
    session = SimpleNamespace(session_id=20, lease=SimpleNamespace(epoch=1))
    session.require_id = lambda: session.session_id
    store = store or Store()
    share = AdvertisedShare("key", 2)
    reader.lent = LentPartitions()
    made = Sharing(access(session, position), cast(Any, None), cast(Any, reader), reader.lent, share, cast(Any, store))
    return made, store, session


def owner_about_to_lend(monkeypatch: pytest.MonkeyPatch) -> tuple[Sharing, Store, Reader, PartitionPosition]:
    """Return the owner of a partition, which has closed slots, and will lend them to ``c`` at its next look."""
    monkeypatch.setattr(sharing_thread, "SETTLED", 0.0)
    position, reader = PartitionPosition(TP, ThreadId("b-0"), 0), Reader()
    made, store, _ = sharing(reader, position)
    registration = Registration("static", {"t": 1}, extra={SHARE_KEY: str(AdvertisedShare("key", 2))})
    store.sight = GroupSight({"b": 20, "c": 30}, {"b": registration, "c": registration}, {TP: Owner("b", 20, True)})
    assert reader.lent.ledger_of(position) is None
    made.step()
    position.ledger = reader.lent.ledger_of(position)
    reading = ReadProgress(0, 5)
    reader.partition = SimpleNamespace(position=position, ledger=position.ledger, slots=SharedSlots(), reading=reading)
    made.step()
    assert not store.loans
    return made, store, reader, position


def seen(number: int, session: int, *, reported: bool = False) -> GroupSight:
    loan = Loan(number, "s", "a", 10, session, "key", 3, 0, FinishedNote(5))
    return GroupSight(owners={TP: Owner("a", 10, True)}, mine={TP: SeenLoan(loan, number, None, reported)})


def test_what_was_borrowed_waits_for_its_own_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """After another session the group alone was seen: what the former session borrowed is ended only afterwards."""
    monkeypatch.setattr(sharing_thread, "BorrowedPartition", Obeying)
    made, store, session = sharing(Reader())
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


def test_a_report_is_written_again_when_its_node_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loan was deleted and made anew, which the borrower has not seen: its lender waits for an answer."""
    monkeypatch.setattr(sharing_thread, "BorrowedPartition", Obeying)
    made, store, _ = sharing(Reader())
    for reported, reports in ((False, 1), (True, 1), (False, 2)):
        store.sight = seen(1, 20, reported=reported)
        made.step()
        assert len(store.reports) == reports


def test_no_loan_is_written_before_the_ledger_lends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its note would say that everything of the slots is finished."""
    made, store, reader, position = owner_about_to_lend(monkeypatch)
    reader.stuck = True
    for _ in range(2):
        with pytest.raises(RegistryError):
            made.step()
        assert not store.loans
    reader.stuck = False
    reader.go_on()
    made.step()
    ((loan, _),) = store.loans
    assert isinstance(position.ledger, SharedLedger)
    assert loan.slots
    assert not loan.slots & position.ledger.slots


def test_a_second_run_has_the_loans_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise nobody would handle the slots of a borrower that dies, as long as the owner lives."""
    first, store, reader, position = owner_about_to_lend(monkeypatch)
    first.step()
    ((loan, note),) = store.loans
    second, _, _ = sharing(reader, position, store)
    store.sight = replace(store.sight, loans={TP: {"c": SeenLoan(replace(loan, note=note), 0)}})
    assert reader.lent.ledger_of(position) is None  # the reader asks for the ledger of each partition
    second.step()
    assert second.lent == first.lent == {TP: {"c": loan.slots}}
    adopted, _ = store.loans[-1]
    assert adopted.stay != loan.stay
    store.sight = replace(store.sight, loans={TP: {"c": SeenLoan(replace(adopted, note=note), 1)}})
    second.step()
    position.ledger = reader.lent.ledger_of(position)
    reading = ReadProgress(9, 5)
    reader.partition = SimpleNamespace(position=position, ledger=position.ledger, slots=SharedSlots(), reading=reading)
    gone = {"b": store.sight.registrations["b"]}
    store.sight = replace(store.sight, sessions={"b": 20}, registrations=gone, loans={TP: {}})
    for _ in range(2):  # the group has changed, and then stays so
        second.step()
    assert isinstance(position.ledger, SharedLedger)
    assert (second.lent, position.ledger.slots, reader.read_from) == ({TP: {}}, ALL_SLOTS, [0])
    assert reader.begins_at == [0], "a parked message could begin before what is read again"


@pytest.mark.parametrize(("at", "unfinished", "refused"), [(4, 0, 2), (5, 1, 2), (5, 0, ALL_SLOTS)])
def test_slots_go_back_at_the_end_of_the_borrowers_run(at: int, unfinished: int, refused: int) -> None:
    """Otherwise an owner whose run goes on would wait for the borrower's run to end."""
    one = BorrowedPartition(TP, cast(Any, None), "key")
    assert not one.refused
    ledger = SimpleNamespace(unfinished=unfinished)
    slots = BorrowedSlots()
    slots.refused = 2
    one.partition = cast(Any, SimpleNamespace(reading=ReadProgress(at, 5), borrowed=slots, ledger=ledger))
    assert one.refused == refused
