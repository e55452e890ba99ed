"""When the timer commits, and which offset of a partition: tables."""

from __future__ import annotations

from itertools import pairwise

import pytest

from zkconsumer.core.partition_position import NOTHING_HELD, PartitionPosition
from zkconsumer.model import ThreadId, TopicPartition
from zkconsumer.offsets.commit_schedule import ACK_LOOK, FORGOTTEN_AFTER, MANY_ACKS, NEVER, AckSchedule, CommitSchedule

NOW = 1000.0


@pytest.mark.parametrize(
    ("interval", "refresh", "forgets", "commit_at", "refresh_at", "unchanged_before"),
    [
        pytest.param(None, None, False, NEVER, NEVER, -NEVER, id="nothing by itself"),
        pytest.param(60.0, None, False, 1060.0, NEVER, -NEVER, id="the timer alone"),
        pytest.param(None, None, True, NEVER, 1120.0, 520.0, id="a store that forgets"),
        pytest.param(None, 40.0, False, NEVER, 1010.0, 960.0, id="a refresh"),
        pytest.param(None, 40.0, True, NEVER, 1010.0, 960.0, id="a refresh before the store forgets"),
        pytest.param(5.0, 4000.0, True, 1005.0, 1120.0, 520.0, id="a refresh that is too rare for the store"),
        pytest.param(0.0, 0.0, False, 1000.0, 1000.0, 1000.0, id="always"),
    ],
)
def test_times_after_the_start(
    interval: float | None,
    refresh: float | None,
    forgets: bool,
    commit_at: float,
    refresh_at: float,
    unchanged_before: float,
) -> None:
    schedule = CommitSchedule(interval, refresh, forgets=forgets)
    assert (schedule.commit_at, schedule.refresh_at, schedule.due) == (NEVER, NEVER, NEVER)
    schedule.start(NOW)
    assert (schedule.commit_at, schedule.refresh_at, schedule.due) == (
        commit_at,
        refresh_at,
        min(commit_at, refresh_at),
    )
    assert schedule.unchanged_before(NOW) == unchanged_before
    assert schedule.refreshes_all == (refresh is not None)


def test_a_late_commit_puts_the_next_one_off_and_no_refresh() -> None:
    schedule = CommitSchedule(5.0, 40.0, forgets=False)
    schedule.start(NOW)
    schedule.committed(1020.0)
    assert (schedule.commit_at, schedule.refresh_at) == (1025.0, 1010.0)
    schedule.refreshed(1021.0)
    assert (schedule.commit_at, schedule.refresh_at) == (1025.0, 1031.0)


def test_unchanged_offsets_are_written_before_a_store_forgets() -> None:
    """KAFKA-1510: a broker deletes offsets that are not written again."""
    schedule, written, writes = CommitSchedule(None, None, forgets=True), NOW, [NOW]
    schedule.start(NOW)
    now = NOW
    while now < NOW + 3600:
        now = schedule.due
        if written <= schedule.unchanged_before(now):
            written = now
            writes.append(now)
        schedule.refreshed(now)
    assert max(b - a for a, b in pairwise(writes)) <= FORGOTTEN_AFTER * 5 / 4


@pytest.mark.parametrize(
    ("consumed", "held_until", "committed", "counting_held", "ahead", "due"),
    [
        pytest.param(None, NOTHING_HELD, None, False, False, None, id="no start yet"),
        pytest.param(5, NOTHING_HELD, 5, False, False, None, id="nothing finished since"),
        pytest.param(6, NOTHING_HELD, 5, False, False, 6, id="one finished"),
        pytest.param(0, NOTHING_HELD, None, False, False, 0, id="nothing committed yet"),
        pytest.param(3, NOTHING_HELD, 5, False, False, 3, id="a seek back"),
        pytest.param(5, 6, 5, False, False, None, id="one in hand"),
        pytest.param(5, 6, 5, True, False, 6, id="one in hand that counts"),
        pytest.param(5, 6, 6, True, True, None, id="one in hand that was counted"),
        pytest.param(5, 6, 6, False, True, None, id="one in hand that was committed explicitly"),
        pytest.param(5, 6, 6, False, False, 5, id="one in hand, and another position committed beyond it"),
        pytest.param(5, 6, 7, False, True, 5, id="one in hand, committed far beyond"),
        pytest.param(6, 7, 6, False, True, None, id="the next in hand, the one before committed"),
        pytest.param(5, NOTHING_HELD, 6, False, True, 5, id="given back after its commit"),
    ],
)
def test_the_offset_that_is_due(
    consumed: int | None, held_until: int, committed: int | None, counting_held: bool, ahead: bool, due: int | None
) -> None:
    position = PartitionPosition(TopicPartition("t", 0), ThreadId("g_c-0"), consumed)
    position.held_until, position.stored.committed = held_until, committed
    position.stored.ahead = ahead
    assert position.stored.due_offset(counting_held=counting_held) == due


@pytest.mark.parametrize(("committed", "due"), [(4, None), (10, None), (11, 0), (0, None)])
def test_rows_in_hand_that_were_committed_in_part(committed: int, due: int | None) -> None:
    """Ten rows are in the user's hands. A commit of some of them is not taken back."""
    position = PartitionPosition(TopicPartition("t", 0), ThreadId("g_c-0"), 0)
    position.held_until = position.batch_until = 10
    position.stored.committed = committed
    position.stored.ahead = True
    assert position.stored.due_offset(counting_held=False) == due


# ---- acknowledgements


def test_acknowledgements_are_written_each_second() -> None:
    acks = AckSchedule(60.0)
    assert acks.is_due(1, 10.0, dirty=True, failing=False)
    assert acks.look_at == 10.0 + ACK_LOOK
    assert not acks.is_due(1, 10.2, dirty=True, failing=False)
    assert not acks.is_due(0, 11.5, dirty=False, failing=False)
    assert acks.is_due(1, 11.5, dirty=True, failing=False)


def test_many_acknowledgements_do_not_wait_for_the_second() -> None:
    acks = AckSchedule(60.0)
    assert acks.is_due(1, 10.0, dirty=True, failing=False)
    assert acks.is_due(MANY_ACKS, 10.2, dirty=True, failing=False)
    assert not acks.is_due(MANY_ACKS, 10.4, dirty=True, failing=True), "a failing store is not asked more often"


def test_acks_are_not_committed_without_automatic_commits() -> None:
    assert not AckSchedule(None).is_due(MANY_ACKS, 10.0, dirty=True, failing=False)


def test_a_shorter_interval_of_the_user_holds() -> None:
    acks = AckSchedule(0.1)
    assert acks.is_due(1, 10.0, dirty=True, failing=False)
    assert acks.is_due(1, 10.2, dirty=True, failing=False)


def test_pointers_are_looked_at_every_two_seconds() -> None:
    acks = AckSchedule(None)
    assert [acks.pointers_are_due(now) for now in (5.0, 6.0, 7.0, 7.1)] == [True, False, True, False]
