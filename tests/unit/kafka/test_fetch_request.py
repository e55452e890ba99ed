"""A fetch is asked for in the bytes that its schema describes."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from zkconsumer.kafka.api_schema import ApiRequest
from zkconsumer.kafka.broker_schemas import FETCH
from zkconsumer.kafka.requests import FetchPosition, FetchRequest, encode_fetch
from zkconsumer.model import TopicPartition

VERSIONS = range(FETCH.lowest, FETCH.highest + 1)
POSITIONS = [FetchPosition("a", 1, 10, 100), FetchPosition("a", 0, 20, 200), FetchPosition("b", 5, 30, 300)]
REQUEST = FetchRequest(POSITIONS, 0.1, 1, 1 << 20, 1, 77, 5, [TopicPartition("z", 9)])
TOPIC, INT32, INT64 = st.sampled_from(["a", "bé", "", "c" * 249]), st.integers(0, 2**31 - 1), st.integers(0, 2**62)
REQUESTS = st.builds(
    FetchRequest,
    positions=st.lists(st.builds(FetchPosition, TOPIC, INT32, INT64, INT32), max_size=5),
    max_wait=st.floats(0, 1e6),
    min_bytes=INT32,
    max_bytes=INT32,
    isolation_level=st.sampled_from([0, 1]),
    session_id=INT32,
    session_epoch=st.integers(-1, 2**31 - 1),
    forgotten=st.lists(st.builds(TopicPartition, TOPIC, INT32), max_size=3),
    rack=st.none() | st.text(max_size=9),
)


def by_schema(version: int, request: FetchRequest) -> ApiRequest:
    """The same request, of which the schema writes each field."""
    topics = [
        {
            "topic": topic,
            "partitions": [
                {"partition": p.partition, "fetch_offset": p.offset, "partition_max_bytes": p.max_bytes} for p in run
            ],
        }
        for topic, run in groupby(request.positions, lambda position: position.topic)
    ]
    forgotten = [
        {"topic": topic, "partitions": [tp.partition for tp in run]}
        for topic, run in groupby(request.forgotten, lambda tp: tp.topic)
    ]
    values = {
        "replica_id": -1,
        "max_wait_ms": round(request.max_wait * 1000),
        "min_bytes": request.min_bytes,
        "max_bytes": request.max_bytes,
        "isolation_level": request.isolation_level,
        "session_id": request.session_id,
        "session_epoch": request.session_epoch,
        "topics": topics,
        "forgotten_topics_data": forgotten,
        "rack_id": request.rack or "",
    }
    return ApiRequest(FETCH, version, values)


@given(st.sampled_from(VERSIONS), REQUESTS, INT32, st.text(max_size=9))
def test_a_fetch_is_written_as_its_schema_says(version: int, request: FetchRequest, number: int, client: str) -> None:
    assert encode_fetch(version, request, number, client.encode()) == by_schema(version, request).encode(number, client)


def read_back(version: int, request: FetchRequest) -> dict[str, Any]:
    data = encode_fetch(version, request, 5, b"me")
    assert len(data) == 4 + int.from_bytes(data[:4], "big")
    return FETCH.read(FETCH.request, version, data[16:])


def test_the_order_of_positions_is_kept() -> None:
    """It decides who is served first where bytes are short, so topics must not be sorted together."""
    mixed = [POSITIONS[0], POSITIONS[2], POSITIONS[1]]
    topics = read_back(3, REQUEST._replace(positions=mixed))["topics"]
    assert [(topic["topic"], len(topic["partitions"])) for topic in topics] == [("a", 1), ("b", 1), ("a", 1)]


def test_limits_beyond_what_the_protocol_can_say_are_cut() -> None:
    again = read_back(3, REQUEST._replace(max_wait=1e9, max_bytes=1 << 40))
    assert (again["max_wait_ms"], again["max_bytes"]) == (2**31 - 1, 2**31 - 1)
