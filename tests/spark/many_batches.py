"""Memory of a streaming query over many small batches: of the driver's Python, of the source's process, of the tasks'
workers, and of the JVM's heap after a garbage collection.

``python -m tests.spark.many_batches 1500`` measures three queries in processes of their own, each with 1500 batches:
with tasks, with ``readOnDriver=true``, and of a source that makes its rows itself. The last query shows the memory that
Spark takes. ``test_many_batches.py`` runs a few batches of the first two. MB are 1,000,000 bytes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

from scripts.measurements.bench.machine import resident_mib
from tests.cluster.conftest import produce_to
from tests.spark.conftest import child_processes, runners
from tests.timing import scaled
from zkconsumer.devcluster import DevCluster, java_home_for_spark
from zkconsumer.spark import register

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PARTITIONS = 4
ROWS = 100
"""Rows of a batch."""
VALUE_BYTES = 1000
PLAIN = "plain"
COLUMNS = ("driver", "source", "worker", "heap")
_MARKS = 10
_BATCH_S = 20.0


class Memory(NamedTuple):
    """Resident MB of three processes (``worker``: the largest one), and used MB of the JVM's ``heap``."""

    driver: float
    source: float
    worker: float
    heap: float

    @classmethod
    def now(cls, spark: SparkSession) -> Memory:
        """Measure it."""
        me = os.getpid()
        workers = [pid for pid, command in child_processes(me).items() if "pyspark.daemon" in command]
        jvm: Any = spark.sparkContext._jvm
        jvm.System.gc()
        runtime = jvm.Runtime.getRuntime()
        heap = (runtime.totalMemory() - runtime.freeMemory()) / 1e6
        return cls(_resident([me]), _resident(runners(me)), _resident(workers), heap)

    def line(self, batch: int) -> str:
        """Return it as a line of the table."""
        return f"{batch:>5} " + "".join(f"{value:>9.1f}" for value in self)

    def grown(self, since: Memory) -> dict[str, float]:
        """Return the growth of each one in MB."""
        return {name: after - before for name, before, after in zip(COLUMNS, since, self, strict=True)}


def _resident(pids: Collection[int]) -> float:
    return max(((resident_mib(pid) or 0.0) * 1.048576 for pid in pids), default=0.0)


def fill(cluster: DevCluster, topic: str, batches: int, value_bytes: int) -> None:
    """Produce messages for so many batches into a topic with ``PARTITIONS`` partitions."""
    values = (b"%d" % number + bytes(value_bytes) for number in range(batches * ROWS))
    produce_to(cluster.bootstrap_servers, topic, values, partitions=PARTITIONS)


class PlainSource(DataSource):
    """A source of rows as large as those of :func:`fill`, which asks nobody for them."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return PLAIN

    def schema(self) -> str:
        """Return the schema."""
        return "value binary"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802
        """Return the reader."""
        return _PlainReader(int(self.options["rows"]))


class _PlainReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._at = 0

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"at": 0}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        pass

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, int]:  # noqa: N802
        self._at = min(self._at + ROWS, self._rows)
        return {"at": self._at}

    def partitions(self, start: Any, end: Any) -> Sequence[InputPartition]:
        return [InputPartition((end["at"] - start["at"]) // PARTITIONS) for _ in range(PARTITIONS)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        import pyarrow as pa

        yield pa.record_batch([pa.array([bytes(VALUE_BYTES)] * partition.value, pa.binary())], names=["value"])


def measure(
    spark: SparkSession,
    options: Mapping[str, str],
    batches: int,
    marks: Collection[int],
    checkpoint: Path,
    format_: str = "zkconsumer",
) -> dict[int, Memory]:
    """Run a query of so many batches. Return the memory at the ends of the batches ``marks``, which count from 1.

    Raises AssertionError if the query reads anything but ``ROWS`` rows a batch.
    """
    found: dict[int, Memory] = {}
    rows: list[int] = []

    def sink(frame: DataFrame, _: int) -> None:
        rows.append(frame.count())
        if len(rows) in marks:
            found[len(rows)] = Memory.now(spark)
            print(found[len(rows)].line(len(rows)), flush=True)

    given = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": str(ROWS), **options}
    frame = spark.readStream.format(format_).options(**given).load()
    writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(int(scaled(60 + batches * _BATCH_S))), "the query did not end in time"
    finally:
        query.stop()
    assert rows == [ROWS] * batches
    return found


def run(way: str, batches: int) -> None:
    """Print a table for one way of reading: ``tasks``, ``driver`` or ``plain``."""
    os.environ |= {"JAVA_HOME": str(java_home_for_spark()), "PYSPARK_PYTHON": sys.executable}
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    with tempfile.TemporaryDirectory(prefix="zkconsumer-batches-") as folder, ExitStack() as ends:
        builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
        spark = builder.config("spark.local.dir", folder).config("spark.driver.memory", "1g").getOrCreate()
        ends.callback(spark.stop)
        spark.sparkContext.setLogLevel("ERROR")
        if way == PLAIN:
            spark.dataSource.register(PlainSource)
            options, format_ = {"rows": str(batches * ROWS)}, PLAIN
        else:
            cluster = ends.enter_context(DevCluster())
            register(spark)
            cluster.create_topic("batches", PARTITIONS)
            fill(cluster, "batches", batches, VALUE_BYTES)
            options, format_ = {"zookeeper.connect": cluster.zookeeper_connect, "subscribe": "batches"}, "zkconsumer"
            options |= {"group.id": way, "readOnDriver": str(way == "driver").lower()}
        marks = range(batches // _MARKS, batches + 1, batches // _MARKS)
        print(f"\n{way}\nbatch " + "".join(f"{name:>9}" for name in COLUMNS), flush=True)
        began = perf_counter()
        measure(spark, options, batches, marks, Path(folder, "checkpoint"), format_)
        print(f"{batches} batches of {ROWS} rows in {perf_counter() - began:.0f} s", flush=True)


def main(batches: int, ways: Sequence[str]) -> None:
    """Run one way in this process, or several, by default all, in a process each."""
    if len(ways) == 1:
        run(ways[0], batches)
        return
    for way in ways or ("tasks", "driver", PLAIN):
        subprocess.run([sys.executable, "-m", "tests.spark.many_batches", str(batches), way], check=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
