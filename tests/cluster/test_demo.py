"""The demo with a few thousand flights: the report, the output, and that nothing is left behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from scripts.demonstration.balanced_scenario import DAMAGED, MEMBERS, PARTITIONS, BalancedSteps
from scripts.demonstration.flight_producer import FlightTotals, flights
from scripts.demonstration.scenario import calm_end
from scripts.demonstration.screen import Screen
from scripts.demonstration.shared_group import DemoTopic
from tests.cluster.conftest import NewTopic
from tests.timing import eventually, scaled
from zkconsumer.devcluster import DevCluster

ROOT = Path(__file__).resolve().parents[2]

FLIGHTS = 3000
BALANCED_FLIGHTS = 12_000
PLAYING_S = 240.0
ENDING_S = 20.0

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start the demo with its output in a pipe and its own TMPDIR, where remaining files would be seen."""
    running = []
    (tmp_path / "tmp").mkdir()

    def begin(*arguments: str, program: Sequence[str] = ("-m", "scripts.demonstration")) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, *program, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "TMPDIR": str(tmp_path / "tmp"), "PYTHONPATH": str(ROOT)},
            cwd=tmp_path,
        )
        running.append(process)
        return process

    yield begin
    for process in running:
        process.kill()
        process.communicate(timeout=scaled(ENDING_S))


def test_balance_handles_every_flight_in_the_order_of_carriers(
    cluster: DevCluster, new_topic: NewTopic, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Step 2 to 5 of ``--balance`` on the cluster of the tests; one process is killed, ten flights are damaged."""
    topic = new_topic(PARTITIONS, prefix="flights")
    place = DemoTopic(cluster.zookeeper_connect, cluster.bootstrap_servers, topic, f"demo-{topic}")

    with Screen() as screen:
        totals = BalancedSteps(BALANCED_FLIGHTS, place, screen, tmp_path).play()

    said = capsys.readouterr().out
    assert totals.good, said
    assert (totals.produced, totals.dead) == (BALANCED_FLIGHTS, DAMAGED)
    assert totals.failed_attempts >= 3 * DAMAGED
    assert set(totals.by_member) == set(MEMBERS)
    assert len(re.findall(r" dead +\d", said)) == DAMAGED  # the lines of `zkconsumer dead list`
    assert max(map(len, said.splitlines())) <= 80
    assert not left_behind(tmp_path)


def left_behind(folder: Path) -> list[str]:
    """Process of whose command line the folder is part: every server and member has files there."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(folder) in words:
            found.append(words)
    return found


@pytest.mark.spark
def test_it_loses_nothing_and_spark_finds_what_the_file_says(start: Start, tmp_path: Path) -> None:
    process = start(
        "--flights",
        str(FLIGHTS),
        "--report",
        str(tmp_path / "report.json"),
        "--plot",
        str(tmp_path / "weeks.png"),
    )

    output, _ = process.communicate(timeout=scaled(PLAYING_S))

    assert process.returncode == 0, output
    report: dict[str, Any] = json.loads((tmp_path / "report.json").read_text())
    assert report["agrees"]
    assert report["produced"] == report["consumed"] == sum(report["committed"].values()) == FLIGHTS
    assert report["lost"] == report["altered"] == report["unknown"] == 0
    assert {again["first"] for again in report["duplicates"]} <= {"ben"}, "clean moves repeat nothing"
    assert set(report["by_member"]) == {"ann", "ben", "cid"}
    wanted = FlightTotals()
    for flight in flights(FLIGHTS):
        wanted.add(flight)
    found = {carrier: (row["flights"], row["mean_delay"]) for carrier, row in report["spark"].items()}
    assert found == {
        carrier: (delays.flights, pytest.approx(delays.mean)) for carrier, delays in wanted.by_carrier.items()
    }
    shared = report["shared"]
    assert shared["spark"] + shared["other"] == FLIGHTS
    assert shared["again"] == 0
    assert 0 < shared["other"] < FLIGHTS
    assert shared["offsets"] == shared["ends"] == report["committed"]
    assert (tmp_path / "weeks.png").read_bytes().startswith(b"\x89PNG")
    assert "\x1b" not in output, "no control codes into a pipe"
    assert max(map(len, output.replace(str(tmp_path), "").splitlines())) <= 80
    assert "All numbers agree. Nothing is left running." in output
    assert not left_behind(tmp_path)
    assert not list((tmp_path / "tmp").glob("zkconsumer-*"))


def test_quick_needs_neither_spark_nor_arrow(start: Start, tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules |= dict.fromkeys(['pyspark', 'pyarrow', 'numpy', 'matplotlib']);"
        "from scripts.demonstration.__main__ import main; sys.exit(main(sys.argv[1:]))"
    )
    process = start("--quick", "--flights", str(FLIGHTS), program=("-c", code))

    output, _ = process.communicate(timeout=scaled(PLAYING_S))

    assert process.returncode == 0, output
    assert "All numbers agree. Nothing is left running." in output
    assert "Spark" not in output
    assert not left_behind(tmp_path)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_when_it_is_interrupted_or_killed(start: Start, tmp_path: Path, number: signal.Signals) -> None:
    process = start("--no-spark", "--flights", "200000")
    assert process.stdout is not None
    story = iter(process.stdout.readline, "")
    assert any("cid is process" in line for line in story), "it ended before the third member joined"
    assert left_behind(tmp_path)

    process.send_signal(number)

    process.communicate(timeout=scaled(ENDING_S))
    assert process.returncode == (-signal.SIGKILL if number == signal.SIGKILL else 130)
    eventually(lambda: not left_behind(tmp_path), ENDING_S, "the end of all processes")
    eventually(lambda: not list((tmp_path / "tmp").glob("zkconsumer-*")), ENDING_S, "the removal of all files")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_that_python_drops_is_not_forgotten() -> None:
    """An interrupted demo told its whole story and ended with 0, as if nobody had wanted it to stop."""

    class Dropped:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGTERM)
            self.gone = True  # here Python runs the handler, and only prints what it raises

    with pytest.raises(KeyboardInterrupt), calm_end():
        Dropped()
