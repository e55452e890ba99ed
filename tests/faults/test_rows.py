"""A sample of the rows of the fault matrix, with sessions of 2 s. ``scripts/faults --all`` runs all of them.

They run in the background, several on one cluster. Each test waits for its row and reports the violations.
"""

from __future__ import annotations

import pytest

from tests.faults.conftest import Rows
from tests.faults.matrix import ROWS
from tests.faults.report import details
from tests.timing import scaled

QUICK = [name for name, row in ROWS.items() if row.quick]
ROW_S = 300.0
BUSY = 4.0
"""How much longer than on an idle machine a recovery may take here, where other rows run beside it."""


@pytest.mark.parametrize("name", QUICK)
def test_row(rows: Rows, name: str) -> None:
    report = rows.reports[name].result(scaled(ROW_S))
    print(details(report))
    assert report.sound, details(report)
    assert report.within(BUSY, scaled(5.0)), details(report)


def test_all_of_the_quick_rows_are_there() -> None:
    assert set(QUICK) == {"1", "2", "4", "5", "7", "8", "12", "17", "22", "27", "ensemble"}
