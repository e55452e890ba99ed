"""Sharing with the real reader and dispatcher: what a lost connection or a quick change of loans must not repeat."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import replace
from time import monotonic
from typing import Any, cast

import pytest

from tests.streams import delivery_of
from tests.timing import eventually, scaled
from tests.unit.balance.loan_fakes import TP, Store
from tests.values import present
from zkconsumer import KafkaStream
from zkconsumer.balance import chunk_intake as reader_module
from zkconsumer.balance.chunk_intake import ChunkIntake
from zkconsumer.balance.dispatcher import Dispatcher
from zkconsumer.balance.failed_messages import RunRules
from zkconsumer.balance.open_partition import OpenPartition, ReadLimits
from zkconsumer.balance.outcomes import DONE, NOT_STARTED, Failed, Outcome
from zkconsumer.balance.sharing import lent_partition, sharing_thread
from zkconsumer.balance.sharing.lender_rules import SeenLoan
from zkconsumer.balance.sharing.lent_partition import LentPartitions, slots_in_hand
from zkconsumer.balance.sharing.loan_format import Loan, LoanReport
from zkconsumer.balance.sharing.loan_store import GroupSight, Owner
from zkconsumer.balance.sharing.sharing_thread import Sharing, SharingAccess
from zkconsumer.core.finished_note import FinishedNote
from zkconsumer.core.key_slots import ALL_SLOTS, slot_of_key
from zkconsumer.core.registration import SHARE_KEY, AdvertisedShare, Registration
from zkconsumer.errors import NotPermittedError, RegistryError
from zkconsumer.model import ConsumerId, ThreadId, TopicPartition
from zkconsumer.ownership.fetch_cursor import Sink
from zkconsumer.ownership.partition_position import PartitionPosition
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.streams.byte_budget import QueueBudget
from zkconsumer.streams.chunk_reader import ChunkReader, ReadSettings
from zkconsumer.streams.stream_queue import StreamQueue
from zkconsumer.testing.partition_log import encode_batch
from zkconsumer.zookeeper.lease import Lease

AT_ONCE = Deadline(0.0)
OTHER = TopicPartition("u", 0)


class Session:
    """A session that the test connects and ends. ``readings`` counts how often its id was asked for."""

    def __init__(self) -> None:
        self.lease = Lease()
        self.id = 0
        self.readings = 0
        self.away_at = -1
        """The number of the reading that finds no connection."""

    @property
    def session_id(self) -> int:
        self.readings += 1
        return 0 if self.readings == self.away_at else self.id

    def require_id(self) -> int:
        if not (found := self.session_id):
            raise RegistryError("there is no connection")
        return found

    def connect(self, session_id: int) -> None:
        self.id = session_id
        self.lease.renew(monotonic(), 3600.0)
        self.lease.resume(self.lease.epoch)

    def lose_connection(self) -> None:
        """As kazoo does it: first there is no id any more, then the lease hears of it."""
        self.id = 0
        self.lease.suspend()


class ObedientReader(ChunkIntake):
    """A reader that serves each call of the sharing thread at once, after ``meanwhile``."""

    meanwhile: Callable[[], None] = staticmethod(lambda: None)

    def submit(self, call: Callable[[], None]) -> None:
        super().submit(call)
        self.meanwhile()
        self._serve_calls()


class World:
    """The member ``b`` of a group, in session 20, with a log of messages without keys."""

    def __init__(self) -> None:
        self.session = Session()
        self.session.connect(20)
        budget = QueueBudget(1 << 30)

        def made_stream(_: object) -> KafkaStream[Any, Any]:
            queue = StreamQueue(9, lambda: None, budget)
            chunks = ChunkReader("s", queue, self.session.lease, ReadSettings(), lambda *_: None)
            return KafkaStream(chunks, timeout=None)

        self.stream = made_stream("t")
        self.dispatcher = Dispatcher(self.session.lease, RunRules())
        self.own: dict[Any, PartitionPosition] = {}
        self.lent = LentPartitions()
        self.reader = ObedientReader(
            "g_b",
            self.dispatcher,
            ReadLimits(100, budget),
            delivery_of(self.stream),
            lambda: self.own,
            lambda: None,
            lending=self.lent,
        )
        self.fetched: list[tuple[PartitionPosition, Any]] = []
        access = SharingAccess(
            session=cast(Any, self.session),
            group="g",
            consumer=ConsumerId("b"),
            topics=lambda: ["t"],
            positions=lambda: self.own,
            stream=made_stream,
            fetch=self.fetch,
            forget=lambda: None,
        )
        self.store = Store()
        share = AdvertisedShare("key", 2)
        self.sharing = Sharing(access, self.dispatcher, self.reader, self.lent, share, cast(Any, self.store))

    def fetch(self, position: PartitionPosition, queue: Sink) -> None:
        self.fetched.append((position, queue))

    def lend(self, number: int, session: int, start: int = 0, kept: int = ALL_SLOTS) -> None:
        """Let ``a`` lend everything of the partition to a session of ours, and recall all but what is ``kept``."""
        loan = Loan(number, "s", "a", 10, session, "key", kept, ALL_SLOTS & ~kept, FinishedNote(start))
        self.store.sight = GroupSight(owners={TP: Owner("a", 10, True)}, mine={TP: SeenLoan(loan, number)})
        self.sharing.step()

    def own_partition(self) -> PartitionPosition:
        """Become the owner, with nothing on loan."""
        position = self.own[TP] = PartitionPosition(TP, ThreadId("b-0"), 0)
        self.fetched.append((position, self.stream.queue))
        self.group(())
        assert self.lent.ledger_of(position) is None
        self.sharing.step()
        self.reader.step()
        return position

    def become_owner(self, position: PartitionPosition, loan: SeenLoan, others: Iterable[str]) -> None:
        """Become the owner of the partition whose slots were borrowed until now."""
        self.own[TP] = position
        self.fetched.append((position, self.stream.queue))
        self.group(others)
        self.store.sight = replace(self.store.sight, loans={TP: {"b": loan}}, mine={TP: loan})
        assert self.lent.ledger_of(position) is None
        self.sharing.step()
        self.store.sight = replace(self.store.sight, loans={TP: {}}, mine={})
        self.sharing.step()
        self.reader.step()

    def group(self, others: Iterable[str]) -> None:
        """Let the group have us as the owner, and these other members that share."""
        sessions = {"b": 20, **{name: 30 + number for number, name in enumerate(others)}}
        registration = Registration("static", {"t": 1}, extra={SHARE_KEY: str(AdvertisedShare("key", 2))})
        self.store.sight = GroupSight(sessions, dict.fromkeys(sessions, registration), {TP: Owner("b", 20, True)})

    def take(self, first: int = 0, count: int = 4, key: bytes | None = None) -> list[Any]:
        """Let some messages come from the broker to the last position that is fetched, and have workers take all."""
        position, queue = self.fetched[-1]
        records = bytearray(encode_batch([b"v"] * count, 0, () if key is None else [key] * count))
        records[:8] = first.to_bytes(8, "big")
        queue.deliver(position, bytes(records), (first, first + count), ())
        while self.reader.step():
            pass
        return list(self.dispatcher.take(1000, AT_ONCE))

    def finish(self, works: list[Any], outcome: Outcome = DONE) -> None:
        self.dispatcher.settle([(work, outcome) for work in works])


@pytest.mark.parametrize("away_at", range(1, 7))
def test_a_lost_connection_ends_no_loan(away_at: int) -> None:
    """ZooKeeper's client knows no id while the connection is away, which was taken for another session's.

    The loan ended, and began again at its first offset. The borrower repeated finished messages.
    """
    world = World()
    world.lend(1, 20)
    world.finish(world.take())
    world.session.readings, world.session.away_at = 0, away_at
    for _ in range(3):
        with suppress(RegistryError):
            world.sharing.step()
    assert world.sharing.borrowed == {TP: ALL_SLOTS}
    assert len(world.fetched) == 1


def test_a_look_of_two_connections_decides_nothing() -> None:
    """The look began in one session and ended in the next one. The loan of the next session begins later."""
    world = World()
    world.lend(1, 20)
    first, *_ = world.take()

    def reconnect() -> None:
        world.session.lose_connection()
        world.session.connect(30)

    world.store.looked = reconnect
    with pytest.raises(RegistryError):
        world.lend(2, 30, start=4)
    assert len(world.fetched) == 1
    assert not world.dispatcher.may_start(first)
    world.store.looked = lambda: None
    world.sharing.step()
    assert [position.consumed for position, _ in world.fetched] == [0, 4]


def test_a_borrower_that_leaves_as_a_stay_begins_stops_no_owner() -> None:
    """After a seek, its loan could not be written any more, and nobody handled the partition."""
    world = World()
    position = world.own[TP] = PartitionPosition(TP, ThreadId("b-0"), 0)
    loan = Loan(1, "s", "b", 20, 30, "key", ALL_SLOTS, 0, FinishedNote(0))
    assert world.lent.ledger_of(position) is None
    for others in ("c", ""):
        world.group(others)
        world.store.sight = replace(world.store.sight, loans={TP: {"c": SeenLoan(loan, 1)}})
        world.sharing.step()
        assert world.lent.ledger_of(position) is None
    for _ in range(2):
        world.sharing.step()
    assert world.lent.ledger_of(position) is not None


def test_a_stay_that_begins_as_the_reader_asks_begins_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second stay began while the first one was open. Then nothing was lent, and no loan ever came back."""
    meanwhile: list[Callable[[], object]] = []

    class Lock:
        def __enter__(self) -> None:
            while meanwhile:
                meanwhile.pop()()

        def __exit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr(lent_partition, "InterruptibleLock", Lock)
    monkeypatch.setattr(sharing_thread, "SETTLED", 0.0)
    world = World()
    position = world.own[TP] = PartitionPosition(TP, ThreadId("b-0"), 0)
    world.fetched.append((position, world.stream.queue))
    world.group("c")
    assert world.lent.ledger_of(position) is None
    meanwhile.append(world.sharing.step)
    assert world.lent.ledger_of(position) is None
    world.reader.step()
    for _ in range(4):
        world.sharing.step()
    assert world.store.loans != []


def key_to_lend() -> bytes:
    """Return a key whose slot an owner lends to a member ``c`` that joins."""
    world = World()
    world.own_partition()
    partition = world.take()[0].partition
    world.group("c")
    for _ in range(2):
        world.sharing.step()
    return next(key for n in range(1000) if present(partition.slots).leaving >> slot_of_key(key := b"%d" % n) & 1)


def test_a_key_stays_in_order_when_its_slot_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker gave the first messages back, which were forgotten. It gave the others back when the slot was open."""
    monkeypatch.setattr(sharing_thread, "SETTLED", 0.0)
    key, world = key_to_lend(), World()
    world.own_partition()
    works = world.take(key=key)
    partition: OpenPartition = works[0].partition
    for others, back in (("c", works[:2]), ("", works[2:])):
        world.group(others)
        for _ in range(2):
            world.sharing.step()
        assert present(partition.slots).leaving >> slot_of_key(key) & 1
        world.finish(back, NOT_STARTED)
    world.sharing.step()
    assert [work.offset for work in world.take(key=key)] == [0, 1, 2, 3]


def test_a_borrowed_key_stays_in_order_when_its_slot_stays() -> None:
    """The owner recalled the slot and lent the slot again, while a worker gave its messages back."""
    world = World()
    world.lend(1, 20)
    works = world.take(key=b"k")
    slot = 1 << slot_of_key(b"k")
    for number, kept, back in ((2, ALL_SLOTS & ~slot, works[:2]), (3, ALL_SLOTS, works[2:])):
        world.lend(number, 20, kept=kept)
        assert works[0].partition.slots.leaving & slot
        world.finish(back, NOT_STARTED)
    world.sharing.step()
    assert [work.offset for work in world.take(key=b"k")] == [0, 1, 2, 3]


def test_a_slot_whose_message_fails_just_now_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """The slot was pinned after the look at pinned slots, and free at the look at messages in hand.

    A message that waits for its pointer stays with the owner. The borrower would have handled the message as well.
    """
    monkeypatch.setattr(sharing_thread, "SETTLED", 0.0)
    world = World()
    world.own_partition()
    works = world.take(count=16)
    failed = 0
    for work in works:
        failed |= 1 << work.slot

    def in_hand(partitions: Collection[OpenPartition]) -> int:
        world.finish(works, Failed(ValueError("bad")))
        return slots_in_hand(partitions)

    world.group("c")
    for _ in range(2):
        world.sharing.step()
    assert works[0].partition.slots.leaving & failed
    monkeypatch.setattr(sharing_thread, "slots_in_hand", in_hand)
    world.sharing.step()
    assert world.sharing.lent[TP]["c"]
    assert not world.sharing.lent[TP]["c"] & failed


@pytest.mark.parametrize("claimed_before", [False, True])
def test_a_borrower_that_becomes_owner_knows_its_last_message(claimed_before: bool) -> None:
    """The member noted finished messages before its loan ended. Handlers finished more messages in between.

    With the claim to be seen before the member knew of its partition, it even forgot all that it had not reported.
    """
    world = World()
    world.lend(1, 20)
    works = world.take()
    loan = world.store.sight.mine[TP]
    world.store.sight = GroupSight({"b": 20}, {}, {TP: Owner("b", 20, True)}, {TP: {"b": loan}}, {TP: loan})
    if claimed_before:
        world.sharing.step()
    position = world.own[TP] = PartitionPosition(TP, ThreadId("b-0"), 0)
    position.ledger_start.note = FinishedNote(0)
    world.reader.meanwhile = lambda: world.finish(works)
    assert world.lent.ledger_of(position) is None
    world.sharing.step()
    ledger = present(world.lent.ledger_of(position))
    assert not any(ledger.wants(work.offset, work.slot) for work in works)


def test_a_plan_that_waits_outlives_a_failed_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was never made when a look failed before the group had stayed the same for a while: nothing was lent."""
    monkeypatch.setattr(sharing_thread, "SETTLED", 0.05)
    monkeypatch.setattr(sharing_thread, "TICK", 0.1)
    world = World()
    position = world.own_partition()
    looks: list[None] = []

    def fail_the_second() -> None:
        looks.append(None)
        if len(looks) == 2:
            raise RegistryError("no answer")

    world.store.looked = fail_the_second
    world.group("c")
    world.sharing.start()
    try:
        eventually(lambda: world.sharing.lent.get(TP), 5, "slots are lent")
    finally:
        world.sharing.stop(Deadline(scaled(5)))
    assert position.ledger is not None


def test_a_forbidden_loan_stops_no_other_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step ended with its error. After another session nothing borrowed could begin again, and workers spun."""
    monkeypatch.setattr(sharing_thread, "SETTLED", 0.0)
    world = World()
    world.own_partition()
    world.group("c")
    loan = Loan(1, "s", "a", 10, 20, "key", ALL_SLOTS, 0, FinishedNote(0))
    sight = world.store.sight
    owners = {**sight.owners, OTHER: Owner("a", 10, True)}
    world.store.sight = replace(sight, owners=owners, mine={OTHER: SeenLoan(loan, 1)}, loans={TP: {}})
    monkeypatch.setattr(world.store, "write", forbidden)
    for _ in range(3):
        with suppress(RegistryError):
            world.sharing.step()
    assert world.sharing.lent[TP]
    work, *_ = world.take()
    assert work.partition.position.tp == OTHER
    assert world.dispatcher.may_start(work)
    world.session.lose_connection()
    world.session.connect(20)
    with pytest.raises(NotPermittedError):
        world.sharing.step()
    assert world.dispatcher.may_start(work)


def forbidden(*_: object) -> bool:
    raise NotPermittedError("no right to write")


def test_slots_that_come_back_after_a_cut_are_read_anew() -> None:
    """Finished offsets of a log that was cut short counted for the messages that followed, which were skipped."""
    world = World()
    first, rest = 1, ALL_SLOTS & ~1

    def lend(number: int, slots: int, recalled: int = 0) -> None:
        loan = Loan(number, "s", "a", 10, 20, "key", slots, recalled, FinishedNote(0))
        world.store.sight = GroupSight(owners={TP: Owner("a", 10, True)}, mine={TP: SeenLoan(loan, number)})
        world.sharing.step()

    lend(1, ALL_SLOTS)
    works = world.take(0, 8)
    partition = works[0].partition
    world.finish(works)
    for _ in range(3):
        lend(2, rest, first)
    partition.reading.cut = partition.position.ledger_start.cut = 4
    partition.position.revoked = True
    world.sharing.step()
    lend(3, ALL_SLOTS)
    ledger = present(world.fetched[-1][0].ledger)
    assert [ledger.wants(offset, slot) for offset in (3, 6) for slot in (0, 5)] == [False, False, True, True]


@pytest.mark.parametrize("looks", [0, 1])
def test_a_new_owner_lends_no_key_that_it_has_in_hand(monkeypatch: pytest.MonkeyPatch, looks: int) -> None:
    """The member became the owner before its next look at the loan. Another member could begin the same keys."""
    monkeypatch.setattr(sharing_thread, "SETTLED", 0.0)
    monkeypatch.setattr(reader_module, "TICK", 0.0)
    world = World()
    world.lend(1, 20)
    works = world.take()
    for _ in range(looks):
        world.sharing.step()
    in_hand = slots_in_hand([works[0].partition])
    loan = world.store.sight.mine[TP]
    position = PartitionPosition(TP, ThreadId("b-0"), 0)
    position.ledger_start.note = FinishedNote(0)
    world.become_owner(position, loan, ["c"])
    for _ in range(4):
        world.sharing.step()
    assert world.sharing.lent[TP]["c"]
    assert not world.sharing.lent[TP]["c"] & in_hand


def test_a_new_owner_keeps_a_loan_that_it_has_in_hand() -> None:
    """The owner deleted its loan. The next owner could begin a later message of the key in hand."""
    world = World()
    world.lend(1, 20)
    works = world.take()
    loan = world.store.sight.mine[TP]
    position = world.own[TP] = PartitionPosition(TP, ThreadId("b-0"), 0)
    position.ledger_start.note = FinishedNote(0)
    world.group(())
    world.store.sight = replace(world.store.sight, loans={TP: {"b": loan}}, mine={TP: loan})
    assert world.lent.ledger_of(position) is None
    world.sharing.step()
    assert world.lent.ledger_of(position) is not None
    assert world.store.sight.loans[TP]
    world.finish(works)
    world.sharing.step()
    assert not world.store.sight.loans[TP]


def test_a_word_of_the_next_session_replaces_no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that the former session had reported was handled again."""
    world = World()
    world.lend(1, 20)
    works = world.take()
    world.finish(works)
    world.sharing.step()
    report = LoanReport(1, "s", 20, ALL_SLOTS, FinishedNote(4))
    seen = replace(world.store.sight.mine[TP], report=report, reported=True)
    world.session.lose_connection()
    world.session.connect(30)
    world.store.sight = GroupSight({"b": 30}, mine={TP: seen})
    world.sharing.step()
    position = PartitionPosition(TP, ThreadId("b-0"), 0)
    position.ledger_start.note = FinishedNote(0)
    monkeypatch.setattr(world.store, "delete", lambda *_, **__: None)
    world.own[TP] = position
    world.store.sight = GroupSight(
        {"b": 30}, owners={TP: Owner("b", 30, True)}, loans={TP: {"b": seen}}, mine={TP: seen}
    )
    world.lent.ledger_of(position)
    world.sharing.step()
    ledger = present(world.lent.ledger_of(position))
    assert [work.offset for work in works if ledger.wants(work.offset, work.slot)] == []
