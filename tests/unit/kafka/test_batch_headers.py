"""The checksum of batches: each quick way to compute it agrees with the slow way."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.kafka import reference
from tests.unit.kafka.sets import Batch, Written
from zkconsumer.data_plane.records import crc32c
from zkconsumer.kafka import record_batch


def test_the_fast_way_is_there() -> None:
    assert record_batch.CRC_IS_FAST


@given(st.binary(max_size=300), st.none() | st.tuples(st.integers(17, 60), st.integers(1, 255)))
def test_a_checksum_is_right_until_a_byte_is_changed(value: bytes, change: tuple[int, int] | None) -> None:
    data = bytearray(Batch([Written(value=value)]).encode(7)[0])
    if change is not None:
        data[change[0]] ^= change[1]
    view = memoryview(bytes(data))
    by_data_plane = crc32c(view[21:]) == int.from_bytes(view[17:21], "big")
    assert record_batch.checksum_is_right(view) == by_data_plane == (change is None)


_CONTENT = bytes(byte * 37 + (byte >> 7) & 0xFF for byte in range(7 * 1024))
_BLOCK = 1024  # of which the compiled copy takes three at a time


@pytest.mark.parametrize("as_any_processor", [False, True])
@given(
    st.integers(0, 16),
    st.integers(0, 300) | st.integers(3 * _BLOCK - 16, 3 * _BLOCK + 16) | st.integers(6 * _BLOCK - 16, 6 * _BLOCK + 16),
    st.binary(max_size=40),
)
def test_checksums_of_all_lengths_and_places(as_any_processor: bool, begin: int, size: int, tail: bytes) -> None:
    data = bytearray(begin) + _CONTENT[:size] + tail
    view = memoryview(data)[begin:]
    assert crc32c(view, as_any_processor) == reference.crc32c(bytes(view))


def test_the_checksum_ends_with_the_view() -> None:
    whole = bytearray(_CONTENT)
    part = memoryview(whole)[5:3100]
    before = crc32c(part), crc32c(part, True)
    whole[:5], whole[3100:] = b"other", bytes(len(whole) - 3100)
    assert (crc32c(part), crc32c(part, True)) == before


def test_the_checksum_refuses_a_view_that_skips_bytes() -> None:
    with pytest.raises(BufferError):
        crc32c(memoryview(_CONTENT)[::2])
