"""Planned groups, as tools see them: the expected owners, and the share that is kept for a member that has left."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from tests.concurrency.group import GROUP, SteppedMember, make_topic, settle
from tests.concurrency.placement import placed_member
from tests.unit.operations.doctor.cases import diagnosed, later, levels
from tests.values import present
from zkconsumer.model import TopicPartition
from zkconsumer.operations.anonymization import anonymized
from zkconsumer.operations.assignment_forecast import Leave, forecast
from zkconsumer.operations.explanation import explain
from zkconsumer.operations.group_snapshot import GroupSnapshot
from zkconsumer.operations.group_state import GroupState
from zkconsumer.operations.group_view import GroupAnalysis
from zkconsumer.operations.snapshot_file import format_snapshot, parse_snapshot
from zkconsumer.operations.zookeeper_reader import ZooKeeperReader
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.testing import FakeZooKeeper
from zkconsumer.zookeeper import paths

NOW = 1_795_230_310_008
HOUR_S = 3600.0


def seen(server: FakeZooKeeper) -> GroupSnapshot:
    session = server.session()
    session.open(Deadline(1))
    draft = GroupSnapshot(GROUP, NOW, zookeeper="fake:2181")
    assert ZooKeeperReader(session, draft, Deadline(5)).read()
    session.close(Deadline(1))
    return draft


@pytest.fixture
def server() -> FakeZooKeeper:
    made = FakeZooKeeper(session_timeout=600.0)
    make_topic(made, 12)
    return made


@pytest.fixture
def without_b(server: FakeZooKeeper) -> GroupSnapshot:
    """Three members, of which ``b`` has left and is waited for."""
    members: list[SteppedMember] = []
    for name in "abc":
        members.append(placed_member(server, name))
        settle(members)
    members.pop(1).stop()
    settle(members)
    return seen(server)


def test_partitions_of_a_member_that_left_are_no_trouble(without_b: GroupSnapshot) -> None:
    analysis = GroupAnalysis(without_b)
    assert analysis.strategy.name == "sticky"
    assert analysis.problem == ""
    assert set(analysis.reserved.values()) == {"g_b"}
    assert len(analysis.reserved) == 4
    assert analysis.state.state is GroupState.STABLE
    assert analysis.state.reason == "all 8 partitions are owned as sticky wants; 4 more wait for g_b, which left"
    assert levels(diagnosed("unowned-partition", without_b, later(without_b, HOUR_S))) == ["ok"]


def test_an_explanation_names_the_plan(without_b: GroupSnapshot) -> None:
    analysis = GroupAnalysis(without_b)
    waits = explain(analysis, next(iter(sorted(analysis.reserved))))
    assert "g_b has left, and the plan keeps its partitions for it" in f"{waits}"
    owned = explain(analysis, TopicPartition("t", 0))
    assert "the plan of the group gives it to g_a-0" in f"{owned}"


def test_without_a_fitting_plan_nobody_is_expected(without_b: GroupSnapshot) -> None:
    plan = present(without_b.plan)
    for other, why in (
        (None, "no plan for sticky has been written yet"),
        (replace(plan, members=("g_a",)), "the plan of g_a does not fit the present members"),
        (replace(plan, problem="garbage"), "the plan for sticky cannot be read: garbage"),
    ):
        analysis = GroupAnalysis(replace(without_b, plan=other))
        assert not analysis.expected
        assert why in analysis.problem


def test_new_partitions_without_a_plan_are_unowned(server: FakeZooKeeper) -> None:
    """The planner hangs. The plan gives all that it knows to its owners, but the topic has grown."""
    members = [placed_member(server, name) for name in "ab"]
    settle(members)
    make_topic(server, 14)
    analysis = GroupAnalysis(seen(server))
    assert "does not fit t-12, t-13, so another one is due" in analysis.problem
    assert analysis.state.state is not GroupState.STABLE
    assert "nobody owns t-12, t-13" in analysis.state.reason
    assert levels(diagnosed("unowned-partition", seen(server), later(seen(server), HOUR_S))) != ["ok"]


def test_a_plan_for_streams_that_a_member_has_no_more(server: FakeZooKeeper) -> None:
    members = [placed_member(server, "a", streams=2), placed_member(server, "b")]
    settle(members)
    snapshot = seen(server)
    plan = present(snapshot.plan)
    other = {tp: thread.replace("g_a-1", "g_a-7") for tp, thread in plan.assignment.items()}
    assert "so another one is due" in GroupAnalysis(replace(snapshot, plan=replace(plan, assignment=other))).problem


def test_a_member_that_is_back_is_not_waited_for(server: FakeZooKeeper, without_b: GroupSnapshot) -> None:
    """Until the planner writes the next plan, the last one still reserves its partitions."""
    placed_member(server, "b").step(3)
    analysis = GroupAnalysis(seen(server))
    assert not analysis.reserved
    assert analysis.state.state is not GroupState.STABLE


def test_a_spoilt_plan_is_a_problem_of_the_plan(server: FakeZooKeeper, without_b: GroupSnapshot) -> None:
    server.put(paths.placement(GROUP), b"garbage")
    assert present(seen(server).plan).problem.startswith("no JSON")


def test_a_group_in_which_one_withdrew_uses_range(without_b: GroupSnapshot) -> None:
    consumer, node = next(iter(without_b.members.items()))
    assert node.registration is not None
    extra = {key: value for key, value in node.registration.extra.items() if key != "plan"}
    withdrawn = replace(node, registration=replace(node.registration, extra=extra))
    members = {**without_b.members, consumer: withdrawn}
    assert GroupAnalysis(replace(without_b, members=members, plan=None)).strategy.name == "range"


def test_a_forecast_goes_on_from_the_plan(server: FakeZooKeeper) -> None:
    members = [placed_member(server, name, lasts=False) for name in "abc"]
    settle(members)
    snapshot = seen(server)
    found = forecast(snapshot, [Leave("g_b")])
    assert {move.before for move in found.moves} == {"g_b-0"}
    assert len(found.moves) == 4


def test_a_file_and_other_names_keep_the_answers(without_b: GroupSnapshot) -> None:
    assert parse_snapshot(format_snapshot(without_b)) == without_b
    (hidden,) = anonymized([without_b], Random(1))
    assert "g_b" not in format_snapshot(hidden)
    before, after = GroupAnalysis(without_b), GroupAnalysis(hidden)
    assert after.state.state is before.state.state
    assert len(after.reserved) == len(before.reserved)
    assert after.problem == ""
