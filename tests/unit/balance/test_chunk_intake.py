"""The reader: what it makes of chunks, gaps, jumps and places that cannot be read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.streams import delivery_of, valid_lease
from tests.timing import eventually
from tests.values import present
from zkconsumer import KafkaStream
from zkconsumer.balance import chunk_intake as reader_module
from zkconsumer.balance import open_partition
from zkconsumer.balance.balanced_run import run_problems
from zkconsumer.balance.chunk_intake import ChunkIntake
from zkconsumer.balance.dispatcher import Dispatcher
from zkconsumer.balance.failed_messages import RunRules
from zkconsumer.balance.open_partition import Lending, ReadLimits
from zkconsumer.balance.outcomes import DONE
from zkconsumer.balance.sharing.shared_ledger import SharedLedger
from zkconsumer.core.finished_note import Attempts, FinishedNote
from zkconsumer.core.message_pointers import Pointer, PointerKind
from zkconsumer.core.unfinished_offsets import Finished
from zkconsumer.errors import MessageSizeTooLargeException
from zkconsumer.kafka.record_batch import CorruptRecordsError
from zkconsumer.model import ThreadId, TopicPartition
from zkconsumer.ownership.balanced_ledger import BalancedLedger
from zkconsumer.ownership.partition_position import PartitionPosition
from zkconsumer.ownership.stored_offset import StoredNotes
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.streams.byte_budget import QueueBudget
from zkconsumer.streams.chunk_reader import ChunkReader, ReadSettings
from zkconsumer.streams.stream_queue import StreamQueue
from zkconsumer.testing.partition_log import encode_batch

TP = TopicPartition("t", 0)
AT_ONCE = Deadline(0.0)


class World:
    """A reader of one stream with the partition ``t-0``, which steps when the test says so."""

    def __init__(self, *, window: int = 100, skip: bool = False, lending: Lending | None = None) -> None:
        self.lease = valid_lease()
        budget = QueueBudget(1 << 30)
        self.queue = StreamQueue(100, lambda: None, budget)
        reader = ChunkReader("s", self.queue, self.lease, ReadSettings(skip_corrupt=skip), lambda *_: None)
        self.stream: KafkaStream[Any, Any] = KafkaStream(reader, timeout=None)
        self.position = self.owned()
        self.woken = 0
        self.dispatcher = Dispatcher(self.lease, RunRules())
        self.reader = ChunkIntake(
            "g_c",
            self.dispatcher,
            ReadLimits(window, budget),
            delivery_of(self.stream),
            lambda: {TP: self.position},
            self.wake,
            lending=lending,
        )

    def wake(self) -> None:
        self.woken += 1

    def owned(self, start: int = 0) -> PartitionPosition:
        return PartitionPosition(TP, ThreadId("g_c-0"), start)

    def deliver(self, first: int, count: int) -> None:
        records = bytearray(encode_batch([b"v"] * count, 0, ()))
        records[:8] = first.to_bytes(8, "big")
        self.queue.deliver(self.position, bytes(records), (first, first + count), ())

    def read(self) -> None:
        while self.reader.step():
            pass

    def take(self, most: int = 1000) -> list[Any]:
        self.read()
        return list(self.dispatcher.take(most, AT_ONCE))

    def offsets(self) -> list[int]:
        return [work.offset for work in self.take()]

    def finish(self, works: list[Any]) -> None:
        self.dispatcher.settle([(work, DONE) for work in works])


@pytest.fixture
def world() -> World:
    return World()


def test_a_gap_is_read_again(world: World) -> None:
    world.deliver(0, 2)
    world.deliver(5, 2)
    assert world.offsets() == [0, 1]
    assert world.position.cursor.fetch_from == 2


def test_a_chunk_that_comes_twice_gives_its_messages_once(world: World) -> None:
    world.deliver(0, 3)
    world.deliver(0, 3)
    world.deliver(3, 1)
    assert world.offsets() == [0, 1, 2, 3]


def test_a_jump_forward_leaves_what_is_in_hand_unfinished(world: World) -> None:
    world.deliver(0, 2)
    works = world.take()
    world.queue.jump(world.position, 50)
    world.deliver(50, 1)
    later = world.take()
    assert [work.offset for work in later] == [50]
    world.finish(later)
    assert world.position.consumed == 0
    world.finish(works)
    assert world.position.consumed == 51


def test_a_jump_back_counts_no_outcome_of_the_other_log(world: World) -> None:
    world.deliver(0, 4)
    works = world.take()
    world.finish(works[:2])
    world.queue.jump(world.position, 2)
    world.deliver(2, 1)
    later = world.take()
    assert [work.offset for work in later] == [2]
    world.finish(works)
    assert world.position.consumed == 2
    world.finish(later)
    assert world.position.consumed == 3


def test_a_jump_back_keeps_what_is_unfinished_before_it(world: World) -> None:
    """The log was truncated at 4: what comes before it is in the log still, and only 1 of it is finished."""
    world.deliver(0, 8)
    works = world.take()
    world.finish(works[1:2])
    world.queue.jump(world.position, 4)
    world.deliver(4, 2)
    world.read()
    assert (world.position.consumed, world.position.cursor.fetch_from) == (0, 0)
    world.deliver(0, 6)
    again = world.take()
    assert [work.offset for work in again] == [0, 2, 3, 4, 5]
    world.finish(works)
    assert world.position.consumed == 0
    world.finish(again)
    assert world.position.consumed == 6


def test_a_jump_back_loses_no_message_to_an_old_pointer(world: World) -> None:
    world.position.stored.notes = StoredNotes(pointers={1: Pointer(1), 3: Pointer(3)})
    world.deliver(0, 6)
    world.finish(world.take())
    world.queue.jump(world.position, 2)
    world.deliver(2, 3)
    assert world.offsets() == [2, 3, 4]
    assert world.position.ledger is not None
    assert {one.offset: one.kind for one in world.position.ledger.pointers.values()} == {
        1: PointerKind.PARKED,
        3: PointerKind.DEAD,
    }


class LendsLater:
    """Makes ledgers once it is ``known`` what is lent."""

    known = False

    def concerns(self, position: PartitionPosition) -> bool:
        return True

    def ledger_of(self, position: PartitionPosition) -> SharedLedger | None:
        if not self.known:
            return None
        return SharedLedger(position, position.consumed or 0, None, position.stored.pointers)


def test_an_old_pointer_hides_no_message_where_slots_are_lent() -> None:
    """The ledger of the new log is made later, once it is known what is lent."""
    lends = LendsLater()
    world = World(lending=lends)
    world.position.stored.notes = StoredNotes(pointers={1: Pointer(1), 3: Pointer(3)})
    for jump in (False, True):
        if jump:
            world.queue.jump(world.position, 2)
        world.deliver(2 if jump else 0, 6)
        world.read()
        lends.known = True
        world.deliver(2 if jump else 0, 6)
        world.finish(world.take())
        lends.known = False
    ledger = present(world.position.ledger)
    assert {one.offset: one.kind for one in ledger.pointers.values()} == {1: PointerKind.PARKED, 3: PointerKind.DEAD}


def test_messages_of_the_other_log_do_not_begin_after_a_jump(world: World) -> None:
    world.deliver(0, 4)
    world.read()
    world.queue.jump(world.position, 2)
    world.read()
    world.deliver(0, 3)
    assert world.offsets() == [0, 1, 2]


def test_a_jump_back_that_waits_outlives_another_read(world: World) -> None:
    world.deliver(0, 4)
    world.finish(world.take())
    world.deliver(9, 1)  # a gap: it is read again from 4
    world.queue.jump(world.position, 2)
    world.read()
    assert world.position.cursor.fetch_from == 2
    world.deliver(2, 1)
    assert world.offsets() == [2]


def test_a_chunk_that_is_read_again_is_not_held_for_ever(world: World) -> None:
    world.deliver(0, 600)
    world.reader.step()
    (partition,) = world.reader.partitions
    world.reader.read_again(partition, 100)
    world.finish(world.take())
    assert partition.held_bytes == 0


def test_a_note_says_nothing_after_the_end_of_the_log(world: World) -> None:
    """The log was cut short, and has new messages where the note tells of finished ones."""
    world.position.ledger_start.note = FinishedNote(0, (Finished(0, 9, (1,)),))
    world.position.cursor.first_log_end, world.position.cursor.log_end = 3, 6
    world.deliver(0, 3)
    world.deliver(3, 3)
    assert world.offsets() == [1, 3, 4, 5]


def test_a_note_leaves_out_what_is_finished(world: World) -> None:
    world.position.ledger_start.note = FinishedNote(0, (Finished(0, 5, (0, 3)),), {3: Attempts(2, 99)})
    world.deliver(0, 6)
    works = world.take()
    assert [(work.offset, work.attempts, work.first_ms) for work in works] == [(0, 0, 0), (3, 2, 99), (5, 0, 0)]


def test_a_parked_message_is_left_to_its_pointer(world: World) -> None:
    world.position.stored.notes = StoredNotes(pointers={1: Pointer(1)})
    world.deliver(0, 3)
    assert world.offsets() == [0, 2]


def test_the_window_stops_the_partition_and_room_starts_it() -> None:
    world = World(window=10)
    for first in (0, 10, 20):
        world.deliver(first, 10)
    works = world.take()
    assert [work.offset for work in works] == list(range(10))
    assert world.position.full
    world.finish(works[:5])
    assert [work.offset for work in world.take()] == list(range(10, 20))


def test_a_slow_handler_is_no_stalled_reader() -> None:
    """``max.poll.interval.ms`` counts while a stream has something that its reader does not take."""
    world = World(window=1)
    for first in range(4):
        world.deliver(first, 1)
    assert len(world.take()) == 1
    assert (world.queue.taken, world.queue.head) == (None, None)


def test_an_unreadable_place_is_raised_when_it_is_reached(world: World) -> None:
    """Raised at once it would end each run before the messages in front of it are handled."""
    world.deliver(0, 2)
    world.queue.fail(world.position, MessageSizeTooLargeException("too large", TP, 2, 3))
    works = world.take()
    assert [work.offset for work in works] == [0, 1]
    world.finish(works)
    with pytest.raises(MessageSizeTooLargeException):
        world.read()


def test_a_corrupt_place_is_skipped_where_that_is_wanted() -> None:
    world = World(skip=True)
    world.deliver(0, 2)
    world.queue.fail(world.position, CorruptRecordsError(TP, 2, 5, "bits"))
    works = world.take()
    assert (world.queue.skipped, world.position.cursor.fetch_from) == (1, 5)
    world.deliver(5, 1)
    works += world.take()
    world.finish(works)
    assert (world.position.consumed, [work.offset for work in works]) == (6, [0, 1, 5])


def test_a_seek_drops_what_has_not_begun(world: World) -> None:
    world.deliver(0, 4)
    (held,) = world.take(1)
    old, world.position = world.position, world.owned(2)
    world.queue.replace(old, world.position)
    world.deliver(2, 1)
    assert world.offsets() == [2]
    world.finish([held])
    assert world.position.consumed == 2


def test_a_second_reader_begins_at_the_base(world: World) -> None:
    """The run before it has read beyond, and its messages are fetched again."""
    world.deliver(0, 4)
    works = world.take()
    world.finish([work for work in works if work.offset != 1])
    second = World()
    second.position = world.position
    second.read()
    assert world.position.cursor.fetch_from == 1
    second.deliver(1, 3)
    assert second.offsets() == [1]


def test_a_partition_whose_results_are_not_stored_is_not_read_on(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The handlers ran ahead of the commits without bound, and a crash repeated all of it."""
    monkeypatch.setattr(open_partition, "UNSTORED", 0.0)
    monkeypatch.setattr(open_partition, "MOST_UNSTORED", 2)
    world.deliver(0, 3)
    world.finish(world.take())
    monkeypatch.setattr(reader_module, "TICK", 0.0)
    assert eventually(lambda: world.reader.step() is False and world.reader.unstored, 10, "the look")
    world.deliver(3, 3)
    assert world.offsets() == []
    assert world.position.full
    ledger = present(world.position.ledger)
    assert ledger.stored(ledger.point())
    assert world.offsets() == [3, 4, 5]


def test_results_that_wait_to_be_stored_are_told(world: World) -> None:
    world.deliver(0, 1)
    world.read()
    nothing = SimpleNamespace(trouble={}, handler_timeout=None)
    parts: Any = SimpleNamespace(reader=world.reader, executor=None, pointers=nothing, sharing=None, member=nothing)
    assert run_problems(parts) == ()
    world.reader.unstored = {TP: 7.4}
    (problem,) = run_problems(parts)
    assert problem == "t-0: results wait up to 7 s to be stored, and no more is handled until they are"


def test_a_change_waits_since_the_look_after_it() -> None:
    ledger = BalancedLedger(PartitionPosition(TP, ThreadId("g_c-0"), 0), 0)
    assert ledger.unnoted_since(1.0) == 1.0
    ledger.touch()
    assert ledger.unnoted_since(2.0) == 2.0
    ledger.touch()
    assert ledger.unnoted_since(9.0) == 2.0, "the older change is not stored"
    ledger.stored(ledger.point())
    assert ledger.unnoted_since(10.0) == 10.0


def test_slots_reopened_amid_a_commit_take_no_offset_back() -> None:
    """They are read again from the base, which was still below a parked message that the commit had passed."""
    ledger = SharedLedger(PartitionPosition(TP, ThreadId("m-0"), 0), 0)
    assert all(ledger.wants(offset, offset) for offset in (0, 1, 2))
    ledger.read([0, 1, 2], 3)
    ledger.finish([1])
    ledger.point_at([Pointer(0)])
    point = ledger.point()
    assert ledger.forget_waiting(0b100, ()) == 0
    ledger.stored(point)
    assert (point.offset, ledger.base, ledger.point().offset) == (2, 2, 2)
    assert ledger.wants(2, 2)
