"""``scripts/scale``: what a change of a group costs, simulated, or measured on real processes."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.bench import machine
from tests.scale import report
from tests.scale.changes import CHANGES, ORIGINAL, OURS, Cost, simulate

_ROOT = Path(__file__).resolve().parents[2]
SIZES = ((10, 100), (100, 10), (250, 25), (500, 50), (1000, 100))
QUICK = ((10, 20), (40, 8), (100, 10))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/scale",
        description="What a change of a group costs: requests, bytes and time, simulated for ours and for the "
        "original's algorithm; with --real measured on real members that share a topic of many partitions.",
    )
    parser.add_argument("--quick", action="store_true", help="small sizes")
    parser.add_argument("--real", action="store_true", help="measure real processes instead (minutes)")
    parser.add_argument("--turns", type=int, default=3, metavar="N", help="with --real (default: %(default)s)")
    parser.add_argument("--partitions", type=int, default=500, metavar="N", help="with --real (default: %(default)s)")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw the simulation's figures there")
    parser.add_argument("--output", type=Path, metavar="FILE", help="default: artifacts/scale/<time>.json")
    return parser.parse_args()


def simulated(sizes: Sequence[tuple[int, int]]) -> list[Cost]:
    """Every change of every size, on both sides; what ours compute counts as time."""
    costs = []
    for partitions, members in sizes:
        for change in CHANGES:
            for side in (OURS, ORIGINAL):
                costs.append(simulate(side, change, partitions, members, counts_cpu=side == OURS))
                print(f"  {partitions} x {members}, {change}, {side}", file=sys.stderr, flush=True)
    return costs


def main() -> int:
    """Returns: the exit code."""
    arguments = _arguments()
    # members run in other directories
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
    results: dict[str, Any] = {"machine": machine.describe(), "load_average_at_start": machine.load()}
    if arguments.real:
        from tests.scale import real

        results["real"] = real.measure(arguments.turns, arguments.partitions)
        print(real.table(results["real"]))
    else:
        costs = simulated(QUICK if arguments.quick else SIZES)
        results["simulated"] = [cost.as_dict() for cost in costs]
        print(report.table(costs))
        if arguments.picture is not None:
            report.draw(costs, arguments.picture)
            print(f"Drawn to {arguments.picture}")
    print(f"Load average: {results['load_average_at_start']} at the start, {machine.load()} at the end")
    output = arguments.output or _ROOT / "artifacts" / "scale" / f"{datetime.now(UTC):%Y%m%d-%H%M%S}.json"
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(results, indent=2) + "\n")
    print(f"Written to {output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
