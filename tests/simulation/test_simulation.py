"""Some seeds of each scenario: each runs twice, with the same trace and without a broken promise."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.simulation.settings import SCENARIOS
from tests.timing import scaled


def simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command ``scripts/simulate`` in a process of its own: it exchanges the threads and the clock."""
    command = [sys.executable, "-m", "tests.simulation", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=scaled(200), check=False)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_seeds_break_no_promise_and_run_alike_twice(scenario: str) -> None:
    seeds = "2" if SCENARIOS[scenario].faults > 0.05 else "6"  # in each step a fault comes only with that probability
    done = simulate("--scenario", scenario, "--seed", "6", "--seeds", seeds, "--twice")
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    closing = done.stdout.splitlines()[-1]
    assert closing.startswith(f"{seeds} runs, "), closing
    assert closing.endswith("0 broken promises"), closing
    messages, commits, faults = map(int, re.findall(r"(\d+) (?:messages|commits|faults)", closing))
    assert messages > 20, closing  # a topic may be nearly silent
    assert commits > 10, closing
    assert faults > 0, closing


def test_the_line_of_a_run_replays_it() -> None:
    first = simulate("--seed", "7", "--steps", "20", "--trace")
    again = simulate("--replay", "scripts/simulate --seed 7 --scenario group --steps 20 --trace")
    assert first.returncode == 0, first.stdout[-8000:] + first.stderr[-2000:]
    traces = [re.sub(r"\d+ virtual seconds a second", "", one.stdout) for one in (first, again)]
    assert traces[0] == traces[1]
    assert "handed t-" in traces[0]
