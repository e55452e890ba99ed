"""Ending streams: ``create_message_streams(..., until=...)``, read in each way."""

from __future__ import annotations

from typing import Any

import pytest

from tests.timing import scaled
from tests.unit.clusters import Join, cluster_with, connectors_with, whole
from zkconsumer import KafkaStream, TopicPartition
from zkconsumer.errors import ConnectorClosedException, InvalidMessageException
from zkconsumer.testing import FakeCluster

PARTITIONS, EACH = 3, 20
WITHIN = 20.0
Stream = KafkaStream[Any, Any]

cluster = cluster_with({"events": [[b"v"] * EACH] * PARTITIONS})


def add(cluster: FakeCluster, many: int = EACH) -> None:
    for partition in range(PARTITIONS):
        cluster.append("events", partition, [b"v"] * many)


# no read may hang
join = connectors_with({"auto.commit.interval.ms": 60_000, "consumer.timeout.ms": int(scaled(WITHIN) * 1000)})


def by_for(stream: Stream) -> list[tuple[int, int]]:
    return [(message.partition, message.offset) for message in stream]


def by_get(stream: Stream) -> list[tuple[int, int]]:
    found = []

    def get_all() -> None:
        while True:
            message = stream.get(timeout=scaled(WITHIN))
            found.append((message.partition, message.offset))

    with pytest.raises(ConnectorClosedException, match="everything before its end"):
        get_all()
    return found


def by_take(stream: Stream) -> list[tuple[int, int]]:
    found = []
    while taken := stream.take(7, timeout=scaled(WITHIN)):
        found += [(message.partition, message.offset) for message in taken]
    return found


def _pairs(rows: Any) -> list[tuple[int, int]]:
    return list(zip(rows.column("partition").to_pylist(), rows.column("offset").to_pylist(), strict=True))


def by_batches(stream: Stream) -> list[tuple[int, int]]:
    return [pair for rows in stream.batches(max_rows=7) for pair in _pairs(rows)]


def by_to_arrow(stream: Stream) -> list[tuple[int, int]]:
    found = []
    while (table := stream.to_arrow(timeout=scaled(WITHIN))).num_rows:
        found += _pairs(table)
    return found


WAYS = [by_for, by_get, by_take, by_batches, by_to_arrow]


@pytest.mark.parametrize("read", WAYS)
def test_the_log_ends_as_of_now_end_a_stream(cluster: FakeCluster, join: Join, read: Any) -> None:
    stream = join().create_message_streams({"events": 1}, until="end")["events"][0]
    add(cluster)  # behind the end

    assert sorted(read(stream)) == whole(EACH, EACH, EACH)


@pytest.mark.parametrize("read", WAYS)
def test_offsets_end_a_stream_in_the_middle_of_a_batch(join: Join, read: Any) -> None:
    ends = {("events", 0): 7, ("events", 1): 0, ("events", 2): 13}
    connector = join()
    stream = connector.create_message_streams({"events": 1}, until=ends)["events"][0]

    assert sorted(read(stream)) == whole(7, 0, 13)
    connector.commit_offsets()
    assert [connector.committed(("events", number)) for number in range(PARTITIONS)] == [7, 0, 13]


def test_streams_are_read_one_after_the_other(join: Join) -> None:
    """A stream that waited for the partitions of the next one would wait for ever."""
    streams = join().create_message_streams({"events": 2}, until="end")["events"]

    assert sorted(by_for(streams[0]) + by_take(streams[1])) == whole(EACH, EACH, EACH)


def test_all_streams_in_one_loop_end(join: Join) -> None:
    connector = join()
    connector.create_message_streams({"events": 2}, until="end")
    seen = [(message.partition, message.offset) for message in connector.messages()]

    assert sorted(seen) == whole(EACH, EACH, EACH)
    with pytest.raises(ConnectorClosedException, match="everything before its end"):
        connector.messages().get(timeout=scaled(WITHIN))


def test_a_seek_back_is_read_again_up_to_the_end(cluster: FakeCluster, join: Join) -> None:
    connector = join()
    stream = connector.create_message_streams({"events": 1}, until="end")["events"][0]
    assert len(by_for(stream)) == PARTITIONS * EACH
    add(cluster)
    connector.seek(("events", 1), EACH - 3)

    assert by_for(stream) == [(1, EACH - 3), (1, EACH - 2), (1, EACH - 1)]


def test_a_corrupt_place_before_the_end_is_told(cluster: FakeCluster, join: Join) -> None:
    cluster.create_topic("broken")
    for _ in range(3):
        cluster.append("broken", 0, [b"v"] * 5)
    cluster.corrupt("broken", 0, 5)
    stream = join().create_message_streams({"broken": 1}, until={("broken", 0): 12})["broken"][0]
    seen = []
    with pytest.raises(InvalidMessageException):
        seen += [message.offset for message in stream]
    stream.skip()
    after = [message.offset for message in stream]

    assert after[-1] == 11
    assert max(after) < 12


def test_a_member_without_partitions_ends_with_the_group(join: Join) -> None:
    first, second = join(**{"auto.commit.interval.ms": 100}), join()
    streams = first.create_message_streams({"events": PARTITIONS}, until="end")["events"]
    idle = second.create_message_streams({"events": 1}, until="end")["events"][0]
    merged = first.messages(streams)
    seen = [(message.partition, message.offset) for message in merged]
    first.shutdown()

    assert sorted(seen + by_for(idle)) == whole(EACH, EACH, EACH)


def test_an_end_for_strange_partitions_shuts_down(join: Join) -> None:
    connector = join()
    with pytest.raises(ValueError, match="events-2"):
        connector.create_message_streams({"events": 1}, until={TopicPartition("events", n): 1 for n in range(2)})
    assert connector.state.phase.name == "CLOSED"
