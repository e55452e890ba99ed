"""``zkconsumer top``: all groups in the terminal, the worst first, with lag and rate.

The poller of ``zkconsumer serve`` reads and judges the groups in its thread. This module draws its boards in the main
thread. A terminal shows one page, laid out by rich if that is installed. A pipe gets each reading as plain text.
"""

from __future__ import annotations

import argparse
import logging
import shutil
import sys
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import StringIO
from typing import Any, Literal, NamedTuple, cast

from zkconsumer.cli.doctor import NAMED, summary
from zkconsumer.cli.source_arguments import add_source_arguments, open_source
from zkconsumer.cli.tables import (
    Screen,
    Table,
    clock,
    cut,
    fitted,
    interval_argument,
    painted,
    reader_is_gone,
    render,
    shows_pages,
    takes_colours,
    terminated,
)
from zkconsumer.errors import ZkConsumerError
from zkconsumer.model import TopicPartition
from zkconsumer.operations.doctor.findings import Level, counted, seconds
from zkconsumer.operations.judgement import Judgement
from zkconsumer.operations.printable import printable
from zkconsumer.operations.serving.api import groups_document
from zkconsumer.operations.serving.observed_group import ObservedGroup
from zkconsumer.operations.serving.poller import Board, Poller

DESCRIPTION = """\
Watches all groups, or these, and shows the worst first: what is wrong, the lag, and how
many messages a second are consumed. Ends at q and Ctrl-C.

  zkconsumer top --zookeeper HOST:2181/CHROOT
  zkconsumer top --zookeeper HOST:2181/CHROOT --sort lag
  zkconsumer top --zookeeper HOST:2181/CHROOT --once

A pipe gets plain text, one reading after the other. With rich, of the extra "terminal", the
columns fit the terminal. It writes nothing, anywhere.

Exit codes: 0 after q, and with --once; 130 after Ctrl-C; 1 nothing can be read, with
--once; 2 wrong usage.
"""
SORTS = ("severity", "lag", "rate", "group")
COLUMNS = {"GROUP": 0, "JUDGED": 0, "STATE": 70, "MEMBERS": 90, "OWNED": 80, "LAG": 0, "RATE/S": 60, "WHAT": 50}
"""The columns, each with the width of the terminal from which on it is shown."""
_NUMBERS = ("MEMBERS", "OWNED", "LAG", "RATE/S")
_RATE_MS = 60_000
"""The least time over which a rate is measured: Scala members commit once a minute."""
_RANKS = ("Stuck", "Dead", "Rebalancing")
_WIDEST_NAME = 40
_LONGEST_NAME, _LONGEST_CELL = 80, 200
"""The most characters of a name, and of any cell, in plain text. A name may have many kilobytes."""
_WHOLE = 10
"""Rates from here on are shown without a fraction."""
_END_S = 1.0
"""Seconds for the reading that is under way at the end."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("groups", metavar="GROUP", nargs="*", help="watch these groups only (default: all)")
    parser.add_argument("--sort", choices=SORTS, default="severity", help="what comes first (default: %(default)s)")
    parser.add_argument(
        "--interval", type=interval_argument, default=5.0, metavar="S", help="seconds between readings (default: 5)"
    )
    parser.add_argument("--once", action="store_true", help="print one reading and end")
    add_source_arguments(parser)


class GroupRow(NamedTuple):
    """One group: the name, the level of its worst finding, the texts of all columns, and the numbers to sort by."""

    group: str
    level: Level
    cells: Sequence[str]
    lag: int
    rate: float
    rank: int


class Rates:
    """The messages that each group consumes a second, by the committed offsets of two readings. One thread calls."""

    def __init__(self) -> None:
        self._starts: dict[str, tuple[_Offsets, _Offsets]] = {}

    def after(self, watched: ObservedGroup) -> float | None:
        """Return the rate after one more reading of a group, None after the first one, and after a failed one.

        It is measured over one to two minutes, and from the first reading on before that.
        """
        snapshot = watched.snapshot
        if watched.failure or watched.judged is not snapshot:
            return None  # the offsets are old
        committed = ((tp, snapshot.committed(tp)) for tp in snapshot.partitions())
        now = _Offsets(snapshot.taken, {tp: offset for tp, offset in committed if offset is not None})
        old, young = self._starts.get(watched.group, (now, now))
        if now.taken - young.taken >= _RATE_MS:
            old, young = young, now
        self._starts[watched.group] = (old, young)
        span = now.taken - old.taken
        moved = sum(max(0, offset - old.offsets.get(tp, offset)) for tp, offset in now.offsets.items())
        return moved * 1000 / span if span > 0 else None

    def forget_all_but(self, groups: Container[str]) -> None:
        """Forget the groups that are gone."""
        self._starts = {group: starts for group, starts in self._starts.items() if group in groups}


class _Offsets(NamedTuple):
    """The committed offsets at a time, in milliseconds since 1970."""

    taken: int
    offsets: Mapping[TopicPartition, int]


def rows_of(board: Board, rates: Rates, sort: str = SORTS[0], now: int | None = None) -> list[GroupRow]:
    """Return a row for each group of a board, in the order that ``sort`` names."""
    now = int(time.time() * 1000) if now is None else now
    judged = {name: (watched, board.judgements.get(name, Judgement())) for name, watched in board.groups.items()}
    documents = cast(Sequence[Mapping[str, Any]], groups_document(judged, now)["groups"])
    rows = [_row(one, judged[one["group"]][1], rates.after(judged[one["group"]][0])) for one in documents]
    rates.forget_all_but(judged)
    orders: Mapping[str, Callable[[GroupRow], Any]] = {
        "severity": lambda row: (-row.level, row.rank, -row.lag, row.group),
        "lag": lambda row: (-row.lag, row.group),
        "rate": lambda row: (-row.rate, row.group),
        "group": lambda row: row.group,
    }
    return sorted(rows, key=orders[sort])


def _row(one: Mapping[str, Any], judgement: Judgement, rate: float | None) -> GroupRow:
    group, level, state = printable(one["group"]), judgement.severity, judgement.state
    number, lag = judgement.counts.get(str(level), 0), -1 if one["lag"] is None else one["lag"]
    lag_text = "-" if lag < 0 else f"{lag:,}{'+' if one['unknown_lags'] else ''}"
    if one["failure"]:
        lag_text += f" ({seconds(one['age'] * 1000)} old)"
    cells = (
        group,
        counted(number, NAMED[level]) if number else "ok",
        state,
        _number(one["member_count"]),
        f"{_number(one['owned_count'])}/{one['partition_count']}",
        lag_text,
        "-" if rate is None else f"{rate:,.1f}" if rate < _WHOLE else f"{rate:,.0f}",
        printable(judgement.headline or ("" if state == "Stable" else judgement.reason)),
    )
    rank = _RANKS.index(state) if state in _RANKS else len(_RANKS)
    return GroupRow(group, level, cells, lag, rate or 0.0, rank)


def _number(value: int | None) -> str:
    return "-" if value is None else str(value)


# ---- drawing


def head(board: Board, interval: float) -> list[str]:
    """Return the lines above the groups: when they were read, how they are, and whether that is old."""
    if board.completed is None:
        known = "" if board.missing is None else f" {len(board.groups)} known, {board.missing} to go"
        return [f"reading the groups ...{known}"]
    read = time.strftime("%H:%M:%S", time.localtime(board.completed / 1000))
    left = f"; {board.left_out} more groups are not watched" if board.left_out else ""
    lines = [f"{len(board.groups)} groups at {read}, in {board.seconds:.1f} s{left}; every {interval:g} s; q ends"]
    found = {name: judgement.findings for name, judgement in board.judgements.items()}
    if board.failure:
        taken = [watched.snapshot.taken for watched in board.groups.values()]
        age = f", {seconds(time.time() * 1000 - min(taken))} old" if taken else ""
        stale = f"STALE{age}: {printable(' '.join(board.failure.split()))}"
        return [*lines, painted(stale, Level.ERROR)]
    return [*lines, summary(found) or "no group"]


def laid_out(rows: Sequence[GroupRow], width: int) -> list[str]:
    """Return the lines of a table of groups for a terminal of this width, by rich if it is installed."""
    shown = [number for number, least in enumerate(COLUMNS.values()) if width >= least]
    try:
        from rich.console import Console
        from rich.table import Table as RichTable
        from rich.text import Text
    except ImportError:
        return [cut(line, width) for line in plain(rows, shown, _WIDEST_NAME)]
    table = RichTable(box=None, pad_edge=False, expand=True)
    for title in (list(COLUMNS)[number] for number in shown):
        side: Literal["left", "right"] = "right" if title in _NUMBERS else "left"
        most, ratio = (_WIDEST_NAME if title == "GROUP" else None), (1 if title == "WHAT" else None)
        table.add_column(title, justify=side, no_wrap=True, overflow="ellipsis", max_width=most, ratio=ratio)
    for row in rows:
        table.add_row(*(Text(row.cells[number], style=_STYLES[row.level] if number == 1 else "") for number in shown))
    out, colours = StringIO(), takes_colours(sys.stdout)
    console = Console(file=out, width=width, color_system="standard" if colours else None, force_terminal=colours)
    console.print(table)
    return out.getvalue().rstrip("\n").split("\n")


_STYLES = {Level.ERROR: "red", Level.WARN: "yellow", Level.NOTE: "cyan", Level.OK: "green"}


def plain(rows: Sequence[GroupRow], shown: Sequence[int] = range(len(COLUMNS)), name: int = _LONGEST_NAME) -> list[str]:
    """Return the lines of a table of groups as plain text, with these columns and names as long as ``name``."""
    titles = list(COLUMNS)
    cells = [[cut(row.cells[number], _LONGEST_CELL if number else name) for number in shown] for row in rows]
    return [line.rstrip() for line in render(Table([titles[number] for number in shown], cells)).split("\n")]


# ---- the command


def run(arguments: argparse.Namespace) -> int:
    """Run the command. Return the exit code. Raises: ZkConsumerError, KeyboardInterrupt."""
    with open_source(arguments):
        pass  # wrong options are told now, and not by a thread later
    poller = Poller(
        lambda: open_source(arguments), arguments.interval, arguments.groups, histories=bool(arguments.snapshots)
    )
    with terminated(), _silent():
        poller.start()
        try:
            if shows_pages(sys.stdout) and not arguments.once:
                return _on_screen(poller, arguments)
            return _in_turn(poller, arguments)
        finally:
            poller.stop(_END_S)


@contextmanager
def _silent() -> Iterator[None]:
    """Keep the log off the page: the page itself says what cannot be read."""
    logger, handler = logging.getLogger("zkconsumer"), logging.NullHandler()
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def _in_turn(poller: Poller, arguments: argparse.Namespace) -> int:
    rates, polls = Rates(), 0
    while True:
        board = _living(poller.wait(lambda one: one.polls, polls, 1.0))
        if reader_is_gone():
            raise BrokenPipeError
        if board.polls > polls:
            polls = board.polls
            rows = rows_of(board, rates, arguments.sort)
            print("\n".join([f"{clock()} {head(board, arguments.interval)[-1]}", *plain(rows)]), flush=True)
            if arguments.once:
                return 1 if board.failure else 0
            print(flush=True)


def _living(board: Board) -> Board:
    """Return the board. Raises: ZkConsumerError if no further one comes."""
    if board.ended:
        raise ZkConsumerError("the thread that reads the groups has ended by an error in zkconsumer itself")
    return board


def _on_screen(poller: Poller, arguments: argparse.Namespace) -> int:
    rates, board, rows = Rates(), Board(), list[GroupRow]()
    with Screen(sys.stdout) as screen:
        while True:
            if poller.board is not board:
                board = _living(poller.board)
                rows = rows_of(board, rates, arguments.sort)
            width, height = shutil.get_terminal_size()
            above = [*(fitted(line, width) for line in head(board, arguments.interval)), ""]
            room = max(1, height - len(above) - 3)
            shown = laid_out(rows[:room], width) if rows else []
            hidden = [f"... {len(rows) - room} more groups"] if len(rows) > room else []
            screen.draw([*above, *shown, *hidden])
            if screen.quits(1.0):
                return 0
