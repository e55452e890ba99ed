"""The dispatcher: outcomes, late ones, what is in hand, and slots that leave."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock, Thread
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.streams import valid_lease
from tests.timing import scaled
from tests.values import present
from zkconsumer.balance.dispatched_work import PointerWorks, ReadPart, ReadWork
from zkconsumer.balance.dispatcher import Dispatcher
from zkconsumer.balance.failed_messages import RunRules
from zkconsumer.balance.failure_limit import FailureCount, FailureLimit
from zkconsumer.balance.idle_workers import MOST, BatchSize
from zkconsumer.balance.message_order import Order
from zkconsumer.balance.open_partition import BorrowedSlots, LoanSight, OpenPartition, SharedSlots
from zkconsumer.balance.outcomes import DONE, NOT_STARTED, PENDING, Failed, Later, Outcome
from zkconsumer.balance.retry_policy import Retry
from zkconsumer.core.key_slots import ALL_SLOTS, slot_of_key
from zkconsumer.model import ThreadId, TopicPartition
from zkconsumer.ownership.balanced_ledger import BalancedLedger
from zkconsumer.ownership.partition_position import PartitionPosition
from zkconsumer.ownership.stored_offset import StoredNotes
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.streams.message import MessageAndMetadata
from zkconsumer.streams.rate_limit import RateLimitedLease
from zkconsumer.streams.stream_queue import Chunk

AT_ONCE = Deadline(0.0)
FAILED = Failed(ZeroDivisionError("no"))


class World:
    """A dispatcher with one partition ``t-0``, whose messages are all read."""

    def __init__(self, messages: int = 6, **rules: Any) -> None:
        self.lease = valid_lease()
        self.errors: list[BaseException] = []
        retry = rules.pop("retry", Retry(delays=[0.0], park_after=99, park_seconds=1e6))
        self.dispatcher = Dispatcher(self.lease, RunRules(retry=retry, **rules), failed=self.errors.append)
        self.intake, self.works = self.dispatcher.intake, PointerWorks()
        self.position = PartitionPosition(TopicPartition("t", 0), ThreadId("g_c-0"), 0)
        self.position.stored.notes = StoredNotes()
        self.ledger = self.position.ledger = BalancedLedger(self.position, 0, lock=Lock())
        self.wake_revocation: list[bool] = []
        self.passed: list[int] = []
        stream: Any = SimpleNamespace(
            queue=SimpleNamespace(wake_revocation=lambda: self.wake_revocation.append(True)),
            chunk_reader=SimpleNamespace(passed=lambda chunk, first, end, closing: self.passed.append(end)),
            message_class=MessageAndMetadata,
        )
        self.partition = OpenPartition(self.position, self.ledger, stream, self.dispatcher)
        self.intake.open(self.partition, ())
        self.chunk = Chunk(self.position, b"", 0, messages)
        self.chunk.unfinished = 1
        part = ReadPart(self.partition, self.chunk, 1)
        records = [SimpleNamespace(offset=n, value=b"", key=b"ab"[n % 2 :][:1]) for n in range(messages)]
        works = [ReadWork(record, record.offset, record.key, part) for record in records]
        self.ledger.read(range(messages), messages)
        self.partition.reading.at = messages
        self.intake.push(self.partition, works)
        self.intake.chunk_read(self.partition, self.chunk)

    def take(self, most: int = 100) -> list[Any]:
        return list(self.dispatcher.take(most, AT_ONCE))

    def pointers_in_hand(self) -> list[int]:
        return sorted(self.works.offsets(self.ledger))

    def settle(self, works: list[Any], outcome: Outcome) -> None:
        self.dispatcher.settle([(work, outcome) for work in works])


def one_without_key_in_hand(order: Order) -> tuple[World, Any, Any]:
    """Return a world with a shared partition, and the record and the work of a message without a key in hand."""
    world = World(1, order=order)
    world.settle(world.take(), DONE)
    world.partition.slots = SharedSlots()
    record: Any = SimpleNamespace(offset=1, value=b"", key=None)
    world.ledger.read([1], 2)
    world.intake.push(world.partition, [ReadWork(record, 1, None, ReadPart(world.partition, None, 1))])
    (first,) = world.take()
    return world, record, first


def test_outcomes_move_the_base_and_let_go_of_the_chunk() -> None:
    world = World()
    works = world.take()
    assert world.position.held
    world.settle([work for work in works if work.offset], DONE)
    assert (world.position.consumed, world.position.held, world.passed) == (0, True, [])
    world.settle([work for work in works if not work.offset], DONE)
    assert (world.position.consumed, world.position.held, world.passed) == (6, False, [6])
    assert world.dispatcher.in_hand == 0


@pytest.mark.parametrize("order", [Order.KEY, Order.NONE])
@pytest.mark.parametrize("outcome", [DONE, NOT_STARTED, FAILED])
def test_a_message_in_hand_is_not_begun_beside_itself(order: Order, outcome: Outcome) -> None:
    """It has no key, so no lane of a key holds it back when its borrower becomes the owner, in another stay."""
    world, record, first = one_without_key_in_hand(order)
    world.position.revoked = True
    world.intake.drop(world.partition)
    position = PartitionPosition(world.position.tp, world.position.thread, 1)
    ledger = position.ledger = BalancedLedger(position, 1, lock=Lock())
    partition = OpenPartition(position, ledger, world.partition.stream, world.dispatcher)
    world.intake.open(partition, [world.partition])
    ledger.read([1, 2], 3)
    later: Any = SimpleNamespace(offset=2, value=b"", key=None)
    part = ReadPart(partition, None, 2)
    world.intake.push(partition, [ReadWork(record, 1, None, part), ReadWork(later, 2, None, part)])
    (other,) = world.take()
    assert other.offset == 2
    world.settle([first], outcome)
    for result in (FAILED, DONE):
        (again,) = world.take()
        assert (again.offset, again.partition) == (1, partition)
        world.settle([again], result)
    world.settle([other], DONE)
    assert (world.take(), position.consumed, world.dispatcher.in_hand) == ([], 3, 0)


@pytest.mark.parametrize("order", [Order.KEY, Order.NONE])
@pytest.mark.parametrize("outcome", [DONE, NOT_STARTED, FAILED])
def test_a_slot_comes_back_with_a_message_in_hand(order: Order, outcome: Outcome) -> None:
    """It is read again with the others of the slot, and begins no second time beside itself."""
    world, record, first = one_without_key_in_hand(order)
    world.intake.give_up(world.partition, ALL_SLOTS, lambda: None)
    world.intake.reopen(world.partition, ALL_SLOTS)
    world.intake.push(world.partition, [ReadWork(record, 1, None, ReadPart(world.partition, None, 1))])
    assert world.take() == []
    world.settle([first], outcome)
    if outcome is not DONE:
        (again,) = world.take()
        assert again.offset == 1
        world.settle([again], DONE)
    assert (world.take(), world.position.consumed, world.dispatcher.in_hand) == ([], 2, 0)


@pytest.mark.parametrize("forgotten", [0, 1, 2])
def test_a_slot_opens_once_no_gap_is_before_what_is_in_hand(forgotten: int) -> None:
    world = World()
    world.partition.slots = SharedSlots()
    works = [work for work in world.take() if work.key == b"a"]
    for work in works:
        work.slot = 5
    gap = 1 << 5 if forgotten < 2 else 0  # nothing in hand is behind the last one
    world.intake.give_up(world.partition, ALL_SLOTS, lambda: None)
    world.settle([works.pop(forgotten)], NOT_STARTED)
    opened, in_hand = world.intake.reopen(world.partition, ALL_SLOTS)
    assert opened == ALL_SLOTS & ~gap
    assert in_hand.intersection({0, 2, 4}) == ({0, 2} if not gap else set())
    world.settle(works, NOT_STARTED)
    assert [work.offset for work in world.take() if work.key == b"a"] == ([0, 2] if not gap else [])
    assert world.intake.reopen(world.partition, gap) == (gap, set())
    assert not present(world.partition.slots).leaving


def test_what_was_not_started_comes_again_in_order() -> None:
    world = World()
    first = world.take(3)
    world.settle(first[:1], FAILED)
    world.settle(list(reversed(first[1:])), NOT_STARTED)
    again = []
    while works := world.take(1):
        again += works
        world.settle(works, DONE)
    assert [work.offset for work in again if work.key == b"a"] == [0, 2, 4]
    assert [work.attempts for work in again] == [int(work.offset == 0) for work in again]


def test_an_answer_during_the_handler_counts_at_its_end() -> None:
    world = World(1)
    (work,) = world.take()
    work.message.ack()
    assert world.position.consumed == 0, "its handler has not returned"
    world.settle([work], FAILED)
    assert world.position.consumed == 1


def test_an_answer_hides_nothing_that_ends_the_run() -> None:
    world = World(1)
    (work,) = world.take()
    work.message.ack()
    world.settle([work], Failed(KeyboardInterrupt()))
    assert world.dispatcher.ended
    assert world.position.consumed == 0


def test_an_answer_to_an_earlier_attempt_does_nothing() -> None:
    world = World(1)
    (work,) = world.take()
    early = work.message
    world.settle([work], FAILED)
    (work,) = world.take()
    world.settle([work], PENDING)
    early.ack()
    assert (world.position.consumed, work.message.attempt) == (0, 2)
    work.message.ack()
    work.message.nack()
    assert world.position.consumed == 1


def test_a_late_outcome_touches_nothing_of_the_next_stay() -> None:
    world = World(2)
    works = world.take()
    world.position.revoked = True
    later = PartitionPosition(world.position.tp, world.position.thread, 0)
    later.ledger = BalancedLedger(later, 0, lock=Lock())
    later.ledger.read(range(2), 2)
    world.intake.drop(world.partition)
    world.settle(works, FAILED)
    assert (later.consumed, world.dispatcher.failures.late, world.wake_revocation) == (0, 2, [True])
    assert world.take() == []


def test_nothing_begins_without_the_lease_or_when_revoked() -> None:
    world = World()
    (work,) = world.take(1)
    assert world.dispatcher.may_start(work)
    world.lease.suspend()
    assert not world.dispatcher.may_start(work)
    assert world.take() == []
    world.lease.resume(world.lease.epoch)
    world.position.revoked = True
    assert not world.dispatcher.may_start(work)


def test_the_rate_cap_holds_at_hand_out() -> None:
    world = World()
    dispatcher = Dispatcher(RateLimitedLease(world.lease, 20), RunRules())
    dispatcher.intake.push(world.partition, world.take())
    assert len(dispatcher.take(100, AT_ONCE)) == 2, "a tenth of a second's"
    assert dispatcher.take(100, AT_ONCE) == ()


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)])
def test_an_interrupt_of_a_handler_ends_everything(error: BaseException) -> None:
    world = World()
    works = world.take()
    world.settle(works[:1], Failed(error))
    assert world.errors == [error]
    assert world.dispatcher.ended
    assert world.take() == []
    assert world.position.consumed == 0


def test_slots_leave_when_nothing_of_them_is_in_hand() -> None:
    world, left = World(), list[bool]()
    world.partition.slots = SharedSlots()
    (work, *_) = works = world.take(2)
    work.slot = 5
    world.intake.give_up(world.partition, 1 << 5, lambda: left.append(True))
    assert left == []
    assert not world.dispatcher.may_start(work)
    world.settle(works, DONE)
    assert left == [True]


@pytest.mark.parametrize("key", [b"k", None])
def test_a_parked_message_begins_while_other_slots_are_on_loan(key: bytes | None) -> None:
    world = World(1)
    world.settle(world.take(), DONE)
    world.partition.slots = SharedSlots()
    slots = ALL_SLOTS if key is None else ALL_SLOTS & ~(1 << slot_of_key(key))
    world.intake.give_up(world.partition, slots, lambda: None)
    work = pointer_work(world, 0, key)
    assert world.intake.add_pointer_work(work)
    (taken,) = world.take()
    assert world.dispatcher.may_start(taken)
    world.settle([taken], NOT_STARTED)
    assert len(world.take()) == 1


def test_a_parked_message_waits_while_its_key_is_on_loan() -> None:
    world = World(1)
    world.partition.slots = SharedSlots()
    world.settle(world.take(), DONE)
    world.intake.give_up(world.partition, 1 << slot_of_key(b"k"), lambda: None)
    work = pointer_work(world, 0, b"k")
    assert not world.intake.add_pointer_work(work)
    world.intake.reopen(world.partition, ALL_SLOTS)
    assert world.intake.add_pointer_work(work)


def test_nobody_takes_messages_of_a_loan_that_is_not_seen() -> None:
    """Bug: while a borrower's connection was away, its workers took messages and gave them back without a pause."""
    world = World(2)
    slots = world.partition.slots = BorrowedSlots()
    assert world.take() == []
    slots.loan = LoanSight(world.lease, world.lease.epoch)
    world.intake.resume(world.partition)
    assert [work.offset for work in world.take()] == [0, 1]


def parked_behind_a_pending_one() -> tuple[World, list[Any]]:
    """Return a world whose offset 2 is parked while 0, of the same key, is answered elsewhere; the works of both."""
    world = World(3, retry=Retry(delays=[0.0], jitter=0, park_after=1, park_seconds=1e6))
    works = [work for work in world.take() if work.key == b"a"]
    world.settle(works[:1], PENDING)
    world.settle(works[1:], FAILED)
    assert [*world.ledger.pointers] == [2]
    return world, works


def pointer_work(world: World, offset: int, key: bytes | None = b"a") -> ReadWork:
    part = ReadPart(world.partition, None, 0)
    work = ReadWork(SimpleNamespace(offset=offset, value=b"", key=key), offset, key, part)
    work.pointer = world.works
    return work


def add_pointer_works(world: World, *works: ReadWork) -> None:
    """Add these as the pointer reader does."""
    for work in works:
        world.works.add(work, 1)
        assert world.intake.add_pointer_work(work)


def test_a_parked_message_goes_before_later_parked_ones() -> None:
    """The pointer of a later one was due, and its message waited for the key, when the earlier one was parked too."""
    world, (first, _) = parked_behind_a_pending_one()
    add_pointer_works(world, pointer_work(world, 2))
    world.dispatcher.answer(first, FAILED)
    assert (world.take(), world.pointers_in_hand()) == ([], []), "it comes again after the first one"
    assert world.intake.add_pointer_work(pointer_work(world, 0))
    assert [work.offset for work in world.take()] == [0]


def test_a_parked_message_waits_until_the_log_is_read_so_far() -> None:
    """Bug: after a seek back, or at a new owner, a parked message began before earlier ones of its key were read."""
    world, _ = parked_behind_a_pending_one()
    world.partition.reading.at = 2
    assert not world.intake.add_pointer_work(pointer_work(world, 2))
    world.partition.full_because = "no room to park the earlier ones"
    assert world.intake.add_pointer_work(pointer_work(world, 2))


def test_a_parked_message_goes_before_one_that_is_read_meanwhile() -> None:
    """The earlier one was parked after the look at the pointers, and the message of the later one came then."""
    world, (first, _) = parked_behind_a_pending_one()
    world.dispatcher.answer(first, FAILED)
    assert not world.intake.add_pointer_work(pointer_work(world, 2))
    assert world.intake.add_pointer_work(pointer_work(world, 0))
    assert [work.offset for work in world.take()] == [0]


def test_a_parked_message_goes_before_one_that_comes_back() -> None:
    world, (first, _) = parked_behind_a_pending_one()
    assert world.intake.add_pointer_work(pointer_work(world, 2))
    world.dispatcher.answer(first, NOT_STARTED)
    assert (world.take(), sorted(world.ledger.pointers)) == ([], [0, 2])


def test_what_waits_of_pointers_can_be_given_back() -> None:
    world, (first, _) = parked_behind_a_pending_one()
    add_pointer_works(world, pointer_work(world, 7, None), pointer_work(world, 2))
    assert world.pointers_in_hand() == [2, 7]
    world.intake.return_pointer_works(world.partition)
    assert (world.pointers_in_hand(), world.take()) == ([], [])
    world.dispatcher.answer(first, DONE)
    assert (world.take(), world.ledger.unfinished, world.dispatcher.in_hand) == ([], 2, 1)


def test_a_failed_message_keeps_its_attempts_behind_a_parked_one() -> None:
    world = World(3, retry=Retry(delays=[9.0], jitter=0))
    first, second = (work for work in world.take() if work.key == b"a")
    world.dispatcher.settle([(first, FAILED), (second, Later(99.0))])
    pointer = world.ledger.pointers[0]
    assert (pointer.attempts, pointer.reason) == (1, "ZeroDivisionError: no")
    assert pointer.due_ms > pointer.first_ms > 0
    assert not world.partition.failing


def test_a_partition_stops_at_the_limit_and_loses_no_attempt() -> None:
    world = World(order=Order.NONE, failure_limit=FailureLimit(consecutive=3))
    works = world.take()
    world.settle(works, FAILED)
    assert "attempts failed in a row, the last with ZeroDivisionError" in world.partition.stopped
    assert world.take() == []
    failed = [world.ledger.attempts(offset) for offset in range(6)]
    assert [one.failed for one in failed if one is not None] == [1, 1], "before the limit"
    assert world.ledger.unfinished == 6


def test_a_partition_that_stops_is_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    """It was not logged. It is said once, until a message succeeds: the partition is tried again every 30 s."""
    caplog.set_level("WARNING", "zkconsumer")
    world = World(order=Order.NONE, failure_limit=FailureLimit(consecutive=2))
    works = world.take()
    world.settle(works[:4], FAILED)
    (line,) = caplog.messages
    assert line == (
        "t-0 has stopped at offset 1: 2 attempts failed in a row, the last with ZeroDivisionError: no; it is tried"
        " again every 30 s. Its limit is FailureLimit(consecutive=2, ratio=0.9, window=200). No message is given up by"
        " that; mend the handler or what it calls, or give run another failure_limit"
    )
    world.partition.outcomes.succeeded(1)
    world.settle(works[4:], FAILED)
    assert len(caplog.messages) == 2


LIMIT = FailureLimit(consecutive=5, ratio=0.5, window=10)


@pytest.mark.parametrize(
    ("outcomes", "reached"),
    [("fffff", True), ("ffffsf", False), ("sfsfsfsfsf", True), ("sssffssffs", False), ("sssssssssf", False)],
)
def test_limits_of_failures(outcomes: str, reached: bool) -> None:
    count = FailureCount()
    for outcome in outcomes:
        if outcome == "f":
            count.failed()
        else:
            count.succeeded(1)
    assert bool(count.reached(LIMIT)) is reached
    if reached:
        count.succeeded(1)
        count.failed()
        assert not count.reached(LIMIT)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: FailureLimit(consecutive=0), "consecutive"),
        (lambda: FailureLimit(ratio=0), "ratio"),
        (lambda: FailureLimit(window=True), "window"),
    ],
)
def test_limits_that_make_no_sense_are_refused(make: Callable[[], object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()


def test_batch_sizes_follow_the_quickest_takes() -> None:
    sizes = BatchSize()
    for _ in range(12):
        sizes.note(sizes.size, 1e-6 * sizes.size)
    assert sizes.size == MOST
    for _ in range(9):
        sizes.note(1, 0.05)
    assert (sizes.size, sizes.workers(7)) == (1, 7)


def test_a_worker_on_its_way_spares_others_the_waking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise each part that is read wakes further workers, before the first one has had its turn."""
    world = World(1)
    world.settle(world.take(), DONE)
    raised: list[int] = []
    seen: list[list[int]] = []

    class Flag:
        """The first worker to wait stands by while the second one waits twice."""

        def __init__(self) -> None:
            self.number = len(raised)
            raised.append(0)

        def set(self) -> None:
            raised[self.number] += 1

        def wait(self, _: float) -> bool:
            if self.number == 0:
                world.dispatcher.take(1, Deadline(60.0))
                return True
            world.dispatcher.look()
            world.dispatcher.look()
            seen.append(raised.copy())
            if self.number == 2:
                world.dispatcher.end()
            return True

    monkeypatch.setattr("zkconsumer.balance.idle_workers.WakeFlag", Flag)
    assert not world.dispatcher.take(1, Deadline(60.0))
    assert seen == [[0, 1], [0, 1, 1]]


def test_workers_that_settle_at_once_are_counted_in_turn() -> None:
    """A success was noted while another worker walked over the runs: `deque mutated during iteration` ended it."""
    count = FailureCount()
    count.succeeded(1)
    count.failed()
    others: list[Thread] = []

    class WatchedLimit:
        consecutive, ratio = 100, 0.9

        @property
        def window(self) -> int:
            others.append(Thread(target=count.succeeded, args=(1,)))
            others[-1].start()
            others[-1].join(0.05)
            return 200

    assert count.reached(cast(FailureLimit, WatchedLimit())) == ""
    for other in others:
        other.join(scaled(5))
    assert not any(other.is_alive() for other in others)
