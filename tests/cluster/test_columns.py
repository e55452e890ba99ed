"""Members that read batches of columns, on a real cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.cluster.conftest import NewTopic, produce_to
from zkconsumer import ZookeeperConsumerConnector
from zkconsumer.devcluster import DevCluster


def rows_of(connector: ZookeeperConsumerConnector, topic: str, count: int) -> list[dict[str, Any]]:
    (stream,) = connector.create_message_streams({topic: 1})[topic]
    found: list[dict[str, Any]] = []
    for batch in stream.batches(headers=True, timeout=30):
        found += batch.to_pylist()
        if len(found) >= count:
            return found
    raise AssertionError(f"{len(found)} of {count}")


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_columns_of_all_codecs_say_what_messages_say(
    codec: str,
    cluster: DevCluster,
    connector: Callable[..., ZookeeperConsumerConnector],
    new_topic: NewTopic,
    new_group: Callable[[], str],
) -> None:
    config = {"message.timestamp.type": "LogAppendTime"} if codec == "lz4" else None
    topic = new_topic(2, config=config)
    values = [None if n % 7 == 0 else b"%d" % n * (n % 50) for n in range(2000)]
    produce_to(
        cluster.bootstrap_servers,
        topic,
        values,
        partitions=2,
        key=lambda n: b"k" if n % 3 else None,
        compression_codec=codec,
    )
    rows = rows_of(connector(new_group()), topic, 2000)
    (stream,) = connector(new_group()).create_message_streams({topic: 1})[topic]
    messages = [stream.get(timeout=30) for _ in range(2000)]
    told = {(m.partition, m.offset): (m.timestamp, m.timestamp_type, m.key, m.value) for m in messages}
    assert told == {
        (row["partition"], row["offset"]): (
            round(row["timestamp"].timestamp() * 1000),
            row["timestampType"],
            row["key"],
            row["value"],
        )
        for row in rows
    }
    assert {row["timestampType"] for row in rows} == {1 if codec == "lz4" else 0}
