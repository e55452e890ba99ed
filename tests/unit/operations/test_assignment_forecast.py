"""Forecasts of changes, compared with the assignors themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from time import process_time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from tests.group_snapshots import group_snapshot, partition
from tests.timing import scaled
from zkconsumer.assignors import Member, RangeAssignor
from zkconsumer.model import ConsumerId, thread_id
from zkconsumer.operations.assignment_forecast import (
    Change,
    Forecast,
    ForecastError,
    Join,
    Kill,
    Leave,
    MorePartitions,
    UseStrategy,
    find_member,
    forecast,
)
from zkconsumer.operations.group_snapshot import BrokersGroup, BrokersMember, MemberNode
from zkconsumer.zookeeper.node_values import ZooKeeperServer

OURS = {"zkconsumer": "1.0", "strategy": "range", "host": "a", "address": "10.0.0.1"}
LOGS = {f"t:{n}": (0, 10) for n in range(6)}
TWO = {"g_a": {"t": 1}, "g_b": {"t": 1}}
BY_RANGE = {f"t:{n}": "g_a-0" if n < 3 else "g_b-0" for n in range(6)}
ALL_OURS: Any = dict.fromkeys(TWO, OURS)


def made(*changes: Change, members: Any = TWO, owners: Any = BY_RANGE, logs: Any = LOGS, **more: Any) -> Forecast:
    return forecast(group_snapshot(members, owners, logs=logs, **more), changes)


def moved(found: Forecast) -> dict[str, tuple[str | None, str | None]]:
    return {str(move.partition): (move.before, move.after) for move in found.moves}


def test_a_member_that_joins_gets_its_part() -> None:
    found = made(Join("c"), extra=ALL_OURS)
    (new,) = found.joined
    assert new.startswith("g_c-")
    assert moved(found) == {"t-2": ("g_a-0", "g_b-0"), "t-4": ("g_b-0", f"{new}-0"), "t-5": ("g_b-0", f"{new}-0")}
    assert (found.stays, found.idle) == (3, ())


def test_a_member_that_joins_has_its_streams() -> None:
    found = made(Join("c", 3), extra=ALL_OURS, logs={**LOGS, "t:6": (0, 1)})
    assert len([thread for thread in found.after.values() if thread.startswith(found.joined[0])]) == 3
    assert len(made(Join("c", 9), extra=ALL_OURS).idle) == 11 - 6


@pytest.mark.parametrize("change", [Leave("g_b"), Kill("g_b"), Leave("_b")], ids=["leave", "kill", "by a part"])
def test_a_member_that_goes_loses_its_part(change: Change) -> None:
    assert moved(made(change, extra=ALL_OURS)) == {f"t-{n}": ("g_b-0", "g_a-0") for n in (3, 4, 5)}


def test_new_partitions_are_no_moves_of_old_ones() -> None:
    found = made(MorePartitions(2), extra=ALL_OURS)
    assert moved(found) == {"t-3": ("g_b-0", "g_a-0"), "t-6": (None, "g_b-0"), "t-7": (None, "g_b-0")}
    (in_effect,) = [one for one in found.outcomes if one.in_effect]
    assert (in_effect.strategy, in_effect.moves, in_effect.least, in_effect.most) == ("range", 1, 4, 4)
    assert moved(made(MorePartitions(2, "t"), extra=ALL_OURS)) == moved(found)


def test_another_strategy_moves_partitions() -> None:
    found = made(UseStrategy("roundrobin"), extra=ALL_OURS)
    assert moved(found) == {"t-1": ("g_a-0", "g_b-0"), "t-4": ("g_b-0", "g_a-0")}
    (outcome,) = [one for one in found.outcomes if one.in_effect]
    assert (outcome.strategy, outcome.moves, outcome.switch) == ("roundrobin (1.x)", 0, 2)


def test_strategies_stand_side_by_side() -> None:
    found = made(Join("c"), extra=ALL_OURS)
    assert [one.strategy for one in found.outcomes][:3] == ["range", "roundrobin (1.x)", "roundrobin (0.x)"]
    by_name = {one.strategy: one for one in found.outcomes}
    assert "assignment.table" in by_name["configured"].problem
    assert by_name["configured"].moves is None
    assert by_name["average"] == replace(by_name["range"], strategy="average", in_effect=False)


wanted_members = some.dictionaries(
    some.sampled_from(["g_a", "g_b", "g_c", "g_c2"]),
    some.dictionaries(some.sampled_from(["t", "u"]), some.integers(1, 3), min_size=1),
    min_size=1,
)


@settings(max_examples=30, deadline=None)
@given(
    members=wanted_members,
    sizes=some.dictionaries(some.sampled_from(["t", "u"]), some.integers(1, 9), min_size=1),
    leaves=some.booleans(),
)
def test_moves_are_the_difference_of_two_assignments(
    members: Mapping[str, Mapping[str, int]], sizes: Mapping[str, int], leaves: bool
) -> None:
    """The assignor itself makes the assignments before and after the change."""
    logs = {f"{topic}:{n}": (0, 1) for topic, count in sizes.items() for n in range(count)}
    goes = sorted(members)[0]
    change: Change = Leave(goes) if leaves else MorePartitions(2, sorted(sizes)[0])
    subscribed = {topic for topics in members.values() for topic in topics}
    if not leaves and sorted(sizes)[0] not in subscribed:
        return
    found = made(change, members=members, owners={}, logs=logs, extra=dict.fromkeys(members, OURS))

    def assigned(names: list[str], partitions: Mapping[str, int]) -> Mapping[Any, str]:
        group = {
            ConsumerId(name): Member(
                {t: tuple(thread_id(ConsumerId(name), n) for n in range(c)) for t, c in members[name].items()}
            )
            for name in names
        }
        return RangeAssignor().assign(group, {topic: list(range(count)) for topic, count in partitions.items()})

    before = assigned(list(members), sizes)
    after_sizes = sizes if leaves else {**sizes, sorted(sizes)[0]: sizes[sorted(sizes)[0]] + 2}
    after = assigned([name for name in members if not (leaves and name == goes)], after_sizes)
    differing = {tp: (before.get(tp), after.get(tp)) for tp in {*before, *after} if before.get(tp) != after.get(tp)}
    assert {move.partition: (move.before, move.after) for move in found.moves} == differing
    assert found.stays == sum(after.get(tp) == thread for tp, thread in before.items())
    (outcome,) = [one for one in found.outcomes if one.in_effect]
    assert outcome.moves == outcome.switch == sum(tp in before for tp in differing)


def pauses(found: Forecast) -> dict[str, tuple[int, str]]:
    return {pause.whose: (pause.partitions, pause.how_long) for pause in found.pauses}


def test_ours_pause_only_what_moves() -> None:
    found = pauses(made(Join("c"), extra=ALL_OURS))
    assert found["members of zkconsumer, what stays"] == (3, "no pause")
    assert found["members of zkconsumer, what moves"][0] == 3


def test_scala_members_stop_everything() -> None:
    found = pauses(made(Join("c"), extra={"g_a": OURS}))
    assert found["Scala members"][0] == 3
    assert "1 of them only to claim them again" in found["Scala members"][1]
    assert found["members of zkconsumer, what stays"][0] == 2


def test_a_kill_adds_the_session_timeout() -> None:
    server = ZooKeeperServer("h:2181", sessions={2: ("/10.0.0.2", 12_000)})
    known = pauses(made(Kill("g_b"), extra=ALL_OURS, servers=(server,)))
    assert known["g_b, which dies"] == (3, "its session timeout, 12 s, and then a rebalance")
    assert "6 s by default, at most 40 s" in pauses(made(Kill("g_b"), extra=ALL_OURS))["g_b, which dies"][1]
    assert "g_b, which dies" not in pauses(made(Leave("g_b"), extra=ALL_OURS))


def test_another_strategy_restarts_every_member() -> None:
    assert pauses(made(UseStrategy("average"), extra=ALL_OURS))["every member"][0] == 6


def test_a_plug_in_comes_into_effect_when_the_last_other_leaves() -> None:
    """Members fall back to range beside a Scala member, and use their own strategy again without it."""
    extra = {"g_a": {**OURS, "strategy": "average-by-circle"}}
    found = made(Leave("g_b"), Join("c"), extra=extra)
    assert found.strategy.name == "average-by-circle"
    assert any("range is no longer in effect" in note for note in found.notes)
    assert set(found.after.values()) == {"g_a-0", f"{found.joined[0]}-0"}


def test_notes_say_what_the_plan_leans_on() -> None:
    unsettled = made(Join("c"), owners={"t:0": "g_b-0"})
    assert any("the strategy is not sure" in note for note in unsettled.notes)
    assert any("the plan starts from what should be" in note for note in unsettled.notes)
    assert any("g_b are Scala" in note for note in made(UseStrategy("average"), extra={"g_a": OURS}).notes)
    assert made(Leave("g_a"), Leave("g_b")).notes[-1] == "no member is left: nobody consumes"
    snapshot = group_snapshot(TWO, BY_RANGE, logs=LOGS)
    snapshot = replace(snapshot, members={**snapshot.members, ConsumerId("g_x"): MemberNode(None, None, "no JSON")})
    assert any("g_x cannot be read" in note for note in forecast(snapshot, [Join("c")]).notes)
    gone = forecast(snapshot, [Leave("g_x")])
    assert not any("g_x cannot be read" in note for note in gone.notes)


def brokers(strategy: str, *owned: int) -> dict[str, Any]:
    """A brokers' group with a member for each number, which owns so many of the six partitions."""
    every = list(group_snapshot(logs=LOGS).logs)
    members = []
    for number, count in enumerate(owned, 1):
        given, every = tuple(every[:count]), every[count:]
        members.append(BrokersMember(f"m-{number}", "c", "/h", assignment=given, topics=("t",)))
    group = BrokersGroup("Stable", strategy, members=tuple(members))
    return {"members": {}, "owners": {}, "brokers_group": group, "group_node": None, "ids_node": None}


IN_BROKERS = brokers("range", 3, 3)


def test_a_brokers_group_with_range_moves_as_the_leader_would() -> None:
    found = made(Leave("m-1"), **IN_BROKERS)
    assert moved(found) == {f"t-{n}": ("m-1", "m-2") for n in range(3)}
    assert pauses(found)["all members"][0] == 6
    joined = made(Join("n"), **IN_BROKERS)
    assert any("random part" in note for note in joined.notes)
    assert str(joined.after[partition("t:5")]) == str(joined.joined[0])


def test_a_cooperative_brokers_group_moves_the_least() -> None:
    found = made(Join("n"), **brokers("cooperative-sticky", 3, 3))
    assert (len(found.moves), found.stays) == (2, 4)
    assert pauses(found) == {"what moves": (2, "from one rebalance to the next"), "what stays": (4, "no pause")}
    killed = pauses(made(Kill("m-2"), **brokers("cooperative-sticky", 3, 3)))
    assert killed["m-2, which dies"][0] == 3
    by_name = {one.strategy: one for one in found.outcomes}
    assert (by_name["sticky"].moves, by_name["range"].moves, by_name["roundrobin"].moves) == (2, 3, 4)
    assert [one.strategy for one in found.outcomes if one.in_effect] == ["cooperative-sticky"]


def test_a_brokers_group_takes_partitions_and_strategies() -> None:
    more = made(MorePartitions(2), **IN_BROKERS)
    assert moved(more) == {"t-3": ("m-2", "m-1"), "t-6": (None, "m-2"), "t-7": (None, "m-2")}
    other = made(UseStrategy("roundrobin"), **IN_BROKERS)
    assert (other.strategy.name, len(other.moves)) == ("roundrobin", 2)
    nobody = made(Leave("m-1"), Leave("m-2"), **IN_BROKERS)
    assert nobody.notes == ("no member is left: nobody consumes",)
    group = replace(IN_BROKERS["brokers_group"], state="PreparingRebalance")
    assert made(Join("n"), **{**IN_BROKERS, "brokers_group": group}).notes[0] == "the group is PreparingRebalance now"


WRONG: list[tuple[dict[str, Any], Change, str]] = [
    ({}, Leave("g_z"), "no member is called 'g_z'; name one of g_a, g_b"),
    ({}, Leave("g_"), "2 members have 'g_' in their id"),
    ({"members": {}}, Leave("a"), "the group has no members"),
    ({"members": {}}, Join("c"), "no readable member"),
    ({}, Join("c", 10_001), "10001 streams"),
    ({}, MorePartitions(1, "other"), "no member subscribes to a topic 'other'; known are t"),
    ({}, MorePartitions(999_999), "at most 200000"),
    ({}, UseStrategy("nonsense"), "no strategy is called 'nonsense'"),
    ({}, UseStrategy("configured"), "assignment.table"),
    (
        IN_BROKERS,
        UseStrategy("average"),
        "the strategy 'average' cannot be computed from here; --strategy may be range",
    ),
    (IN_BROKERS, Leave("x"), "no member is called 'x'; name one of m-1, m-2"),
    (IN_BROKERS, Join("c", 1_001), "1001 members"),
    ({"members": {}, "owners": {}, "logs": {}, "group_node": None}, Join("c"), "there is no such group"),
    (
        {"extra": {name: {**OURS, "coordination": "kafka"} for name in TWO}},
        Join("c"),
        "all members of g are migration bridges",
    ),
]


@pytest.mark.parametrize(("group", "change", "said"), WRONG, ids=[row[2][:30] for row in WRONG])
def test_a_change_that_cannot_be_made_is_refused(group: dict[str, Any], change: Change, said: str) -> None:
    with pytest.raises(ForecastError) as refused:
        made(change, **group)
    assert said in str(refused.value)


def test_an_exact_id_is_found_beside_a_longer_one() -> None:
    assert find_member("g_a", {ConsumerId("g_a"), ConsumerId("g_a2")}) == "g_a"


def test_the_pauses_of_many_partitions_are_found_quickly() -> None:
    """The partitions of Scala members were put into a new set for each partition."""
    logs = {f"t:{n}": (0, 10) for n in range(10_000)}
    owners = {text: "g_a-0" if n < len(logs) / 2 else "g_b-0" for n, text in enumerate(logs)}
    began = process_time()
    found = made(Leave("g_b"), owners=owners, logs=logs)
    assert process_time() - began < scaled(4)
    assert sum(one.partitions for one in found.pauses) == len(logs)
