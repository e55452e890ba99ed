"""Messages by their description: what the comparison with the Java client's bytes does not cover."""

from __future__ import annotations

import struct
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zkconsumer.kafka.api_schema import MOST_ENTRIES, ApiRequest, ApiSchema
from zkconsumer.kafka.broker_schemas import BROKER_MESSAGES, LIST_OFFSETS, METADATA
from zkconsumer.kafka.group_schemas import OFFSET_FETCH, TOOL_MESSAGES

VERSIONS = [
    (message, version)
    for message in (*BROKER_MESSAGES, *TOOL_MESSAGES)
    for version in range(message.lowest, message.highest + 1)
]
SMALL = st.sampled_from([b"\0", b"\0\0", b"\0\1", b"\0\0\0\1", b"\1", b"\2", b"\xff\xff", b"\xff" * 4, b"t"])
"""Parts from which lengths and counts are easily made."""


@given(st.sampled_from(VERSIONS), st.binary(max_size=80) | st.lists(SMALL, max_size=30).map(b"".join))
def test_any_bytes_are_the_same_values_again_or_refused(one: tuple[ApiSchema, int], data: bytes) -> None:
    """Nothing but a ValueError comes of them, and what is read says all that the bytes say."""
    message, version = one
    for fields in (message.request, message.response):
        try:
            values = message.read(fields, version, data)
        except ValueError:
            continue
        assert message.read(fields, version, message.write(fields, version, values)) == values


def _topics(count: int) -> bytes:
    """An answer to OffsetFetch 3 with so many topics without a name and partitions."""
    return bytes(4) + struct.pack(">i", count) + struct.pack(">hi", -1, -1) * count + bytes(2)


def test_as_many_entries_as_a_large_cluster_has_are_read() -> None:
    assert len(OFFSET_FETCH.read(OFFSET_FETCH.response, 3, _topics(50_000))["topics"]) == 50_000


def test_more_entries_than_any_cluster_has_are_refused_at_once() -> None:
    """Each takes a hundred times its bytes in memory: an answer of 8 MB took 800."""
    data = _topics(MOST_ENTRIES + 1)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="more than 400000 entries"):
            OFFSET_FETCH.read(OFFSET_FETCH.response, 3, data)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def _metadata(partitions: int, replicas: int) -> bytes:
    one = struct.pack(">hii", 0, 7, 1) + 2 * (struct.pack(">i", replicas) + bytes(4 * replicas)) + bytes(4)
    topic = struct.pack(">hh?i", 0, -1, False, partitions)
    return bytes(4) + bytes(4) + b"\xff\xff" + bytes(4) + struct.pack(">i", 1) + topic + one * partitions


def test_the_metadata_of_a_very_large_cluster_is_read() -> None:
    """Numbers in arrays do not count: a large cluster has a million replicas."""
    (topic,) = METADATA.read(METADATA.response, 5, _metadata(50_000, 5))["topics"]
    assert len(topic["partitions"]) == 50_000
    assert topic["partitions"][-1] == {
        "error_code": 0,
        "partition_index": 7,
        "leader_id": 1,
        "replica_nodes": [0] * 5,
        "isr_nodes": [0] * 5,
        "offline_replicas": [],
    }


@pytest.mark.parametrize("count", [1, 2**20, 2**31 - 1])
def test_a_count_beyond_the_message_takes_no_memory(count: int) -> None:
    """An announced list of numbers is compared with the bytes that came before anything is made of it."""
    data = struct.pack(">ih1sii", 1, 1, b"t", 1, 0) + struct.pack(">hi", 0, count) + bytes(4)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="are there"):
            LIST_OFFSETS.read(LIST_OFFSETS.response, 0, data)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_a_null_list_is_none_and_not_empty() -> None:
    data = struct.pack(">ih1sii", 1, 1, b"t", 1, 0) + struct.pack(">hi", 0, -1)
    (topic,) = LIST_OFFSETS.read(LIST_OFFSETS.response, 0, data)["topics"]
    assert topic["partitions"] == [{"partition_index": 0, "error_code": 0, "old_style_offsets": None}]


def test_a_number_that_is_too_large_is_a_value_error() -> None:
    partition = {"partition_index": 0, "timestamp": 2**63}
    values = {"replica_id": -1, "topics": [{"name": "t", "partitions": [partition]}]}
    with pytest.raises(ValueError, match="ListOffsets 1 cannot be written"):
        ApiRequest(LIST_OFFSETS, 1, values).encode(1, "me")
