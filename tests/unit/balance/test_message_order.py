"""WaitingMessages: the order of messages that wait."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from zkconsumer.balance.dispatched_work import PointerWorks, ReadPart, ReadWork
from zkconsumer.balance.message_order import Order, WaitingMessages, order_named
from zkconsumer.model import TopicPartition


def partition(partition: int = 0) -> Any:
    position = SimpleNamespace(tp=TopicPartition("t", partition), halted=False, revoked=False)
    return SimpleNamespace(position=position, stopped="", unseen_loan=False, aside=[], failing={}, parked=set())


class Fed:
    """WaitingMessages, and messages that are added with rising offsets."""

    def __init__(self, order: Order = Order.KEY) -> None:
        self.waiting = WaitingMessages(order)
        self.partition = partition()
        self.offset = self.serial = 0

    def add(self, keys: list[bytes | None], where: Any = None) -> list[ReadWork]:
        at = where or self.partition
        self.serial += 1
        part = ReadPart(at, None, self.serial)
        works = []
        for key in keys:
            works.append(ReadWork(SimpleNamespace(value=b""), self.offset, key, part))
            self.offset += 1
        self.waiting.add(at, works)
        return works

    def take(self, most: int = 100, now: float = 0.0) -> list[int]:
        self.taken = self.waiting.take(most, now)
        return [work.offset for work in self.taken]

    def fail(self, work: ReadWork, due: float) -> None:
        again = work.again()
        again.not_before = due
        self.waiting.put_back(again)
        self.waiting.returned([work])


@pytest.mark.parametrize(
    ("order", "first", "second"),
    [(Order.NONE, [0, 1, 2, 3, 4], []), (Order.KEY, [0, 1, 2, 4, 3], []), (Order.PARTITION, [0, 1, 2, 3, 4], [])],
)
def test_all_of_a_lane_go_to_one_worker(order: Order, first: list[int], second: list[int]) -> None:
    fed = Fed(order)
    fed.add([b"a", b"b", None, b"b", b"a"])
    assert sorted(fed.take()) == sorted(first)
    assert fed.take() == second


def test_a_key_in_hand_is_not_taken_again() -> None:
    fed = Fed()
    fed.add([b"a", b"b", b"a", b"b"])
    assert fed.take(1) == [0]
    (held,) = fed.taken
    assert fed.take() == [1, 3]
    assert fed.take() == []
    fed.waiting.returned([held])
    assert fed.take() == [2]


def test_the_oldest_goes_first_when_its_key_is_free() -> None:
    fed = Fed()
    fed.add([b"a", b"a"])
    assert fed.take(1) == [0]
    held = fed.taken
    fed.add([None] * 3)
    fed.waiting.returned(held)
    assert fed.take() == [1, 2, 3, 4]


def test_a_failed_message_holds_its_key_until_it_is_due() -> None:
    fed = Fed()
    fed.add([b"a", b"a", b"b"])
    assert fed.take(1) == [0]
    fed.fail(fed.taken[0], 10.0)
    assert fed.take(now=9.9) == [2]
    assert fed.waiting.next_due() == 10.0
    assert fed.take(now=10.0) == [0], "alone: what follows waits for its outcome"
    fed.waiting.returned(fed.taken)
    assert fed.take(now=10.0) == [1]


def test_a_stopped_partition_begins_nothing_until_resumed() -> None:
    fed, other = Fed(), partition(1)
    fed.add([b"a", None, b"b", b"b"])
    fed.add([b"a"], other)
    fed.partition.position.halted = True
    assert fed.take() == [4]
    fed.partition.position.halted = False
    fed.waiting.resume(fed.partition)
    assert sorted(fed.take()) == [0, 1, 2, 3]


def test_a_key_stays_busy_over_a_new_stay() -> None:
    """A handler of the earlier stay still has it."""
    fed, later = Fed(), partition()
    fed.add([b"a", b"b", b"b"])
    assert fed.take(1) == [0]
    (held,) = fed.taken
    fed.partition.position.halted = fed.partition.position.revoked = True
    fed.waiting.drop(fed.partition)
    fed.add([b"a", b"b"], later)
    assert fed.take() == [4]
    fed.waiting.returned([held])
    assert fed.take() == [3]


def test_a_blocked_key_begins_only_works_of_pointers() -> None:
    fed = Fed()
    fed.add([b"a", b"a", b"a"])
    assert fed.take(1) == [0]
    (first,) = fed.taken
    behind = fed.waiting.waiting_behind(first)
    assert [work.offset for work in behind] == [1, 2]
    fed.waiting.block(first, behind[:1])
    fed.waiting.returned([first])
    assert fed.take() == []
    again = first.again()
    again.pointer = PointerWorks()
    fed.waiting.put_back(again)
    assert fed.take() == [0]
    fed.waiting.returned(fed.taken)
    assert fed.take() == []
    fed.waiting.unblock(fed.partition, {})
    assert fed.take() == [2]


def test_slots_that_leave_take_their_messages_along() -> None:
    fed = Fed()
    for slot, work in enumerate(fed.add([b"a", b"b", None, b"a", None])):
        work.slot = slot
    removed = fed.waiting.remove_all(fed.partition, lambda work: 0b10101 >> work.slot & 1)
    assert sorted(work.offset for work in removed) == [0, 2, 4]
    assert sorted(fed.take()) == [1, 3]


def test_unknown_orders_are_refused() -> None:
    with pytest.raises(ValueError, match="order must be one of"):
        order_named("keys")
