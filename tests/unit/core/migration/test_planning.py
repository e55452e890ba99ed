"""The plan of a migration: written, left and undecided partitions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from zkconsumer.core.migration.planning import (
    Agreement,
    Ahead,
    Entry,
    LogSpan,
    OutOfRange,
    Saved,
    Step,
    Store,
    Verdict,
    compare,
    held_as,
    parse_selection,
    plan_move,
    plan_rollback,
    shown,
)
from zkconsumer.model import TopicPartition

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
LOGS = {T0: LogSpan(10, 100), T1: LogSpan(0, 50)}


def one(source: Entry | None, held: Entry | None = None, **options: Any) -> Step:
    sources = {} if source is None else {T0: source}
    plan = plan_move(Store.KAFKA, sources, {} if held is None else {T0: held}, LOGS, **options)
    assert len(plan.steps) == 1
    return plan.steps[0]


@pytest.mark.parametrize("offset", [10, 55, 100])
def test_a_position_in_the_log_is_written_its_ends_included(offset: int) -> None:
    step = one(Entry(offset))
    assert (step.verdict, step.after, step.before) == (Verdict.WRITE, Entry(offset), None)


def test_what_stands_there_already_is_not_written() -> None:
    assert one(Entry(20), Entry(20, metadata="whatever")).verdict is Verdict.SAME


def test_a_store_that_is_behind_is_moved_on() -> None:
    step = one(Entry(20), Entry(19))
    assert (step.verdict, step.before, step.after) == (Verdict.WRITE, Entry(19), Entry(20))


@pytest.mark.parametrize(
    ("policy", "verdict", "after"),
    [
        (Ahead.REFUSE, Verdict.UNDECIDED, None),
        (Ahead.SKIP, Verdict.LEFT, None),
        (Ahead.OVERWRITE, Verdict.WRITE, Entry(20)),
    ],
)
def test_setting_back_is_the_users_decision(policy: Ahead, verdict: Verdict, after: Entry | None) -> None:
    step = one(Entry(20), Entry(90), ahead=policy)
    assert (step.verdict, step.after) == (verdict, after)
    assert "set back" in step.reason


@pytest.mark.parametrize("offset", [9, 101])
@pytest.mark.parametrize(
    ("policy", "verdict", "after"),
    [
        (OutOfRange.REFUSE, Verdict.UNDECIDED, None),
        (OutOfRange.SKIP, Verdict.LEFT, None),
        (OutOfRange.EARLIEST, Verdict.WRITE, 10),
        (OutOfRange.LATEST, Verdict.WRITE, 100),
        (OutOfRange.KEEP, Verdict.WRITE, "itself"),
    ],
)
def test_a_position_outside_the_log_is_the_users_decision(
    offset: int, policy: OutOfRange, verdict: Verdict, after: int | str | None
) -> None:
    step = one(Entry(offset), out_of_range=policy)
    expected = offset if after == "itself" else after
    assert step.verdict is verdict
    assert (None if step.after is None else step.after.offset) == expected
    assert f"{offset} is not in the log, 10..100" in step.reason


def test_a_corrected_position_can_set_back_too() -> None:
    assert one(Entry(101), Entry(60), out_of_range=OutOfRange.EARLIEST).verdict is Verdict.UNDECIDED


def test_an_invalid_offset_counts_as_none() -> None:
    """It is not moved, and does not stop a write."""
    assert one(Entry(-1, text="-1")).verdict is Verdict.LEFT
    assert one(Entry(20), Entry(-1, text="-1")).verdict is Verdict.WRITE


def test_an_unreadable_source_is_never_guessed() -> None:
    """An unreadable target is overwritten."""
    step = one(Entry(None, "/consumers/g/offsets/t/0: not a number"))
    assert step.verdict is Verdict.UNDECIDED
    assert "not a number" in step.reason
    assert one(Entry(20), Entry(None, "rubbish", text="x")).verdict is Verdict.WRITE


def test_partitions_without_log_or_source_are_left() -> None:
    gone = TopicPartition("deleted", 0)
    plan = plan_move(Store.ZOOKEEPER, {gone: Entry(5)}, {T1: Entry(7)}, LOGS)
    assert [(step.partition, step.verdict) for step in plan.steps] == [(gone, Verdict.LEFT), (T1, Verdict.LEFT)]
    assert all(step.reason for step in plan.steps)
    assert plan.changes == plan.undecided == []


# ---- putting back ----


@pytest.mark.parametrize("target", Store)
def test_a_rollback_restores_and_removes_offsets(target: Store) -> None:
    before = Entry(4, text="+4") if target is Store.ZOOKEEPER else Entry(4, metadata="m", leader_epoch=7)
    saved = {T0: Saved(before, held_as(target, 20)), T1: Saved(None, held_as(target, 30))}
    plan = plan_rollback(target, saved, {T0: held_as(target, 20), T1: held_as(target, 30)}, force=False)
    assert [(s.verdict, s.after) for s in plan.steps] == [(Verdict.WRITE, before), (Verdict.REMOVE, None)]


def test_a_rollback_of_what_was_never_done_changes_nothing() -> None:
    plan = plan_rollback(
        Store.KAFKA, {T0: Saved(Entry(4), Entry(20)), T1: Saved(None, Entry(30))}, {T0: Entry(4)}, force=False
    )
    assert {step.verdict for step in plan.steps} == {Verdict.SAME}


@pytest.mark.parametrize("now", [Entry(21), None, Entry(20, metadata="theirs")])
def test_what_was_changed_since_is_put_back_by_force_only(now: Entry | None) -> None:
    held = {} if now is None else {T0: now}
    (step,) = plan_rollback(Store.KAFKA, {T0: Saved(Entry(4), Entry(20))}, held, force=False).steps
    assert step.verdict is Verdict.UNDECIDED
    assert "20 written by that run" in step.reason
    (step,) = plan_rollback(Store.KAFKA, {T0: Saved(Entry(4), Entry(20))}, held, force=True).steps
    assert (step.verdict, step.after) == (Verdict.WRITE, Entry(4))


def test_a_rollback_can_be_rolled_back() -> None:
    removed = Saved(Entry(30), None)
    (step,) = plan_rollback(Store.KAFKA, {T0: removed}, {}, force=False).steps
    assert (step.verdict, step.after) == (Verdict.WRITE, Entry(30))


# ---- comparing ----


@pytest.mark.parametrize(
    ("zookeeper", "kafka", "agreement", "agrees"),
    [
        (Entry(20, text="20"), Entry(20, metadata="m"), Agreement.SAME, True),
        (Entry(20), Entry(21), Agreement.DIFFERS, False),
        (Entry(20), None, Agreement.ONLY_ZOOKEEPER, False),
        (None, Entry(20), Agreement.ONLY_KAFKA, False),
        (Entry(-1), None, Agreement.SAME, True),
        (Entry(-1), Entry(0), Agreement.ONLY_KAFKA, False),
        (Entry(None, "rubbish"), Entry(20), Agreement.UNREADABLE, False),
    ],
)
def test_stores_agree_where_it_makes_no_difference_which_is_read(
    zookeeper: Entry | None, kafka: Entry | None, agreement: Agreement, agrees: bool
) -> None:
    in_zookeeper, in_kafka = ({} if entry is None else {T0: entry} for entry in (zookeeper, kafka))
    (found,) = compare(in_zookeeper, in_kafka, LOGS)
    assert (found.agreement, found.agrees) == (agreement, agrees)


def test_a_comparison_names_bad_offsets_and_partitions() -> None:
    """Offsets outside their log, and partitions that do not exist any more."""
    gone = TopicPartition("deleted", 0)
    first, second = compare({gone: Entry(1), T0: Entry(3)}, {T0: Entry(3)}, LOGS)
    assert (first.agreement, first.agrees, first.note) == (Agreement.GONE, True, "")
    assert (second.agreement, second.note) == (Agreement.SAME, "3 not in the log")


# ---- selecting ----


def test_a_selection_takes_topics_numbers_and_ranges() -> None:
    selected = parse_selection(["a", "b:0,2,4-6", "b:9"])
    wanted = {TopicPartition("b", n) for n in (0, 2, 4, 5, 6, 9)}
    assert {TopicPartition("b", n) for n in range(20) if TopicPartition("b", n) in selected} == wanted
    assert TopicPartition("a", 77) in selected
    assert TopicPartition("c", 0) not in selected
    assert set(selected.named()) == wanted
    assert T0 in parse_selection([])


def test_a_whole_topic_outweighs_its_numbers() -> None:
    assert TopicPartition("a", 5) in parse_selection(["a:1", "a"])
    assert TopicPartition("a", 5) in parse_selection(["a", "a:1"])


@pytest.mark.parametrize("text", ["", ":1", "a:", "a:x", "a:1,", "a:3-1", "a:-1", "a:1-", "a:²"])
def test_a_selection_that_cannot_be_read_is_quoted(text: str) -> None:
    with pytest.raises(ValueError, match=text.replace(":", ".") or "''"):
        parse_selection([text])


def test_entries_are_shown_as_people_read_them() -> None:
    assert [shown(None), shown(Entry(3)), shown(replace(Entry(3), offset=None, problem="p", text="x"))] == [
        "-",
        "3",
        "unreadable: 'x'",
    ]
