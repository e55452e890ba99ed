"""The picture of the demo: flights by week, the Spark stream's share of them, and their mean delay. Main thread."""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from scripts.demonstration.spark_process import Weeks

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OTHER = "read by the other member"
STREAM = "read by the Spark stream"
PARTIAL = "not all days of the week are in the file"
HATCH = "////"
"""The pattern of the bars of partial weeks."""
_WIDTH = timedelta(days=6)  # of a bar: a gap of a day remains
_SAND, _BLUE, _WHITE = "#d9c9a3", "#2a6f97", "#ffffff"


def draw(whole: Weeks, read: Weeks, file: Path) -> None:
    """Write the picture of :func:`weeks_figure` as a PNG."""
    import matplotlib as mpl

    mpl.use("Agg")
    weeks_figure(whole, read).savefig(file, dpi=110, format="png")


def weeks_figure(whole: Weeks, read: Weeks) -> Figure:
    """Return a figure with a bar for each week of the ``whole`` topic, and in it the flights that the stream ``read``.

    Partial weeks are hatched. Otherwise their low bars would look like weeks with few flights. The legend stands below
    the axes, where no bar can be.
    """
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    figure = Figure(figsize=(9, 5.5), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    days = [date.fromisoformat(week) for week in whole]
    flights = [week.flights for week in whole.values()]
    mine = [read[week].flights if week in read else 0 for week in whole]
    for heights, color in ((flights, _SAND), (mine, _BLUE)):
        bars = upper.bar(days, heights, _WIDTH, align="edge", color=color)
        for bar, week in zip(bars, whole.values(), strict=True):
            if not week.complete:
                bar.set(hatch=HATCH, edgecolor=_WHITE, linewidth=0)
    upper.set_ylabel("flights a week")
    upper.set_title("Departures from New York City in 2013, read by a group of two")
    middles = [day + _WIDTH / 2 for day in days]
    known = [(x, read[name], whole[name].complete) for x, name in zip(middles, whole, strict=True) if name in read]
    lower.plot([x for x, *_ in known], [week.delay for _, week, _ in known], color=_BLUE)
    partial = [(x, week.delay) for x, week, complete in known if not complete]
    lower.plot([x for x, _ in partial], [delay for _, delay in partial], "o", color=_BLUE, markerfacecolor=_WHITE)
    lower.set_ylabel("mean delay (min)")
    locator = AutoDateLocator()  # type: ignore[no-untyped-call]
    lower.xaxis.set_major_locator(locator)
    # the full dates of neighbouring days would cover each other
    lower.xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]
    legend = [
        Patch(color=_BLUE, label=STREAM),
        Patch(color=_SAND, label=OTHER),
        Patch(facecolor=_BLUE, edgecolor=_WHITE, linewidth=0, hatch=HATCH, label=PARTIAL),
    ]
    figure.legend(handles=legend, loc="outside lower center", ncols=len(legend))
    return figure
