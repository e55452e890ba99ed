"""Several runs of ``scripts/bench`` as one table, for the pages of measurements. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

_DIGITS = {"messages_per_second": (1e-6, 2, "M/s"), "rows_per_second": (1e-6, 2, "M rows/s")}
_CPU = "cpu_seconds_per_million"
_MEMORY = ("peak_mib", "resident_mib")


def table(results: Sequence[dict[str, Any]]) -> str:
    """Markdown: by case and peer the median over runs of the runs' medians, our ratio in each run, CPU and memory."""
    cases: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for run in results:
        for scenario in run["scenarios"]:
            for case in scenario.get("cases", ()):
                cases.setdefault((scenario["scenario"], case["case"]), []).append(case)
    lines = [
        "| scenario | who | median | ours is, run by run | CPU s/million | MiB | load |",
        "|---|---|---|---|---|---|---|",
    ]
    for (scenario, name), found in cases.items():
        loads = [load for case in found for load in case["load_average_before_each"]]
        for number, peer in enumerate(found[0]["peers"]):
            rows = [case["peers"][peer] for case in found if peer in case["peers"]]
            ratios = ", ".join(f"{row['ours_to_this']:.2f}" for row in rows if row["ours_to_this"] is not None)
            title = f"{scenario}: {name}" if number == 0 else ""
            load = f"{min(loads):.1f}-{max(loads):.1f}" if number == 0 else ""
            cells = [
                title,
                peer,
                _measure(found[0]["compared"], rows),
                ratios,
                _of(rows, _CPU, 2),
                _of(rows, _MEMORY, 0),
            ]
            lines.append(f"| {' | '.join([*cells, load])} |")
    return "\n".join(lines)


def _measure(name: str, rows: Sequence[dict[str, Any]]) -> str:
    factor, digits, unit = _DIGITS.get(name, (1.0, 2, name))
    return f"{median(row[name]['median'] for row in rows) * factor:.{digits}f} {unit}"


def _of(rows: Sequence[dict[str, Any]], names: str | Sequence[str], digits: int) -> str:
    for name in [names] if isinstance(names, str) else names:
        if name in rows[0]:
            return f"{median(row[name]['median'] for row in rows):.{digits}f}"
    return ""
