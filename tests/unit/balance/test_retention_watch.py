"""Retention that would pass a pointer is told before it does."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zkconsumer.balance.parked_reader import LOOK_AFTER_MS, WARN_MS, LogStart, RetentionWatch, deletion_ms
from zkconsumer.core.message_pointers import Pointer, PointerKind
from zkconsumer.errors import BrokerUnavailableError
from zkconsumer.fetch.message_lookup import MessageAt, Retention
from zkconsumer.model import ThreadId, TopicPartition
from zkconsumer.ownership.balanced_ledger import BalancedLedger
from zkconsumer.ownership.partition_position import PartitionPosition
from zkconsumer.runtime.deadline import Deadline

DAY = 24 * 3600 * 1000
NOW = 1_700_000_000_000
WHERE = TopicPartition("t", 0)


@pytest.mark.parametrize(
    ("message_ms", "retention_ms", "starts", "by_age", "by_move"),
    [
        (NOW, 7 * DAY, [], NOW + 7 * DAY, None),
        (None, 7 * DAY, [], None, None),
        (NOW, None, [(0, 0), (0, 1000)], None, None),
        (None, None, [(0, 0), (50, 1000)], None, 2000),
        (NOW, 1, [(0, 0), (100, 1000)], NOW + 1, 1000),
        (None, None, [(0, 0), (300, 1000)], None, 1000),
    ],
)
def test_deletion_is_foreseen(
    message_ms: int | None, retention_ms: int | None, starts: Any, by_age: int | None, by_move: int | None
) -> None:
    first, last = [LogStart(*one) for one in starts] or (None, None)
    assert deletion_ms(100, message_ms, retention_ms, first, last) == (by_age, by_move)


@given(st.integers(0, 1000), st.integers(0, 1000), st.integers(0, 1000), st.integers(0, 99), st.integers(0, 99))
def test_foreseen_deletion_is_never_in_the_past(offset: int, first: int, last: int, before: int, after: int) -> None:
    _, at = deletion_ms(offset, None, None, LogStart(first, before), LogStart(last, after))
    assert at is None or at >= after


class Fixture:
    """The broker: ``start`` of the log, ``retention_ms``, and messages of the time ``sent``."""

    def __init__(self, *pointers: Pointer) -> None:
        self.start: int | None = 0
        self.retention_ms: int | None = 7 * DAY
        self.sent = NOW
        self.now = NOW
        self.asked = 0
        self.down = False
        position = PartitionPosition(WHERE, ThreadId("g_c-0"), 100)
        self.ledger = BalancedLedger(position, 100, pointers={p.offset: p for p in pointers})
        self.partition: Any = SimpleNamespace(position=position, ledger=self.ledger, own=True)
        self.watch = RetentionWatch(cast(Any, self))

    def retention(self, tp: TopicPartition, deadline: Deadline) -> Retention:
        self.asked += 1
        if self.down:
            raise BrokerUnavailableError("away")
        return Retention(self.start, self.retention_ms)

    def read(self, tp: TopicPartition, offsets: Iterable[int], deadline: Deadline) -> dict[int, MessageAt]:
        return {offset: MessageAt(offset, SimpleNamespace(timestamp=self.sent)) for offset in offsets}

    def looked(self, after_ms: int = LOOK_AFTER_MS) -> list[tuple[int, int]]:
        """Look. Return the offsets at risk with the times."""
        self.now += after_ms
        self.watch.look([self.partition], self.now)
        return [(one.offset, one.deleted_ms) for one in self.watch.at_risk]


def test_old_pointer_is_told_once_before_it_expires(caplog: pytest.LogCaptureFixture) -> None:
    this = Fixture(Pointer(7, PointerKind.DEAD), Pointer(9))
    assert this.looked() == []
    with caplog.at_level(logging.WARNING):
        assert this.looked(6 * DAY) == [(7, NOW + 7 * DAY)]
        assert this.looked() == [(7, NOW + 7 * DAY)]
    (told,) = caplog.messages
    assert "offset 7, a dead letter, may be deleted by retention from 2023-11-21 22:13 UTC on" in told


def test_short_retention_is_told_a_quarter_before() -> None:
    this = Fixture(Pointer(7))
    this.retention_ms = 4 * 3600 * 1000
    assert this.looked(2 * 3600 * 1000) == []
    assert len(this.looked(3600 * 1000)) == 1


def test_moving_log_start_is_told() -> None:
    this = Fixture(Pointer(90))
    this.retention_ms = None
    assert this.looked() == []
    this.start = 45
    assert this.looked() == [(90, this.now + LOOK_AFTER_MS)]


def test_deleted_message_is_told_as_such() -> None:
    this = Fixture(Pointer(7, PointerKind.DEAD))
    this.start = 8
    assert this.looked() == [(7, 0)]
    assert "is no longer in the log, which begins at offset 8" in this.watch.at_risk[0].text


def test_brokers_are_asked_once_a_minute() -> None:
    this = Fixture(Pointer(7))
    this.looked()
    this.looked(1000)
    assert this.asked == 1
    this.looked()
    assert this.asked == 2


def test_unknown_retention_changes_nothing() -> None:
    this = Fixture(Pointer(7))
    assert len(this.looked(7 * DAY - WARN_MS)) == 1
    this.down = True
    assert len(this.looked()) == 1


def test_pointer_or_partition_that_went_is_forgotten() -> None:
    this = Fixture(Pointer(7))
    assert len(this.looked(7 * DAY)) == 1
    this.ledger.finish([7])
    assert this.looked() == []
    this.ledger.point_at([Pointer(7)])
    this.partition.position.revoked = True
    assert this.looked() == []
