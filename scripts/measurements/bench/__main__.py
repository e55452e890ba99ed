"""``scripts/bench``: runs measurements, prints and draws the results, and writes a JSON file."""

from __future__ import annotations

import argparse
import json
import os
import sys
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from time import monotonic
from typing import Any

from scripts.measurements.bench import machine, summary
from scripts.measurements.bench.neighbour import KINDS, neighbour
from scripts.measurements.bench.plan import Plan

_ROOT = Path(__file__).resolve().parents[3]
# name -> module of this package; in the order of running
_SCENARIOS = {
    "profile": "profile",
    "iterate": "iterate",
    "columns": "columns",
    "streams": "streams",
    "asyncio": "event_loop",
    "latency": "latency",
    "many-partitions": "partitions",
    "memory": "memory",
    "rebalance": "rebalance",
    "spark": "spark",
    "snapshot": "snapshot",
    "balance": "balance",
}


def _scenario(name: str) -> Any:
    return import_module(f"scripts.measurements.bench.{_SCENARIOS[name]}")


def _list() -> str:
    return "\n".join(f"  {name:<16} {_scenario(name).HELP}" for name in _SCENARIOS)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/bench",
        description="Measures zkconsumer beside its peers on a real broker. --list shows the scenarios; each takes less"
        " than three minutes on two cores.",
    )
    parser.add_argument("scenario", nargs="*", metavar="scenario", help="which ones (default: all)")
    parser.add_argument("--list", action="store_true", help="show the scenarios and end")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="a tenth of the messages, one turn: only to see that it works, a JVM is not warm by then",
    )
    parser.add_argument(
        "--messages",
        type=int,
        default=Plan.messages,
        metavar="N",
        help="default: %(default)s",
    )
    parser.add_argument(
        "--turns",
        type=int,
        default=Plan.turns,
        metavar="N",
        help="default: %(default)s",
    )
    parser.add_argument(
        "--batch-bytes",
        type=int,
        default=Plan.batch_bytes,
        metavar="N",
        help="the producer's (default: %(default)s)",
    )
    parser.add_argument(
        "--beside",
        choices=KINDS,
        help="run a process beside the measurements: one that burns a core, or one that copies memory",
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="default: artifacts/bench/<time>.json",
    )
    parser.add_argument(
        "--plot",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="measure nothing: PICTURE.png RESULTS.json [RESULTS.json ...]: draw the runs' medians, print a table",
    )
    arguments = parser.parse_args()
    unknown = [name for name in arguments.scenario if name not in _SCENARIOS]
    if unknown:
        parser.error(f"no scenario {', '.join(unknown)}; there are: {', '.join(_SCENARIOS)}")
    if arguments.plot is not None and len(arguments.plot) < 2:
        parser.error("--plot takes a picture's name and at least one file of results")
    return arguments


def main() -> int:
    """Returns: the exit code."""
    arguments = _arguments()
    if arguments.list:
        print(_list())
        return 0
    if arguments.plot is not None:
        picture, *results = arguments.plot
        runs = [json.loads(path.read_text()) for path in results]
        print(summary.table(runs))
        _draw(runs, picture)
        return 0
    # peers run in the root directory of the machine
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
    plan = Plan(
        messages=arguments.messages // 10 if arguments.quick else arguments.messages,
        turns=1 if arguments.quick else arguments.turns,
        batch_bytes=arguments.batch_bytes,
        quick=arguments.quick,
    )
    output = arguments.output or _ROOT / "artifacts" / "bench" / f"{datetime.now(UTC):%Y%m%d-%H%M%S}.json"
    try:
        with neighbour(arguments.beside):
            results = _measure(arguments.scenario or list(_SCENARIOS), plan, output, arguments.beside)
    except KeyboardInterrupt:
        return 130
    print(f"Written to {output}")
    if any(scenario.get("cases") for scenario in results["scenarios"]):
        _draw([results], output.with_suffix(".png"))
    return 0


def _measure(names: list[str], plan: Plan, output: Path, beside: str | None) -> dict[str, Any]:
    """Runs scenarios; what was measured is written after each of them."""
    results: dict[str, Any] = {
        "machine": {**machine.describe(), "beside": beside or "nothing"},
        "load_average_at_start": machine.load(),
        "scenarios": [],
    }
    for name, value in results["machine"].items():
        print(f"{name:<20} {value}")
    output.parent.mkdir(parents=True, exist_ok=True)
    for name in names:
        print(f"\n== {name}: {_scenario(name).HELP}\n", flush=True)
        began = monotonic()
        found = _scenario(name).run(plan)
        results["scenarios"].append(
            {
                **found,
                "took_seconds": round(monotonic() - began, 1),
                "quick": plan.quick,
            }
        )
        output.write_text(json.dumps(results, indent=2) + "\n")
    return results


def _draw(results: list[dict[str, Any]], picture: Path) -> None:
    from scripts.measurements.bench import plot

    plot.draw(results, picture)
    print(f"Drawn to {picture}")


if __name__ == "__main__":
    sys.exit(main())
