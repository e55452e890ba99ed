"""Rebalances of real members over many partitions: ``scripts.measurements.scale.real`` as a scenario."""

from __future__ import annotations

from typing import Any

from scripts.measurements.bench.plan import Plan
from scripts.measurements.scale import real

NAME = "rebalance"
HELP = "four members join, one leaves, one is killed: seconds until every partition has its owner"

PARTITIONS = 500
_QUICK_PARTITIONS, _QUICK_SESSION_S = 48, 2.0


def run(plan: Plan) -> dict[str, Any]:
    """Measures and prints. Returns: everything, for the JSON file; see ``scripts.measurements.scale.real.measure``."""
    partitions = _QUICK_PARTITIONS if plan.quick else PARTITIONS
    session_s = _QUICK_SESSION_S if plan.quick else real.SESSION_S
    found = real.measure(1, partitions, session_s=session_s)
    print(f"{partitions} partitions; seconds until all is settled, and the longest silence of partitions that stay\n")
    sides = list(next(iter(found["steps"].values())))
    print(f"{'':<14}" + "".join(f"{side:>22}" for side in sides))
    for step, by_side in found["steps"].items():
        print(f"{step:<14}" + "".join(f"{_shown(by_side.get(side, {})):>22}" for side in sides))
    print()
    return {"scenario": NAME, **found}


def _shown(figures: dict[str, Any]) -> str:
    seconds, gap = (figures.get(name, [None])[0] for name in ("seconds", "gap"))
    return " / ".join("-" if value is None else f"{value:.2f}" for value in (seconds, gap))
