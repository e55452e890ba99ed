"""Kinds, strategies, expected owners and states, from tables of snapshots."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from tests.group_snapshots import NOW, group_snapshot, partition, stat
from zkconsumer.assignors import Member
from zkconsumer.assignors.scala_assignors import RoundRobinAssignor
from zkconsumer.core.registration import WHITE_LIST, Registration
from zkconsumer.model import ConsumerId, thread_id
from zkconsumer.operations import group_view
from zkconsumer.operations.group_snapshot import (
    FORBIDDEN_NODE,
    BrokersGroup,
    BrokersMember,
    GroupSnapshot,
    MemberNode,
    OwnerNode,
    Problem,
)
from zkconsumer.operations.group_state import GroupState
from zkconsumer.operations.group_view import GroupAnalysis, MemberKind, is_unread
from zkconsumer.operations.strategy_inference import RANGE, ROUNDROBIN, ROUNDROBIN_OLD, Strategy
from zkconsumer.zookeeper.node_values import ZooKeeperServer

OURS = {"zkconsumer": "1.0", "strategy": "range"}
OLD_ROUNDROBIN = {**OURS, "strategy": "roundrobin", "scala.compat.version": "0.8"}
LOGS = {f"t:{n}": (0, 10) for n in range(7)}
THREE = {"g_a": {"t": 1}, "g_b": {"t": 1}, "g_c": {"t": 1}}
TWO_TOPICS = {name: {"orders": 1, "clicks": 1} for name in THREE}
LOGS_OF_TWO = {f"{topic}:{n}": (0, 10) for topic in ("orders", "clicks") for n in range(7)}
BY_RANGE = dict(zip(LOGS, ["g_a-0"] * 3 + ["g_b-0"] * 2 + ["g_c-0"] * 2, strict=True))


def owned_by(strategy: Strategy, snapshot: GroupSnapshot) -> dict[str, str]:
    """The owners by a strategy, as :func:`group_snapshot` wants them."""
    found = group_view.GroupAnalysis(snapshot, strategy=strategy).expected
    return {f"{tp.topic}:{tp.partition}": thread for tp, thread in found.items()}


@pytest.mark.parametrize(
    ("extra", "kind"),
    [
        ({}, MemberKind.SCALA),
        (OURS, MemberKind.ZKCONSUMER),
        ({**OURS, "coordination": "kafka"}, MemberKind.BRIDGE),
        ({**OURS, "reader": "spark"}, MemberKind.SPARK),
        ({"vendor": "x"}, MemberKind.UNKNOWN),
    ],
)
def test_a_registration_tells_the_kind_of_its_member(extra: Mapping[str, object], kind: MemberKind) -> None:
    snapshot = group_snapshot({"g_a": {"t": 1}}, extra={"g_a": extra})
    assert group_view.member_kind(snapshot.members[ConsumerId("g_a")]) is kind


def test_an_unreadable_registration_is_of_unknown_kind() -> None:
    assert group_view.member_kind(MemberNode(None, None, "no JSON")) is MemberKind.UNKNOWN


def test_threads_and_topics_come_from_the_subscriptions() -> None:
    snapshot = group_snapshot({"g_a": {"t": 2}, "g_b": {"u": 1}}, logs=LOGS)
    assert group_view.GroupAnalysis(snapshot).threads[ConsumerId("g_a")] == {"t": ("g_a-0", "g_a-1")}
    assert group_view.GroupAnalysis(snapshot).subscribed == {"t", "u"}


def test_a_failing_filter_leaves_its_member_its_partitions() -> None:
    """As in a member's own view, the member with the bad filter gets no share, and keeps the owned partitions."""
    snapshot = group_snapshot({"g_a": {"t": 1}}, {"t:0": "g_bad-0"}, logs=LOGS)
    bad = MemberNode(Registration(WHITE_LIST, {"(": 1}), stat())
    snapshot = replace(snapshot, members={**snapshot.members, ConsumerId("g_bad"): bad})
    expected = group_view.GroupAnalysis(snapshot).expected
    assert expected[partition("t:0")] == "g_bad-0"
    assert set(expected.values()) == {"g_bad-0", "g_a-0"}
    assert "/consumers/g/ids/g_bad" in GroupAnalysis(snapshot).view.unreadable


def test_a_filter_that_was_too_slow_once_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: a filter that exceeded its time limit once counted as unreadable until the members changed."""
    node = MemberNode(Registration(WHITE_LIST, {"t.*": 1}), stat())
    snapshot = replace(group_snapshot({"g_a": {"t": 1}}, logs=LOGS), members={ConsumerId("g_a"): node})
    with monkeypatch.context() as busy:
        busy.setattr(group_view, "failing_filters", lambda *_, **__: {ConsumerId("g_a"): "did not finish"})
        before = GroupAnalysis(snapshot)
        assert before.view.unreadable
        assert before.expected == {}
    later = before.of_later(replace(snapshot, taken=NOW + 60_000), ())
    assert not later.view.unreadable
    assert later.expected.keys() == {partition(name) for name in LOGS}


@pytest.mark.parametrize("strategy", [RANGE, ROUNDROBIN, ROUNDROBIN_OLD], ids=lambda one: one.label)
def test_the_owners_of_scala_members_tell_the_strategy(strategy: Strategy) -> None:
    bare = group_snapshot(TWO_TOPICS, logs=LOGS_OF_TWO)
    found = group_view.GroupAnalysis(group_snapshot(TWO_TOPICS, owned_by(strategy, bare), logs=LOGS_OF_TWO)).strategy
    assert (found.label, found.sure) == (strategy.label, True)
    assert "no other does" in found.why
    assert set(found.by_member.values()) == {(strategy.label,)}


def test_two_orders_of_equal_outcome_are_one_strategy() -> None:
    """Both hashes put the few partitions of one topic in the same order."""
    bare = group_snapshot(THREE, logs=LOGS)
    found = group_view.GroupAnalysis(group_snapshot(THREE, owned_by(ROUNDROBIN, bare), logs=LOGS)).strategy
    assert (found.label, found.scala_release, found.sure) == ("roundrobin", "", True)


def all_with(extra: Mapping[str, object], **others: Mapping[str, object]) -> dict[str, Any]:
    """Three members that advertise this, but for ``others``."""
    return {"members": THREE, "extra": {**dict.fromkeys(THREE, extra), **others}}


AVERAGE, MINE = {**OURS, "strategy": "average"}, {**OURS, "strategy": "mine"}
ALONE = {"members": {"g_a": {"t": 1}}, "owners": dict.fromkeys(LOGS, "g_a-0")}
SCALA = {"members": THREE, "owners": BY_RANGE}
STRATEGIES: list[tuple[str, dict[str, Any], str, bool, str]] = [
    ("no member", {}, "", False, "no member is registered"),
    ("nothing owned", {"members": THREE}, "range", False, "original's default"),
    ("a single member", ALONE, "range", False, "also"),
    ("all advertise", all_with(OURS), "range", True, "all 3 members"),
    ("a plug-in for all", all_with(AVERAGE), "average", True, "all 3 members advertise it"),
    ("a plug-in beside Scala", {**SCALA, "extra": {"g_a": AVERAGE}}, "range", True, "advertise it, others average"),
    ("plug-ins that differ", all_with(AVERAGE, g_c=MINE), "range", False, "nothing advertised, nothing owned"),
    ("range beside Scala", {**SCALA, "extra": {"g_a": OURS}}, "range", True, "no other"),
    ("old order", all_with(OLD_ROUNDROBIN), "roundrobin (0.x)", True, "all 3"),
    ("ours contend", all_with(OURS, g_c={**OURS, "strategy": "roundrobin"}), "range", False, "g_c: roundrobin (1.x)"),
]


@pytest.mark.parametrize(("case", "given", "label", "sure", "why"), STRATEGIES, ids=[row[0] for row in STRATEGIES])
def test_the_strategy_in_effect(case: str, given: dict[str, Any], label: str, sure: bool, why: str) -> None:
    del case
    found = group_view.GroupAnalysis(group_snapshot(logs=LOGS, **given)).strategy
    assert (found.label, found.sure) == (label, sure), found
    assert why in found.why


def test_a_mixed_group_names_the_odd_member() -> None:
    """Two Scala members use range. The third member uses roundrobin, and claims the free partitions of its share."""
    bare = group_snapshot(TWO_TOPICS, logs=LOGS_OF_TWO)
    owners = {tp: thread for tp, thread in owned_by(RANGE, bare).items() if thread != "g_c-0"}
    owners |= {tp: thread for tp, thread in owned_by(ROUNDROBIN, bare).items() if thread == "g_c-0"}
    found = group_view.GroupAnalysis(group_snapshot(TWO_TOPICS, owners, logs=LOGS_OF_TWO)).strategy
    assert (found.name, found.sure) == ("range", False)
    assert "g_c (roundrobin (1.x) would explain it)" in found.why
    assert found.by_member[ConsumerId("g_c")] == ("roundrobin (1.x)",)


def test_expected_owners_are_the_assignors() -> None:
    snapshot = group_snapshot(THREE, logs=LOGS)
    members = {consumer: Member(by_topic) for consumer, by_topic in group_view.GroupAnalysis(snapshot).threads.items()}
    made = RoundRobinAssignor("0.10").assign(members, {"t": list(range(7))})
    assert group_view.GroupAnalysis(snapshot, strategy=ROUNDROBIN_OLD).expected == made
    assert owned_by(RANGE, snapshot) == BY_RANGE


@pytest.mark.parametrize(
    ("strategy", "why", "stable"),
    [("configured", "assignment.table", True), ("nobody-has-it", "no strategy is called 'nobody-has-it'", False)],
)
def test_an_unknown_table_or_plug_in_cannot_be_computed(strategy: str, why: str, stable: bool) -> None:
    """No node has the table of ``configured``, so nothing is guessed."""
    owners = dict.fromkeys(LOGS if stable else ["t:0"], "g_a-0")
    extra = {"g_a": {**OURS, "strategy": strategy}}
    analysis = GroupAnalysis(group_snapshot({"g_a": {"t": 1}}, owners, logs=LOGS, extra=extra))
    assert not analysis.expected
    assert why in analysis.problem
    assert (analysis.state.state is GroupState.STABLE) == stable


SOON = NOW - 45_000
"""Five seconds after the last change: nobody has lost patience yet."""
DEAD_OWNER, LEFT_OVER = {**BY_RANGE, "t:6": "g_dead-0"}, {**BY_RANGE, "u:0": "g_a-0"}
NO_NODES = {"group_node": None, "ids_node": None}


def unread(what: str, why: str = FORBIDDEN_NODE) -> dict[str, Any]:
    return {"problems": (Problem(what, why),)}


STATES: list[tuple[str, dict[str, Any], GroupState, str]] = [
    ("stable", SCALA, GroupState.STABLE, "all 7 partitions"),
    ("unowned", {"members": THREE, "owners": {"t:0": "g_a-0"}}, GroupState.REBALANCING, "nobody owns t-1, t-2"),
    ("dead owner", {"members": THREE, "owners": DEAD_OWNER}, GroupState.REBALANCING, "not registered owns t-6"),
    ("left over", {"members": THREE, "owners": LEFT_OVER}, GroupState.REBALANCING, "nobody should"),
    ("no partitions", {"members": {"g_a": {"new": 1}}}, GroupState.STABLE, "no partition to own"),
    ("empty", {"offsets": {"t:0": 1}}, GroupState.EMPTY, "no member is registered"),
    ("left owners", {"owners": {"t:0": "g_x-0"}}, GroupState.EMPTY, "1 owner nodes are left"),
    ("dead", NO_NODES, GroupState.DEAD, "no such group"),
    ("not asked", {**NO_NODES, "zookeeper": ""}, GroupState.UNKNOWN, "neither"),
    ("ids", unread("/consumers/g/ids"), GroupState.UNKNOWN, "ACL"),
    ("owners", {"members": THREE, **unread("/consumers/g/owners/t")}, GroupState.UNKNOWN, "owners/t cannot be read"),
    ("topic", {**SCALA, **unread("/brokers/topics/t")}, GroupState.UNKNOWN, "/brokers/topics/t cannot be read"),
    ("odd child", {**SCALA, **unread("/consumers/g/owners", "the child 'x' ...")}, GroupState.STABLE, "all 7"),
    ("away", {**NO_NODES, **unread("ZooKeeper h:2181", "no answer")}, GroupState.UNKNOWN, "no answer"),
    ("no brokers", {**NO_NODES, **unread("brokers", "no answer")}, GroupState.UNKNOWN, "brokers could not be asked"),
    ("brokers away from a group in ZooKeeper", {**SCALA, **unread("brokers", "away")}, GroupState.STABLE, "all 7"),
]


@pytest.mark.parametrize(("case", "given", "state", "reason"), STATES, ids=[row[0] for row in STATES])
def test_the_state_of_a_group(case: str, given: dict[str, Any], state: GroupState, reason: str) -> None:
    del case
    found = group_view.GroupAnalysis(replace(group_snapshot(logs=LOGS, **given), taken=SOON)).state
    assert (found.state, reason in found.reason) == (state, True), found


@pytest.mark.parametrize("age", [10.0, 1_000.0], ids=["a moment", "long"])
def test_a_group_that_stays_unstable_is_stuck(age: float) -> None:
    old = stat(500, age)
    snapshot = group_snapshot(THREE, logs=LOGS)
    snapshot = replace(
        snapshot,
        members={c: replace(node, stat=old) for c, node in snapshot.members.items()},
        owners={partition("t:0"): OwnerNode("g_a-0", old)},
    )
    stuck = age > GroupAnalysis(snapshot).patience
    assert group_view.GroupAnalysis(snapshot).state.state is (GroupState.STUCK if stuck else GroupState.REBALANCING)


def test_a_member_that_left_at_an_unknown_time_is_no_proof() -> None:
    """Its node's transaction has no time: only a later one, or an earlier snapshot, can tell."""
    snapshot = replace(group_snapshot(THREE, logs=LOGS), ids_node=stat(1, 9_000.0, pzxid=5_000))
    assert group_view.GroupAnalysis(snapshot).state.state is GroupState.REBALANCING
    earlier = replace(snapshot, taken=NOW - 500_000)
    assert group_view.GroupAnalysis(snapshot, [earlier]).state.state is GroupState.STUCK
    other = replace(earlier, ids_node=stat(1, 9_000.0, pzxid=4_000))
    assert group_view.GroupAnalysis(snapshot, [other]).state.state is GroupState.REBALANCING


def test_known_sessions_bound_the_patience() -> None:
    server = ZooKeeperServer("h:2181", max_session_timeout=20_000, sessions={1: ("/10.0.0.1", 6_000)})
    assert GroupAnalysis(group_snapshot(THREE, servers=(server,))).patience == 6.0 + 8.0
    assert GroupAnalysis(group_snapshot(THREE, servers=(replace(server, sessions={}),))).patience == 28.0
    assert GroupAnalysis(group_snapshot(THREE)).patience == 48.0


BROKERS = BrokersGroup(
    "Stable", "sticky", members=(BrokersMember("m-1", "c", "/h", None, (partition("t:0"),), ("t",)),)
)


def test_a_brokers_group_has_kafkas_state_and_owners() -> None:
    snapshot = group_snapshot(brokers_group=BROKERS, group_node=None, ids_node=None, zookeeper="", logs=LOGS)
    analysis = GroupAnalysis(snapshot)
    assert (analysis.state.state, analysis.strategy.name, analysis.subscribed) == (
        GroupState.STABLE,
        "sticky",
        frozenset("t"),
    )
    assert analysis.expected == analysis.owners == {partition("t:0"): "m-1"}
    preparing = replace(snapshot, brokers_group=replace(BROKERS, state="PreparingRebalance"))
    assert group_view.GroupAnalysis(preparing).state.state is GroupState.PREPARING_REBALANCE
    odd = replace(snapshot, brokers_group=replace(BROKERS, state="Odd"))
    assert group_view.GroupAnalysis(odd).state.state is GroupState.UNKNOWN


def test_bridges_own_what_the_brokers_assign() -> None:
    extra = {"g_a": {**OURS, "coordination": "kafka"}}
    brokers = replace(BROKERS, members=(replace(BROKERS.members[0], client_id="g_a"),))
    bridged = GroupAnalysis(group_snapshot({"g_a": {"t": 1}}, logs=LOGS, extra=extra, brokers_group=brokers))
    assert bridged.strategy.name == "sticky"
    assert bridged.expected == {partition("t:0"): thread_id(ConsumerId("g_a"), 0)}
    assert GroupAnalysis(replace(bridged.snapshot, brokers_group=None)).problem


def test_a_brokers_group_of_any_name_is_explained() -> None:
    """ZooKeeper allows no node with a slash in the name, so no path is made of the group."""
    odd = group_snapshot(group="a/b", brokers_group=BROKERS, group_node=None, ids_node=None, logs=LOGS)
    problem = replace(odd, brokers_group=None, problems=(Problem("brokers' group 'a/b'", "no answer"),))
    assert group_view.GroupAnalysis(odd).state.state is GroupState.STABLE
    assert group_view.GroupAnalysis(problem).state.state is GroupState.UNKNOWN


@pytest.mark.parametrize(
    ("problem", "ids", "owners"),
    [
        (Problem("/consumers/g/ids", FORBIDDEN_NODE), True, False),
        (Problem("/consumers/g/owners", FORBIDDEN_NODE), False, True),
        (Problem("/consumers/g/owners/t", FORBIDDEN_NODE), False, True),
        (Problem("ZooKeeper h:2181", "no answer"), True, True),
        (Problem("/consumers/g/offsets", FORBIDDEN_NODE), False, False),
    ],
)
def test_what_could_not_be_read_is_not_none(problem: Problem, ids: bool, owners: bool) -> None:
    snapshot = group_snapshot(problems=(problem,))
    assert (is_unread(snapshot, "ids"), is_unread(snapshot, "owners")) == (ids, owners)
    said = "the members cannot be read" if ids else "no member is registered"
    assert group_view.GroupAnalysis(snapshot).strategy.why.startswith(said)
