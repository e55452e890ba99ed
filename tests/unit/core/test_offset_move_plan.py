"""The plan of a migration: written, left and undecided partitions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from zkconsumer.core.offset_move_plan import (
    Agreement,
    AheadPolicy,
    LogRange,
    MoveVerdict,
    OutOfRangePolicy,
    SavedEntry,
    Step,
    Store,
    StoreEntry,
    compare,
    entry_text,
    parse_selection,
    plan_move,
    plan_rollback,
    stored_as,
)
from zkconsumer.model import TopicPartition

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
LOGS = {T0: LogRange(10, 100), T1: LogRange(0, 50)}


def one(source: StoreEntry | None, held: StoreEntry | None = None, **options: Any) -> Step:
    sources = {} if source is None else {T0: source}
    plan = plan_move(Store.KAFKA, sources, {} if held is None else {T0: held}, LOGS, **options)
    assert len(plan.steps) == 1
    return plan.steps[0]


@pytest.mark.parametrize("offset", [10, 55, 100])
def test_a_position_in_the_log_is_written_its_ends_included(offset: int) -> None:
    step = one(StoreEntry(offset))
    assert (step.verdict, step.after, step.before) == (MoveVerdict.WRITE, StoreEntry(offset), None)


def test_what_stands_there_already_is_not_written() -> None:
    assert one(StoreEntry(20), StoreEntry(20, metadata="whatever")).verdict is MoveVerdict.SAME


def test_a_store_that_is_behind_is_moved_on() -> None:
    step = one(StoreEntry(20), StoreEntry(19))
    assert (step.verdict, step.before, step.after) == (MoveVerdict.WRITE, StoreEntry(19), StoreEntry(20))


@pytest.mark.parametrize(
    ("policy", "verdict", "after"),
    [
        (AheadPolicy.REFUSE, MoveVerdict.UNDECIDED, None),
        (AheadPolicy.SKIP, MoveVerdict.LEFT, None),
        (AheadPolicy.OVERWRITE, MoveVerdict.WRITE, StoreEntry(20)),
    ],
)
def test_setting_back_is_the_users_decision(
    policy: AheadPolicy, verdict: MoveVerdict, after: StoreEntry | None
) -> None:
    step = one(StoreEntry(20), StoreEntry(90), ahead=policy)
    assert (step.verdict, step.after) == (verdict, after)
    assert "set back" in step.reason


@pytest.mark.parametrize("offset", [9, 101])
@pytest.mark.parametrize(
    ("policy", "verdict", "after"),
    [
        (OutOfRangePolicy.REFUSE, MoveVerdict.UNDECIDED, None),
        (OutOfRangePolicy.SKIP, MoveVerdict.LEFT, None),
        (OutOfRangePolicy.EARLIEST, MoveVerdict.WRITE, 10),
        (OutOfRangePolicy.LATEST, MoveVerdict.WRITE, 100),
        (OutOfRangePolicy.KEEP, MoveVerdict.WRITE, "itself"),
    ],
)
def test_a_position_outside_the_log_is_the_users_decision(
    offset: int, policy: OutOfRangePolicy, verdict: MoveVerdict, after: int | str | None
) -> None:
    step = one(StoreEntry(offset), out_of_range=policy)
    expected = offset if after == "itself" else after
    assert step.verdict is verdict
    assert (None if step.after is None else step.after.offset) == expected
    assert f"{offset} is not in the log, 10..100" in step.reason


def test_a_corrected_position_can_set_back_too() -> None:
    assert one(StoreEntry(101), StoreEntry(60), out_of_range=OutOfRangePolicy.EARLIEST).verdict is MoveVerdict.UNDECIDED


def test_an_invalid_offset_counts_as_none() -> None:
    """It is not moved, and does not stop a write."""
    assert one(StoreEntry(-1, text="-1")).verdict is MoveVerdict.LEFT
    assert one(StoreEntry(20), StoreEntry(-1, text="-1")).verdict is MoveVerdict.WRITE


def test_an_unreadable_source_is_never_guessed() -> None:
    """An unreadable target is overwritten."""
    step = one(StoreEntry(None, "/consumers/g/offsets/t/0: not a number"))
    assert step.verdict is MoveVerdict.UNDECIDED
    assert "not a number" in step.reason
    assert one(StoreEntry(20), StoreEntry(None, "rubbish", text="x")).verdict is MoveVerdict.WRITE


def test_partitions_without_log_or_source_are_left() -> None:
    gone = TopicPartition("deleted", 0)
    plan = plan_move(Store.ZOOKEEPER, {gone: StoreEntry(5)}, {T1: StoreEntry(7)}, LOGS)
    assert [(step.partition, step.verdict) for step in plan.steps] == [(gone, MoveVerdict.LEFT), (T1, MoveVerdict.LEFT)]
    assert all(step.reason for step in plan.steps)
    assert plan.changes == plan.undecided == []


# ---- putting back ----


@pytest.mark.parametrize("target", Store)
def test_a_rollback_restores_and_removes_offsets(target: Store) -> None:
    before = StoreEntry(4, text="+4") if target is Store.ZOOKEEPER else StoreEntry(4, metadata="m", leader_epoch=7)
    saved = {T0: SavedEntry(before, stored_as(target, 20)), T1: SavedEntry(None, stored_as(target, 30))}
    plan = plan_rollback(target, saved, {T0: stored_as(target, 20), T1: stored_as(target, 30)}, force=False)
    assert [(s.verdict, s.after) for s in plan.steps] == [(MoveVerdict.WRITE, before), (MoveVerdict.REMOVE, None)]


def test_a_rollback_of_what_was_never_done_changes_nothing() -> None:
    plan = plan_rollback(
        Store.KAFKA,
        {T0: SavedEntry(StoreEntry(4), StoreEntry(20)), T1: SavedEntry(None, StoreEntry(30))},
        {T0: StoreEntry(4)},
        force=False,
    )
    assert {step.verdict for step in plan.steps} == {MoveVerdict.SAME}


@pytest.mark.parametrize("now", [StoreEntry(21), None, StoreEntry(20, metadata="theirs")])
def test_what_was_changed_since_is_put_back_by_force_only(now: StoreEntry | None) -> None:
    held = {} if now is None else {T0: now}
    (step,) = plan_rollback(Store.KAFKA, {T0: SavedEntry(StoreEntry(4), StoreEntry(20))}, held, force=False).steps
    assert step.verdict is MoveVerdict.UNDECIDED
    assert "20 written by that run" in step.reason
    (step,) = plan_rollback(Store.KAFKA, {T0: SavedEntry(StoreEntry(4), StoreEntry(20))}, held, force=True).steps
    assert (step.verdict, step.after) == (MoveVerdict.WRITE, StoreEntry(4))


def test_a_rollback_can_be_rolled_back() -> None:
    removed = SavedEntry(StoreEntry(30), None)
    (step,) = plan_rollback(Store.KAFKA, {T0: removed}, {}, force=False).steps
    assert (step.verdict, step.after) == (MoveVerdict.WRITE, StoreEntry(30))


# ---- comparing ----


@pytest.mark.parametrize(
    ("zookeeper", "kafka", "agreement", "agrees"),
    [
        (StoreEntry(20, text="20"), StoreEntry(20, metadata="m"), Agreement.SAME, True),
        (StoreEntry(20), StoreEntry(21), Agreement.DIFFERS, False),
        (StoreEntry(20), None, Agreement.ONLY_ZOOKEEPER, False),
        (None, StoreEntry(20), Agreement.ONLY_KAFKA, False),
        (StoreEntry(-1), None, Agreement.SAME, True),
        (StoreEntry(-1), StoreEntry(0), Agreement.ONLY_KAFKA, False),
        (StoreEntry(None, "rubbish"), StoreEntry(20), Agreement.UNREADABLE, False),
    ],
)
def test_stores_agree_where_it_makes_no_difference_which_is_read(
    zookeeper: StoreEntry | None, kafka: StoreEntry | None, agreement: Agreement, agrees: bool
) -> None:
    in_zookeeper, in_kafka = ({} if entry is None else {T0: entry} for entry in (zookeeper, kafka))
    (found,) = compare(in_zookeeper, in_kafka, LOGS)
    assert (found.agreement, found.agrees) == (agreement, agrees)


def test_a_comparison_names_bad_offsets_and_partitions() -> None:
    """Offsets outside their log, and partitions that do not exist any more."""
    gone = TopicPartition("deleted", 0)
    first, second = compare({gone: StoreEntry(1), T0: StoreEntry(3)}, {T0: StoreEntry(3)}, LOGS)
    assert (first.agreement, first.agrees, first.note) == (Agreement.GONE, True, "")
    assert (second.agreement, second.note) == (Agreement.SAME, "3 not in the log")


# ---- selecting ----


def test_a_selection_takes_topics_numbers_and_ranges() -> None:
    selected = parse_selection(["a", "b:0,2,4-6", "b:9"])
    wanted = {TopicPartition("b", n) for n in (0, 2, 4, 5, 6, 9)}
    assert {TopicPartition("b", n) for n in range(20) if TopicPartition("b", n) in selected} == wanted
    assert TopicPartition("a", 77) in selected
    assert TopicPartition("c", 0) not in selected
    assert T0 in parse_selection([])


def test_a_whole_topic_outweighs_its_numbers() -> None:
    assert TopicPartition("a", 5) in parse_selection(["a:1", "a"])
    assert TopicPartition("a", 5) in parse_selection(["a", "a:1"])


@pytest.mark.parametrize("text", ["", ":1", "a:", "a:x", "a:1,", "a:3-1", "a:-1", "a:1-", "a:²"])
def test_a_selection_that_cannot_be_read_is_quoted(text: str) -> None:
    with pytest.raises(ValueError, match=text.replace(":", ".") or "''"):
        parse_selection([text])


def test_entries_are_shown_as_people_read_them() -> None:
    assert [
        entry_text(None),
        entry_text(StoreEntry(3)),
        entry_text(replace(StoreEntry(3), offset=None, problem="p", text="x")),
    ] == ["-", "3", "unreadable: 'x'"]
