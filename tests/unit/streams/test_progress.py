"""Progress of tables and batches: what is reported, and that a report harms no read."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

import pytest
import rich

from tests.unit.streams.bench import Bench, position
from zkconsumer.errors import MissingExtraError
from zkconsumer.streams.arrow_api import ProgressBar


class FilledBench(Bench):
    """A stream with two chunks of one partition."""

    def __init__(self) -> None:
        super().__init__()
        self.where = position()
        self.put(self.where, 0, 3)
        self.put(self.where, 3, 3)


@pytest.fixture
def bench() -> Iterator[FilledBench]:
    made = FilledBench()
    yield made
    made.queue.close()


class EndAt:
    """The end of one partition."""

    def __init__(self, where: Any, offset: int) -> None:
        self._where = where
        self._offset = offset

    def limit(self, _: Any) -> int:
        return self._offset

    def left(self, ahead: Any) -> int:
        return max(0, self._offset - int(max(self._where.consumed, ahead.get(self._where, -1))))

    def reached(self, ahead: Any) -> bool:
        return not self.left(ahead)


@pytest.mark.parametrize(
    ("limits", "end", "reports"),
    [
        ({"timeout": 0}, None, [(3, None), (6, None)]),
        ({"max_messages": 5}, None, [(3, 5), (5, 5)]),
        ({}, 5, [(3, 5), (5, 5)]),
    ],
    ids=["no total", "a limit is the total", "an end tells the total"],
)
def test_a_table_reports_its_rows(
    bench: FilledBench, limits: dict[str, Any], end: int | None, reports: list[tuple[int, int | None]]
) -> None:
    if end is not None:
        bench.queue.stop_at(EndAt(bench.where, end))
    told: list[tuple[int, int | None]] = []
    table = bench.stream.to_arrow(progress=lambda *report: told.append(report), **limits)

    assert told == reports
    assert table.num_rows == reports[-1][0]


def test_batches_report_as_they_come(bench: FilledBench) -> None:
    bench.queue.stop_at(EndAt(bench.where, 5))
    told: list[tuple[int, int | None]] = []
    rows = [batch.num_rows for batch in bench.stream.batches(progress=lambda *report: told.append(report))]

    assert rows == [3, 2]
    assert told == [(3, 5), (5, 5)]


@pytest.mark.parametrize("way", ["table", "batches"])
def test_rows_come_again_after_a_report_that_fails(bench: FilledBench, way: str) -> None:
    fail = Mock(side_effect=KeyboardInterrupt)
    stream = bench.stream
    read = {
        "table": lambda: stream.to_arrow(timeout=0, progress=fail),
        "batches": lambda: next(stream.batches(progress=fail)),
    }
    with pytest.raises(KeyboardInterrupt):
        read[way]()

    assert not bench.where.held
    assert stream.to_arrow(timeout=0).column("offset").to_pylist() == list(range(6))


def test_a_bar_is_shown_and_ends(bench: FilledBench, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.stream.to_arrow(max_messages=6, progress=True).num_rows == 6
    assert "6/6" in capsys.readouterr().out


@pytest.fixture
def _terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TERM", "xterm")  # on a "dumb" one nothing is hidden
    rich.reconfigure(force_terminal=True)
    yield
    rich.reconfigure()


@pytest.mark.usefixtures("_terminal")
def test_a_loop_that_is_left_gives_the_terminal_back(bench: FilledBench, capsys: pytest.CaptureFixture[str]) -> None:
    """The bar of a loop that is broken off stayed, and hid the cursor."""
    for _ in bench.stream.batches(progress=True):
        break
    gc.collect()

    shown = capsys.readouterr().out
    assert "\x1b[?25l" in shown
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")


def test_a_bar_that_was_never_shown_can_be_closed() -> None:
    bar = ProgressBar()
    bar.close()
    bar(1, None)
    bar.close()
    bar.close()


def test_a_bar_without_rich_is_refused(bench: FilledBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rich.progress", None)
    with pytest.raises(MissingExtraError, match="install the package rich"):
        bench.stream.to_arrow(timeout=0, progress=True)
    with pytest.raises(ValueError, match="a function"):
        bench.stream.batches(progress=5)  # type: ignore[arg-type]
    assert len(bench.stream.take(6, timeout=0)) == 6
