"""The one judgement: severity, counts, and the verdict on each partition."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.group_snapshots import NOW, group_snapshot, partition
from tests.unit.operations.doctor.cases import healthy, later, with_log, with_offset, with_owner, with_problem
from zkconsumer.model import TopicPartition
from zkconsumer.operations import group_view
from zkconsumer.operations.doctor import Level, examine
from zkconsumer.operations.explanation import explain
from zkconsumer.operations.group_snapshot import FORBIDDEN_NODE, GroupSnapshot, LogState
from zkconsumer.operations.judgement import FINE, Judgement, judge
from zkconsumer.operations.strategy_inference import assignment_by

T0, T1, T2 = (partition(f"t:{n}") for n in range(3))


def deleted_topic() -> GroupSnapshot:
    return replace(healthy(), topics={}, logs={})


def without_the_broker() -> GroupSnapshot:
    gone = {tp: LogState(replicas=(0,), leader=-1) for tp in healthy().logs}
    return replace(healthy(), brokers={1: healthy().brokers[0]}, logs=gone)


def silent_broker() -> GroupSnapshot:
    logs = {
        tp: replace(log, start=None, end=None, problem="broker 0 did not answer") for tp, log in healthy().logs.items()
    }
    return with_problem(replace(healthy(), logs=logs), "broker 0")


@pytest.mark.parametrize(
    ("snapshot", "status", "said"),
    [
        pytest.param(with_offset(healthy(), "t:0", 500), "ERR", "lies beyond its log", id="beyond the end"),
        pytest.param(with_offset(with_log(healthy(), "t:0", start=60), "t:0", 5), "ERR", "below its log", id="below"),
        pytest.param(deleted_topic(), "WARN", "topic t does not exist", id="topic deleted"),
        pytest.param(without_the_broker(), "ERR", "without a leader", id="the only replica is away"),
        pytest.param(silent_broker(), "WARN", "logs of 4 partitions cannot be read", id="a broker does not answer"),
        pytest.param(with_owner(healthy(), "t:0", ephemeral_owner=0), "ERR", "is persistent", id="persistent owner"),
    ],
)
def test_an_illness_is_the_verdict_on_its_partition(snapshot: GroupSnapshot, status: str, said: str) -> None:
    judged = judge([snapshot])
    assert (judged.status, judged.verdict(T0).status) == (status, status)
    assert any(said in one.headline for one in judged.findings)
    assert said in judged.verdict(T0).reason
    assert judged.severity > Level.NOTE


def test_a_healthy_group_is_ok() -> None:
    """Each group had two findings "unknown" before, of checks that need an option which nobody gave."""
    judged = judge([healthy(acls={}, servers=())])
    assert (judged.severity, judged.status, judged.headline, judged.findings) == (Level.OK, "OK", "", ())
    assert judged.verdict(T0) is FINE
    assert judged.summary == "ok"


def test_an_offset_beyond_the_end_has_no_lag() -> None:
    assert with_offset(healthy(), "t:0", 500).lag(T0) is None


def test_what_cannot_be_told_is_not_ok() -> None:
    judged = judge([replace(healthy(), logs={})])
    assert (judged.severity, judged.status, judged.verdict(T0).status) == (Level.NOTE, "UNKNOWN", "UNKNOWN")


def test_the_judgement_has_the_findings_of_the_doctor() -> None:
    ill = with_owner(with_offset(healthy(), "t:0", 500), "t:1", ephemeral_owner=0)
    judged = judge([ill])
    assert list(judged.findings) == [one for one in examine([ill]) if one.level > Level.OK]
    assert judged.counts == {"error": 2, "warn": 0, "note": 0}
    assert judged.summary == f"2 errors: {judged.headline}"
    assert {tp: v.level for tp, v in judged.verdicts.items()} == {T0: Level.ERROR, T1: Level.ERROR}


def test_the_worst_finding_about_a_partition_counts() -> None:
    stands = later(with_log(healthy(), "t:0", message_time=NOW - 3600_000), 900)
    assert judge([stands]).verdict(T0).check == "standing-still"
    both = with_log(stands, "t:0", start=60)
    assert judge([both]).verdict(T0).level is Level.ERROR
    assert judge([stands]).verdict(T2).level is not Level.ERROR


def test_many_findings_of_one_check_judge_all_their_partitions() -> None:
    numbers = range(30)
    many = healthy(
        owners={f"t:{n}": "g_a-0" for n in numbers},
        offsets={f"t:{n}": 500 for n in numbers},
        logs={f"t:{n}": (0, 100) for n in numbers},
    )
    judged = judge([many])
    assert {judged.verdict(partition(f"t:{n}")).status for n in numbers} == {"ERR"}


def test_a_failed_reading_is_said_and_never_ok() -> None:
    judged = judge([healthy()]).unread("ZooKeeper is away", NOW).unread("the broker too", NOW)
    assert [one.text.rpartition(": ")[2] for one in judged.findings] == ["the broker too"]
    assert judged.status == "WARN"
    assert Judgement().unread("away", NOW).severity is Level.WARN


def crowd_without_partitions(members: int) -> GroupSnapshot:
    """A group of Scala members of which the first alone owns something, for ten minutes."""
    names = [f"g_m{number:03}" for number in range(members)]
    numbers = range(2 * members)
    made = group_snapshot(
        {name: {"t": 1} for name in names},
        {"t:0": f"{names[0]}-0", f"t:{members}": f"{names[0]}-0"},
        {f"t:{number}": 50 for number in numbers},
        {f"t:{number}": (0, 100) for number in numbers},
    )
    return later(made, 600)


def test_assignments_are_not_computed_for_each_member(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server judges at every reading, and each assignment is one of the whole group."""
    made: list[object] = []

    def counting(*arguments: Any) -> Any:
        made.append(arguments)
        return assignment_by(*arguments)

    monkeypatch.setattr(group_view, "assignment_by", counting)
    numbers = []
    for members in (4, 32):
        made.clear()
        snapshot = crowd_without_partitions(members)
        judged = judge([snapshot])
        analysis = group_view.GroupAnalysis(snapshot)
        for tp in analysis.expected:
            explain(analysis, tp, judged.verdict(tp))
        assert any("would make it claim" in one.evidence for one in judged.findings)
        numbers.append(len(made))
    assert max(numbers) <= 20


@pytest.mark.parametrize("part", ["owners", "offsets"])
@pytest.mark.parametrize(("below", "behind"), [("/t/1", [T1]), ("/t", [T0, T1, T2]), ("", [T0, T1, T2])])
def test_a_partition_whose_node_is_forbidden_is_not_ok(part: str, below: str, behind: list[TopicPartition]) -> None:
    """Bug: the group had a warning, and each partition a green tick."""
    judged = judge([with_problem(healthy(), f"/consumers/g/{part}{below}", FORBIDDEN_NODE)])
    assert [tp for tp in (T0, T1, T2) if judged.verdict(tp) != FINE] == behind
    assert judged.verdict(T1).status == "WARN"
    assert "the right to read is missing" in judged.verdict(T1).reason
