"""The picture at the end: flights by week. Functions only; used by the main thread."""

from __future__ import annotations

from datetime import date
from pathlib import Path

from zkconsumer.cli.demo.spark_process import Weeks


def draw(whole: Weeks, read: Weeks, file: Path) -> None:
    """Writes a PNG: what the stream read of all flights of each week, and the mean delay that it found."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5.5), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    days = [date.fromisoformat(week) for week in whole]
    upper.bar(days, [flights for flights, _ in whole.values()], 6, color="#d9c9a3", label="read by the other member")
    mine = [read.get(week, (0, None))[0] for week in whole]
    upper.bar(days, mine, 6, color="#2a6f97", label="read by the Spark stream")
    upper.set_ylabel("flights a week")
    upper.set_title("Departures from New York City in 2013, read by a group of two")
    upper.legend(loc="best")
    known = [(day, read[week][1]) for day, week in zip(days, whole, strict=True) if week in read]
    lower.plot([day for day, _ in known], [delay for _, delay in known], color="#2a6f97")
    lower.set_ylabel("mean delay (min)")
    figure.savefig(file, dpi=110, format="png")
