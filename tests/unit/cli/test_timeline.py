"""``zkconsumer timeline`` on files of snapshots: what it prints, refuses and returns."""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path

import pytest

from tests.group_snapshots import NOW, group_snapshot
from tests.unit.cli.command_line import Printed, printed
from zkconsumer.cli.source_arguments import moment_argument
from zkconsumer.cli.timeline import add_arguments
from zkconsumer.operations.group_snapshot import BrokersGroup, GroupSnapshot
from zkconsumer.operations.snapshot_file import write_snapshots


@pytest.fixture
def timeline(capsys: pytest.CaptureFixture[str]) -> Printed:
    return partial(printed, capsys, "timeline")


def saved(folder: Path, *snapshots: GroupSnapshot) -> list[str]:
    """Write snapshots to files and return the options that name them."""
    options = []
    for number, snapshot in enumerate(snapshots):
        file = folder / f"{number}.json"
        write_snapshots(str(file), [snapshot])
        options += ["--from", str(file)]
    return options


def test_files_are_shown_as_text_and_as_json_lines(tmp_path: Path, timeline: Printed) -> None:
    options = saved(tmp_path, group_snapshot({"g_a": {"t": 1}}, {"t:0": "g_a-0"}, {"t:0": 5}, {"t:0": (0, 9)}))
    text = timeline("g", *options)
    assert "joined                g_a (t x 1)" in text
    assert "rebalance: cause: g_a joined; 10.000 s" in text
    lines = [json.loads(line) for line in timeline("g", *options, "--format", "json").splitlines()]
    assert [one["type"] for one in lines] == ["event", "event", "event", "rebalance"]
    assert lines[-1]["last"] == "g_a-0"
    assert timeline("g", *options, "--since", "2023-11-14T22:13:16Z") == ""


def test_a_brokers_group_in_one_look_has_no_past(tmp_path: Path, timeline: Printed) -> None:
    options = saved(tmp_path, GroupSnapshot("g", NOW, bootstrap="b:9092", brokers_group=BrokersGroup("Stable")))
    assert "give several snapshots with --from" in timeline("g", *options, err=True)


def test_following_a_file_is_refused(tmp_path: Path, timeline: Printed) -> None:
    options = saved(tmp_path, group_snapshot({"g_a": {"t": 1}}))
    assert "--follow" in timeline("g", *options, "--follow", code=1, err=True)
    assert "--zookeeper" in timeline("g", "--bootstrap-server", "127.0.0.1:1", "--follow", code=1, err=True)
    assert "GROUP" in timeline("a/b", "--zookeeper", "127.0.0.1:1", "--follow", code=1, err=True)


@pytest.mark.parametrize("text", ["", "yesterday", "5", "10 m", "-5m", "99999999999999d", "2026-13-01"])
def test_a_time_that_is_none_is_refused(text: str) -> None:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_arguments(parser)
    with pytest.raises((argparse.ArgumentError, SystemExit)):
        parser.parse_args(["g", f"--since={text}"])


def test_since_takes_ages_and_times() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    assert parser.parse_args(["g", "--since", "2023-11-14T22:13:20+00:00"]).since == NOW
    assert parser.parse_args(["g", "--since", "2023-11-14T22:13:20"]).since == NOW
    earlier, later = (parser.parse_args(["g", "--since", text]).since for text in ("2h", "3m"))
    assert 116 * 60_000 < later - earlier < 118 * 60_000


@pytest.mark.parametrize("text", ["2023-11-14T24:00", "2023-11-14 24:00:00Z", "20231114T24"])
def test_an_hour_of_24_is_no_time_on_any_python(text: str) -> None:
    """Python 3.14 reads an hour of 24 as the next day, and older Pythons refuse it."""
    with pytest.raises(argparse.ArgumentTypeError, match="is no time"):
        moment_argument(text)
    for other in ("2023-11-24", "2023-11-24T22:24:24Z", "20231124T2224"):
        assert moment_argument(other) > NOW
