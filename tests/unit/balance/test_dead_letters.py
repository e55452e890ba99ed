"""Dead letters reach their place, or stop their partition visibly until they do."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from tests.timing import eventually
from zkconsumer.balance.dead_letter_topic import DeadLetterTopic, Failure
from zkconsumer.balance.dead_letters import FIRST_BACKOFF, DeadLetters, checked_target
from zkconsumer.balance.dispatched_work import ReadPart, ReadWork
from zkconsumer.balance.retry_policy import Kind, RetryDecision
from zkconsumer.core.message_pointers import MOST_POINTERS, Pointer, PointerKind
from zkconsumer.model import ThreadId, TopicPartition
from zkconsumer.ownership.balanced_ledger import BalancedLedger
from zkconsumer.ownership.partition_position import PartitionPosition
from zkconsumer.ownership.stored_offset import StoredNotes
from zkconsumer.runtime.deadline import Deadline

WHERE = TopicPartition("t", 0)


class Fixture:
    """Dead letters without their thread, and one partition with the messages 10 to 13."""

    def __init__(self, target: Any = None, pointers: int = 0, **options: Any) -> None:
        self.clock = 0.0
        self.ended: list[int] = []
        self.fatal: list[BaseException] = []
        self.position = PartitionPosition(WHERE, ThreadId("g_c-0"), 10)
        self.position.stored.notes = StoredNotes()
        stored = {offset: Pointer(offset, PointerKind.DEAD) for offset in range(1000, 1000 + pointers)}
        self.ledger = BalancedLedger(self.position, 10, pointers=stored)
        self.ledger.read(range(10, 14), 14)
        self.partition: Any = SimpleNamespace(
            position=self.position, ledger=self.ledger, stopped="", messages=lambda record, place, work: record
        )
        self.letters = DeadLetters(
            "g_c", "g", checked_target(target), failed=self.fatal.append, monotonic=lambda: self.clock, **options
        )

    def bury(self, offset: int) -> bool:
        record = SimpleNamespace(offset=offset, value=b"")
        work = ReadWork(record, offset, b"k", ReadPart(self.partition, None, 0))
        decision = RetryDecision(Kind.DEAD, 0.0, 0, 16, 5, "ValueError: bad", ValueError("bad"))
        return self.letters.bury(work, decision, lambda work: self.ended.append(work.offset), "mark")

    def stored_base(self) -> int:
        """Commit. Return the base that was written."""
        point = self.ledger.point()
        self.ledger.stored(point)
        return point.offset


def test_pointer_is_the_place_without_a_target() -> None:
    this = Fixture()
    assert this.bury(10)
    assert this.ledger.pointers == {10: Pointer(10, PointerKind.DEAD, 16, 0, 5, "mark", "ValueError: bad")}
    assert this.stored_base() == 11
    assert this.partition.stopped == ""


def test_full_node_stops_the_partition_until_there_is_room() -> None:
    this = Fixture(pointers=MOST_POINTERS)
    assert not this.bury(10)
    assert "no room for more" in this.partition.stopped
    assert this.stored_base() == 10
    this.ledger.pointers_read({})
    assert 0 < this.letters.look() <= FIRST_BACKOFF
    assert this.partition.stopped
    this.clock += FIRST_BACKOFF
    this.letters.look()
    assert this.partition.stopped == ""
    assert this.ended == [10]
    assert this.ledger.pointers[10].kind is PointerKind.DEAD


def test_group_without_pointers_stops_and_says_what_to_do() -> None:
    this = Fixture(keeps_pointers=False)
    assert not this.bury(10)
    assert "give dead_letter=" in this.partition.stopped
    assert not this.ledger.pointers


def test_unwritable_node_stops_the_partition_and_says_why() -> None:
    this = Fixture()
    this.position.stored.notes = StoredNotes(trouble="check the node's ACL")
    assert not this.bury(10)
    assert "no pointers of it can be kept: check the node's ACL" in this.partition.stopped
    assert this.stored_base() == 10


def test_function_is_called_before_the_base_moves() -> None:
    called: list[tuple[int, Failure, int]] = []

    def write(message: Any, failure: Failure) -> None:
        called.append((message.offset, failure, this.stored_base()))

    this = Fixture(write)
    assert not this.bury(10)
    assert this.stored_base() == 10
    this.letters.look()
    ((offset, failure, base),) = called
    assert (offset, base) == (10, 10)
    assert (failure.reason, failure.attempts, failure.first_ms, failure.group) == ("ValueError: bad", 16, 5, "g")
    assert isinstance(failure.error, ValueError)
    assert (this.ended, this.stored_base()) == ([10], 11)
    assert (this.letters.delivered, this.letters.failed) == (1, 0)


def test_failing_function_is_tried_again_and_loses_nothing() -> None:
    answers: list[Any] = [OSError("disk full"), OSError("disk full"), None]

    def write(message: Any, failure: Failure) -> None:
        answer = answers.pop(0)
        if answer is not None:
            raise answer

    this = Fixture(write)
    this.bury(10)
    this.letters.look()
    assert this.partition.stopped.endswith("the dead_letter function failed: OSError: disk full")
    assert (this.stored_base(), this.ended) == (10, [])
    this.letters.look()
    assert len(answers) == 2, "it is not tried again at once"
    for seconds in (1, 2):
        this.clock += seconds
        this.letters.look()
    assert (this.ended, this.partition.stopped, this.stored_base()) == ([10], "", 11)


def test_topic_gets_several_letters_and_keeps_the_failed() -> None:
    sent: list[int] = []

    class Topic(DeadLetterTopic):
        def __init__(self) -> None:
            self.topic = "dlq"

        def send_all(self, letters: Any) -> Any:
            sent.extend(message.offset for message, _ in letters)
            return [None if message.offset != 11 else OSError("refused") for message, _ in letters]

    this = Fixture(Topic())
    for offset in (10, 11, 12):
        this.bury(offset)
    this.letters.look()
    assert (sent, this.ended, this.stored_base()) == ([10, 11, 12], [10, 12], 11)
    assert "offset 11 is a dead letter, and refused" in this.partition.stopped


def test_message_of_a_pointer_leaves_the_node_when_delivered() -> None:
    this = Fixture(lambda *_: None)
    this.ledger.point_at([Pointer(10)])
    this.stored_base()
    this.bury(10)
    this.letters.look()
    assert this.ledger.pointers == {}


def test_partition_that_left_is_not_delivered() -> None:
    called: list[int] = []
    this = Fixture(lambda message, _: called.append(message.offset))
    this.bury(10)
    this.position.revoked = True
    this.letters.look()
    assert (called, this.ended, this.stored_base()) == ([], [10], 10)


def test_function_that_ends_the_run_is_told() -> None:
    this = Fixture(Mock(side_effect=SystemExit(3)))
    this.letters.start()
    this.bury(10)
    eventually(lambda: this.fatal, 20, "the end of the run")
    assert isinstance(this.fatal[0], SystemExit)
    assert this.letters.close(Deadline(20))


async def _later(message: Any, failure: Failure) -> None: ...


@pytest.mark.parametrize("target", [_later, "events-dlq", 3, lambda: None, lambda message: None])
def test_unusable_target_is_refused(target: Any) -> None:
    with pytest.raises(TypeError, match="dead_letter (takes|is called with)"):
        checked_target(target)


def test_function_that_returns_a_coroutine_is_refused() -> None:
    this = Fixture(lambda message, failure: _later(message, failure))
    this.bury(10)
    this.letters.look()
    assert "give a plain function" in this.partition.stopped
