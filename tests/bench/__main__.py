"""``scripts/bench``: runs measurements, prints them and writes them to a JSON file."""

from __future__ import annotations

import argparse
import json
import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.bench import iteration, machine

_ROOT = Path(__file__).resolve().parents[2]
_SCENARIOS = {iteration.NAME: iteration}


def _arguments() -> argparse.Namespace:
    listed = "\n".join(f"  {name:<12} {scenario.HELP}" for name, scenario in _SCENARIOS.items())
    parser = argparse.ArgumentParser(
        prog="scripts/bench",
        description=f"Measures zkconsumer beside its peers on a real broker.\n\nscenarios:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("scenario", nargs="*", metavar="scenario", help="which ones (default: all)")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="a tenth of the messages, one turn: only to see that it works, a JVM is not warm by then",
    )
    parser.add_argument("--messages", type=int, default=2_000_000, metavar="N", help="default: %(default)s")
    parser.add_argument("--turns", type=int, default=3, metavar="N", help="default: %(default)s")
    parser.add_argument(
        "--batch-bytes", type=int, default=65536, metavar="N", help="the producer's batches (default: %(default)s)"
    )
    parser.add_argument("--output", type=Path, metavar="FILE", help="default: artifacts/bench/<time>.json")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.scenario if name not in _SCENARIOS]
    if unknown:
        parser.error(f"no scenario {', '.join(unknown)}; there are: {', '.join(_SCENARIOS)}")
    return arguments


def main() -> int:
    """Returns: the exit code."""
    arguments = _arguments()
    # peers run in the root directory of the machine
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
    plan = iteration.Plan(
        messages=arguments.messages // 10 if arguments.quick else arguments.messages,
        turns=1 if arguments.quick else arguments.turns,
        batch_bytes=arguments.batch_bytes,
    )
    results: dict[str, Any] = {"machine": machine.describe(), "load_average_at_start": machine.load()}
    for name, value in results["machine"].items():
        print(f"{name:<20} {value}")
    print()
    try:
        results["scenarios"] = [_SCENARIOS[name].run(plan) for name in arguments.scenario or _SCENARIOS]
    except KeyboardInterrupt:
        return 130
    output = arguments.output or _ROOT / "artifacts" / "bench" / f"{datetime.now(UTC):%Y%m%d-%H%M%S}.json"
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(results, indent=2) + "\n")
    print(f"Written to {output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
