"""``python -m tests.interrupts``: interrupts every operation at every boundary, and prints what came of it.

Without arguments: all operations, in every supported Python that is found here (the operations on a cluster in memory,
which take longer, in this one alone).
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
from collections.abc import Sequence
from time import monotonic
from types import CodeType
from typing import Any

from tests.interrupts import members, pythons, reading
from tests.interrupts.boundaries import Interrupted, in_project, in_project_or_standard
from tests.interrupts.signals import ring
from tests.interrupts.sweep import AGAIN, Operation, Subject, sweep, told
from tests.interrupts.world import ELSEWHERE


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is asked for; returns 1 where something was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.interrupts", description=__doc__)
    parser.add_argument("operations", nargs="*", help="parts of names of operations; all by default")
    parser.add_argument("--often", type=int, default=2, help="how many visits of each instruction (2; 0: every one)")
    parser.add_argument("--most", type=int, default=0, help="only so many boundaries of each operation, evenly")
    parser.add_argument("--all-ways", action="store_true", help="each kind of exception and aftermath at each boundary")
    parser.add_argument("--within", default="", help="only frames of files whose path has this part, as /streams/")
    parser.add_argument(
        "--standard", action="store_true", help="also inside threading and queue, called by the project"
    )
    parser.add_argument("--signals", type=float, default=5.0, help="seconds of real signals for each operation (5)")
    parser.add_argument("--seed", type=int, default=0, help="of the moments of the signals")
    parser.add_argument("--here", action="store_true", help="in this Python alone")
    parser.add_argument("--readers", action="store_true", help="without the operations on a cluster in memory")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON, nothing else")
    options = parser.parse_args(arguments)
    logging.disable(logging.CRITICAL)
    status = _here(options)
    if not options.here:
        for python in pythons.found()[1:]:
            status |= _elsewhere(python, options)
        for version in pythons.missing():
            print(f"Python {version}: not on this machine")
    return status


def _subjects(options: argparse.Namespace) -> list[Subject]:
    of_members: list[Subject] = [] if options.readers else [*members.OPERATIONS, *members.FIRST_OPERATIONS]
    chosen: list[Subject] = [*reading.OPERATIONS, *of_members]
    wanted = options.operations
    return [subject for subject in chosen if not wanted or any(part in subject.name for part in wanted)]


def _here(options: argparse.Namespace) -> int:
    version = ".".join(map(str, sys.version_info[:3]))
    found, report, began = 0, [], monotonic()
    project = in_project_or_standard if options.standard else in_project

    def scope(code: CodeType) -> bool:
        return options.within in code.co_filename and project(code)

    for subject in _subjects(options):
        ways: dict[str, Any] = {} if isinstance(subject, Operation) else {"aftermaths": [AGAIN]}
        if subject in members.FIRST_OPERATIONS:
            ways["kinds"] = [Interrupted]
        figures = sweep(
            subject, often=options.often, most=options.most, rotate=not options.all_ways, scope=scope, **ways
        )
        found += len(figures.serious)
        lines = told([figures])
        if isinstance(subject, Operation) and options.signals:
            rung = ring(subject, options.signals, options.seed)
            found += len(rung.findings)
            lines.append(
                f"  by signals: {rung.worlds} readings, {rung.inside} interrupts in the project, {rung.between} in "
                f"its caller and {rung.outside} elsewhere, at most {rung.repeats} repeated, "
                f"{len(rung.findings)} findings"
            )
            lines += [f"    {what}" for what in sorted(set(rung.findings))]
        report.append({"operation": subject.name, "lines": lines})
        if not options.json:
            print(f"Python {version}, {lines[0]}", *lines[1:], sep="\n", flush=True)
    ELSEWHERE.end()
    if members.shared_cluster.cache_info().currsize:
        members.end_cluster()
    if options.json:
        print(json.dumps({"version": version, "found": found, "report": report}))
    else:
        print(f"Python {version}: {found} findings in {monotonic() - began:.0f} s", flush=True)
    return int(found > 0)


def _elsewhere(python: pythons.Python, options: argparse.Namespace) -> int:
    try:
        inside = pythons.environment(python)
    except pythons.NotAvailableError as error:
        print(f"not run: {error}", flush=True)
        return 0
    names = ("often", "most", "within", "signals", "seed")
    given = [part for name in names for part in (f"--{name}", getattr(options, name))]
    flags = [flag for flag in ("all_ways", "standard") if getattr(options, flag)]
    command = [str(inside), "-m", "tests.interrupts", "--here", "--readers", *map(str, given)]
    command += [f"--{flag.replace('_', '-')}" for flag in flags] + ["--", *options.operations]
    return subprocess.run(command, cwd=pythons.ROOT, env=os.environ | {"PYTHONPATH": "."}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
