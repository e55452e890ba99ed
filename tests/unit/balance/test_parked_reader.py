"""Parked messages come back when they are due, in the order of their keys."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.timing import eventually
from zkconsumer.balance import parked_reader
from zkconsumer.balance.dispatched_work import ReadWork
from zkconsumer.balance.parked_reader import BELIEVED_AFTER, ParkedReader, due_pointers
from zkconsumer.core.message_pointers import LOST, MOST_POINTERS, Pointer, PointerKind, key_mark
from zkconsumer.errors import BrokerUnavailableError
from zkconsumer.fetch.message_lookup import MessageAt, Retention
from zkconsumer.model import ThreadId, TopicPartition
from zkconsumer.ownership.balanced_ledger import BalancedLedger
from zkconsumer.ownership.partition_position import PartitionPosition
from zkconsumer.runtime.deadline import Deadline

WHERE = TopicPartition("t", 0)
NOW = 1_000_000
KEY = key_mark(b"k")


class Log:
    """The broker: messages with key ``k``, or what stands in their place."""

    def __init__(self) -> None:
        self.asked: list[list[int]] = []
        self.found: dict[int, MessageAt] = {}
        self.down = ""
        self.closed = False

    def read(
        self, tp: TopicPartition, offsets: Iterable[int], deadline: Deadline, most_bytes: int = 1 << 62
    ) -> dict[int, MessageAt]:
        self.asked.append(list(offsets))
        if self.down:
            raise BrokerUnavailableError(self.down)
        return {o: self.found.get(o) or MessageAt(o, record(o)) for o in self.asked[-1]}

    def retention(self, tp: TopicPartition, deadline: Deadline) -> Retention:
        return Retention(None, None)

    def close(self) -> None:
        self.closed = True


def record(offset: int, key: bytes | None = b"k") -> Any:
    return SimpleNamespace(offset=offset, key=key, value=b"%d" % offset, timestamp=1, timestamp_type=0, headers=[])


class Fixture:
    """A reader without its thread, a dispatcher with room, and one partition with these pointers."""

    def __init__(self, *pointers: Pointer) -> None:
        self.works: list[ReadWork] = []
        self.log = Log()
        self.now_ms = NOW
        self.clock = 0.0
        self.position = PartitionPosition(WHERE, ThreadId("g_c-0"), 100)
        self.ledger = BalancedLedger(self.position, 100, pointers={p.offset: p for p in pointers})
        self.position.ledger = self.ledger
        self.partition: Any = SimpleNamespace(
            position=self.position, ledger=self.ledger, own=True, parked=(), full_because="", stopped=""
        )
        self.partition.messages = lambda record, *_: record
        self.partitions: list[Any] = [self.partition]
        self.refreshed = 0
        self.returned: list[int] = []
        clocks: Any = {"now_ms": lambda: self.now_ms, "monotonic": lambda: self.clock}
        self.reader = ParkedReader("g_c", self.partitions, cast(Any, self), cast(Any, self.log), 3, **clocks)
        self.pointer_works = self.reader.works

    def refresh_parked(self, partition: Any) -> None:
        self.refreshed += 1

    def add_pointer_work(self, work: ReadWork) -> bool:
        self.works.append(work)
        return True

    def return_pointer_works(self, partition: Any) -> None:
        for work in [work for work in self.works if work.ledger is partition.ledger]:
            self.returned.append(work.offset)
            self.pointer_works.settled(work)

    def looked(self) -> list[int]:
        """Look once. Return the offsets that the dispatcher got."""
        self.works.clear()
        self.reader.look()
        return [work.offset for work in self.works]

    def kinds(self) -> dict[int, PointerKind]:
        return {offset: pointer.kind for offset, pointer in self.ledger.pointers.items()}


def test_due_message_is_handed_out_with_its_attempts() -> None:
    this = Fixture(Pointer(7, attempts=3, due_ms=NOW, first_ms=5, key=KEY), Pointer(8, due_ms=NOW + 1))
    assert this.looked() == [7]
    (work,) = this.works
    assert (work.attempts, work.first_ms, work.pointer, work.ledger) == (3, 5, this.pointer_works, this.ledger)
    assert work.message.value == b"7"
    assert this.looked() == []
    this.now_ms += 1
    assert this.looked() == [8]


def test_settled_message_may_come_again() -> None:
    this = Fixture(Pointer(7, key=KEY))
    assert this.looked() == [7]
    work = this.works[0]
    assert this.looked() == []
    this.ledger.point_at([Pointer(7, attempts=4, due_ms=NOW + 60_000, key=KEY)])
    this.pointer_works.settled(work)
    assert this.looked() == []
    this.now_ms += 60_000
    assert this.looked() == [7]


def test_so_many_messages_are_in_hand_at_most() -> None:
    this = Fixture(*(Pointer(offset) for offset in range(3, 9)))
    assert this.looked() == [3, 4, 5]
    first = this.works[0]
    assert this.looked() == []
    this.ledger.finish([3])
    this.pointer_works.settled(first)
    assert this.looked() == [6]
    assert this.log.asked == [[3, 4, 5], [6]]


@pytest.mark.parametrize("why", ["stopped", "paused", "revoked"])
def test_a_partition_that_stands_still_takes_no_room(why: str) -> None:
    """Otherwise the parked messages of the other partitions would wait until it goes on."""
    this, other = Fixture(Pointer(3), Pointer(4), Pointer(5)), Fixture(Pointer(7))
    this.partitions.append(other.partition)
    assert this.looked() == [3, 4, 5]
    this.ledger.finish([3])
    this.pointer_works.settled(this.works[0])
    this.ledger.point_at([Pointer(6)])
    if why == "stopped":
        this.partition.stopped = "nearly everything fails"
    elif why == "paused":
        this.position.halted = True
    else:
        this.position.revoked = True
    assert this.looked() == [7]


def test_a_partition_that_stands_still_gives_back_what_waits() -> None:
    """Otherwise each such partition would have as many messages in memory as all may have together."""
    this = Fixture(Pointer(3), Pointer(4))
    assert this.looked() == [3, 4]
    this.partition.stopped = "nearly everything fails"
    this.reader.look()
    this.reader.look()
    assert this.returned == [3, 4]
    this.partition.stopped = ""
    assert this.looked() == [3, 4]


def test_so_many_bytes_are_in_hand_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parked_reader, "MOST_BYTES", 3)
    this = Fixture(Pointer(3), Pointer(4))
    assert this.looked() == [3, 4]
    this.ledger.point_at([Pointer(5)])
    assert this.looked() == []


def test_borrowed_partition_is_left_to_its_owner() -> None:
    this = Fixture(Pointer(3))
    this.partition.own = False
    assert this.looked() == []


def test_refused_message_is_offered_again() -> None:
    this = Fixture(Pointer(3))
    this.add_pointer_work = lambda work: False  # type: ignore[method-assign]
    assert this.looked() == []
    del this.add_pointer_work
    assert this.looked() == [3]


def test_lost_message_stays_as_a_dead_pointer() -> None:
    this = Fixture(Pointer(3, attempts=4, due_ms=5, key=KEY))
    this.log.found[3] = MessageAt(3, problem="the log begins at offset 90", gone=True)
    assert this.looked() == []
    (pointer,) = this.ledger.pointers.values()
    assert pointer == Pointer(
        3, PointerKind.DEAD, 4, 0, 0, KEY, f"{LOST}: the log begins at offset 90", pointer.lost_ms
    )
    assert this.reader.lost == 1


def test_topic_made_anew_shows_by_the_key() -> None:
    this = Fixture(Pointer(3, key=KEY))
    this.log.found[3] = MessageAt(3, record(3, b"another"))
    assert this.looked() == []
    (pointer,) = this.ledger.pointers.values()
    assert "another key" in pointer.reason
    assert pointer.lost_ms > 0


def test_shorter_log_is_believed_after_a_while() -> None:
    """A new leader may not know the end of its log for some time; such a message is not lost."""
    this = Fixture(Pointer(3))
    this.log.found[3] = MessageAt(3, problem="the log ends at offset 2", certain=False)
    assert this.looked() == []
    assert this.reader.trouble == {WHERE: "offset 3: the log ends at offset 2"}
    assert this.kinds() == {3: PointerKind.PARKED}
    this.clock += BELIEVED_AFTER
    assert this.looked() == []
    assert this.kinds() == {3: PointerKind.DEAD}
    assert not this.reader.trouble


def test_lost_message_waits_while_dead_letters_are_full() -> None:
    dead = [Pointer(offset, PointerKind.DEAD) for offset in range(1000, 1000 + MOST_POINTERS)]
    this = Fixture(Pointer(3), *dead)
    this.log.found[3] = MessageAt(3, problem="the log begins at offset 90")
    assert this.looked() == []
    assert this.ledger.pointers[3].kind is PointerKind.PARKED
    assert "no room for more dead letters" in this.reader.trouble[WHERE]


def test_broker_that_is_away_backs_off_and_is_told() -> None:
    this = Fixture(Pointer(3))
    this.log.down = "no leader"
    assert this.looked() == []
    assert this.looked() == []
    assert len(this.log.asked) == 1
    assert this.reader.trouble == {WHERE: "no leader"}
    this.log.down, this.clock = "", 60.0
    assert this.looked() == [3]
    assert not this.reader.trouble


def test_pointer_dropped_while_it_was_read_is_not_handed_out() -> None:
    this = Fixture(Pointer(3))
    read = this.log.read

    def dropping(*given: Any) -> dict[int, MessageAt]:
        this.ledger.pointers_read({})
        return read(*given)

    this.log.read = dropping  # type: ignore[assignment, method-assign]
    assert this.looked() == []


def test_thread_hands_out_and_ends() -> None:
    this = Fixture(Pointer(3))
    this.reader.start()
    eventually(lambda: [work.offset for work in this.works] == [3], 20, "the message")
    this.ledger.point_at([Pointer(4)])
    this.pointer_works.flag.set()
    eventually(lambda: [work.offset for work in this.works] == [3, 4], 20, "the second message")
    assert this.reader.close(Deadline(20))
    assert this.log.closed


pointers = st.builds(
    Pointer,
    offset=st.integers(0, 30),
    kind=st.sampled_from(PointerKind),
    due_ms=st.integers(0, 9),
    key=st.sampled_from(["", "a", "b"]),
)


@given(st.lists(pointers, max_size=12, unique_by=lambda p: p.offset), st.frozensets(st.integers(0, 30)))
def test_laws_of_due_pointers(some: list[Pointer], in_hand: frozenset[int]) -> None:
    """What is due is parked, is the first of its key, is in no hand; and nothing that is due stays out."""
    due, next_ms = due_pointers(some, in_hand, 5)
    parked = [p for p in some if p.kind is PointerKind.PARKED]
    first = [p for p in parked if not p.key or p.offset == min(q.offset for q in parked if q.key == p.key)]
    free = [p for p in first if p.offset not in in_hand]
    assert due == sorted((p for p in free if p.due_ms <= 5), key=lambda p: p.offset)
    assert next_ms == min((p.due_ms for p in free if p.due_ms > 5), default=None)
