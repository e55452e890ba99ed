"""The Spark query of the demo: the process that runs Spark, and the object that starts it and checks its results.

``python -m scripts.demonstration.spark_process '<task as JSON>'`` is the process. Spark runs in its own process because
Spark and the JVM write to the terminal. The process writes its results to files: first those of a DataFrame, then those
of each batch of a stream, until the file ``end`` exists.

The main thread uses ``SparkProcess``.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Event
from time import monotonic
from typing import Any, NamedTuple, Self

from rich.table import Table

from scripts.demonstration import command
from scripts.demonstration.flight_producer import Delays, airlines
from zkconsumer.devcluster import java_home_for_spark
from zkconsumer.devcluster.server_process import Launched, tail
from zkconsumer.errors import ZkConsumerError
from zkconsumer.runtime.deadline import Deadline

WEEK = "7 days"
_TRIGGER = "200 milliseconds"
_TICK_S = 0.2
_PATIENCE_S = 180.0
_END_S = 15.0
_ROUNDING = 1e-9
_NIGHT = "INTERVAL 12 HOURS"  # more than any pause between two flights


class Week(NamedTuple):
    """The flights of a week that were read: their number and mean delay in minutes.

    ``complete`` tells whether they reach from the week's first day to its last.
    """

    flights: int
    delay: float | None
    complete: bool


Weeks = dict[str, Week]
"""By the first day of the week."""


def main(arguments: list[str]) -> None:
    """Run Spark. The argument is JSON:

    ``options`` of the source, further ones of the ``stream``, ``java_home``, ``folder`` for Spark's own files, and the
    files ``result``, ``whole`` (all flights by week), ``windows`` (those of the stream) and ``end``.
    """
    task = json.loads(arguments[0])
    # Otherwise Spark starts its workers with the python3 in PATH.
    os.environ |= {"JAVA_HOME": task["java_home"], "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    Path(task["folder"]).mkdir(exist_ok=True)  # all files of an interrupted Spark are in here
    spark = session(task["folder"])
    try:
        messages = spark.read.format("zkconsumer").options(**task["options"]).load()
        _write(task["whole"], [list(row) for row in by_week(flights(messages)).collect()])
        _write(task["result"], report(flights(messages)))
        stream(spark, task)
    finally:
        spark.stop()


def session(folder: str) -> Any:
    """Return a Spark session that writes no file outside its folder."""
    from pyspark.sql import SparkSession

    from zkconsumer.spark import register

    spark = (
        SparkSession.builder.master("local[2]")
        .appName("zkconsumer demo")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", folder)
        .config("spark.local.dir", folder)
        .config("spark.driver.extraJavaOptions", f"-Djava.io.tmpdir={folder}")
        .getOrCreate()
    )
    register(spark)
    return spark


def flights(messages: Any) -> Any:
    """Return a DataFrame with the carrier, delay and time of each message."""
    from pyspark.sql.functions import col, from_json

    flight = from_json(col("value").cast("string"), "dep_delay int, time_hour timestamp").alias("flight")
    return messages.select(col("key").cast("string").alias("carrier"), flight).select(
        "carrier", col("flight.dep_delay").alias("delay"), col("flight.time_hour").alias("time")
    )


def report(flights: Any) -> list[list[Any]]:
    """Return rows of: carrier, flights, flights with a delay, sum of the delays, mean delay."""
    from pyspark.sql.functions import avg, count, lit
    from pyspark.sql.functions import sum as total

    by_carrier = flights.groupBy("carrier").agg(count(lit(1)), count("delay"), total("delay"), avg("delay"))
    return [list(row) for row in by_carrier.collect()]


def by_week(flights: Any) -> Any:
    """Return a windowed aggregate: first day of the week, and the fields of ``Week``."""
    from pyspark.sql.functions import avg, col, count, date_format, expr, lit, window
    from pyspark.sql.functions import max as latest
    from pyspark.sql.functions import min as earliest

    weeks = flights.groupBy(window("time", WEEK)).agg(
        count(lit(1)).alias("flights"),
        avg("delay").alias("delay"),
        earliest("time").alias("first"),
        latest("time").alias("last"),
    )
    complete = expr(f"first < window.start + {_NIGHT} AND last >= window.end - {_NIGHT}")
    return weeks.select(date_format(col("window.start"), "yyyy-MM-dd").alias("week"), "flights", "delay", complete)


def stream(spark: Any, task: dict[str, Any]) -> None:
    """Run the same aggregate over the stream of a group's member, until the file ``end`` exists."""
    messages = spark.readStream.format("zkconsumer").options(**task["options"]).options(**task["stream"]).load()
    query = (
        by_week(flights(messages))
        .writeStream.outputMode("complete")
        .foreachBatch(lambda frame, _: _write(task["windows"], [list(row) for row in frame.collect()]))
        .option("checkpointLocation", str(Path(task["folder"]) / "checkpoint"))
        .trigger(processingTime=_TRIGGER)
        .start()
    )
    while not Path(task["end"]).exists():
        query.awaitTermination(_TICK_S)  # raises what ended the query
    query.stop()


def _write(file: str, content: Any) -> None:
    """Write a file atomically, by a rename."""
    new = Path(f"{file}.new")
    new.write_text(json.dumps(content))
    new.rename(file)


class CarrierReport(NamedTuple):
    """Spark's results for one carrier."""

    delays: Delays
    mean: float | None

    def agrees_with(self, wanted: Delays) -> bool:
        """Return whether the result agrees with the file."""
        if self.delays != wanted:
            return False
        if self.mean is None or wanted.mean is None:
            return self.mean is wanted.mean
        return abs(self.mean - wanted.mean) <= _ROUNDING * max(1.0, abs(wanted.mean))


class SparkProcess:
    """A process with a Spark session. A context manager, at whose end it is gone.

    Arguments: ``options`` of the source; ``stream`` those of the stream besides; ``waiting`` is told now and then that
    it takes a while.
    """

    def __init__(
        self, options: dict[str, str], stream: dict[str, str], folder: Path, waiting: Callable[[str], None]
    ) -> None:
        self._options, self._stream, self._folder, self._waiting = options, stream, folder, waiting
        self._log = folder / "spark.log"
        self._process: Launched | None = None

    def __enter__(self) -> Self:
        files = {name: str(self._file(name)) for name in ("result", "whole", "windows", "end")}
        task = {
            "options": self._options,
            "stream": self._stream,
            "java_home": str(java_home_for_spark()),
            "folder": str(self._folder / "spark"),
            **files,
        }
        self._process = Launched(command("spark_process", task), self._log, remove=[self._folder])
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        if self._process.running:
            self._process.send(signal.SIGKILL)
        self._process.wait(_END_S)

    def _file(self, name: str) -> Path:
        return self._folder / f"spark-{name}"

    def rows(self) -> dict[str, CarrierReport]:
        """Return the DataFrame's results by carrier. Raises: ZkConsumerError with the end of Spark's log."""
        began, deadline, pause = monotonic(), Deadline(_PATIENCE_S), Event()
        while not self._file("result").exists():
            self.check()
            if deadline.expired:
                raise ZkConsumerError(f"Spark was not done within {_PATIENCE_S:.0f} s")
            self._waiting(f"Spark starts and reads, which takes some 20 s ({monotonic() - began:.0f} s)")
            pause.wait(_TICK_S)
        return {
            carrier: CarrierReport(Delays(flights, delayed, minutes or 0), mean)
            for carrier, flights, delayed, minutes, mean in self._read("result")
        }

    def weeks(self, *, whole: bool) -> Weeks:
        """Return the flights by week: of the whole topic, or of the stream so far."""
        rows = self._read("whole" if whole else "windows")
        return {name: Week(*week) for name, *week in sorted(rows)}

    def check(self) -> None:
        """Raise ZkConsumerError with the end of Spark's log if Spark ended by itself."""
        assert self._process is not None
        if not self._process.running:
            raise ZkConsumerError(f"Spark failed:\n{tail(self._log)}")

    def end(self) -> None:
        """Stop the stream cleanly. Does not wait."""
        self._file("end").touch()

    def _read(self, name: str) -> Any:
        file = self._file(name)
        return json.loads(file.read_text()) if file.exists() else []


def compare(found: dict[str, CarrierReport], wanted: dict[str, Delays]) -> tuple[Table, bool]:
    """Return a table of both results, and whether they agree."""
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


if __name__ == "__main__":
    main(sys.argv[1:])
