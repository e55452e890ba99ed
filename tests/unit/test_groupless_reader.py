"""``connector.read``: partitions without a group."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.timing import eventually, scaled
from zkconsumer import StringDecoder, TopicPartition, ZookeeperConsumerConnector
from zkconsumer.errors import ConnectorClosedException
from zkconsumer.testing import FakeCluster
from zkconsumer.wiring import groupless_reader

PARTITIONS, EACH = 2, 20
FIRST, SECOND = TopicPartition("events", 0), TopicPartition("events", 1)


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(brokers=2, zookeeper=True) as made:
        made.create_topic("events", PARTITIONS)
        for partition in range(PARTITIONS):
            for _ in range(EACH // 5):
                made.append("events", partition, [b"v"] * 5, [b"k"] * 5)
        yield made


@pytest.fixture
def connector(cluster: FakeCluster) -> Iterator[ZookeeperConsumerConnector]:
    with ZookeeperConsumerConnector(
        zookeeper_connect=cluster.zookeeper_connect,
        group_id="g",
        consumer_timeout_ms=int(scaled(20) * 1000),  # no read may hang
    ) as made:
        yield made


def pairs(messages: Any) -> list[tuple[int, int]]:
    return sorted((message.partition, message.offset) for message in messages)


def whole(*spans: tuple[int, int]) -> list[tuple[int, int]]:
    return [(partition, offset) for partition, span in enumerate(spans) for offset in range(*span)]


def threads(connector: ZookeeperConsumerConnector) -> list[str]:
    return [one.name for one in threading.enumerate() if f"{connector.consumer_id}-read" in one.name]


def test_a_topic_is_read_whole_and_no_group_is_joined(
    cluster: FakeCluster, connector: ZookeeperConsumerConnector
) -> None:
    assert pairs(connector.read("events")) == whole((0, EACH), (0, EACH))
    assert pairs(connector.read([FIRST])) == whole((0, EACH))
    assert not any("/consumers/g" in path for path in cluster.zookeeper.tree("/"))
    assert not threads(connector)


def test_a_read_ends_if_its_topic_is_deleted(
    cluster: FakeCluster, connector: ZookeeperConsumerConnector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The read waited for ever for messages that are gone."""
    monkeypatch.setattr(groupless_reader, "DELETED_AFTER", 0.2)
    found = []
    for message in connector.read("events", until={FIRST: EACH, SECOND: EACH + 1}):
        found.append(message)
        if len(found) == 2 * EACH:
            cluster.delete_topic("events")

    assert pairs(found) == whole((0, EACH), (0, EACH))
    assert not threads(connector)


@pytest.mark.parametrize(
    ("start", "until", "spans"),
    [
        ({FIRST: 3, SECOND: 12}, {FIRST: 8, SECOND: 20}, [(3, 8), (12, 20)]),
        ("latest", "end", []),
        (0, "end", [(0, EACH), (0, EACH)]),
        (datetime(2020, 1, 1, tzinfo=UTC), {FIRST: 1, SECOND: 1}, [(0, 1), (0, 1)]),
        (1 << 45, "end", []),
    ],
)
def test_a_read_begins_and_ends_where_it_is_told(
    connector: ZookeeperConsumerConnector, start: Any, until: Any, spans: Any
) -> None:
    assert pairs(connector.read([FIRST, SECOND], start, until)) == whole(*spans)


def test_a_read_makes_one_table(connector: ZookeeperConsumerConnector) -> None:
    table = connector.read("events").to_arrow()

    assert sorted(table.column("offset").to_pylist()) == sorted([*range(EACH)] * 2)


def test_a_read_has_decoders_and_lists(connector: ZookeeperConsumerConnector) -> None:
    with connector.read([("events", 0)], key_decoder=StringDecoder()) as stream:
        assert [message.key for message in stream.take(3)] == ["k"] * 3


def test_a_member_reads_beside_its_group(cluster: FakeCluster, connector: ZookeeperConsumerConnector) -> None:
    stream = connector.create_message_streams({"events": 1})["events"][0]
    assert len(pairs(connector.read("events"))) == PARTITIONS * EACH
    eventually(lambda: len(connector.assignment()) == PARTITIONS, scaled(20), "the partitions")
    cluster.append("events", 0, [b"new"])

    assert stream.get(timeout=scaled(20)).value == b"new"


def test_a_read_without_end_waits_for_more(cluster: FakeCluster, connector: ZookeeperConsumerConnector) -> None:
    with connector.read([FIRST], "latest", until=None) as stream:
        assert stream.take(1, timeout=0) == []
        cluster.append("events", 0, [b"new"])
        assert stream.get(timeout=scaled(20)).offset == EACH


def test_a_start_that_is_deleted_becomes_the_beginning(
    cluster: FakeCluster, connector: ZookeeperConsumerConnector
) -> None:
    cluster.truncate_before("events", 0, 10)

    assert pairs(connector.read([FIRST], {FIRST: 2})) == whole((10, EACH))


def test_a_leader_that_moves_is_followed(cluster: FakeCluster, connector: ZookeeperConsumerConnector) -> None:
    with connector.read([FIRST]) as stream:
        before = stream.take(5)
        leader = 1 if cluster.log("events", 0).leader == 0 else 0  # type: ignore[union-attr]
        cluster.move_leader("events", 0, leader)
        assert pairs([*before, *stream]) == whole((0, EACH))


def test_a_closed_read_ends(connector: ZookeeperConsumerConnector) -> None:
    stream = connector.read([FIRST])
    stream.close()
    stream.close()

    assert list(stream) == []
    with pytest.raises(ConnectorClosedException):
        stream.get()
    assert not threads(connector)


def test_a_close_ends_a_read_in_the_middle(connector: ZookeeperConsumerConnector) -> None:
    """Messages of the same batch still came after it."""
    with connector.read([FIRST]) as stream:
        assert stream.get().offset == 0

    assert list(stream) == []


def test_a_start_beyond_the_log_is_named(cluster: FakeCluster, connector: ZookeeperConsumerConnector) -> None:
    """Bug: the start is out of range, as a start before the log is, and the whole log was read instead."""
    with pytest.raises(ValueError, match=f"{FIRST}.* ends at offset {EACH}"):
        connector.read([FIRST], {FIRST: EACH + 1}, until=None)
    with connector.read([FIRST], {FIRST: EACH}, until=None) as stream:
        cluster.append("events", 0, [b"new"])
        assert stream.get().offset == EACH


def test_a_shutdown_ends_the_reads(connector: ZookeeperConsumerConnector) -> None:
    stream = connector.read([FIRST], "latest", until=None)
    connector.shutdown()

    assert list(stream) == []
    assert not threads(connector)
    with pytest.raises(ConnectorClosedException):
        connector.read([FIRST])


def test_a_dropped_read_ends_its_threads(connector: ZookeeperConsumerConnector) -> None:
    for _ in connector.read([FIRST], until=None):
        break
    gc.collect()

    eventually(lambda: not threads(connector), scaled(20), "the threads to end")


@pytest.mark.parametrize(
    ("start", "until"),
    [("begin", "end"), (-5, "end"), (1.5, "end"), ({FIRST: 0}, "end"), ("earliest", "never"), ("earliest", {FIRST: 1})],
)
def test_what_makes_no_sense_is_named(connector: ZookeeperConsumerConnector, start: Any, until: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        connector.read([FIRST, SECOND], start, until)
    with pytest.raises(ValueError, match="no partition"):
        connector.read([])
    assert not threads(connector)
