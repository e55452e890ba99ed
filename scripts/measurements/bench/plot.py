"""Draws results of ``scripts/bench``: one panel a case, one bar a peer, medians of the given runs.

The line on a bar goes from the lowest to the highest turn of all runs. matplotlib is imported when something is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

_OURS, _OTHERS, _LINE = "#2a6f97", "#b8c4cc", "#333333"
_UNITS = {
    "messages_per_second": ("million messages a second", 1e-6),
    "rows_per_second": ("million rows a second", 1e-6),
    "p99_ms": ("p99 in ms", 1.0),
    "trigger_ms": ("ms a trigger", 1.0),
    "percent_of_a_core": ("% of a core", 1.0),
}
_COLUMNS = 3


class Bar(NamedTuple):
    """One peer of a case: a median and its range, in the unit of the panel."""

    name: str
    middle: float
    low: float
    high: float
    ours: bool


class Panel(NamedTuple):
    """One case."""

    title: str
    unit: str
    bars: list[Bar]


def panels(results: Sequence[dict[str, Any]]) -> list[Panel]:
    """Return the panels to draw, in the order of the first run that has each."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for run in results:
        for scenario in run["scenarios"]:
            for case in scenario.get("cases", ()):
                found.setdefault((scenario["scenario"], case["case"]), []).append(case)
    return [_panel(scenario, cases) for (scenario, _), cases in found.items()]


def _panel(scenario: str, cases: list[dict[str, Any]]) -> Panel:
    measure = cases[0]["compared"]
    title, factor = _UNITS.get(measure, (measure, 1.0))
    bars = []
    for name in cases[0]["peers"]:
        rows = [case["peers"][name][measure] for case in cases if name in case["peers"]]
        middle = median(row["median"] for row in rows) * factor
        low, high = (
            min(row["lowest"] for row in rows) * factor,
            max(row["highest"] for row in rows) * factor,
        )
        bars.append(Bar(name, middle, low, high, name.startswith(cases[0]["ours"])))
    return Panel(f"{scenario}: {cases[0]['case']}", title, bars)


def draw(results: Sequence[dict[str, Any]], picture: Path) -> None:
    """Writes a PNG. Raises ValueError where there is nothing to draw."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    drawn = panels(results)
    if not drawn:
        raise ValueError("no result has cases to draw")
    rows = -(-len(drawn) // _COLUMNS)
    figure, axes = plt.subplots(rows, min(_COLUMNS, len(drawn)), figsize=(15, 2.5 * rows), squeeze=False)
    for axis in axes.flat[len(drawn) :]:
        axis.set_axis_off()
    for axis, panel in zip(axes.flat, drawn, strict=False):
        _draw_panel(axis, panel)
    about = results[-1]["machine"]
    runs = f"medians of {len(results)} runs, lines from the lowest to the highest turn"
    figure.suptitle(
        f"{runs}; {about['cores']} cores, {about['cpu']}, Python {about['python']}, {about['data_plane']}",
        fontsize=9,
    )
    figure.tight_layout()
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture, dpi=80)
    plt.close(figure)


def _draw_panel(axis: Any, panel: Panel) -> None:
    bars = panel.bars[::-1]
    places = range(len(bars))
    axis.barh(
        places,
        [bar.middle for bar in bars],
        color=[_OURS if bar.ours else _OTHERS for bar in bars],
    )
    for place, bar in zip(places, bars, strict=True):
        axis.plot([bar.low, bar.high], [place, place], color=_LINE, linewidth=1)
        axis.annotate(
            f"{bar.middle:.2f}",
            (0, place),
            (4, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
        )
    axis.set_yticks(list(places), [bar.name for bar in bars], fontsize=8)
    axis.set_title(panel.title, fontsize=9)
    axis.set_xlabel(panel.unit, fontsize=8)
    axis.tick_params(axis="x", labelsize=8)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
