"""The recorded cases, each with a readable name."""

from __future__ import annotations

import json
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data"
MOST_SHOWN = 10
"""Failed cases whose tracebacks a test shows."""


@dataclass(frozen=True, slots=True)
class Case:
    """One line of a file of cases. ``name`` tells the subject of the line."""

    file: str
    line: int
    data: dict[str, Any]
    name: str


def check_each(cases: Sequence[Case], check: Callable[[Case], None]) -> None:
    """Check many small cases in one test. Raises AssertionError that names all cases that fail."""
    failures = []
    for case in cases:
        try:
            check(case)
        except Exception:
            failures.append(f"{case.name}:\n{traceback.format_exc()}")
    assert cases
    assert not failures, f"{len(failures)} of {len(cases)} cases failed\n" + "\n".join(failures[:MOST_SHOWN])


def load(folder: Path, prefixes: tuple[str, ...]) -> list[Case]:
    """The cases of all files in ``folder`` whose name is one of ``prefixes``, or starts with one that ends in ``_``."""
    cases: list[Case] = []
    for path in sorted(folder.glob("*.jsonl")):
        if any(path.stem == prefix or (prefix.endswith("_") and path.stem.startswith(prefix)) for prefix in prefixes):
            lines = path.read_text(encoding="utf-8").splitlines()
            for number, line in enumerate(lines, 1):
                data = json.loads(line)
                cases.append(Case(path.stem, number, data, f"{path.stem}-{number}-{_subject(data)}"))
    repeated = [name for name, count in Counter(case.name for case in cases).items() if count > 1]
    assert not repeated, repeated
    return cases


def _subject(data: dict[str, Any]) -> str:
    """Return the subject of a case, in a few words."""
    if "note" in data:
        return str(data["note"])
    if "case" in data:
        return f"{data['what']}-{data['case']}-{data['strategy']}"
    if "chain" in data:
        return f"{data['chain']}.{data['step']}"
    if "raw" in data:
        kind = "white" if data["kind"] == "white_list" else "black"
        return f"{kind}-{'external' if data['exclude_internal'] else 'all'}-{ascii(data['raw'])[1:-1]}"
    return f"{data['strategy']}-{len(data['mqAll'])}q-{len(data['cidAll'])}c"
