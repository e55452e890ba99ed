"""``spark.read``: DataFrames equal to the produced messages."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.cluster.conftest import NewTopic
from tests.spark.conftest import Reader
from tests.timing import scaled
from zkconsumer.devcluster import DevCluster

MakeReader = Callable[[str], Reader]
Filled = Callable[..., Reader]


def test_a_batch_holds_what_was_produced(filled: Filled) -> None:
    of_topic = filled(3)
    began = datetime.now(UTC) - timedelta(seconds=5)
    values: list[bytes | None] = [b"value %d" % n if n % 10 else None for n in range(900)]
    of_topic.produce(values[:600], key=lambda n: b"key %d" % n if n % 2 else None)
    of_topic.produce(values[600:], key=lambda n: b"key %d" % n if n % 2 else None, compression_type="zstd")
    rows = of_topic.batch().orderBy("offset", "partition").collect()
    assert [row.value for row in rows] == values
    assert [row.key for row in rows] == [b"key %d" % (n % 600) if n % 2 else None for n in range(900)]
    assert [(row.topic, row.partition, row.offset) for row in rows] == [
        (of_topic.topic, n % 3, n // 3) for n in range(900)
    ]
    assert {row.timestampType for row in rows} == {0}
    assert all(began <= row.timestamp.replace(tzinfo=UTC) <= datetime.now(UTC) for row in rows)


def test_the_brokers_own_time_is_told_apart(
    reader: MakeReader, new_topic: NewTopic, produce: Callable[..., int]
) -> None:
    topic = new_topic(config={"message.timestamp.type": "LogAppendTime"})
    produce(topic, [b"a"])
    assert [row.timestampType for row in reader(topic).batch().collect()] == [1]


@pytest.mark.one_way
def test_a_snapshot_of_a_pattern_that_matches_nothing_is_empty(reader: MakeReader) -> None:
    from zkconsumer.spark import snapshot

    of_topic = reader("t")
    given = {name: value for name, value in of_topic.options.items() if name != "subscribe"}
    part = snapshot({**given, "subscribePattern": "no-such-topic-.*", "includeHeaders": True})
    assert part.ranges == ()
    assert part.load(of_topic.spark).columns[-2:] == ["timestampType", "headers"]
    assert part.load(of_topic.spark, "offset bigint").collect() == []
    part.commit()


def test_headers_come_on_request(cluster: DevCluster, reader: MakeReader, new_topic: NewTopic) -> None:
    from confluent_kafka import Producer

    topic = new_topic()
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    some: list[tuple[str, str | bytes | None]] = [("a", b"1"), ("a", None), ("ü", b"")]
    for headers in (some, None):
        producer.produce(topic, b"v", headers=headers)
    assert producer.flush(scaled(20)) == 0
    rows = reader(topic).batch(includeHeaders="true").orderBy("offset").collect()
    found = [None if row.headers is None else [(h.key, h.value) for h in row.headers] for row in rows]
    assert found == [[("a", b"1"), ("a", None), ("ü", b"")], None]
    assert "headers" not in reader(topic).batch().columns


def test_a_schema_names_the_columns_to_read(filled: Filled) -> None:
    frame = filled(1, [b"a", b"b"]).batch("offset bigint, value binary")
    assert frame.columns == ["offset", "value"]
    assert [tuple(row) for row in frame.orderBy("offset").collect()] == [(0, b"a"), (1, b"b")]


def test_the_ends_are_fixed_when_a_frame_is_first_used(filled: Filled) -> None:
    of_topic = filled(2, [b"x"] * 10)
    frame = of_topic.batch()
    assert frame.count() == 10
    of_topic.produce([b"x"] * 4)
    assert (frame.count(), frame.where("partition = 0").count()) == (10, 5)
    assert of_topic.batch().count() == 14


def test_a_batch_reads_from_and_to_the_offsets_it_is_told(filled: Filled, zookeeper: Any) -> None:
    of_topic = filled(2, [b"x"] * 200)
    zookeeper.create(f"/consumers/{of_topic.group}/offsets/{of_topic.topic}/1", b"70", makepath=True)

    def read(**options: str) -> dict[int, tuple[int, int]]:
        frame = of_topic.batch(**options).groupBy("partition").agg({"offset": "min", "*": "count"})
        return {row.partition: (row["min(offset)"], row["count(1)"]) for row in frame.collect()}

    assert read(startingOffsets="group") == {0: (0, 100), 1: (70, 30)}
    assert read(endingOffsets="group") == {1: (0, 70)}
    starts, ends = (json.dumps({of_topic.topic: offsets}) for offsets in ({"0": -2, "1": 95}, {"0": 20, "1": -1}))
    assert read(startingOffsets=starts, endingOffsets=ends) == {
        0: (0, 20),
        1: (95, 5),
    }
    assert of_topic.offsets(zookeeper) == {1: 70}


@pytest.mark.one_way
def test_the_source_can_be_registered_by_hand(reader: MakeReader, new_topic: NewTopic) -> None:
    from zkconsumer.spark import register

    of_topic = reader(new_topic())
    register(of_topic.spark)
    assert of_topic.batch().count() == 0


@pytest.fixture
def _pushdown(spark: Any) -> Iterator[None]:
    """Spark's own switch, which is off by default."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    yield
    spark.conf.unset("spark.sql.python.filterPushdown.enabled")


@pytest.mark.one_way
def test_a_filtered_count_leaves_the_next_count_whole(_pushdown: None, filled: Filled) -> None:
    """Bug: with ``pushdown=true`` the second count of a frame was that of the filtered query before it."""
    frame = filled(2, [b"x"] * 10).batch()
    assert frame.where("partition = 1").count() == 5
    assert frame.count() == 10


@pytest.mark.one_way
def test_a_snapshot_is_read_and_then_committed_for_the_group(filled: Filled, zookeeper: Any) -> None:
    from zkconsumer.errors import OffsetCommitError
    from zkconsumer.spark import snapshot

    of_topic = filled(3, [b"x"] * 300)
    topic, group = of_topic.topic, of_topic.group
    zookeeper.create(f"/consumers/{group}/offsets/{topic}/1", b"70", makepath=True)
    part = snapshot({**of_topic.options, "startingOffsets": "group"})
    of_topic.produce([b"y"] * 30)
    frame = part.load(of_topic.spark, "partition int, offset bigint")
    assert frame.count() == 230
    assert frame.where("partition = 1").count() == 30
    assert of_topic.offsets(zookeeper) == {1: 70}
    zookeeper.set(f"/consumers/{group}/offsets/{topic}/1", b"105")  # others went on meanwhile
    part.commit()
    assert of_topic.offsets(zookeeper) == {0: 100, 1: 105, 2: 100}
    after = snapshot({**of_topic.options, "startingOffsets": "group"})
    assert [(start, end) for _, _, start, end in after.ranges] == [(100, 110), (105, 110), (100, 110)]
    zookeeper.create(f"/consumers/{group}/owners/{topic}/2", b"somebody-0", makepath=True)
    with pytest.raises(OffsetCommitError, match=f"not committed: {topic}-2 .another member's owner node exists"):
        after.commit()
    assert of_topic.offsets(zookeeper) == {0: 110, 1: 110, 2: 100}
