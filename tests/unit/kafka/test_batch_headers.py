"""The checksum of batches: both ways to compute it say what the slow one says."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.kafka.sets import Batch, Written
from zkconsumer.data_plane.records import crc32c
from zkconsumer.kafka import batch_headers


def test_the_fast_way_is_there() -> None:
    assert batch_headers.CRC_BY_PROCESSOR


@given(st.binary(max_size=300), st.none() | st.tuples(st.integers(17, 60), st.integers(1, 255)))
def test_a_checksum_is_right_until_a_byte_is_changed(value: bytes, change: tuple[int, int] | None) -> None:
    data = bytearray(Batch([Written(value=value)]).encode(7)[0])
    if change is not None:
        data[change[0]] ^= change[1]
    view = memoryview(bytes(data))
    by_data_plane = crc32c(view[21:]) == int.from_bytes(view[17:21], "big")
    assert batch_headers.checksum_is_right(view) == by_data_plane == (change is None)
