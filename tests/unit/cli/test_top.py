"""``zkconsumer top``: rows, their order, rates, the table in a terminal and in a pipe, and a cluster that is away."""

from __future__ import annotations

import sys
import threading
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.group_snapshots import NOW
from tests.unit.cli.command_line import CommandLine
from tests.unit.operations.doctor.cases import healthy, later, with_owner
from tests.unit.operations.serving.watched import at, watched
from zkconsumer.cli.tables import width_of
from zkconsumer.cli.top import Rates, head, laid_out, plain, rows_of
from zkconsumer.operations.group_snapshot import GroupSnapshot
from zkconsumer.operations.serving.api import judge_watched
from zkconsumer.operations.serving.observed_group import unread
from zkconsumer.operations.serving.poller import Board
from zkconsumer.operations.snapshot_file import write_snapshots

ILL = replace(with_owner(healthy(), "t:1", ephemeral_owner=0), group="ill")
HOSTILE = replace(healthy(), group="日本\x1b[2J[red]<b>" + "x" * 10_000)


def board(*snapshots: GroupSnapshot, **more: Any) -> Board:
    groups = {one.group: watched(one) for one in snapshots}
    return Board(groups, {name: judge_watched(one) for name, one in groups.items()}, 1, completed=NOW, **more)


@pytest.mark.parametrize(("sort", "first"), [("severity", "ill"), ("lag", "g"), ("rate", "g"), ("group", "a")])
def test_the_order_of_the_groups(sort: str, first: str) -> None:
    rates, others = Rates(), (replace(healthy(), group="a"), ILL)
    rows_of(board(healthy(offsets={f"t:{n}": 9 for n in range(4)}), *others), rates)
    four = {f"t:{n}": (0, 9999) for n in range(4)}
    known = board(later(healthy(logs=four), 60), *others)
    assert rows_of(known, rates, sort, NOW)[0].group == first


def test_a_rate_is_that_of_one_to_two_minutes() -> None:
    rates = Rates()
    found = [rates.after(watched(at(second, 10 * second, 9_999))) for second in (0, 30, 60, 90, 120, 150)]
    assert found == [None, *[60.0] * 5]
    still = [rates.after(watched(at(second, 1500, 9_999))) for second in (210, 270, 330)]
    assert still[-1] == 0
    away = unread(watched(at(390, 1500, 9_999)), "no ZooKeeper")
    assert rates.after(away) is None


def test_rates_of_groups_that_are_gone_are_forgotten() -> None:
    """Groups of console consumers come and go by the thousand."""
    rates = Rates()
    for groups in ([watched(at(0, 0, 9_999)).snapshot], []):
        rows_of(board(*groups), rates, now=NOW)
    assert rates.after(watched(at(60, 600, 9_999))) is None


@pytest.mark.timeout(60)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("words", [["--once"], []])
def test_a_thread_that_has_died_ends_the_command(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(arguments: object) -> AbstractContextManager[None]:
        if threading.current_thread() is not threading.main_thread():
            raise SystemExit  # nobody prints it
        return nullcontext()

    monkeypatch.setattr("zkconsumer.cli.top.open_source", dies)
    line = CommandLine(capsys)
    assert line.run("top", *words, "--zookeeper", "127.0.0.1:1") == 1
    assert "the thread that reads the groups has ended" in line.err


@pytest.mark.parametrize("width", [20, 40, 60, 80, 120, 300])
@pytest.mark.parametrize("rich", [True, False])
def test_a_table_fits_its_terminal(width: int, rich: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not rich:
        monkeypatch.setitem(sys.modules, "rich.console", None)
    lines = laid_out(rows_of(board(ILL, HOSTILE, healthy()), Rates(), now=NOW), width)
    assert len(lines) == 4
    assert max(map(width_of, lines)) <= width
    assert lines[1].startswith("ill")
    assert not any("\x1b" in line for line in lines)
    assert ("the owner node of t-1" in lines[1]) == (width > 80)


def test_a_pipe_gets_every_column_with_names_escaped() -> None:
    titles, *lines = plain(rows_of(board(HOSTILE, ILL), Rates(), now=NOW))
    assert titles.split() == ["GROUP", "JUDGED", "STATE", "MEMBERS", "OWNED", "LAG", "RATE/S", "WHAT"]
    assert lines[0].split()[1:3] == ["1", "error"]
    assert "日本\\x1b[2J[red]<b>xxx" in lines[1]
    assert len(lines[1]) < 500


def test_a_cluster_that_is_away_is_marked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    known = board(healthy(), failure="no ZooKeeper\x1b")
    text = head(known, 5.0)[-1]
    assert text.startswith("STALE, ")
    assert text.endswith(" old: no ZooKeeper\\x1b")
    assert head(Board(known.groups, missing=7), 5.0) == ["reading the groups ... 1 known, 7 to go"]
    line = CommandLine(capsys)
    assert line.run("top", "--once", "--zookeeper", "127.0.0.1:1", "--timeout", "300") == 1
    assert "STALE: " in line.out
    file = tmp_path / "groups.jsonl"
    write_snapshots(str(file), [ILL, replace(healthy(), group="fine")])
    assert line.run("top", "--once", "--from", str(file)) == 0
    assert "1 error in ill; 1 group is ok" in line.out
