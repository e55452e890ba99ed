"""Tables as text, CSV or JSON: the output of the commands that look after groups.

Text that comes from a node or a broker may contain control characters, such as those that clear a terminal. Every form
writes them as escapes. Pure; any thread.
"""

from __future__ import annotations

import argparse
import base64
import csv
import io
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

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


def printable(text: str) -> str:
    r"""Return text that a terminal shows and does not obey: control characters and the like become ``\x1b``."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode("ascii") for one in text)


def data_field(name: str, data: bytes | None, as_base64: bool = False) -> dict[str, str | None]:
    """Return a JSON field: as text if it is UTF-8, else as base64 under another name."""
    if data is None:
        return {name: None}
    if not as_base64:
        try:
            return {name: bytes(data).decode()}
        except UnicodeDecodeError:
            pass
    return {f"{name}_base64": base64.b64encode(data).decode("ascii")}


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
