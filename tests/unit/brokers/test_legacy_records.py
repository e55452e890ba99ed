"""Formats 0 and 1, beyond what the comparison with the slow reader covers."""

from __future__ import annotations

import gzip
import struct

import pytest
from aiokafka.codec import lz4_encode

from tests.unit.brokers.sets import GZIP, WHERE, Batch, MessageSet, Written, resealed
from tests.unit.brokers.test_records import listed, offsets, plain
from zkconsumer.brokers import CorruptRecordsError, batches
from zkconsumer.brokers.compression import with_right_lz4_checksum, xxhash32
from zkconsumer.brokers.legacy_records import RUN_LIMIT
from zkconsumer.brokers.record_batch import DECODED_BYTES

THREE = [Written(b"k", b"v%d" % n, timestamp=1000 + n) for n in range(3)]


def _wrapper(codec: int, content: bytes, offset: int, magic: int = 0) -> bytes:
    body = struct.pack(">bb", magic, codec) + (struct.pack(">q", 5) if magic else b"")
    body += struct.pack(">ii", -1, len(content)) + content
    return resealed(struct.pack(">qiI", offset, len(body) + 4, 0) + body)


def test_lz4_frames_of_old_producers_are_read() -> None:
    """KAFKA-3160: producers before 0.10 hashed the frame's magic number into its header checksum as well."""
    content = MessageSet([Batch(THREE, magic=0)], base=10).data
    frame = bytearray(lz4_encode(content))
    end = 6 + (8 if frame[4] & 0x08 else 0)
    assert frame[end] == xxhash32(bytes(frame[4:end])) >> 8 & 0xFF
    frame[end] ^= 0x55
    assert offsets(listed(_wrapper(3, bytes(frame), 12), 10)) == [10, 11, 12]
    with pytest.raises(CorruptRecordsError, match="decompressed"):  # format 1 came with the right checksum
        listed(_wrapper(3, bytes(frame), 12, magic=1), 10)


@pytest.mark.parametrize("frame", [b"", b"\x04\x22\x4d\x18", b"\x04\x22\x4d\x18\x08\0\0", b"something else"])
def test_what_is_no_lz4_frame_is_left_as_it_is(frame: bytes) -> None:
    assert with_right_lz4_checksum(frame) == frame


def test_a_format_without_timestamps_says_so() -> None:
    assert [(r.timestamp, r.timestamp_type) for r in plain(listed(MessageSet([Batch(THREE, magic=0)]).data))] == [
        (-1, -1)
    ] * 3
    found = plain(listed(MessageSet([Batch([Written(timestamp=-1)], magic=1)]).data))
    assert [(r.timestamp, r.timestamp_type) for r in found] == [(-1, 0)]


def test_absolute_offsets_inside_a_format_1_wrapper_are_taken_as_they_are() -> None:
    """Some clients never learned relative offsets (KIP-31); the wrapper's offset is the last one's all the same."""
    inner = MessageSet([Batch(THREE, magic=1)], base=50).data
    assert offsets(listed(_wrapper(GZIP, gzip.compress(inner), 52, magic=1), 50)) == [50, 51, 52]


def test_a_compressed_set_that_starts_before_the_asked_offset() -> None:
    """KAFKA-546: brokers send whole wrappers, whose first messages were handed out already."""
    data = MessageSet([Batch(THREE, magic=1, codec=1), Batch(THREE, magic=0, codec=1)], base=50).data
    assert offsets(listed(data, 52)) == [52, 53, 54, 55]
    assert [batch.base_offset for batch in listed(data, 52)] == [50, 53]


def test_uncompressed_messages_come_in_batches() -> None:
    data = MessageSet([Batch([Written()] * (2 * RUN_LIMIT + 1), magic=0)]).data
    assert [batch.next_offset for batch in listed(data)] == [RUN_LIMIT, 2 * RUN_LIMIT, 2 * RUN_LIMIT + 1]


def test_of_large_messages_fewer_are_read_together() -> None:
    data = MessageSet([Batch([Written(value=bytes(DECODED_BYTES // 2))] * 5, magic=1)]).data
    assert [batch.next_offset for batch in listed(data)] == [2, 4, 5]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "without content"),
        (MessageSet([Batch(THREE, magic=0)]).data[:-1], "cut off"),
        (MessageSet([Batch(THREE, magic=0)]).data[:13], "cut off"),
        (MessageSet([Batch(THREE, magic=1)]).data, "a message of format 1 is inside"),
        (MessageSet([Batch(THREE, magic=2)]).data, "a message of format 2 is inside"),
        (MessageSet([Batch(THREE, magic=0, codec=1)]).data, "a compressed message is inside"),
    ],
)
def test_a_wrapper_with_wrong_content_is_corrupt(content: bytes, complaint: str) -> None:
    for check_crc in (True, False):
        with pytest.raises(CorruptRecordsError, match=complaint) as caught:
            listed(_wrapper(1, gzip.compress(content), 9), 5, check_crc)
        assert (caught.value.offset, caught.value.next_offset) == (9, 10)


def test_sizes_inside_a_wrapper_that_lead_nowhere_do_not_loop() -> None:
    """The library's reader adds the sizes up unseen: minus twelve keeps it at the same place for ever."""
    for size in (-12, -13, -(2**31), 2**31 - 1, 0):
        for magic in (0, 1):
            inner = bytearray(MessageSet([Batch(THREE, magic=magic)]).data)
            struct.pack_into(">i", inner, 8, size)
            with pytest.raises(CorruptRecordsError):
                listed(_wrapper(1, gzip.compress(bytes(inner)), 9, magic), 0, check_crc=False)


def test_a_corrupt_message_does_not_take_its_neighbours_with_it() -> None:
    data = bytearray(MessageSet([Batch(THREE, magic=0)], base=5).data)
    second = len(data) // 3
    data[second + 12] ^= 1
    found = batches(bytes(data), check_crc=True, where=WHERE, fetch_offset=5)
    assert offsets([next(found)]) == [5]
    with pytest.raises(CorruptRecordsError, match="t-3 at offset 6") as caught:
        next(found)
    assert offsets(listed(bytes(data), caught.value.next_offset)) == [7]


@pytest.mark.parametrize("codec", [4, 5, 7])
@pytest.mark.parametrize("magic", [0, 1])
def test_codecs_that_the_format_does_not_have(magic: int, codec: int) -> None:
    with pytest.raises(CorruptRecordsError, match=f"codec {codec}"):
        listed(_wrapper(codec, b"?", 3, magic))
