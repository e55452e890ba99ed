"""``zkconsumer doctor`` from files of snapshots: texts, forms and exit codes."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.group_snapshots import stat
from tests.unit.cli.command_line import Printed, printed
from tests.unit.operations.doctor.cases import CONFIG, healthy, later, with_owner
from zkconsumer.operations.doctor import CHECKS
from zkconsumer.operations.group_snapshot import GroupSnapshot
from zkconsumer.operations.snapshot_file import write_snapshots

ILL = with_owner(healthy(), "t:1", ephemeral_owner=0, version=3)


@pytest.fixture
def doctor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Printed:
    def run(snapshots: list[GroupSnapshot], *arguments: str, **more: Any) -> str:
        file = tmp_path / "group.jsonl"
        write_snapshots(str(file), snapshots)
        return printed(capsys, "doctor", *arguments, "--from", str(file), **more)

    return run


def test_an_error_is_told_with_its_command(doctor: Printed) -> None:
    lines = doctor([ILL], "g", code=1).splitlines()
    assert lines[0] == "group g: error (1 error)"
    assert lines[1].split()[:2] == ["error", "persistent-owner"]
    assert "        node:     /consumers/g/owners/t/1" in lines
    assert any(line.endswith("delete -v 3 /consumers/g/owners/t/1") for line in lines)
    assert "        link:     docs/doctor.md#persistent-owner" in lines


def test_a_healthy_group_is_ok(doctor: Printed) -> None:
    said = doctor([healthy(), later(healthy(), 60)])
    least = f"{len(CHECKS) - 3} of {len(CHECKS)} checks found nothing; 3 need an option or a right, see --verbose"
    assert said == f"group g: ok\n  {least}\n"


def test_verbose_names_every_check(doctor: Printed) -> None:
    said = doctor([healthy()], "--verbose")
    assert "not looked at: the other chroots of these servers were not looked at" not in said
    assert "not looked at: one look cannot tell whether members come and go" in said
    assert [check.name for check in CHECKS if f" {check.name} " not in said] == []


def test_json_has_every_finding_of_every_group(doctor: Printed) -> None:
    said = json.loads(doctor([ILL, replace(healthy(), group="other")], "--format", "json", code=1))
    assert [(one["group"], one["level"]) for one in said] == [("g", "error"), ("other", "ok")]
    assert {one["check"] for one in said[0]["findings"]} == {check.name for check in CHECKS}
    worst = said[0]["findings"][0]
    assert worst["level"] == "error"
    assert worst["node"] == "/consumers/g/owners/t/1"
    assert worst["unknown"] is False


def test_csv_has_a_line_for_each_finding(doctor: Printed) -> None:
    rows = list(csv.DictReader(io.StringIO(doctor([ILL], "--format", "csv", code=1))))
    assert rows[0]["CHECK"] == "persistent-owner"
    assert "delete -v 3" in rows[0]["REMEDY"]


def test_a_members_properties_are_judged(doctor: Printed, tmp_path: Path) -> None:
    file = tmp_path / "consumer.properties"
    file.write_text("".join(f"{key} : {value}\n" for key, value in {**CONFIG, "rebalance.max.retries": "1"}.items()))
    assert "a Scala member gives up after 2 s" in doctor([healthy()], "g", "--member-config", str(file), code=1)


def test_flapping_is_seen_in_two_files(doctor: Printed) -> None:
    calm = replace(healthy(), ids_node=stat(age=7200, cversion=10))
    assert "warn  flapping" in doctor([calm, later(calm, 600, ids_node=stat(age=7200, cversion=30))])


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["G"], 1, "'G' does not exist. Did you mean 'g'?"),
        (["g", "--write-probe"], 1, "--from: goes without --write-probe and --twice"),
        (["g", "--twice", "9"], 1, "--from: goes without --write-probe and --twice"),
        (["g", "--member-config", "/no/such/file"], 1, "/no/such/file"),
        *((["g", "--twice", seconds], 2, "--twice") for seconds in ("0", "-1", "soon", "inf", "nan")),
    ],
)
def test_bad_input_is_named(doctor: Printed, arguments: list[str], code: int, said: str) -> None:
    assert said in doctor([healthy()], *arguments, code=code, err=True)


def test_hostile_text_does_not_reach_the_terminal(doctor: Printed) -> None:
    evil = with_owner(healthy(), "t:1", "\x1b[2J\x07evil\n-0", ephemeral_owner=0)
    for form in ("table", "csv", "json"):
        said = doctor([evil], "--format", form, code=1)
        assert not any(ord(one) < 32 and one != "\n" for one in said)
        assert "evil" in said


def test_a_watch_forgets_groups_that_are_gone(doctor: Printed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups of console consumers come and go by the thousand."""

    def twice(look: Any, *_: object) -> int:
        look()
        assert set(look.args[2]) == {"g", "console"}
        (tmp_path / "group.jsonl").unlink()
        write_snapshots(str(tmp_path / "group.jsonl"), [later(healthy(), 60)])
        look()
        assert set(look.args[2]) == {"g"}
        return 0

    monkeypatch.setattr("zkconsumer.cli.doctor.watched", twice)
    doctor([healthy(), replace(healthy(), group="console")], "--watch", "1")
