"""What the commands print: tables as text, CSV or JSON, colours, and pages of a terminal that are drawn anew.

Text that comes from a node or a broker may contain control characters, such as those that clear a terminal. Every form
writes them as escapes. Tables are pure, for any thread. The main thread alone uses the terminal. A pipe or a file gets
plain text, one look after the other. A terminal gets a page of its own, which its former content replaces at the end,
also after Ctrl-C, Ctrl-Z and SIGTERM.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import re
import select
import shutil
import signal
import sys
import termios
import time
import tty
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from itertools import accumulate
from types import FrameType
from typing import Any, Self, TextIO

from zkconsumer.errors import ZkConsumerError
from zkconsumer.operations.printable import printable

Options = argparse._ActionsContainer
"""A parser, or a group of its options."""

TABLE, CSV, JSON = "table", "csv", "json"
FORMS = (TABLE, CSV, JSON)

Cell = str | int | float | bool | Sequence[str] | None
"""A value of a table. None is what is missing or unknown. A list of texts is joined, except in JSON."""

_MISSING = "-"
_WIDEST = 300
"""Columns are not aligned beyond it. Otherwise one huge value would make each of many rows as long."""
_NO_KEY = re.compile("[^a-z0-9]+")


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its title, and the fewest characters that it takes as text.

    A ``fixed`` column does not widen for longer values, as some of Kafka's tools.
    """

    title: str
    width: int = 0
    fixed: bool = False

    @property
    def key(self) -> str:
        """The column's name in JSON: ``CURRENT-OFFSET`` becomes ``current_offset``."""
        return _NO_KEY.sub("_", self.title.lower().replace("#", "number_")).strip("_")


@dataclass(frozen=True, slots=True, init=False)
class Table:
    """Columns, and rows with a cell for each column."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]

    def __init__(self, columns: Sequence[Column | str], rows: Sequence[Sequence[Cell]]) -> None:
        """Each of ``columns`` is a :class:`Column` or its title. Raises ValueError for a row that differs."""
        made = tuple(Column(one) if isinstance(one, str) else one for one in columns)
        for row in rows:
            if len(row) != len(made):
                raise ValueError(f"a row has {len(row)} cells for {len(made)} columns: {row!r}")
        object.__setattr__(self, "columns", made)
        object.__setattr__(self, "rows", tuple(tuple(map(_frozen, row)) for row in rows))


def _frozen(cell: Cell) -> Cell:
    return tuple(cell) if isinstance(cell, Sequence) and not isinstance(cell, str) else cell


def render(table: Table, form: str = TABLE) -> str:
    """Return the table in one of :data:`FORMS`, without a newline at its end.

    ``table`` has aligned columns, and ``-`` for None or an empty list. ``csv`` has a line of titles, and empty fields
    for None. ``json`` is a list of objects with null for None. Raises ValueError for another form.
    """
    if form == TABLE:
        return _aligned(table)
    if form == CSV:
        return _comma_separated(table)
    if form == JSON:
        return as_json([json_row(table, row) for row in table.rows])
    raise ValueError(f"{form!r} is none of {', '.join(FORMS)}")


def json_row(table: Table, row: Sequence[Cell]) -> dict[str, object]:
    """Return a row by the keys of its columns."""
    return {
        column.key: list(cell) if isinstance(cell, Sequence) and not isinstance(cell, str) else cell
        for column, cell in zip(table.columns, row, strict=True)
    }


def as_json(value: object) -> str:
    """Return a value as JSON in ASCII, so that a terminal of any encoding shows it and nothing in it is obeyed."""
    return json.dumps(value, indent=2, ensure_ascii=True, allow_nan=False)


class UnwritableOutputError(Exception):
    """The standard output takes nothing more: a full disk, or it is closed."""


def add_format_argument(parser: Options) -> None:
    """Declare ``--format`` in a parser or a group of its options; its value is ``arguments.format``."""
    parser.add_argument(
        "--format", choices=FORMS, default=TABLE, help="print a table, CSV with a line of titles, or JSON"
    )


def _aligned(table: Table) -> str:
    rows = [[column.title for column in table.columns]]
    rows += [[_MISSING if cell is None or cell == () else _text(cell) for cell in row] for row in table.rows]
    widths = [
        column.width if column.fixed else max(column.width, *(min(len(row[at]), _WIDEST) for row in rows))
        for at, column in enumerate(table.columns)
    ]
    # as Kafka's tools, which fill up every column but the last one
    return "\n".join(
        " ".join([*(cell.ljust(width) for cell, width in zip(row, widths[:-1], strict=False)), *row[-1:]])
        for row in rows
    )


def _comma_separated(table: Table) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([column.title for column in table.columns])
    writer.writerows([[_text(cell) for cell in row] for row in table.rows])
    return out.getvalue().removesuffix("\n")


def _text(cell: Cell) -> str:
    if cell is None:
        return ""
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, str):
        return printable(cell)
    if isinstance(cell, Sequence):
        return ", ".join(printable(one) for one in cell)
    return str(cell)


# ---- the terminal

LONGEST_S = 24 * 3600.0
_COLOURS = (32, 36, 33, 31)
"""The colours of the levels ok, note, warn and error."""
_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
_OPEN, _CLOSE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
"""The other screen without a cursor, and the way back."""
_TICK = 0.25
"""Seconds after which a new size of the terminal is noticed."""
_MOST_ROWS = 8
"""The most rows of one line, such as one with a hostile name of many kilobytes."""
_ERROR = 3


def shows_pages(out: TextIO | None) -> bool:
    """Return whether this is a terminal that obeys escapes. None is an output that is closed."""
    return out is not None and out.isatty() and os.environ.get("TERM") != "dumb"


def takes_colours(out: TextIO | None) -> bool:
    """Return whether this is a terminal that shows colours, and its user wants them (https://no-color.org)."""
    return shows_pages(out) and not os.environ.get("NO_COLOR")


def painted(text: str, level: int, out: TextIO | None = None) -> str:
    """Return the text in the colour of a doctor's level, if ``out`` (default: the standard output) takes colours."""
    return f"\x1b[{_COLOURS[level]}m{text}\x1b[0m" if takes_colours(out or sys.stdout) else text


def width_of(text: str) -> int:
    """Return the columns that a text takes: two for a wide character, none for a combining one or a colour."""
    plain = _ESCAPE.sub("", text)
    if plain.isascii():
        return len(plain)
    wide = (unicodedata.east_asian_width(one) in "WF" for one in plain)
    return sum(0 if unicodedata.combining(one) else 1 + two for one, two in zip(plain, wide, strict=True))


def cut(text: str, width: int) -> str:
    """Return a text without colours in at most so many columns, with an ellipsis if it is longer."""
    if width_of(text) <= width:
        return text
    kept = sum(columns < width for columns in accumulate(map(width_of, text[: max(0, width)])))
    return f"{text[:kept]}…" if width > 0 else ""


def fitted(line: str, width: int) -> str:
    """Return a line in at most so many columns, without its colours if it is longer."""
    return line if width_of(line) <= width else cut(_ESCAPE.sub("", line), width)


@contextmanager
def terminated() -> Iterator[None]:
    """Treat SIGTERM as Ctrl-C inside the block, so that it ends as orderly."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class Screen:
    """A page of the terminal that is drawn again and again. The end of the block brings back what was there before.

    Keys are neither shown nor kept for the shell. While the block lasts, nothing else writes to the terminal.
    """

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._keys = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None
        self._modes: list[Any] = []
        self._stops = signal.getsignal(signal.SIGTSTP)
        self._blank = True

    def __enter__(self) -> Self:
        self._out.flush()
        try:
            self._open()
            signal.signal(signal.SIGTSTP, self._suspend)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._end()
        except BaseException:  # a second Ctrl-C
            self._end()
            raise

    def _end(self) -> None:
        signal.signal(signal.SIGTSTP, self._stops)
        self._close()

    def _open(self) -> None:
        if self._keys is not None:
            self._modes = termios.tcgetattr(self._keys)
            tty.setcbreak(self._keys)
        self._write(_OPEN)

    def _close(self) -> None:
        self._write(_CLOSE)
        if self._keys is not None and self._modes:
            termios.tcsetattr(self._keys, termios.TCSADRAIN, self._modes)

    def _suspend(self, number: int, frame: FrameType | None) -> None:
        """Give the terminal back before Ctrl-Z stops the process, and take it again when the process goes on."""
        self._close()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, self._suspend)
        self._open()
        self._blank = True

    def _write(self, text: str) -> None:
        """Write past Python's buffer, which refuses a signal's handler that writes in the middle of another write."""
        left = memoryview(text.encode(self._out.encoding, "backslashreplace"))
        while left:
            left = left[os.write(self._out.fileno(), left) :]

    def draw(self, lines: Sequence[str]) -> None:
        """Show these lines, as many as the terminal has room for. A line may be longer than the terminal is wide."""
        width, height = shutil.get_terminal_size()
        shown: list[str] = []
        left = max(1, height - 1)
        for number, line in enumerate(lines):
            line = fitted(line, _MOST_ROWS * width)
            columns = width_of(line)
            # a wide character does not begin in the last column
            left -= 1 if columns <= width else -(-columns // max(1, width - (not line.isascii())))
            if left < 0:
                shown.append(cut(f"... {len(lines) - number} more lines", width))
                break
            shown.append(line)
        self._blank = False
        self._write("\x1b[H\x1b[2J" + "\n".join(shown))

    def quits(self, seconds: float) -> bool:
        """Wait. Return whether the user pressed ``q``.

        Returns early after any key, after a change of the size, and when the process goes on after Ctrl-Z.
        """
        end, size = time.monotonic() + seconds, shutil.get_terminal_size()
        while (left := end - time.monotonic()) > 0 and not self._blank and size == shutil.get_terminal_size():
            if self._keys is None:
                time.sleep(min(left, _TICK))
            elif select.select([self._keys], [], [], min(left, _TICK))[0]:
                return os.read(self._keys, 64)[:1] in b"qQ"  # nothing at all: the terminal is gone
        return False


class _Captured(io.StringIO):
    """What a look prints, for a terminal."""

    def isatty(self) -> bool:
        return True


def add_watch_argument(parser: Options) -> None:
    """Declare ``--watch``."""
    parser.add_argument("--watch", type=interval_argument, metavar="S", help="look again every S seconds, until Ctrl-C")


def interval_argument(text: str) -> float:
    """Return a number of seconds, up to a day. Raises argparse.ArgumentTypeError."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= LONGEST_S:
        raise argparse.ArgumentTypeError(f"{text!a} is no number of seconds up to {LONGEST_S:.0f}")
    return value


def watched(look: Callable[[], int], seconds: float, title: str) -> int:
    """Run ``look`` again and again until Ctrl-C, and show what it prints. Return its last exit code after ``q``.

    The first look may fail. After a later failure the output of the look before stays, marked as stale.
    """
    with terminated():
        return _on_screen(look, seconds, title) if shows_pages(sys.stdout) else _in_turn(look, seconds)


def _in_turn(look: Callable[[], int], seconds: float) -> int:
    began = time.monotonic()
    look()
    while True:
        print(end="", flush=True)
        _pause(_rest(began, seconds))
        began = time.monotonic()
        try:
            print(flush=True)
            look()
        except ZkConsumerError as error:
            print(f"zkconsumer: {_stale(error)}", file=sys.stderr, flush=True)


def _on_screen(look: Callable[[], int], seconds: float, title: str) -> int:
    began, since, stale = time.monotonic(), clock(), ""
    code, shown = _printed(look)
    with Screen(sys.stdout) as screen:
        while True:
            due = time.monotonic() + _rest(began, seconds)
            while (left := due - time.monotonic()) > 0:
                head = f"{title}, as of {since}; every {seconds:g} s; q ends"
                screen.draw([head, *([painted(stale, _ERROR)] if stale else []), "", *shown])
                if screen.quits(left):
                    return code
            began = time.monotonic()
            try:
                code, shown = _printed(look)
                since, stale = clock(), ""
            except ZkConsumerError as error:
                stale = _stale(error)


def _pause(seconds: float) -> None:
    """Wait. Raises BrokenPipeError once nobody reads the standard output any more."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        if reader_is_gone():
            raise BrokenPipeError
        time.sleep(min(left, 1.0))


def reader_is_gone() -> bool:
    """Return whether standard output is a pipe that nobody reads any more: we write nothing while nothing happens."""
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        return any(event & (select.POLLERR | select.POLLNVAL) for _, event in poll.poll(0))
    except (OSError, ValueError, AttributeError):  # standard output is no file, as in a test, or it is closed
        return False


def _printed(look: Callable[[], int]) -> tuple[int, list[str]]:
    out = _Captured()
    with redirect_stdout(out), redirect_stderr(out):
        code = look()
    return code, out.getvalue().strip("\n").split("\n")


def _stale(error: ZkConsumerError) -> str:
    return f"stale, the look at {clock()} failed: {printable(' '.join(str(error).split()))}"


def _rest(began: float, seconds: float) -> float:
    """Return the seconds until the next look, also after a look that took longer than its interval."""
    return max(seconds - (time.monotonic() - began), seconds * 0.1)


def clock() -> str:
    """Return the time of this machine."""
    return time.strftime("%H:%M:%S")
