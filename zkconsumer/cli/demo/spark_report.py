"""A process that reads the flights with Spark: ``python -m zkconsumer.cli.demo.spark_report '<task as JSON>'``.

A process of its own, because Spark and its JVM write to the terminal what nobody asked for. The result goes to a file.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any


def main(arguments: list[str]) -> None:
    """Its argument: ``options`` of the source, ``java_home``, ``result`` (a file) and ``folder`` for Spark's own."""
    task = json.loads(arguments[0])
    # Workers are started with whatever python3 is in PATH unless told otherwise.
    os.environ |= {"JAVA_HOME": task["java_home"], "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    Path(task["folder"]).mkdir(exist_ok=True)  # whatever Spark leaves behind when it is interrupted is in there
    rows = report(task["options"], task["folder"])
    Path(task["result"]).write_text(json.dumps(rows))


def report(options: dict[str, str], folder: str) -> list[list[Any]]:
    """Rows of: carrier, flights, flights with a delay noted, sum of the delays, their mean."""
    from pyspark.sql import SparkSession
    from pyspark.sql.functions import avg, col, count, from_json, lit
    from pyspark.sql.functions import sum as total

    from zkconsumer.spark import register

    spark = (
        SparkSession.builder.master("local[2]")
        .appName("zkconsumer demo")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", folder)
        .config("spark.local.dir", folder)
        .config("spark.driver.extraJavaOptions", f"-Djava.io.tmpdir={folder}")
        .getOrCreate()
    )
    try:
        register(spark)
        messages = spark.read.format("zkconsumer").options(**options).load()
        flights = messages.select(
            col("key").cast("string").alias("carrier"),
            from_json(col("value").cast("string"), "dep_delay int").alias("flight"),
        )
        delay = col("flight.dep_delay")
        by_carrier = flights.groupBy("carrier").agg(count(lit(1)), count(delay), total(delay), avg(delay))
        return [list(row) for row in by_carrier.collect()]
    finally:
        spark.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
