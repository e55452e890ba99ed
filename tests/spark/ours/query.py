"""A Spark driver with one streaming query, in a process that tests kill together with its child processes.

``query.py '<task as JSON>'``. Each batch becomes a file ``batch-N.json`` in the folder ``out``, which replaces the one
of a former try. While there is a file ``hold``, the task that reads waits in the middle of the batch. The session is
stopped when there is a file ``end``.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def held(folder: str) -> Any:
    """Waits where the rows come, in the worker, for as long as the file ``hold`` is there."""

    def pass_on(rows: Iterator[Any]) -> Iterator[Any]:
        pause = threading.Event()
        for number, row in enumerate(rows):
            while number == 10 and Path(folder, "hold").exists():
                Path(folder, "held").touch()
                pause.wait(0.05)
            yield row

    return pass_on


def main(task: dict[str, Any]) -> None:
    from pyspark.sql import DataFrame, SparkSession

    builder = SparkSession.builder.master(task["master"]).appName("query of its own")
    for name, value in task["conf"].items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    out = Path(task["out"])

    def write(frame: DataFrame, number: int) -> None:
        rows = frame.select("partition", "offset", "value").rdd.mapPartitions(held(task["out"])).collect()
        Path(out, ".new").write_text(json.dumps([[row.partition, row.offset, row.value.decode()] for row in rows]))
        Path(out, ".new").rename(out / f"batch-{number}.json")

    frame = spark.readStream.format("zkconsumer").options(**task["options"]).load()
    query = (
        frame.writeStream.foreachBatch(write)
        .option("checkpointLocation", task["checkpoint"])
        .trigger(**task["trigger"])
        .start()
    )
    while query.isActive and not query.awaitTermination(0.1):  # type: ignore[arg-type]
        if Path(out, "end").exists():
            break
    failure = query.exception()
    spark.stop()  # the query, if it runs, is stopped with it
    if failure is not None:
        raise failure


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
