"""``stream.to_dataframe``: what an iterated stream has as a DataFrame, committed by the caller when he likes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.cluster.conftest import NewTopic, connector
from tests.spark.conftest import Reader, offsets_of
from zkconsumer import ZookeeperConsumerConnector

__all__ = ["connector"]


def test_a_stream_becomes_frames_whose_commit_is_the_callers(
    reader: Callable[[str], Reader],
    connector: Callable[..., ZookeeperConsumerConnector],
    new_topic: NewTopic,
    produce: Callable[..., int],
    zookeeper: Any,
) -> None:
    topic = new_topic()
    produce(topic, [b"%d" % n if n % 3 else None for n in range(300)], key=lambda n: b"k%d" % n)
    of_topic = reader(topic)
    spark, group = of_topic.spark, of_topic.options["group.id"]
    member = connector(group, auto_commit_enable="false")
    stream = member.create_message_streams({topic: 1})[topic][0]
    assert next(iter(stream)).offset == 0
    frame = stream.to_dataframe(spark, max_messages=199, timeout=60)
    assert offsets_of(zookeeper, group, topic) == {0: 0}
    wanted = of_topic.batch()
    assert frame.dtypes == wanted.dtypes
    assert sorted(frame.collect()) == sorted(wanted.where("offset between 1 and 199").collect())
    member.commit_offsets()
    assert offsets_of(zookeeper, group, topic) == {0: 200}
    assert stream.to_dataframe(spark, max_messages=100, timeout=60).agg({"offset": "min"}).collect()[0][0] == 200
    empty = stream.to_dataframe(spark, timeout=0, headers=True)
    assert empty.collect() == []
    assert empty.dtypes == [*wanted.dtypes, ("headers", "array<struct<key:string,value:binary>>")]
