"""Answers of a hostile broker take no more memory than the budget, the limit of one batch and 80 MB.

Each answer is read in its own process.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.timing import scaled
from tests.unit.hostile import LIMIT, MB

ROOT = Path(__file__).parent.parent.parent
BUDGET = 64
MOST = BUDGET + LIMIT // MB + 80


@pytest.mark.parametrize(
    ("case", "way", "outcome"),
    [
        ("bomb", "messages", "corrupt at 0"),
        ("bomb", "columns", "corrupt at 0"),
        ("claim", "messages", "corrupt at 0"),
        ("full", "messages", "1 messages"),
        ("count", "columns", "corrupt at"),
        ("length", "messages", "are the most"),
        ("slow", "messages", "closed the connection"),
        ("real", "messages", "read"),
    ],
)
def test_a_hostile_answer_keeps_to_the_memory_that_it_may_take(case: str, way: str, outcome: str) -> None:
    told = subprocess.run(
        [sys.executable, "-m", "tests.unit.hostile", case, way],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=scaled(60),
    ).stdout
    before, peak, became = told.split(" ", 2)
    assert outcome in became
    assert int(peak) < MOST
    assert int(peak) - int(before) < BUDGET + LIMIT // MB + 16
