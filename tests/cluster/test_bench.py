"""``scripts/bench --quick`` measures, writes and draws. The figures themselves are not checked here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.measurements.bench import machine
from scripts.measurements.bench.neighbour import KINDS, neighbour
from tests.timing import eventually, scaled

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 240.0
PEERED = ("iterate", "columns", "streams", "latency")
"""Scenarios with peers of which a look takes seconds."""


def bench(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "scripts.measurements.bench", *arguments],
        cwd=ROOT,
        env={**os.environ, "MPLBACKEND": "Agg"},
        capture_output=True,
        text=True,
        timeout=scaled(LIMIT_S),
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_cheap_scenarios_measure_everybody_write_and_draw(tmp_path: Path) -> None:
    output = tmp_path / "results.json"
    said = bench("--quick", "--messages", "200000", "--output", str(output), *PEERED, "profile")
    results = json.loads(output.read_text())

    assert results["machine"]["cores"] >= 1
    scenarios = {scenario["scenario"]: scenario for scenario in results["scenarios"]}
    assert list(scenarios) == [*PEERED, "profile"]
    for part in ("receive", "decode", "hand-over", "object", "user"):
        assert f"  {part} " in said, part
    for scenario in map(scenarios.__getitem__, PEERED):
        assert scenario["quick"] is True
        for case in scenario["cases"]:
            assert {"zkconsumer", "Scala 1.1.1"} < set(case["peers"])
            assert all(row[case["compared"]]["median"] > 0 for row in case["peers"].values())
            assert case["peers"]["zkconsumer"]["ours_to_this"] == 1.0
            assert case["case"] in said
    iterated = scenarios["iterate"]["cases"][0]["peers"]["zkconsumer"]
    assert iterated["cpu_seconds_per_million"]["median"] > 0
    assert iterated["peak_mib"]["median"] > 10
    assert output.with_suffix(".png").read_bytes().startswith(b"\x89PNG")

    picture = tmp_path / "both.png"
    said = bench("--plot", str(picture), str(output), str(output))
    assert "| iterate: 20-300 B | zkconsumer |" in said
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_many_partitions_and_large_messages_are_measured(tmp_path: Path) -> None:
    output = tmp_path / "results.json"
    bench("--quick", "--output", str(output), "many-partitions", "memory")
    many, memory = json.loads(output.read_text())["scenarios"]

    assert [case["case"] for case in many["cases"]] == ["100 idle partitions", "200 partitions"]
    for case in many["cases"]:
        assert {"zkconsumer", "Scala 1.1.1"} < set(case["peers"])
    assert memory["margin_mb"] == 80
    assert memory["loads"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_neighbour_works_during_the_measurement_and_no_longer(kind: str) -> None:
    with neighbour(kind) as process:
        assert process is not None
        pid = process.pid
        eventually(lambda: (machine.cpu_seconds(pid) or 0) > 0.3, 30, "a busy neighbour")
    assert process.poll() is not None


def test_figures_without_their_neighbour_are_refused() -> None:
    def measure() -> None:
        with neighbour("core") as process:
            assert process is not None
            process.kill()
            process.wait(scaled(10))

    with pytest.raises(RuntimeError, match="do not count"):
        measure()
