"""Runs of queries on a real ZooKeeper and broker, driven as Spark drives them, but without Spark's JVM."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.cluster.conftest import NewTopic
from tests.timing import eventually
from tests.unit.spark.dictionary_cluster import Query
from zkconsumer.devcluster import DevCluster
from zkconsumer.model import TopicPartition
from zkconsumer.spark.coordinator_cluster import cluster_of
from zkconsumer.spark.options import parse
from zkconsumer.spark.streaming_query import QueryRun

NewQuery = Callable[..., Query]


@pytest.fixture
def new_query(cluster: DevCluster) -> Iterator[NewQuery]:
    """``new_query(group, topic, option=value)``: a query that has joined."""
    made: list[QueryRun] = []

    def make(group: str, topic: str, coordination: str = "zookeeper", **options: str) -> Query:
        servers = (
            {"zookeeper.connect": cluster.zookeeper_connect}
            if coordination == "zookeeper"
            else {"bootstrap.servers": cluster.bootstrap_servers, "group.coordination": "kafka"}
        )
        given = {"group.id": group, "subscribe": topic, "startingOffsets": "earliest", **servers, **options}
        parsed = parse(given)
        made.append(QueryRun(parsed, cluster_of(parsed)))
        made[-1].open()
        return Query(made[-1])

    yield make
    for run in made:
        run.close()


def messages(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def test_a_longer_topic_made_anew_is_read_whole(
    cluster: DevCluster,
    new_topic: NewTopic,
    new_group: Callable[[], str],
    produce: Callable[..., int],
    new_query: NewQuery,
) -> None:
    """The new log looks like the old log grown longer. The topic's node in ZooKeeper tells the difference."""
    topic, group = new_topic(), new_group()
    produce(topic, messages(20), partitions=1)
    query = new_query(group, topic, failOnDataLoss="false")
    eventually(lambda: query.trigger() or query.read == [(0, 20)], 40, "the messages of the first topic")
    query.trigger()
    cluster.delete_topic(topic)
    cluster.create_topic(topic)
    produce(topic, messages(300), partitions=1)
    eventually(lambda: query.trigger() or query.read[1:] == [(0, 300)], 40, "the messages of the new topic")
    assert query.trigger() == []


def test_a_real_broker_tells_the_end_of_what_is_written(
    cluster: DevCluster, new_topic: NewTopic, new_group: Callable[[], str]
) -> None:
    """An open transaction hides messages from consumers of committed ones; they are in the log all the same."""
    from confluent_kafka import Producer

    topic = new_topic()
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": topic, "log_level": 0})
    producer.init_transactions(30)
    producer.begin_transaction()
    for value in messages(7):
        producer.produce(topic, value, partition=0)
    producer.flush(30)
    common = {"zookeeper.connect": cluster.zookeeper_connect, "group.id": new_group(), "subscribe": topic}
    place = TopicPartition(topic, 0)
    with cluster_of(parse({**common, "isolation.level": "read_committed"})) as beside:
        assert beside.log_ends([place]) == {place: 0}
        assert beside.written_ends([place]) == {place: 7}
    producer.abort_transaction(30)
