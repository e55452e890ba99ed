"""Options of Spark's Kafka source, refused writes, and what a progress shows, on a real broker and Spark.

Results of Spark's own source (4.2.0, with the same messages) are written down where they are compared with.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.conftest import NewTopic
from tests.spark.conftest import Reader, Sink
from tests.timing import scaled
from zkconsumer.devcluster import DevCluster
from zkconsumer.model import OffsetRange
from zkconsumer.spark import source_reports

MakeReader = Callable[[str], Reader]
Filled = Callable[..., Reader]
pytestmark = pytest.mark.one_way

T0 = 1_700_000_000_000
"""The time of the first message in ms; each next one is a second later."""


@pytest.fixture
def timed(cluster: DevCluster, new_topic: NewTopic) -> str:
    """A topic with 2,000 messages in two partitions in turn, with times of their own."""
    from confluent_kafka import Producer

    topic = new_topic(2)
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    for number in range(2000):
        producer.produce(topic, b"v", partition=number % 2, timestamp=T0 + 1000 * number)
    assert producer.flush(scaled(20)) == 0
    return topic


def test_each_partition_is_read_between_its_times(timed: str, reader: MakeReader) -> None:
    """The results are those of Spark's Kafka source 4.2.0 with the same options and messages."""
    from pyspark.errors import PySparkException

    def read(**times: tuple[int, int]) -> dict[int, tuple[int, int]]:
        """First offset and number of messages of each partition; times are seconds after the first message."""
        given = {
            f"{edge}OffsetsByTimestamp": json.dumps({timed: {str(n): T0 + 1000 * at for n, at in enumerate(of_each)}})
            for edge, of_each in times.items()
        }
        frame = reader(timed).batch("partition int, offset bigint", **given).groupBy("partition")
        return {row[0]: (row[1], row[2]) for row in frame.agg({"offset": "min", "*": "count"}).collect()}

    assert read(starting=(100, 301)) == {0: (50, 950), 1: (150, 850)}
    assert read(ending=(100, 301)) == {0: (0, 50), 1: (0, 150)}
    assert read(starting=(100, 301), ending=(200, 9000)) == {0: (50, 50), 1: (150, 850)}
    with pytest.raises(
        PySparkException, match=f"startingOffsetsByTimestamp: .*: {timed}-1 has no message of that time"
    ):
        read(starting=(100, 9000))


@pytest.mark.parametrize(
    ("options", "tasks", "largest"),
    [
        ({"maxRecordsPerPartition": "300"}, 8, 250),
        ({"maxRecordsPerPartition": "300", "minPartitions": "5"}, 8, 250),
        ({"maxRecordsPerPartition": "300", "minPartitions": "11"}, 11, 250),
    ],
)
def test_no_task_reads_more_records_than_it_may(
    timed: str, reader: MakeReader, options: dict[str, str], tasks: int, largest: int
) -> None:
    frame = reader(timed).batch("partition int, offset bigint", **options)
    sizes = frame.rdd.mapPartitions(lambda rows: [sum(1 for _ in rows)]).collect()
    assert (len(sizes), max(sizes), sum(sizes)) == (tasks, largest, 2000)


def test_a_progress_tells_what_was_read_and_what_is_left(filled: Filled, tmp_path: Path) -> None:
    """Spark has no description and no metrics of a Python source. The docs must mention a later Spark that has."""
    from pyspark.sql import functions

    of_topic, sink = filled(2, [b"v"] * 100), Sink()
    stream = of_topic.stream(maxOffsetsPerTrigger="60")
    observed = stream.observe("read", functions.count("*").alias("rows"), functions.max("timestamp").alias("newest"))
    sink.drain(observed, tmp_path)
    of_topic.produce([b"v"] * 100)
    query = sink.start(observed, tmp_path)
    try:
        assert query.awaitTermination(scaled(120))
        batches = [progress for progress in query.recentProgress if progress["numInputRows"]]
    finally:
        query.stop()
    reports = [report for progress in batches for report in source_reports(progress)]
    assert [report.ranges for report in reports] == [
        tuple(OffsetRange(of_topic.topic, number, 50, 80) for number in (0, 1)),
        tuple(OffsetRange(of_topic.topic, number, 80, 100) for number in (0, 1)),
    ]
    assert [report.metrics["maxOffsetsBehindLatest"] for report in reports] == ["20", "0"]
    assert [progress["observedMetrics"]["read"]["rows"] for progress in batches] == [60, 40]
    (source,) = batches[0]["sources"]
    assert source["metrics"] == {}
    assert "PythonMicroBatchStream" in source["description"]


@pytest.fixture
def table(spark: Any, reader: MakeReader, new_topic: NewTopic) -> Iterator[str]:
    of_topic = reader(new_topic())
    options = ", ".join(f"`{name}` '{value}'" for name, value in of_topic.options.items())
    spark.sql(f"CREATE TABLE written USING zkconsumer OPTIONS ({options})")
    yield "written"
    spark.sql("DROP TABLE written")


def test_every_write_is_refused_with_what_to_use_instead(spark: Any, table: str, reader: MakeReader) -> None:
    from pyspark.errors import PySparkException

    frame, rows = spark.range(3).selectExpr("CAST(id AS STRING) AS value"), spark.table(table).limit(1)
    options = reader("t").options
    writes: list[Callable[[], object]] = [
        lambda: frame.write.format("zkconsumer").mode("append").save(),
        lambda: frame.write.format("zkconsumer").mode("overwrite").options(**options).save(),
        lambda: frame.write.format("zkconsumer").mode("append").options(**options, topic="t").save(),
        lambda: frame.write.format("zkconsumer").options(**options).saveAsTable("another"),
        lambda: frame.writeTo("another").using("zkconsumer").create(),
        lambda: rows.writeTo(table).append(),
        lambda: spark.sql(f"INSERT INTO {table} SELECT * FROM {table}"),
    ]
    for number, write in enumerate(writes):
        with pytest.raises(PySparkException) as refused:
            write()
        assert 'This source only reads. Write to topics with Spark\'s own sink: format("kafka")' in str(
            refused.value
        ), number
    for mode in ("error", "ignore"):  # Spark refuses both modes before it asks a Python source
        with pytest.raises(PySparkException, match="UNSUPPORTED_DATA_SOURCE_SAVE_MODE"):
            frame.write.format("zkconsumer").mode(mode).options(**options).save()


@pytest.mark.parametrize("given", [{}, {"kafka.bootstrap.servers": "b:9092", "topic": "t"}])
def test_a_stream_cannot_be_written(spark: Any, tmp_path: Path, given: dict[str, str]) -> None:
    from pyspark.errors import StreamingQueryException

    stream = spark.readStream.format("rate").load()
    writer = stream.writeStream.format("zkconsumer").options(**given).option("checkpointLocation", str(tmp_path))
    with pytest.raises(StreamingQueryException, match="This source only reads"):
        writer.start().awaitTermination(scaled(120))
