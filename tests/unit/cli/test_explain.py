"""``zkconsumer explain`` from files of snapshots."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.documents import DOCS, ROOT, example
from tests.group_snapshots import group_snapshot, partition, stat
from tests.unit.cli.command_line import Printed, printed
from zkconsumer.cli.explain import EXPLAINED
from zkconsumer.model import ConsumerId
from zkconsumer.operations.group_snapshot import BrokerNode, BrokersGroup, GroupSnapshot, LoanNode, NodeStat, OwnerNode
from zkconsumer.operations.snapshot_file import write_snapshots

LOGS = {f"t:{n}": (0, 10) for n in range(4)}
MEMBERS = {"g_a": {"t": 1}, "g_b": {"t": 1}}
OWNERS = {"t:0": "g_a-0", "t:1": "g_a-0", "t:2": "g_b-0", "t:3": "g_b-0"}
EXTRA = {"g_a": {"zkconsumer": "1", "strategy": "range"}}
BROKERS = {0: BrokerNode("b", 9092, protocols=("PLAINTEXT",))}
HEALTHY = group_snapshot(
    MEMBERS, OWNERS, {"t:0": 10}, LOGS, EXTRA, brokers=BROKERS, brokers_group=BrokersGroup("Dead"), kafka_offsets={}
)
DEAD_OWNER = group_snapshot(MEMBERS, {**OWNERS, "t:3": "g_gone-0"}, {"t:0": 10}, LOGS, EXTRA)


@pytest.fixture
def explain(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Printed:
    def run(*snapshots_and_arguments: GroupSnapshot | str, group: str = "g", **more: Any) -> str:
        file = tmp_path / "group.jsonl"
        write_snapshots(str(file), [one for one in snapshots_and_arguments if isinstance(one, GroupSnapshot)])
        arguments = [one for one in snapshots_and_arguments if isinstance(one, str)]
        return printed(capsys, "explain", group, *arguments, "--from", str(file), **more)

    return run


def test_the_report_has_state_members_and_partitions(explain: Printed) -> None:
    lines = explain(HEALTHY).splitlines()
    assert lines[0] == "Group g is Stable: all 4 partitions are owned as range wants."
    assert lines[1].startswith("Strategy range: 1 of 2 members advertise it, and it explains the partitions of g_b")
    assert [line.split()[:4] for line in lines[4:6]] == [["g_a", "zkconsumer", "1", "2"], ["g_b", "Scala", "1", "2"]]
    assert sum(line.endswith("as it should be") for line in lines) == 4


def test_a_member_without_partitions_shows_its_slots(explain: Printed) -> None:
    lent = {partition("t:0"): {ConsumerId("g_b"): LoanNode(64, 1, 2, stat())}}
    members = json.loads(explain(replace(HEALTHY, loans=lent), "--format", "json"))["members"]
    assert {row["member"]: row["slots_on_loan"] for row in members}["g_b"] == "t:0 64"
    assert "slots_on_loan" not in explain(HEALTHY, "--format", "json")


def test_unsettled_partitions_are_told_in_full(explain: Printed) -> None:
    said = explain(DEAD_OWNER)
    assert "g_gone-0 owns t-3, but g_b-0 should by range: its owner is dead." in said
    assert "waits for            the end of session" in said
    assert "g_a-0 owns t-0, as it should" not in said


def test_of_many_unsettled_partitions_the_first_are_told(explain: Printed) -> None:
    logs = {f"t:{n}": (0, 10) for n in range(500)}
    said = explain(group_snapshot(MEMBERS, {}, {}, logs, EXTRA))
    assert said.count("\n  should own it") == EXPLAINED
    assert f"{500 - EXPLAINED} more are not where they should be" in said


def test_one_partition_is_told_with_its_arithmetic(explain: Printed) -> None:
    said = explain(HEALTHY, "t:0")
    assert said.startswith("g_a-0 owns t-0, as it should by range.")
    assert "threads, in order    g_a-0, g_b-0" in said
    assert "partitions           0-3" in said
    assert "lag                  0 messages; in time: 0 s" in said


def test_json_and_csv(explain: Printed) -> None:
    made = json.loads(explain(DEAD_OWNER, "--format", "json"))
    assert (made["strategy"]["name"], len(made["members"]), len(made["partitions"])) == ("range", 2, 4)
    assert made["topics"] == {"t": {"threads": ["g_a-0", "g_b-0"], "partitions": [0, 1, 2, 3]}}
    assert made["partitions"][3]["cause"]["until"] is not None
    rows = explain(HEALTHY, "--format", "csv").splitlines()
    assert rows[0] == "TOPIC,PARTITION,SHOULD-OWN,OWNER,SINCE,LAG,LAG-TIME,WHY"
    assert rows[1].startswith("t,0,g_a-0,g_a-0,")


def test_the_example_of_the_docs_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_snapshots(str(tmp_path / "group.jsonl"), [HEALTHY])
    monkeypatch.chdir(tmp_path)
    exec(compile(example("explain"), "explain.md", "exec"), {})
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "all 4 partitions are owned as range wants"
    assert said[1] == "g_a-0 owns t-0, as it should by range."
    assert said[-1] == "3", "three of four partitions keep their thread if a third member joins"


def test_the_docs_list_only_causes_that_exist() -> None:
    page = (DOCS / "explain.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (it[^|]*|a Spark[^|]*) \|", page, re.MULTILINE)
    told = (ROOT / "zkconsumer" / "operations" / "ownership_causes.py").read_text(encoding="utf-8")
    assert len(rows) > 8
    assert [row for row in rows if row not in told and "or registration" not in row] == []


def test_two_snapshots_prove_that_a_group_is_stuck(explain: Printed) -> None:
    """A single snapshot does not tell when the member left, because the member's node is gone."""
    ids = replace(HEALTHY.members[ConsumerId("g_a")].stat or NodeStat(0, 0, 0, 0), pzxid=10_000)
    now = replace(HEALTHY, owners={}, ids_node=ids)
    assert explain(now).startswith("Group g is Rebalancing: nobody owns")
    said = explain(now, replace(now, taken=now.taken - 600_000))
    assert said.startswith("Group g is Stuck: nobody owns")
    assert "unchanged for at least 10 min" in said


def test_an_unknown_partition_fails(explain: Printed) -> None:
    assert "Nobody owns t-9: it does not exist." in explain(HEALTHY, "t:9", code=1)


def test_hostile_names_do_not_reach_the_terminal(explain: Printed) -> None:
    """A node may contain anything: here a thread id that clears the screen and fakes a line."""
    bad = "g_x\x1b[2J\n\u202eGroup g is fine-0"
    owners = {**HEALTHY.owners, partition("t:3"): OwnerNode(bad, HEALTHY.owners[partition("t:3")].stat)}
    for arguments in ((), ("t:3",), ("--format", "json"), ("--format", "csv")):
        said = explain(replace(HEALTHY, owners=owners), *arguments)
        assert "\x1b" not in said
        assert "\u202e" not in said
        assert "\nGroup g is fine" not in said


@pytest.mark.parametrize("text", ["t", "t:", ":1", "t:x", "t:-1", "t:99999999999"])
def test_a_wrong_partition_is_wrong_usage(text: str, explain: Printed) -> None:
    assert "TOPIC:PARTITION" in explain(text, code=2, err=True)
