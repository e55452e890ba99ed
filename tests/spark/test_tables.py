"""Tables about groups in Spark: the state of a live member as DataFrames, joined in SQL, and ``CREATE TABLE``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from tests.cluster.conftest import NewTopic, unique
from tests.timing import eventually, scaled
from zkconsumer import ZookeeperConsumerConnector
from zkconsumer.devcluster import DevCluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@contextmanager
def member(cluster: DevCluster, group: str, topic: str) -> Iterator[ZookeeperConsumerConnector]:
    """A member that has consumed and committed two of five messages of partition 0."""
    with ZookeeperConsumerConnector(
        zookeeper_connect=cluster.zookeeper_connect, group_id=group, consumer_id="one", auto_offset_reset="smallest"
    ) as made:
        stream = made.create_message_streams({topic: 1})[topic][0]
        for _ in range(2):
            stream.get(timeout=scaled(20))
        made.commit_offsets()
        eventually(lambda: made.health().ready, 20, lambda: f"a ready member: {made.health()}")
        yield made


def table(spark: SparkSession, cluster: DevCluster, name: str, schema: str = "", **options: str) -> DataFrame:
    reader = spark.read.format("zkconsumer").option("zookeeper.connect", cluster.zookeeper_connect)
    reader = reader.options(**{"table": name, **options})
    return (reader.schema(schema) if schema else reader).load()


@pytest.fixture
def drop(spark: SparkSession) -> Iterator[Callable[[str], str]]:
    """``drop("lag")``: a name for a table of this test, which is dropped at its end."""
    names: list[str] = []

    def name(prefix: str) -> str:
        names.append(unique(prefix).replace("-", "_"))
        return names[-1]

    yield name
    for each in names:
        spark.sql(f"DROP TABLE IF EXISTS {each}")


def test_the_state_of_a_group_is_read_as_tables(
    spark: SparkSession,
    cluster: DevCluster,
    new_topic: NewTopic,
    new_group: Callable[[], str],
    produce: Callable[..., int],
) -> None:
    topic, group = new_topic(partitions=2), new_group()
    produce(topic, [b"%d" % n for n in range(5)], partitions=1)
    with member(cluster, group, topic):
        members, owners = (table(spark, cluster, name).where(f"group = '{group}'") for name in ("members", "owners"))
        first, second = owners.join(members, ["group", "member", "session"]).orderBy("partition").collect()
        assert (first.member, first.thread, first.partition, second.partition) == (
            f"{group}_one",
            f"{group}_one-0",
            0,
            1,
        )
        assert (first.kind, first.topics, first.partitions, first.client_id) == ("zkconsumer", [topic], 2, None)
        assert first.joined <= first.since
        schema = "topic string, partition int, lag bigint, owner string, lag_seconds double"
        lag = table(spark, cluster, "lag", schema, **{"group.id": group})
        both = lag.join(table(spark, cluster, "offsets", groups=group), ["topic", "partition"])
        (found,) = both.where("lag > 0").collect()
        assert (found.topic, found.partition, found.owner) == (topic, 0, f"{group}_one-0")
        assert (found.store, found.offset, found.lag) == ("zookeeper", 2, 3)
        assert found.lag_seconds > 0


def test_created_tables_are_joined_in_sql(
    spark: SparkSession,
    cluster: DevCluster,
    new_topic: NewTopic,
    new_group: Callable[[], str],
    produce: Callable[..., int],
    drop: Callable[[str], str],
) -> None:
    """Spark hands each option on twice when a table is created, and none of them when it is read."""
    topic, group = new_topic(partitions=2), new_group()
    produce(topic, [b"%d" % n for n in range(5)], partitions=1)
    lag, members, messages = drop("lag"), drop("members"), drop("messages")
    connect = f"`zookeeper.connect` '{cluster.zookeeper_connect}'"
    spark.sql(f"CREATE TABLE {lag} USING zkconsumer OPTIONS ({connect}, table 'lag', groups '{group}') COMMENT 'x'")
    spark.sql(f"CREATE TABLE {members} USING zkconsumer OPTIONS ({connect}, table 'members')")
    spark.sql(
        f"CREATE TABLE {messages} USING zkconsumer OPTIONS ({connect}, `group.id` '{group}', subscribe '{topic}')"
    )
    with member(cluster, group, topic):
        found = spark.sql(
            f"SELECT m.kind, sum(l.lag) AS lag, count(v.value) AS messages FROM {lag} l"
            f" JOIN {members} m ON l.group = m.group AND l.owner LIKE concat(m.member, '-%')"
            f" LEFT JOIN (SELECT partition, first(value) AS value FROM {messages} GROUP BY partition) v"
            " ON v.partition = l.partition GROUP BY m.kind"
        )
        assert [tuple(row) for row in found.collect()] == [("zkconsumer", 3, 1)]
    ends = f'{{"{topic}":{{"0":4,"1":0}}}}'
    assert spark.sql(f"SELECT * FROM {messages} WITH (`endingOffsets` = '{ends}')").count() == 4
    named = drop("named")
    spark.sql(f"CREATE TABLE {named} (lag BIGINT) USING zkconsumer OPTIONS ({connect}, table 'lag')")
    with pytest.raises(Exception, match="Spark forgets the options of a table whose columns are named"):
        spark.sql(f"SELECT * FROM {named}").collect()
