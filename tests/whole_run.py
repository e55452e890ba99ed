"""The sessions of a whole tier, and the repeat of their failed tests at the end. ``scripts/test`` starts it.

Many tests depend on the system's clock, so a busy machine makes a right test fail now and then. This module repeats
each failed test once, in a session that has no other test. A test that passes then has *failed once*. It is listed, and
both outputs are kept in ``artifacts/tests``.

The run fails if a test fails again, or if more than ``MOST_ONCE`` tests failed once. The run also fails for any other
fault: an error in a collection, an interrupt, a test that pytest-timeout stopped, a worker of xdist that died without a
test, an internal error. Nothing is repeated after such a fault.

This module is also the plugin of pytest (``-p tests.whole_run --results FILE``) by which a session tells its results.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
MOST_ONCE = 3
"""So many tests of a run may fail once."""
FRESH = 60
"""Seconds of fresh seeds."""
MOST_REPEATED = 10
"""With more failed tests nothing is repeated: the change is at fault, or the machine."""


# ---- in a session ----


@dataclass
class Results:
    """The results of one session."""

    outcomes: dict[str, str] = field(default_factory=dict)
    """"passed", "failed" or "skipped" for each test."""
    outputs: dict[str, list[str]] = field(default_factory=dict)
    """Tracebacks and captured output of the failed tests."""
    faults: list[str] = field(default_factory=list)
    """Other reasons why the session failed."""
    interrupted: bool = False

    def failed(self) -> list[str]:
        """Return the node ids of the failed tests."""
        return [test for test, outcome in self.outcomes.items() if outcome == "failed"]


class _Recorder:
    """The plugin's hooks. They run in the process that distributes the tests, or in the only one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._results = Results()
        self._deaths = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        results, test = self._results, report.nodeid
        if not report.failed:
            if report.when == "call" or report.skipped:
                results.outcomes.setdefault(test, report.outcome)
            return
        results.outcomes[test] = "failed"
        captured = (f"{title}\n{text}" for title, text in report.sections)
        results.outputs.setdefault(test, []).extend([report.longreprtext, *captured])
        message = getattr(getattr(report.longrepr, "reprcrash", None), "message", "")
        if message.startswith("Failed: Timeout") and "pytest-timeout" in message:
            results.faults.append(f"{test} was stopped by its time limit")
        if report.when not in {"setup", "call", "teardown"}:  # xdist's report of the test in a dead worker
            self._deaths -= 1

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._results.faults.append(f"{report.nodeid} could not be collected")

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, error: object) -> None:
        self._deaths += error is not None

    def pytest_unconfigure(self) -> None:
        if self._deaths > 0:
            self._results.faults.append("a worker died, and no test was running in it")
        self._path.write_text(json.dumps(asdict(self._results)))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--results", type=Path, metavar="FILE", help="write the session's results there as JSON")


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("results")
    if path is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Recorder(path))


# ---- around the sessions ----


@dataclass(frozen=True)
class Session:
    """One session of pytest: ``options`` also hold for the repeat of its tests, ``parallel`` does not."""

    name: str
    options: Sequence[str] = ()
    parallel: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)

    def run(self) -> Results:
        """Run all its tests."""
        return self._pytest(self.parallel)

    def repeat(self, test: str, output: Any) -> Results:
        """Run one test alone, and write all that it prints to the file ``output``."""
        return self._pytest(["-rA", test], output)

    def _pytest(self, arguments: Sequence[str], output: Any = None) -> Results:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "results.json")
            command = [sys.executable, "-m", "pytest", "-p", "tests.whole_run", "--results", str(path)]
            ended = subprocess.run(
                [*command, *self.options, *arguments],
                env={**os.environ, **self.environment},
                stdout=output,
                stderr=subprocess.STDOUT if output else None,
                check=False,
            )
            results = Results(**json.loads(path.read_text())) if path.exists() else Results()
        if ended.returncode not in {0, 1}:
            results.faults.append(f"pytest ended with {ended.returncode}")
            results.interrupted = ended.returncode == pytest.ExitCode.INTERRUPTED
        elif ended.returncode == 1 and not results.failed() and not results.faults:
            results.faults.append("pytest failed, but no test did")
        return results


@dataclass
class Verdict:
    """The whole run."""

    counts: Counter[str] = field(default_factory=Counter)
    failed: list[tuple[Session, str]] = field(default_factory=list)
    once: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def passes(self) -> bool:
        """Return whether the run passes."""
        return not self.failed and not self.faults and len(self.once) <= MOST_ONCE

    def closing_line(self) -> str:
        """Return the numbers of the whole run. Tests that failed once have passed, unless they are too many."""
        too_many = len(self.once) > MOST_ONCE
        passed = self.counts["passed"] + (0 if too_many else len(self.once))
        failed = len(self.failed) + (len(self.once) if too_many else 0)
        line = f"{passed} passed, {failed} failed, {self.counts['skipped']} skipped"
        return f"{line}, {len(self.faults)} errors" if self.faults else line


def run(sessions: Sequence[Session], kept: Path, broken: Sequence[str] = ()) -> int:
    """Run the sessions, then their failed tests again, and print the verdict. Return the exit code.

    Arguments: ``kept`` is the folder for the outputs of failed tests. It is made if there are any. ``broken`` says what
    has failed before the sessions.
    """
    verdict, outputs = Verdict(), dict[tuple[str, str], list[str]]()
    for session in sessions:
        results = session.run()
        verdict.counts.update(results.outcomes.values())
        verdict.faults += [f"{session.name}: {fault}" for fault in results.faults]
        verdict.failed += [(session, test) for test in results.failed()]
        outputs |= {(session.name, test): results.outputs[test] for test in results.failed()}
        if results.interrupted:
            break
    if verdict.failed and not verdict.faults and len(verdict.failed) <= MOST_REPEATED:
        _repeat(verdict, outputs, kept)
    verdict.faults[:0] = broken
    _print(verdict)
    return 0 if verdict.passes() else 1


def _repeat(verdict: Verdict, outputs: Mapping[tuple[str, str], list[str]], kept: Path) -> None:
    """Repeat the failed tests. Those that pass now move from ``failed`` to ``once``."""
    kept.mkdir(parents=True, exist_ok=True)
    _heading(f"repeat, each alone; outputs in {kept}")
    again = []
    for number, (session, test) in enumerate(verdict.failed, 1):
        name = f"{number}-{re.sub(r'[^A-Za-z0-9_]+', '-', test.rpartition('::')[2])[:60]}"
        first, second = kept / f"{name}-first.txt", kept / f"{name}-repeated.txt"
        first.write_text("\n\n".join([f"{test} ({session.name})", *outputs[session.name, test]]))
        with second.open("wb") as file:
            results = session.repeat(test, file)
        if results.outcomes == {test: "passed"} and not results.faults:
            verdict.once.append(f"{test} ({session.name})")
            print(f"passed {test}", flush=True)
        else:
            again.append((session, test))
            print(second.read_text(errors="replace"), flush=True)
    verdict.failed = again


def _print(verdict: Verdict) -> None:
    if verdict.once:
        _heading("failed once")
        print(*verdict.once, sep="\n")
        if len(verdict.once) > MOST_ONCE:
            print(f"At most {MOST_ONCE} tests may fail once.")
    if verdict.failed:
        _heading("failed")
        print(*(f"{test} ({session.name})" for session, test in verdict.failed), sep="\n")
    if verdict.faults:
        _heading("errors")
        print(*verdict.faults, sep="\n")
    _heading("whole run")
    print(verdict.closing_line(), flush=True)


def _heading(text: str) -> None:
    print(f"\n{f' {text} ':=^100}", flush=True)


def simulate() -> list[str]:
    """Run whole members in virtual time: the runs that broke a promise once, then fresh seeds. Return what failed.

    A fresh seed may show an old bug. So it fails the run of a developer, and is only printed where CI judges a change.
    """
    _heading("whole members in virtual time")
    command = [sys.executable, "-m", "tests.simulation"]
    once = subprocess.run([*command, "--once-failed"], check=False).returncode
    fresh = subprocess.run([*command, "--seconds", str(FRESH)], check=False).returncode
    broken = ["the simulation broke a promise in a run of once_failed.txt"] if once else []
    if fresh and not os.environ.get("CI"):
        broken.append("the simulation broke a promise in a fresh seed")
    return broken


def main(tier: str, *parallel: str) -> int:
    """Run a tier, and BOTH_WAYS of ``tests/tiers.py`` once more in plain Python. Return the exit code.

    All tiers but ``quick`` begin with the simulation.
    """
    from tests.tiers import BOTH_WAYS, Tier  # here, because sessions import this module only as a plugin
    from zkconsumer.version import COMPILED

    signal.signal(signal.SIGINT, lambda *_: None)  # pytest closes its servers after a Ctrl-C, and is waited for
    broken = [] if tier == "quick" else simulate()
    first = Session("compiled" if COMPILED else "plain Python", ("--tier", tier), parallel)
    both_ways = ("--tier", tier, "--both-ways")
    second = Session("plain Python", both_ways, parallel, {"ZKCONSUMER_PURE": "1"})
    kept = ROOT / "artifacts" / "tests" / f"{datetime.now(UTC):%Y%m%d-%H%M%S}"
    twice = COMPILED and min(BOTH_WAYS.values()) <= Tier[tier.upper()]
    return run([first, second] if twice else [first], kept, broken)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
