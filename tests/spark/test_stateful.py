"""Queries with state, and queries that begin at a time: each one goes on after a restart as if there had been none."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.cluster.conftest import NewTopic
from tests.spark.conftest import Reader, Sink, offsets_of
from tests.timing import scaled
from zkconsumer.devcluster import DevCluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MakeReader = Callable[[str], Reader]
NewMessages = Callable[[str, Iterable[tuple[int, int, str]]], None]
START_S = 1_700_000_040
"""A full minute, in seconds since 1970."""


@pytest.fixture
def messages_at(cluster: DevCluster) -> NewMessages:
    """``messages_at(topic, [(partition, seconds, value), ...])``; the seconds are counted from START_S on."""
    from confluent_kafka import Producer

    def produce(topic: str, messages: Iterable[tuple[int, int, str]]) -> None:
        producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
        for partition, seconds, value in messages:
            producer.produce(topic, value, partition=partition, timestamp=1000 * (START_S + seconds))
        assert producer.flush(scaled(20)) == 0

    return produce


class Results:
    """A sink: the rows that each batch brought, as tuples."""

    def __init__(self) -> None:
        self.batches: dict[int, list[tuple[Any, ...]]] = {}

    def __call__(self, frame: DataFrame, number: int) -> None:
        self.batches[number] = [tuple(row) for row in frame.collect()]

    @property
    def rows(self) -> list[tuple[Any, ...]]:
        return sorted(row for rows in self.batches.values() for row in rows)

    def drain(self, frame: DataFrame, checkpoint: Path, mode: str = "append") -> Any:
        """Run a query over all that is there now. Return the progress of its batches."""
        writer = frame.writeStream.foreachBatch(self).outputMode(mode).option("checkpointLocation", str(checkpoint))
        query = writer.trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(int(scaled(120))), "the query did not end in time"
            return query.recentProgress
        finally:
            query.stop()


def test_windows_under_a_watermark_come_once(
    reader: MakeReader, new_topic: NewTopic, messages_at: NewMessages, tmp_path: Path
) -> None:
    """A message that is later than the watermark is dropped. The state of open windows survives a restart."""
    from pyspark.sql.functions import count, lit, unix_timestamp, window

    topic, results = new_topic(2), Results()
    of_topic = reader(topic)

    def drain() -> int:
        stream = of_topic.stream(maxOffsetsPerTrigger="50").withWatermark("timestamp", "10 seconds")
        minutes = stream.groupBy(window("timestamp", "1 minute")).agg(count(lit(1)))
        frame = minutes.select(unix_timestamp("window.start") - START_S, "count(1)")
        progress = results.drain(frame, tmp_path)
        return sum(one["stateOperators"][0]["numRowsDroppedByWatermark"] for one in progress)

    messages_at(topic, [(n % 2, n, str(n)) for n in range(150)])
    assert drain() == 0
    assert results.rows == [(0, 60), (60, 60)]
    messages_at(topic, [(1, 5, "late"), *((n % 2, n, str(n)) for n in range(150, 300))])
    assert drain() == 1
    assert results.rows == [(0, 60), (60, 60), (120, 60), (180, 60)]


def test_repeated_values_are_dropped_also_after_a_restart(
    reader: MakeReader, new_topic: NewTopic, produce: Callable[..., int], tmp_path: Path
) -> None:
    topic, results = new_topic(2), Results()
    of_topic = reader(topic)
    for again in range(2):
        produce(topic, [b"%d" % (n % 70) for n in range(200 * again, 200 + 200 * again)], partitions=2)
        frame = of_topic.stream(maxOffsetsPerTrigger="90").dropDuplicates(["value"]).select("value")
        results.drain(frame, tmp_path)
    assert results.rows == sorted((b"%d" % n,) for n in range(70))


def add_partitions(reader: Reader, topic: str, total: int) -> None:
    from zkconsumer.zookeeper.cluster_admin import Admin

    with Admin(reader.options["zookeeper.connect"]) as admin:
        admin.add_partitions(topic, total)


@pytest.mark.parametrize("membership", ["member", "none"])
def test_partitions_added_during_a_batch_are_read_whole(
    reader: MakeReader,
    new_topic: NewTopic,
    produce: Callable[..., int],
    zookeeper: Any,
    tmp_path: Path,
    membership: str,
) -> None:
    """The running query (availableNow) leaves them to the next one. That one begins at their beginning, although it
    starts at the latest offsets.
    """
    topic, sink = new_topic(2), Sink()
    produce(topic, [b"x"] * 200, partitions=2)
    of_topic = reader(topic)
    sink.hold_at = 0
    query = sink.start(of_topic.stream(membership=membership, maxOffsetsPerTrigger="100"), tmp_path)
    try:
        assert sink.holding.wait(scaled(120))
        add_partitions(of_topic, topic, 4)
        produce(topic, [b"y"] * 80, partitions=4)
        sink.go_on.set()
        assert query.awaitTermination(scaled(120))
    finally:
        sink.go_on.set()
        query.stop()
    assert sink.places == [(partition, offset) for partition in (0, 1) for offset in range(100)]
    sink.drain(of_topic.stream(membership=membership, startingOffsets="latest"), tmp_path)
    ends = {0: 120, 1: 120, 2: 20, 3: 20}
    assert sink.places == [(partition, offset) for partition, end in ends.items() for offset in range(end)]
    assert offsets_of(zookeeper, of_topic.options["group.id"], topic) == ends


def test_a_stream_begins_at_a_time_and_goes_on_after_it(
    reader: MakeReader, new_topic: NewTopic, messages_at: NewMessages, tmp_path: Path
) -> None:
    """The time counts once: a restart goes on at the checkpoint, also where older messages came since."""
    from pyspark.errors import StreamingQueryException

    topic, sink = new_topic(2), Sink()
    messages_at(topic, [(n % 2, n, str(n)) for n in range(20)])
    messages_at(topic, [(0, 30, "30")])
    of_topic = reader(topic)
    since = {"startingTimestamp": str(1000 * (START_S + 25))}

    def stream(**options: str) -> DataFrame:
        given = {**of_topic.options, "membership": "none", **since, **options}
        return of_topic.spark.readStream.format("zkconsumer").options(**given).load()

    with pytest.raises(StreamingQueryException, match=f"{topic}-1 has no message of that time"):
        sink.drain(stream(), tmp_path / "refused")
    assert sink.rows == []
    sink.drain(stream(startingOffsetsByTimestampStrategy="latest"), tmp_path / "begun")
    assert sink.rows == [(0, 10, b"30")]
    messages_at(topic, [(0, 1, "older"), (1, 40, "40")])
    sink.drain(stream(startingOffsetsByTimestampStrategy="latest"), tmp_path / "begun")
    assert sink.rows == [(0, 10, b"30"), (0, 11, b"older"), (1, 10, b"40")]
