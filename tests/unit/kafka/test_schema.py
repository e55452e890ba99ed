"""Messages by their description: what the comparison with the Java client's bytes does not cover."""

from __future__ import annotations

import struct
import tracemalloc

import pytest

from zkconsumer.kafka.group_schemas import OFFSET_FETCH
from zkconsumer.kafka.schema import MOST_ENTRIES


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
