"""A streaming query as a member of a group that the brokers coordinate, beside connectors of that group.

Two things are asked everywhere: no message is missing in the group, and none is twice in the query.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.conftest import NewTopic
from tests.cluster.our_member import OurMember
from tests.spark.conftest import Reader, Sink, offsets_of
from tests.spark.test_member import QUICK, assert_once, everything, places, values
from tests.timing import eventually, scaled
from zkconsumer.devcluster import DevCluster

TIMES = {"session.timeout.ms": "6000", "heartbeat.interval.ms": "300"}


class Query:
    """A query with a sink, on one topic, in a group of its own; brokers are known by ``bootstrap.servers`` alone."""

    def __init__(self, spark: Any, servers: str, group: str, topic: str, checkpoint: Path, strategy: str) -> None:
        from confluent_kafka.admin import AdminClient

        self.group, self.topic, self.checkpoint = group, topic, checkpoint
        self.common = {
            "group.coordination": "kafka",
            "bootstrap.servers": servers,
            "partition.assignment.strategy": strategy,
            **TIMES,
        }
        self.reader = Reader(spark, "", group, topic)
        del self.reader.options["zookeeper.connect"]
        self.reader.options.update({name: value for name, value in self.common.items() if name != "bootstrap.servers"})
        self.reader.options["kafka.bootstrap.servers"] = servers
        self.sink = Sink()
        self.query: Any = None
        self._admin = AdminClient({"bootstrap.servers": servers})

    def start(self, trigger: dict[str, Any] | None = None, **options: str) -> None:
        frame = self.reader.stream(membership="member", checkpointLocation=str(self.checkpoint), **options)
        self.query = self.sink.start(frame, self.checkpoint, **trigger or QUICK)

    def stop(self) -> None:
        self.sink.go_on.set()
        if self.query is not None:
            self.query.stop()

    def offsets(self) -> dict[int, int]:
        """Return the group's offset of each partition from the coordinator, or an empty dict without an answer."""
        from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException

        group = ConsumerGroupTopicPartitions(self.group)
        (asked,) = self._admin.list_consumer_group_offsets([group], request_timeout=10).values()
        try:
            return {where.partition: where.offset for where in asked.result(scaled(20)).topic_partitions}
        except KafkaException:
            return {}  # a busy broker answers the next time

    def at(self, partitions: int, offset: int) -> bool:
        return self.offsets() == dict.fromkeys(range(partitions), offset)

    def shares(self) -> list[int]:
        """How many partitions each member of the group has, by its coordinator; none while it is rebalanced."""
        from confluent_kafka import ConsumerGroupState

        told = self._admin.describe_consumer_groups([self.group])[self.group].result(scaled(20))
        if told.state is not ConsumerGroupState.STABLE:
            return []
        return sorted(len(member.assignment.topic_partitions) for member in told.members)


NewQuery = Callable[..., Query]


@pytest.fixture
def query(spark: Any, cluster: DevCluster, new_group: Callable[[], str], tmp_path: Path) -> Iterator[NewQuery]:
    """``query(topic, strategy)``: not started yet; stopped at the end."""
    made: list[Query] = []

    def make(topic: str, strategy: str) -> Query:
        folder = tmp_path / f"checkpoint-{len(made)}"
        made.append(Query(spark, cluster.bootstrap_servers, new_group(), topic, folder, strategy))
        return made[-1]

    yield make
    for one in made:
        one.stop()


def test_a_query_and_a_connector_share_a_group(
    query: NewQuery,
    new_topic: NewTopic,
    produce: Callable[..., int],
    our_member: Callable[..., OurMember],
) -> None:
    """The connector joins and leaves."""
    topic = new_topic(4)
    produce(topic, values(0, 2000), partitions=4)
    one = query(topic, "cooperative-sticky")
    one.start()
    eventually(lambda: one.at(4, 500), 120, "the query to read all alone")
    other = our_member(one.group, {topic: 1}, properties=one.common)
    eventually(lambda: one.shares() == [2, 2], 60, "both to have a half")
    produce(topic, values(2000, 4000), partitions=4)
    other.wait_messages(1000)
    eventually(lambda: len(one.sink.places) == 3000, 60, "the query to read its half")
    other.stop()
    produce(topic, values(4000, 5000), partitions=4)
    eventually(lambda: one.at(4, 1250), 60, "the query to read everything")
    one.query.stop()
    eventually(lambda: one.shares() == [], 30, "the query to leave")
    assert_once([*one.sink.places, *places(other)])
    assert {*one.sink.places, *places(other)} == everything(4, 1250)


def test_a_query_moves_to_the_brokers_by_one_property(
    query: NewQuery, new_topic: NewTopic, produce: Callable[..., int], cluster: DevCluster, zookeeper: Any
) -> None:
    """It goes on from its checkpoint."""
    topic = new_topic(4)
    produce(topic, values(0, 2000), partitions=4)
    one = query(topic, "range")
    before = Reader(one.reader.spark, cluster.zookeeper_connect, one.group, topic)
    one.sink.drain(before.stream(membership="member"), one.checkpoint)
    assert offsets_of(zookeeper, one.group, topic) == dict.fromkeys(range(4), 500)
    produce(topic, values(2000, 3000), partitions=4)
    one.sink.drain(before.stream(membership="member", **{"group.coordination": "kafka"}), one.checkpoint)
    assert_once(one.sink.places)
    assert set(one.sink.places) == everything(4, 750)
    eventually(lambda: one.at(4, 750), 30, "the group's offsets in Kafka")
    assert offsets_of(zookeeper, one.group, topic) == dict.fromkeys(range(4), 500)


def test_a_query_beside_an_empty_group_moves_its_offsets(
    query: NewQuery, new_topic: NewTopic, produce: Callable[..., int], our_member: Callable[..., OurMember]
) -> None:
    from zkconsumer.errors import OffsetCommitError
    from zkconsumer.spark import snapshot

    topic = new_topic(4)
    produce(topic, values(0, 2000), partitions=4)
    one = query(topic, "range")
    for name in (*TIMES, "partition.assignment.strategy"):
        del one.reader.options[name]  # only members have a use for these
    one.sink.drain(one.reader.stream(membership="none"), one.checkpoint)
    assert set(one.sink.places) == everything(4, 500)
    assert one.at(4, 500)
    produce(topic, values(2000, 2400), partitions=4)
    part = snapshot({**one.reader.options, "startingOffsets": "group"})
    assert part.load(one.reader.spark, "offset bigint").count() == 400
    part.commit()
    assert one.at(4, 600)
    produce(topic, values(2400, 2440), partitions=4)
    part = snapshot({**one.reader.options, "startingOffsets": "group"})
    member = our_member(one.group, {topic: 1}, properties={**one.common, "auto.commit.enable": "false"}).wait_ready()
    member.wait_messages(40)
    with pytest.raises(OffsetCommitError, match="the group has live members"):
        part.commit()
    assert one.at(4, 600)
    assert_once(one.sink.places)
