"""Spark as a second group, seen from the demo: started, waited for, checked against the file.

Used by the main thread.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Event
from time import monotonic
from typing import NamedTuple

from rich.table import Table

from zkconsumer.cli.demo.flights import Delays, airlines
from zkconsumer.deadline import Deadline
from zkconsumer.devcluster import java_home_for_spark
from zkconsumer.devcluster.process import Launched
from zkconsumer.errors import ZkConsumerError

_PATIENCE_S = 180.0
_TICK_S = 0.2
_END_S = 15.0
_LOG_LINES = 25
_ROUNDING = 1e-9


class CarrierReport(NamedTuple):
    """What Spark found of one carrier."""

    delays: Delays
    mean: float | None

    def agrees_with(self, wanted: Delays) -> bool:
        """Whether it is what the file says."""
        if self.delays != wanted:
            return False
        if self.mean is None or wanted.mean is None:
            return self.mean is wanted.mean
        return abs(self.mean - wanted.mean) <= _ROUNDING * max(1.0, abs(wanted.mean))


def read_with_spark(options: dict[str, str], folder: Path, waiting: Callable[[str], None]) -> dict[str, CarrierReport]:
    """Carrier -> what a Spark session of its own finds in the topic.

    Arguments: ``options`` of the source; ``waiting`` is told now and then that it takes a while.
    Raises: ZkConsumerError with the end of Spark's log.
    """
    result, log = folder / "spark.json", folder / "spark.log"
    task = {
        "options": options,
        "java_home": str(java_home_for_spark()),
        "result": str(result),
        "folder": str(folder / "spark"),
    }
    process = Launched(
        [sys.executable, "-m", "zkconsumer.cli.demo.spark_report", json.dumps(task)], log, remove=[folder]
    )
    try:
        _wait(process, waiting)
    finally:
        if process.running:
            process.send(signal.SIGKILL)
        process.wait(_END_S)
    if not result.exists():
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-_LOG_LINES:])
        raise ZkConsumerError(f"Spark failed:\n{tail}")
    return {
        carrier: CarrierReport(Delays(flights, delayed, minutes or 0), mean)
        for carrier, flights, delayed, minutes, mean in json.loads(result.read_text())
    }


def _wait(process: Launched, waiting: Callable[[str], None]) -> None:
    began, deadline, pause = monotonic(), Deadline(_PATIENCE_S), Event()
    while process.running:
        if deadline.expired:
            raise ZkConsumerError(f"Spark was not done within {_PATIENCE_S:.0f} s")
        waiting(f"Spark starts and reads, which takes some 20 s ({monotonic() - began:.0f} s)")
        pause.wait(_TICK_S)


def compare(found: dict[str, CarrierReport], wanted: dict[str, Delays]) -> tuple[Table, bool]:
    """A table of both, and whether they agree."""
    names = airlines()
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("carrier")
    table.add_column("", no_wrap=True)
    table.add_column("flights", justify="right")
    table.add_column("mean delay", justify="right")
    table.add_column("as in the file", no_wrap=True)
    agree = True
    for carrier in sorted(wanted.keys() | found.keys(), key=lambda code: -wanted.get(code, Delays()).flights):
        row, should = found.get(carrier, CarrierReport(Delays(), None)), wanted.get(carrier, Delays())
        same = row.agrees_with(should)
        agree = agree and same
        mean = "-" if row.mean is None else f"{row.mean:.2f} min"
        verdict = "yes" if same else f"NO: {should.flights:,}, {should.mean}"
        table.add_row(carrier, names.get(carrier, ""), f"{row.delays.flights:,}", mean, verdict)
    table.add_row("all", "", f"{sum(row.delays.flights for row in found.values()):,}", _overall(found), style="bold")
    return table, agree


def _overall(found: dict[str, CarrierReport]) -> str:
    delayed = sum(row.delays.delayed for row in found.values())
    return f"{sum(row.delays.minutes for row in found.values()) / delayed:.2f} min" if delayed else "-"
