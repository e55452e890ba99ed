"""``scripts/scale``: what a change of a group costs, simulated, or measured on real processes."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from scripts.measurements.bench import machine
from scripts.measurements.scale import report
from scripts.measurements.scale.changes import CHANGES, ORIGINAL, OURS, Cost, simulate
from scripts.measurements.scale.rolling import rolling_restart

_ROOT = Path(__file__).resolve().parents[3]
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
    parser.add_argument("--rolling", action="store_true", help="what a rolling restart moves; with --real for real")
    parser.add_argument("--skewed", action="store_true", help="what lag-aware moves; with --real for real (minutes)")
    parser.add_argument("--groups", type=int, default=0, metavar="N", help="what N groups cost 'serve' and commands")
    parser.add_argument(
        "--large", type=int, default=10_000, metavar="N", help="with --groups: partitions of one more group"
    )
    parser.add_argument("--seconds", type=float, default=120.0, metavar="S", help="with --groups: of each measurement")
    parser.add_argument("--zookeeper", metavar="VERSION", help="with --groups: such as 3.4.14 (default: PySpark's)")
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


def rolling_restarts(*, real: bool, partitions: int) -> list[dict[str, Any]]:
    """Restart ten members in turn, with each strategy. Print and return the moves of partitions."""
    ways = (("sticky", True), ("sticky", False), ("range", False))
    if real:
        from scripts.measurements.scale import real_rolling

        found = real_rolling.measure(ways, partitions)
    else:
        more = (("lag-aware", True), ("consistent-hash", False))
        found = [asdict(rolling_restart(name, lasting=lasts, partitions=partitions)) for name, lasts in (*ways, *more)]
    for one in found:
        print(f"  {one['strategy']}{', names that last' if one['lasting'] else ''}: {one['moves']} moves")
    return found


def skewed_loads(*, real: bool) -> list[dict[str, Any]]:
    """Let groups with ``lag-aware`` read under skewed loads; print and return what moved."""
    if real:
        from scripts.measurements.scale import real_skewed

        found = [real_skewed.measure()]
    else:
        from scripts.measurements.scale.skewed import CASES, skewed_load

        found = [asdict(skewed_load(case, noise=noise)) for case in CASES for noise in (0.0, 0.5)]
    for one in found:
        print("  " + ", ".join(f"{key} {value}" for key, value in one.items()))
    return found


def main() -> int:
    """Returns: the exit code."""
    arguments = _arguments()
    # members run in other directories
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
    results: dict[str, Any] = {"machine": machine.describe(), "load_average_at_start": machine.load()}
    if arguments.rolling:
        results["rolling"] = rolling_restarts(real=arguments.real, partitions=arguments.partitions)
    elif arguments.groups:
        from scripts.measurements.scale import groups

        large, seconds = arguments.large, arguments.seconds
        results["groups"] = groups.measure(arguments.groups, large, seconds, arguments.zookeeper)
    elif arguments.skewed:
        results["skewed"] = skewed_loads(real=arguments.real)
    elif arguments.real:
        from scripts.measurements.scale import real

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
