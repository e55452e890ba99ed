"""Memory of a streaming query over many small batches: of the driver's Python, of the source's process, of the tasks'
workers, and of the JVM's heap after a garbage collection.

``python -m tests.spark.many_batches 500`` measures a query with tasks and one with ``readOnDriver=true``, 500 batches
each, on a cluster of its own; ``test_many_batches.py`` runs a few of them. MB are 1,000,000 bytes.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.bench.machine import resident_mib
from tests.cluster.conftest import produce_to
from tests.spark.conftest import child_processes, runners
from tests.timing import scaled
from zkconsumer.devcluster import DevCluster, java_home_for_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS = 4
ROWS = 100
"""Rows of a batch."""
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


def measure(
    spark: SparkSession, options: Mapping[str, str], batches: int, marks: Collection[int], checkpoint: Path
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
    frame = spark.readStream.format("zkconsumer").options(**given).load()
    writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(int(scaled(60 + batches * _BATCH_S))), "the query did not end in time"
    finally:
        query.stop()
    assert rows == [ROWS] * batches
    return found


def main(batches: int) -> None:
    """Print a table for each way of reading."""
    from pyspark.sql import SparkSession

    from zkconsumer.spark import register

    os.environ |= {"JAVA_HOME": str(java_home_for_spark()), "PYSPARK_PYTHON": sys.executable}
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    with tempfile.TemporaryDirectory(prefix="zkconsumer-batches-") as folder, DevCluster() as cluster:
        builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
        spark = builder.config("spark.local.dir", folder).config("spark.driver.memory", "1g").getOrCreate()
        spark.sparkContext.setLogLevel("ERROR")
        register(spark)
        cluster.create_topic("batches", PARTITIONS)
        fill(cluster, "batches", batches, value_bytes=1000)
        marks = range(batches // _MARKS, batches + 1, batches // _MARKS)
        for on_driver in ("false", "true"):
            group = f"on-driver-{on_driver}"
            options = {"zookeeper.connect": cluster.zookeeper_connect, "group.id": group, "subscribe": "batches"}
            print(f"\nreadOnDriver={on_driver}\nbatch " + "".join(f"{name:>9}" for name in COLUMNS), flush=True)
            began = perf_counter()
            measure(spark, {**options, "readOnDriver": on_driver}, batches, marks, Path(folder, group))
            print(f"{batches} batches of {ROWS} rows in {perf_counter() - began:.0f} s", flush=True)
        spark.stop()


if __name__ == "__main__":
    main(int(sys.argv[1]))
