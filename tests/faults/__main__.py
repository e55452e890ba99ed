"""``scripts/faults``: runs rows of the fault matrix and prints their results."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from pathlib import Path

from tests.faults.group import Timing
from tests.faults.lab import Lab, Report
from tests.faults.matrix import ROWS
from tests.faults.report import details, table

_ROOT = Path(__file__).resolve().parents[2]


def _arguments() -> argparse.Namespace:
    listed = "\n".join(f"  {name:<8} {row.title}" for name, row in ROWS.items())
    parser = argparse.ArgumentParser(
        prog="scripts/faults",
        description=f"Breaks things around real members, brokers and ZooKeepers and checks what came of it.\n\n"
        f"rows:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--all", action="store_true", help="every row with sessions of 4 s, and the mixed group")
    parser.add_argument("--row", action="append", metavar="N", help="only this one (may be repeated)")
    parser.add_argument("--runs", type=int, default=1, metavar="K", help="how often each (default: %(default)s)")
    parser.add_argument("--times", type=int, metavar="K", help="how often each row repeats its fault in a run")
    parser.add_argument("--mixed", action="store_true", help="with a member of the original in the group")
    parser.add_argument("--session", type=float, metavar="SECONDS", help="session timeout (default 2, with --all 4)")
    parser.add_argument("--keep", action="store_true", help="keep the logs also where nothing is wrong")
    parser.add_argument("--seed", type=int, metavar="N", help="of the random moments")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.row or () if name not in ROWS]
    if unknown:
        parser.error(f"no row {', '.join(unknown)}; there are: {', '.join(ROWS)}")
    return arguments


def main() -> int:
    """Run the rows. Return the exit code."""
    arguments = _arguments()
    logging.getLogger("kazoo").setLevel(logging.CRITICAL)  # broken connections are expected
    # members run in the root directory of the machine
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
    session = arguments.session or (4.0 if arguments.all else 2.0)
    timing = Timing(session=session, tick=session / 10 if session < 3 else session / 8, runs=arguments.times)
    names = arguments.row or [name for name, row in ROWS.items() if arguments.all or row.quick]
    reports: list[Report] = []
    for mixed in [False, True] if arguments.all and not arguments.row else [arguments.mixed]:
        chosen = [ROWS[name] for name in names if not mixed or ROWS[name].mixed]
        with Lab(timing, mixed=mixed, seed=arguments.seed, keep=arguments.keep) as lab:
            print(f"seed {lab.seed}, T {timing.session:g} s, tick {timing.tick:g} s, {timing.rate} messages a second")
            for row in chosen:
                for _ in range(arguments.runs):
                    report = row.perform(lab)
                    if mixed:
                        report.row, report.title = f"{row.name} mixed", f"{row.title}, beside a Scala member"
                    reports.append(report)
                    print(details(report), flush=True)
    print()
    print(table(reports))
    return 0 if all(report.ok for report in reports) else 1


if __name__ == "__main__":
    sys.exit(main())
