"""A process that reads the flights with Spark: ``python -m zkconsumer.cli.demo.spark_report '<task as JSON>'``.

A process of its own, because Spark and its JVM write to the terminal what nobody asked for. The results go to files:
first those of a DataFrame, then, batch after batch, those of a stream, until there is a file that says that it is
enough.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

WEEK = "7 days"
_TRIGGER = "200 milliseconds"
_TICK_S = 0.2


def main(arguments: list[str]) -> None:
    """Its argument: ``options`` of the source, and those of the ``stream`` besides; ``java_home``; ``folder`` for what
    Spark leaves; the files ``result``, ``whole`` (all flights by week), ``windows`` (those of the stream) and ``end``.
    """
    task = json.loads(arguments[0])
    # Workers are started with whatever python3 is in PATH unless told otherwise.
    os.environ |= {"JAVA_HOME": task["java_home"], "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    Path(task["folder"]).mkdir(exist_ok=True)  # whatever Spark leaves behind when it is interrupted is in there
    spark = session(task["folder"])
    try:
        messages = spark.read.format("zkconsumer").options(**task["options"]).load()
        _write(task["whole"], [list(row) for row in by_week(flights(messages)).collect()])
        _write(task["result"], report(flights(messages)))
        stream(spark, task)
    finally:
        spark.stop()


def session(folder: str) -> Any:
    """A Spark session that leaves nothing outside its folder."""
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
    """Carrier, delay and time of each message."""
    from pyspark.sql.functions import col, from_json

    flight = from_json(col("value").cast("string"), "dep_delay int, time_hour timestamp").alias("flight")
    return messages.select(col("key").cast("string").alias("carrier"), flight).select(
        "carrier", col("flight.dep_delay").alias("delay"), col("flight.time_hour").alias("time")
    )


def report(flights: Any) -> list[list[Any]]:
    """Rows of: carrier, flights, flights with a delay noted, sum of the delays, their mean."""
    from pyspark.sql.functions import avg, count, lit
    from pyspark.sql.functions import sum as total

    by_carrier = flights.groupBy("carrier").agg(count(lit(1)), count("delay"), total("delay"), avg("delay"))
    return [list(row) for row in by_carrier.collect()]


def by_week(flights: Any) -> Any:
    """A windowed aggregate: the week's first day, flights, mean delay."""
    from pyspark.sql.functions import avg, col, count, date_format, lit, window

    weeks = flights.groupBy(window("time", WEEK)).agg(count(lit(1)).alias("flights"), avg("delay").alias("delay"))
    return weeks.select(date_format(col("window.start"), "yyyy-MM-dd").alias("week"), "flights", "delay")


def stream(spark: Any, task: dict[str, Any]) -> None:
    """The same aggregate over the flights as they are consumed by a member of a group."""
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
    """Whole or not at all."""
    new = Path(f"{file}.new")
    new.write_text(json.dumps(content))
    new.rename(file)


if __name__ == "__main__":
    main(sys.argv[1:])
