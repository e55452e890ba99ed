"""``zkconsumer plan`` from files: of snapshots, and of registrations on paper."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.documents import DOCS
from tests.group_snapshots import group_snapshot
from tests.unit.cli.command_line import Printed, printed
from zkconsumer.operations.snapshot_file import write_snapshots

LOGS = {f"t:{n}": (0, 10) for n in range(4)}
OWNERS = {"t:0": "g_a-0", "t:1": "g_a-0", "t:2": "g_b-0", "t:3": "g_b-0"}
ON_PAPER: dict[str, Any] = {
    "topics": {"events": 12},
    "members": [{"host": "web", "count": 10, "streams": 1}, {"id": "group_batch", "subscription": {"events": 2}}],
}


@pytest.fixture
def plan(capsys: pytest.CaptureFixture[str]) -> Printed:
    return partial(printed, capsys, "plan")


@pytest.fixture
def snapshot_file(tmp_path: Path) -> str:
    file = tmp_path / "group.jsonl"
    write_snapshots(str(file), [group_snapshot({"g_a": {"t": 1}, "g_b": {"t": 1}}, OWNERS, logs=LOGS)])
    return str(file)


@pytest.fixture
def paper(tmp_path: Path) -> Any:
    def write(document: object) -> str:
        file = tmp_path / "registrations.json"
        file.write_text(document if isinstance(document, str) else json.dumps(document))
        return str(file)

    return write


def test_the_report_says_what_moves(snapshot_file: str, plan: Printed) -> None:
    lines = plan("g", "--leave", "g_b", "--partitions", "t:+1", "--from", snapshot_file).splitlines()
    assert lines[0] == "Group g, g_b leaves, t gets 1 partitions more; strategy range."
    assert "2 of 4 partitions move, 2 stay, 1 are new." in lines
    assert any(line.split() == ["t", "2", "g_b-0", "g_a-0"] for line in lines)
    assert any(line.split() == ["t", "4", "-", "g_a-0"] for line in lines)
    assert any(line.startswith("Scala members") for line in lines)
    assert any(line.split()[:2] == ["range", "yes"] for line in lines)


def test_json_has_moves_pauses_and_strategies(snapshot_file: str, plan: Printed) -> None:
    made = json.loads(plan("g", "--kill", "g_b", "--from", snapshot_file, "--format", "json"))
    assert made["moves"][0] == {"topic": "t", "partition": 2, "from": "g_b-0", "to": "g_a-0"}
    assert made["pauses"][0]["whose"] == "g_b, which dies"
    assert {one["strategy"] for one in made["strategies"]} >= {"range", "average", "consistent-hash"}
    rows = plan("g", "--kill", "g_b", "--from", snapshot_file, "--format", "csv")
    assert rows == "TOPIC,PARTITION,FROM,TO\nt,2,g_b-0,g_a-0\nt,3,g_b-0,g_a-0\n"


def test_a_group_on_paper(paper: Any, plan: Printed) -> None:
    file = paper(ON_PAPER)
    made = json.loads(plan("--registrations", file, "--join", "web-11:2", "--format", "json"))
    assert (made["group"], made["joined"], len(made["idle"])) == ("group", ["group_web-11"], 2)
    assert "Note: the file names no strategy, so this is range." in plan("--registrations", file)
    file = paper({**ON_PAPER, "strategy": "average"})
    said = plan("--registrations", file, "--strategy", "average-by-circle")
    assert "all members use average-by-circle; strategy average-by-circle." in said
    assert "Note" not in said


def test_the_file_of_the_docs_is_a_group(paper: Any, plan: Printed) -> None:
    (text,) = re.findall(r"```json\n(.*?)```", (DOCS / "explain.md").read_text(encoding="utf-8"), re.DOTALL)
    said = plan("--registrations", paper(text), "--join", "web-11")
    assert said.startswith("Group group, web-11 joins; strategy range.")


WRONG = [
    ("[", "is no JSON"),
    ([], "the file is no object"),
    ({"topics": {}, "member": []}, "unknown key 'member'"),
    ({"topics": {}}, "members are no list"),
    ({"topics": {"t": -1}, "members": []}, "is no number from 0"),
    ({"topics": {"t": True}, "members": []}, "is no number from 0"),
    ({"topics": {"t": 150_000, "u": 150_000}, "members": []}, "more than 200000 partitions together"),
    ({"topics": {"t": 1}, "members": [{"streams": 1}]}, "members[0] needs either a host or an id"),
    ({"topics": {"t": 1}, "members": [{"id": "a", "count": 2}]}, "and a count"),
    ({"topics": {"t": 1}, "members": [{"id": "a"}, {"id": "a"}]}, "members[1] has the id 'a' of another"),
    ({"topics": {"t": 1}, "members": [{"id": "a", "topics": ["u"]}]}, "has 'u', which is not among"),
    ({"topics": {"t": 1}, "members": [{"id": "a", "topics": "t"}]}, "is no list of names"),
    ({"topics": {"t": 1}, "members": [{"id": "a", "pattern": "?"}]}, "is none of static"),
    ({"topics": {"t": 1}, "members": [{"id": "a", "streams": 1, "subscription": {}}]}, "has a subscription"),
    ({"topics": {"t": 1}, "members": [{"host": "a", "count": 9_999}, {"host": "b", "count": 2}]}, "more than 10000"),
    ({"topics": {"t": 1}, "members": [], "strategy": 1}, "strategy is no text"),
]


@pytest.mark.parametrize(("document", "said"), WRONG, ids=[said for _, said in WRONG])
def test_a_wrong_file_names_the_place(document: object, said: str, paper: Any, plan: Printed) -> None:
    file = paper(document)
    error = plan("--registrations", file, code=1, err=True)
    assert file in error
    assert said in error


def test_a_plan_needs_a_group_or_a_file(snapshot_file: str, plan: Printed) -> None:
    assert "none.json: cannot be read" in plan("--registrations", "none.json", code=1, err=True)
    assert "--registrations FILE" in plan("--join", "c", code=1, err=True)
    assert "goes without --from" in plan("--registrations", "x", "--from", snapshot_file, code=1, err=True)


@pytest.mark.parametrize(
    ("flag", "value"),
    [("--join", "c:0x"), ("--join", ":2"), ("--join", "a/b"), ("--partitions", "4"), ("--partitions", "t:+0")],
)
def test_a_change_of_wrong_form_is_wrong_usage(flag: str, value: str, plan: Printed) -> None:
    assert "write" in plan("g", flag, value, code=2, err=True)
