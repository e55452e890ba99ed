"""The simulation's figures as a table and as a picture. matplotlib is imported when something is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scripts.measurements.scale.changes import CHANGES, ORIGINAL, OURS, Cost

_WIDTH = 0.4
_COLOURS = {OURS: "#2a6f97", ORIGINAL: "#8a949b"}
_NAMES = {
    "join": "one joins",
    "leave": "one leaves",
    "kill": "one is killed",
    "restart": "one restarts",
    "all start": "all start at once",
    "rest": "20 s of rest",
}
Key = tuple[str, str, int, int]


def table(costs: Sequence[Cost]) -> str:
    """One line a size and change, in Markdown; each cell ours / the original's."""
    by_key: dict[Key, Cost] = {(cost.side, cost.change, cost.partitions, cost.members): cost for cost in costs}
    lines = [
        "| partitions x members | change | partitions that move | requests | kB | ms | events |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for partitions, members in dict.fromkeys((cost.partitions, cost.members) for cost in costs):
        for change in CHANGES:
            ours = by_key.get((OURS, change, partitions, members))
            original = by_key.get((ORIGINAL, change, partitions, members))
            if ours is None or original is None:
                continue
            lines.append(
                f"| {partitions:,} x {members} | {_NAMES[change]} | {ours.moved:,} "
                f"| {ours.total:,} / {original.total:,} "
                f"| {ours.bytes / 1000:,.0f} / {original.bytes / 1000:,.0f} "
                f"| {_ms(ours)} / {_ms(original)} | {ours.events:,} / {original.events:,} |"
            )
    return "\n".join(lines)


def _ms(cost: Cost) -> str:
    if cost.change == "rest":
        return "-"
    return f"{cost.seconds * 1000:,.0f}" + (f" ({cost.unowned} unowned)" if cost.unowned else "")


def draw(costs: Sequence[Cost], picture: Path) -> None:
    """Writes a PNG: requests and time of each change, at the sizes in the order of ``costs``."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    changes = [change for change in CHANGES if change != "rest"]
    measures = (("requests", "total", 1.0), ("kB both ways", "bytes", 1e-3), ("ms to the last owner", "seconds", 1e3))
    figure, axes = plt.subplots(len(measures), len(changes), figsize=(16, 8), squeeze=False, sharey="row")
    for row, (title, field, factor) in zip(axes, measures, strict=True):
        for axis, change in zip(row, changes, strict=True):
            _panel(axis, [cost for cost in costs if cost.change == change], field, factor)
            axis.set_title(f"{_NAMES[change]}: {title}", fontsize=9)
    axes[0][0].legend(fontsize=8)
    figure.suptitle("simulated; partitions x members; logarithmic", fontsize=9)
    figure.tight_layout()
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture, dpi=80)
    plt.close(figure)


def _panel(axis: Any, costs: Sequence[Cost], field: str, factor: float) -> None:
    sizes = list(dict.fromkeys((cost.partitions, cost.members) for cost in costs))
    for side, offset in ((OURS, -_WIDTH / 2), (ORIGINAL, _WIDTH / 2)):
        values = [
            getattr(cost, field) * factor
            for size in sizes
            for cost in costs
            if cost.side == side and (cost.partitions, cost.members) == size
        ]
        places = [place + offset for place in range(len(sizes))]
        axis.bar(places, values, _WIDTH, color=_COLOURS[side], label=side)
    axis.set_yscale("log")
    axis.set_xticks(range(len(sizes)), [f"{partitions}x{members}" for partitions, members in sizes], fontsize=7)
    axis.grid(axis="y", alpha=0.3)
