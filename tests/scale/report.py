"""The simulation's figures as a table and as a picture. matplotlib is imported when something is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.scale.changes import CHANGES, ORIGINAL, OURS, Cost

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
    """Writes a PNG: requests, bytes and time by the size of the group, one line a change and side."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    changes = ("join", "kill", "all start")
    figure, axes = plt.subplots(len(changes), 3, figsize=(13, 9), squeeze=False)
    measures = (("requests", "total", 1.0), ("kB both ways", "bytes", 1e-3), ("ms to the last owner", "seconds", 1e3))
    for row, change in zip(axes, changes, strict=True):
        for axis, (title, field, factor) in zip(row, measures, strict=True):
            _panel(axis, [cost for cost in costs if cost.change == change], field, factor)
            axis.set_title(f"{_NAMES[change]}: {title}", fontsize=9)
    figure.suptitle("simulated; partitions x members, both scales logarithmic", fontsize=9)
    figure.tight_layout()
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture, dpi=80)
    plt.close(figure)


def _panel(axis: Any, costs: Sequence[Cost], field: str, factor: float) -> None:
    for side, colour in _COLOURS.items():
        line = sorted((c for c in costs if c.side == side), key=lambda c: (c.partitions * c.members, c.partitions))
        sizes = [cost.partitions * cost.members for cost in line]
        axis.plot(sizes, [getattr(cost, field) * factor for cost in line], "o-", color=colour, label=side, markersize=4)
        if side == OURS:
            axis.set_xticks(sizes, [f"{cost.partitions}x{cost.members}" for cost in line], fontsize=7, rotation=20)
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.minorticks_off()
    axis.set_xticks(
        sorted({cost.partitions * cost.members for cost in costs}),
        _labels(costs),
        fontsize=7,
    )
    axis.grid(alpha=0.3)
    axis.legend(fontsize=7)


def _labels(costs: Sequence[Cost]) -> list[str]:
    named: dict[int, str] = {}
    for cost in costs:
        size = f"{cost.partitions}x{cost.members}"
        known = named.setdefault(cost.partitions * cost.members, size)
        if size not in known.split("\n"):
            named[cost.partitions * cost.members] = f"{known}\n{size}"
    return [named[product] for product in sorted(named)]
