"""The plan of a reset: which offset each partition gets, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.group_snapshots import group_snapshot, partition, stat
from zkconsumer.core.offset_move_plan import PartitionSelection, Store, parse_selection
from zkconsumer.core.registration import CONFLICT_KEY, KEEPS_CHECKPOINT, READER_KEY, SPARK_QUERY
from zkconsumer.member.migration_rules import ADVERTISED, BY_BROKERS
from zkconsumer.operations.group_snapshot import (
    BrokersGroup,
    BrokersMember,
    GroupSnapshot,
    KafkaOffset,
    LogState,
    MemberNode,
    OffsetNode,
    OwnerNode,
    Problem,
    TopicNode,
)
from zkconsumer.operations.offset_reset import (
    PartitionReset,
    ResetPlan,
    ResetRefusedError,
    ResetTarget,
    Scenario,
    plan_reset,
    stores_in_use,
)

ALL = PartitionSelection({})
OURS = {"zkconsumer": "1.0"}
LOGS = {"t:0": (10, 100), "t:1": (0, 0), "t:2": (0, 50)}
T0, T1, T2 = map(partition, LOGS)


def snapshot(offsets: Mapping[str, int] = {"t:0": 40, "t:2": 20}, **more: Any) -> GroupSnapshot:
    return group_snapshot(offsets=offsets, logs=LOGS, **more)


def new_offsets(plan: ResetPlan) -> dict[str, int]:
    assert not plan.errors, plan.errors
    return {str(one.partition): one.new for one in plan.resets}


@pytest.mark.parametrize(
    ("target", "topics", "expected"),
    [
        (ResetTarget(Scenario.TO_EARLIEST), ["t"], (10, 0, 0)),
        (ResetTarget(Scenario.TO_LATEST), ["t"], (100, 0, 50)),
        (ResetTarget(Scenario.TO_CURRENT), ["t"], (40, 0, 20)),
        (ResetTarget(Scenario.TO_OFFSET, 5), ["t"], (10, 0, 5)),
        (ResetTarget(Scenario.TO_OFFSET, 60), ["t"], (60, 0, 50)),
        (ResetTarget(Scenario.SHIFT_BY, -15), ["t:0,2"], (25, None, 5)),
        (ResetTarget(Scenario.SHIFT_BY, 1000), [], (100, None, 50)),
        (ResetTarget(Scenario.FROM_FILE, offsets={T0: 11, T1: 7}), [], (11, 0, None)),
        (ResetTarget(Scenario.TO_DATETIME, by_time={T0: 33, T1: None, T2: 44}), ["t"], (33, 0, 44)),
        (ResetTarget(Scenario.BY_DURATION, by_time={T2: 0}), ["t:2"], (None, None, 0)),
    ],
)
def test_each_scenario_gives_the_offsets_of_kafkas_tool(
    target: ResetTarget, topics: list[str], expected: tuple[int | None, ...]
) -> None:
    plan = plan_reset(snapshot(), target, parse_selection(topics))
    wanted = zip(("t-0", "t-1", "t-2"), expected, strict=True)
    assert new_offsets(plan) == {name: offset for name, offset in wanted if offset is not None}


def test_clamped_offsets_and_empty_partitions_are_told() -> None:
    beyond = plan_reset(snapshot(), ResetTarget(Scenario.TO_OFFSET, 60), parse_selection(["t:1,2"]))
    assert beyond.warnings == (
        "New offset (60) is higher than latest offset for topic partition t-1. Value will be set to 0",
        "New offset (60) is higher than latest offset for topic partition t-2. Value will be set to 50",
    )
    before = plan_reset(snapshot(), ResetTarget(Scenario.SHIFT_BY, -39), parse_selection(["t:0"]))
    assert before.warnings == (
        "New offset (1) is lower than earliest offset for topic partition t-0. Value will be set to 10",
    )
    late = plan_reset(snapshot(), ResetTarget(Scenario.TO_DATETIME, by_time={T1: None}), parse_selection(["t:1"]))
    assert late.notes == ("Warn: Partition 1 from topic t is empty. Falling back to latest known offset.",)


@pytest.mark.parametrize(
    ("target", "topics", "error"),
    [
        (
            ResetTarget(Scenario.SHIFT_BY, 1),
            ["t:1"],
            "Cannot shift offset for partition t-1 since there is no current committed offset",
        ),
        (ResetTarget(Scenario.TO_EARLIEST), ["t:7"], "Partition t-7 does not exist."),
        (ResetTarget(Scenario.TO_EARLIEST), ["u"], "Topic 'u' does not exist."),
        (ResetTarget(Scenario.TO_EARLIEST), ["u:3"], "Topic 'u' does not exist."),
        (ResetTarget(Scenario.FROM_FILE), [], "No reset plan for group g found"),
        (ResetTarget(Scenario.FROM_FILE, offsets={partition("u:0"): 1}), [], "Topic 'u' does not exist."),
        (ResetTarget(Scenario.TO_DATETIME), ["t:0"], "Error getting offset by timestamp of topic partition: t-0"),
    ],
)
def test_one_bad_partition_refuses_the_whole_group(target: ResetTarget, topics: list[str], error: str) -> None:
    plan = plan_reset(snapshot(), target, parse_selection([*topics, *(["t:0"] if topics else [])]))
    assert error in plan.errors
    assert plan.resets == ()


@pytest.mark.parametrize(
    "scenario", [one for one in Scenario if one not in (Scenario.TO_DATETIME, Scenario.BY_DURATION)]
)
def test_an_offset_is_never_guessed(scenario: Scenario) -> None:
    """The log is unknown, the topic's partitions are unknown, or the present offset is no number."""
    target = ResetTarget(scenario, 5, {T0: 5})
    known = snapshot()
    log = replace(known, logs={T0: LogState(problem="no leader")}, offsets={})
    topic = replace(known, topics={"t": TopicNode((), problem="malformed")})
    for doubtful in (log, topic):
        assert plan_reset(doubtful, target, parse_selection(["t:0"])).errors
    unreadable = replace(known, offsets={T0: OffsetNode(None, stat(), "no number: b'x'")})
    refused = plan_reset(unreadable, target, parse_selection(["t:0"])).errors
    assert bool(refused) == (scenario in (Scenario.TO_CURRENT, Scenario.SHIFT_BY))


def test_offsets_of_dead_topics_are_left_out_of_all_topics() -> None:
    plan = plan_reset(snapshot({"t:0": 40, "gone:0": 3, "t:9": 1}), ResetTarget(Scenario.TO_EARLIEST), ALL)
    assert new_offsets(plan) == {"t-0": 10}
    assert len(plan.warnings) == 2
    assert all("offsets prune" in warning for warning in plan.warnings)


# ---- stores ----


def test_the_larger_offset_of_both_stores_is_the_present_one() -> None:
    """Members with dual commit start at it."""
    both = snapshot(kafka_offsets={T0: KafkaOffset(45), T2: KafkaOffset(15)})
    assert stores_in_use(both) == (Store.ZOOKEEPER, Store.KAFKA)
    shifted = ResetTarget(Scenario.SHIFT_BY, 1)
    assert new_offsets(plan_reset(both, shifted, ALL)) == {"t-0": 46, "t-2": 21}
    assert new_offsets(plan_reset(both, shifted, ALL, [Store.KAFKA])) == {"t-0": 46, "t-2": 16}


def test_minus_one_in_zookeeper_is_no_offset() -> None:
    plan = plan_reset(snapshot({"t:0": -1}), ResetTarget(Scenario.SHIFT_BY, 1), ALL)
    assert "no current committed offset" in plan.errors[0]


@pytest.mark.parametrize(
    ("found", "stores"),
    [
        (snapshot({}), (Store.ZOOKEEPER,)),
        (GroupSnapshot("g", 0, zookeeper="z", bootstrap="b"), (Store.KAFKA,)),
        (GroupSnapshot("g", 0, zookeeper="z"), (Store.ZOOKEEPER,)),
        (GroupSnapshot("g", 0, bootstrap="b", kafka_offsets={T0: KafkaOffset(1)}), (Store.KAFKA,)),
    ],
)
def test_a_group_without_offsets_gets_them_where_it_lives(found: GroupSnapshot, stores: tuple[Store, ...]) -> None:
    assert stores_in_use(found) == stores


# ---- live groups ----


def owned_by(extra: Mapping[str, object], **more: Any) -> GroupSnapshot:
    return snapshot(members={"g_a": {"t": 1}}, owners={"t:0": "g_a-0"}, extra={"g_a": extra}, **more)


def test_an_adopting_owner_allows_a_reset() -> None:
    plan = plan_reset(owned_by({**OURS, CONFLICT_KEY: "adopt"}), ResetTarget(Scenario.TO_EARLIEST), ALL)
    assert {str(one.partition): one.owner for one in plan.resets} == {"t-0": "g_a", "t-2": None}


@pytest.mark.parametrize(
    ("extra", "named"),
    [
        ({}, "the Scala member g_a owns it"),
        (OURS, "g_a owns it and does not advertise"),
        ({**OURS, CONFLICT_KEY: "overwrite"}, "offset.conflict=overwrite"),
        ({**OURS, CONFLICT_KEY: ["adopt"]}, "offset.conflict="),
        ({**OURS, CONFLICT_KEY: KEEPS_CHECKPOINT, READER_KEY: SPARK_QUERY}, "the Spark query g_a"),
        ({**OURS, CONFLICT_KEY: "adopt", ADVERTISED: BY_BROKERS}, "takes part in a migration"),
        ({"other": "tool", CONFLICT_KEY: "adopt"}, "g_a owns it"),
    ],
)
def test_any_other_owner_is_refused_by_name(extra: Mapping[str, object], named: str) -> None:
    plan = plan_reset(owned_by(extra), ResetTarget(Scenario.TO_EARLIEST), parse_selection(["t:0,2"]))
    assert plan.errors[0].startswith(
        "Assignments can only be reset if the group 'g' is inactive, but the current state"
    )
    assert named in plan.errors[1]
    assert plan.resets == ()
    others = plan_reset(owned_by(extra), ResetTarget(Scenario.TO_EARLIEST), parse_selection(["t:2"]))
    assert new_offsets(others) == {"t-2": 0}


@pytest.mark.parametrize(
    ("owner", "member", "named"),
    [
        (OwnerNode("", stat(), "we may not read it"), None, "cannot be read"),
        (OwnerNode("g_gone-0", stat(ephemeral_owner=9)), None, "g_gone owns it and is not registered"),
        (OwnerNode("g_a-0", stat(ephemeral_owner=9)), None, "another session"),
        (OwnerNode("g_a-0", stat()), None, "is persistent"),
        (OwnerNode("g_a-0", stat(ephemeral_owner=1)), MemberNode(None, stat(), "no JSON"), "cannot be read (no JSON)"),
    ],
)
def test_an_owner_that_cannot_be_judged_is_refused(owner: OwnerNode, member: MemberNode | None, named: str) -> None:
    found = owned_by({**OURS, CONFLICT_KEY: "adopt"})
    members = {name: member or node for name, node in found.members.items()}
    plan = plan_reset(replace(found, owners={T0: owner}, members=members), ResetTarget(Scenario.TO_EARLIEST), ALL)
    assert named in plan.errors[1]


@pytest.mark.parametrize(("state", "refused"), [("Empty", False), ("Dead", False), ("Stable", True), ("", True)])
def test_a_brokers_group_is_refused_in_kafkas_words(state: str, refused: bool) -> None:
    found = snapshot(brokers_group=BrokersGroup(state))
    errors = plan_reset(found, ResetTarget(Scenario.TO_EARLIEST), ALL).errors
    text = f"Assignments can only be reset if the group 'g' is inactive, but the current state is {state}."
    assert errors == ((text,) if refused else ())


def test_members_of_a_brokers_group_are_named() -> None:
    group = BrokersGroup("Stable", members=(BrokersMember("id", "client-7", "/10.0.0.1"),))
    (error,) = plan_reset(snapshot(brokers_group=group), ResetTarget(Scenario.TO_EARLIEST), ALL).errors
    assert "client-7 (/10.0.0.1)" in error


@pytest.mark.parametrize(
    ("what", "refused"),
    [
        ("ZooKeeper h:1", True),
        ("/consumers/g/owners", True),
        ("/consumers/g/ids", True),
        ("brokers' group 'g'", True),
        ("offsets of group 'g' in Kafka", None),
        ("brokers", None),
        ("/consumers/g/offsets/t", False),
        ("leaders of partitions", False),
    ],
)
def test_nothing_is_planned_from_a_half_read_group(what: str, refused: bool | None) -> None:
    """If the offsets in Kafka are unknown (None), the group may have dual commit; then the user names the store."""
    found, target = snapshot(problems=(Problem(what, "no answer"),)), ResetTarget(Scenario.TO_EARLIEST)
    assert bool(plan_reset(found, target, ALL, [Store.ZOOKEEPER]).errors) == bool(refused)
    assert bool(plan_reset(found, target, ALL).errors) == (refused is not False)


# ---- any snapshot ----


@given(
    offsets=st.dictionaries(st.sampled_from(["t:0", "t:1", "t:2"]), st.integers(-1, 200)),
    number=st.integers(-(1 << 63), (1 << 63) - 1),
    scenario=st.sampled_from([Scenario.TO_OFFSET, Scenario.SHIFT_BY, Scenario.TO_EARLIEST, Scenario.TO_LATEST]),
)
def test_a_new_offset_is_always_in_its_log(offsets: dict[str, int], number: int, scenario: Scenario) -> None:
    plan = plan_reset(snapshot(offsets), ResetTarget(scenario, number), parse_selection(["t"]))
    assert bool(plan.errors) == (scenario is Scenario.SHIFT_BY and any(offsets.get(t, -1) < 0 for t in LOGS))
    for one in plan.resets:
        start, end = LOGS[f"t:{one.partition.partition}"]
        assert start <= one.new <= end
        assert one.lag_after == end - one.new
        gone = 0 if one.current is None else max(0, start - one.current)
        moved = 0 if one.current is None else one.new - one.current - gone
        words = "first offset" if one.current is None else f"{gone} gone" if gone else "no change"
        more = f", {gone} gone" if gone else ""
        assert one.effect == (f"skips {moved}{more}" if moved > 0 else f"repeats {-moved}" if moved < 0 else words)


@pytest.mark.parametrize(
    ("shift", "committed", "new"),
    [
        (-30, 202, 172),
        (-30, 260, 230),  # the log has grown since the plan: its known end holds nothing back
        (10, 260, 260),
        (-300, 202, 50),
        (0, 202, 202),
        (None, 202, 162),
    ],
)
def test_a_live_reset_follows_the_overwritten_offset(shift: int | None, committed: int, new: int) -> None:
    planned = PartitionReset(partition("t:0"), 192, 162, 240, start=50, shift=shift)
    found = planned.overwriting(committed)
    assert (found.current, found.new) == (committed, new)


@pytest.mark.parametrize(
    ("stored", "current", "new"), [(90, 5000, 4970), (None, 5000, 4970), (4999, 5000, 4970), (5060, 5060, 5030)]
)
def test_an_old_offset_in_the_other_store_does_not_count(stored: int | None, current: int, new: int) -> None:
    """Bug: a live reset by -30 of a group with offsets in Kafka started from the group's old offset in ZooKeeper."""
    held = {Store.ZOOKEEPER: 90, Store.KAFKA: 5000}
    planned = PartitionReset(partition("t:0"), 5000, 4970, 6000, held=held, start=0, shift=-30)
    found = planned.overwriting(stored)
    assert (found.current, found.new) == (current, new)


def test_a_relative_reset_needs_an_offset_to_overwrite() -> None:
    with pytest.raises(ResetRefusedError, match="gone"):
        PartitionReset(partition("t:0"), 192, 162, 240, start=50, shift=-30).overwriting(None)


def test_deleted_messages_are_counted_apart() -> None:
    """Offset 10, log 50 to 100: a reset said 90 where ``describe`` said 50."""
    stays = PartitionReset(partition("t:0"), 10, 10, 100, start=50)
    assert stays.lag_after == 50
    assert PartitionReset(partition("t:0"), 10, 50, 100, start=50).effect == "40 gone"
    assert PartitionReset(partition("t:0"), 10, 70, 100, start=50).effect == "skips 20, 40 gone"
