"""``zkconsumer doctor`` from files of snapshots: texts, forms and exit codes."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.group_snapshots import stat
from tests.unit.operations.doctor.cases import CONFIG, healthy, later, with_owner
from zkconsumer.cli import main
from zkconsumer.operations.doctor import CHECKS
from zkconsumer.operations.group_snapshot import GroupSnapshot
from zkconsumer.operations.snapshot_file import write_snapshots

ILL = with_owner(healthy(), "t:1", ephemeral_owner=0, version=3)
Run = Callable[..., int]


@pytest.fixture
def doctor(tmp_path: Path) -> Run:
    def run(snapshots: list[GroupSnapshot], *arguments: str) -> int:
        file = tmp_path / "group.jsonl"
        write_snapshots(str(file), snapshots)
        return main(["doctor", *arguments, "--from", str(file)])

    return run


def test_an_error_is_told_with_its_command(doctor: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor([ILL], "g") == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "group g: error"
    assert lines[1].split()[:2] == ["error", "persistent-owner"]
    assert "        node:     /consumers/g/owners/t/1" in lines
    assert any(line.endswith("delete -v 3 /consumers/g/owners/t/1") for line in lines)
    assert "        link:     docs/doctor.md#persistent-owner" in lines


def test_a_healthy_group_is_ok(doctor: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor([healthy(), later(healthy(), 60)]) == 0
    said = capsys.readouterr().out
    least = f"{len(CHECKS) - 3} of {len(CHECKS)} checks found nothing; 3 need an option or a right, see --verbose"
    assert said == f"group g: ok\n  {least}\n"


def test_verbose_names_every_check(doctor: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor([healthy()], "--verbose") == 0
    said = capsys.readouterr().out
    assert "not looked at: the other chroots of these servers were not looked at" not in said
    assert "not looked at: one look cannot tell whether members come and go" in said
    assert [check.name for check in CHECKS if f" {check.name} " not in said] == []


def test_json_has_every_finding_of_every_group(doctor: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor([ILL, replace(healthy(), group="other")], "--format", "json") == 1
    said = json.loads(capsys.readouterr().out)
    assert [(one["group"], one["level"]) for one in said] == [("g", "error"), ("other", "ok")]
    assert {one["check"] for one in said[0]["findings"]} == {check.name for check in CHECKS}
    worst = said[0]["findings"][0]
    assert worst["level"] == "error"
    assert worst["node"] == "/consumers/g/owners/t/1"
    assert worst["unknown"] is False


def test_csv_has_a_line_for_each_finding(doctor: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor([ILL], "--format", "csv") == 1
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert rows[0]["CHECK"] == "persistent-owner"
    assert "delete -v 3" in rows[0]["REMEDY"]


def test_a_members_properties_are_judged(doctor: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "consumer.properties"
    file.write_text("".join(f"{key} : {value}\n" for key, value in {**CONFIG, "rebalance.max.retries": "1"}.items()))
    assert doctor([healthy()], "g", "--member-config", str(file)) == 1
    assert "a Scala member gives up after 2 s" in capsys.readouterr().out


def test_flapping_is_seen_in_two_files(doctor: Run, capsys: pytest.CaptureFixture[str]) -> None:
    calm = replace(healthy(), ids_node=stat(age=7200, cversion=10))
    assert doctor([calm, later(calm, 600, ids_node=stat(age=7200, cversion=30))]) == 0
    assert "warn  flapping" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["G"], 1, "'G' does not exist. Did you mean 'g'?"),
        (["g", "--write-probe"], 1, "--from: goes without --write-probe and --twice"),
        (["g", "--twice", "9"], 1, "--from: goes without --write-probe and --twice"),
        (["g", "--member-config", "/no/such/file"], 1, "/no/such/file"),
    ],
)
def test_bad_input_is_named(
    doctor: Run, arguments: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert doctor([healthy()], *arguments) == code
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("seconds", ["0", "-1", "soon", "inf", "nan"])
def test_a_pause_must_be_a_time(doctor: Run, seconds: str) -> None:
    with pytest.raises(SystemExit, match="2"):
        doctor([healthy()], "g", "--twice", seconds)


def test_hostile_text_does_not_reach_the_terminal(doctor: Run, capsys: pytest.CaptureFixture[str]) -> None:
    evil = with_owner(healthy(), "t:1", "\x1b[2J\x07evil\n-0", ephemeral_owner=0)
    for form in ("table", "csv", "json"):
        assert doctor([evil], "--format", form) == 1
        said = capsys.readouterr().out
        assert not any(ord(one) < 32 and one != "\n" for one in said)
        assert "evil" in said
