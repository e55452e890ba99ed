"""The conditions under which rows fail. No servers."""

from __future__ import annotations

from tests.faults.lab import Report
from tests.faults.report import details, table
from tests.faults.verdict import Verdict


def test_a_row_with_a_slow_recovery_has_failed() -> None:
    """The report called it slow, but ``scripts/faults`` ended with 0."""
    report = Report("8", "a black hole", Verdict(slow=[("black hole", 9.0, 4.2)]), load=1.5)
    assert (report.ok, report.sound) == (False, True)
    assert "FAILED: slow (load 1.5)" in table([report])
    assert "slow: recovery from black hole took 9.00 s, more than 4.20 s" in details(report)
    assert "FAILED" in details(report).splitlines()[0]


def test_a_busy_machine_may_have_slower_recoveries() -> None:
    """A caller that knows that the machine is busy may accept slower recoveries."""
    report = Report("8", "a black hole", Verdict(slow=[("black hole", 9.0, 4.2)]))
    assert report.sound
    assert report.within(2.0, 1.0)
    assert not report.within(1.0, 1.0)


def test_a_row_that_went_wrong_is_not_merely_slow() -> None:
    report = Report("8", "a black hole", Verdict(violations=["I2: lost"], slow=[("black hole", 9.0, 4.2)]))
    assert (report.ok, report.sound) == (False, False)
    assert "slow (load" not in table([report])
