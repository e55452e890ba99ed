"""Formats 0 and 1, beyond what the comparison with the slow reader covers."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.kafka.record_writer import GZIP, lz4_encode
from tests.unit.kafka.sets import WHERE, Batch, MessageSet, Written, listed, offsets, plain, resealed
from zkconsumer.kafka import CorruptRecordsError, batches
from zkconsumer.kafka.compression import with_right_lz4_checksum, xxhash32
from zkconsumer.kafka.fetched_batches import extent
from zkconsumer.kafka.legacy_records import RUN_LIMIT
from zkconsumer.kafka.record_batch import DECODED_BYTES

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


def test_absolute_offsets_in_a_format_1_wrapper_are_kept() -> None:
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


@pytest.mark.parametrize("codec", [4, 5, 7])
@pytest.mark.parametrize("magic", [0, 1])
def test_codecs_that_the_format_does_not_have(magic: int, codec: int) -> None:
    with pytest.raises(CorruptRecordsError, match=f"codec {codec}"):
        listed(_wrapper(codec, b"?", 3, magic))


def _messages(written: Sequence[int], magic: int = 0) -> bytes:
    """Uncompressed messages with these offsets, which no checksum covers."""
    data = b""
    for offset in written:
        message = bytearray(MessageSet([Batch([Written(value=b"%d" % offset)], magic=magic)]).data)
        struct.pack_into(">q", message, 0, offset)
        data += bytes(message)
    return data


def _read_on(data: bytes, fetch_offset: int) -> tuple[list[int], list[tuple[int, int]]]:
    """The offsets that are handed out, and (offset, next offset) of each place that is given up on the way."""
    seen: list[int] = []
    given_up: list[tuple[int, int]] = []
    position = fetch_offset
    for _ in range(50):
        try:
            for batch in batches(data, check_crc=True, where=WHERE, fetch_offset=position):
                for record in batch:
                    assert record.offset >= position
                    seen.append(record.offset)
                    position = record.offset + 1
                position = max(position, batch.next_offset)
        except CorruptRecordsError as failure:
            place = failure.offset, failure.next_offset
        else:
            return seen, given_up
        assert position <= place[0] < place[1]
        given_up.append(place)
        position = place[1]
    raise AssertionError(f"it does not end: {given_up}")


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize(
    ("written", "asked", "seen", "given_up"),
    [
        ([10, 11, 12], 11, [11, 12], []),
        ([10, 15, 19], 10, [10, 15, 19], []),
        ([10, 3, 12], 10, [10, 12], [(11, 12)]),
        ([10, 3, 11], 10, [10, 11], []),
        ([10, 11, 3, 13], 10, [10, 11, 13], [(12, 13)]),
        ([10, 11, 3, 13], 13, [13], []),
        ([10, 11, 3, 13], 12, [13], [(12, 13)]),
        ([10, 5_000_000, 12, 13], 10, [10, 12, 13], [(11, 12)]),
        ([10, 5_000_000, 12, 13], 12, [12, 13], []),
        ([10, 11, 5_000_000, 13], 11, [11, 13], [(12, 13)]),
        ([5_000_000, 12, 13], 11, [12, 13], [(11, 12)]),
        ([5_000_000, 12, 13], 12, [12, 13], []),
        ([3, 4, 11, 12], 11, [11, 12], []),
        ([10, 11, 3], 10, [10, 11], [(12, 13)]),
        ([10, 11, 11, 12], 10, [10, 11, 12], []),
        ([10, 11, 2, 3, 4, 15], 10, [10, 11, 15], [(12, 13), (13, 15)]),
    ],
)
def test_an_offset_that_does_not_fit_its_neighbours_is_corrupt(
    magic: int, written: list[int], asked: int, seen: list[int], given_up: list[tuple[int, int]]
) -> None:
    """Bug: the position moved back, and messages came again, or beyond the log, and messages were lost."""
    data = _messages(written, magic)
    assert _read_on(data, asked) == (seen, given_up)
    if given_up and given_up[0][0] == asked:
        assert _extent(data, asked) == (asked, asked + 1)
    else:
        assert _extent(data, asked) == (given_up[0][0] if given_up else seen[-1] + 1)


def test_a_message_that_goes_back_behind_a_batch_is_corrupt() -> None:
    """Bug: a read that began behind the batch left the message out in silence: nothing told how far the batch went."""
    data = MessageSet([Batch(THREE)], base=7).data + _messages([9])
    for asked in (7, 10):
        assert _read_on(data, asked) == (list(range(asked, 10)), [(10, 11)])


def _extent(data: bytes, asked: int) -> int | tuple[int, int] | None:
    """How far the set reaches; (offset, next offset) of a place where it does not even begin."""
    try:
        return extent(data, WHERE, asked).next_offset
    except CorruptRecordsError as failure:
        return failure.offset, failure.next_offset


KINDS = st.sampled_from([(0, 0), (1, 0), (0, GZIP), (1, GZIP)])


@given(
    st.lists(st.tuples(KINDS, st.integers(1, 3), st.integers(0, 40) | st.sampled_from([2**40, 2**63 - 2])), max_size=7),
    st.integers(0, 40),
)
@settings(max_examples=300)
def test_whatever_offsets_are_written_those_handed_out_grow(
    parts: list[tuple[tuple[int, int], int, int]], asked: int
) -> None:
    data = b""
    for (magic, codec), count, offset in parts:
        one = bytearray(Batch([Written()] * count, magic, codec).encode(3)[0])
        struct.pack_into(">q", one, 0, offset)
        data += bytes(one)
    seen, given_up = _read_on(data, asked)
    assert all(a < b for a, b in pairwise([asked - 1, *seen]))
    assert all(a < b for a, b in pairwise([(asked - 1, asked), *given_up]))
    reach = _extent(data, asked)
    assert reach is None or (reach > asked if isinstance(reach, int) else reach == (asked, asked + 1))


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("inner", [[2, 1, 3], [1, 1, 2], [3, 2], [2**62, 1]])
def test_offsets_inside_a_wrapper_must_grow(magic: int, inner: list[int]) -> None:
    data = _wrapper(GZIP, gzip.compress(_messages(inner, magic)), 20, magic)
    with pytest.raises(CorruptRecordsError, match="is behind that with") as caught:
        listed(data, 19)
    assert (caught.value.offset, caught.value.next_offset) == (20, 21)


def test_an_inner_offset_beyond_its_wrappers_is_corrupt() -> None:
    data = _wrapper(GZIP, gzip.compress(_messages([7, 8, 30])), 9)
    with pytest.raises(CorruptRecordsError, match="before that of its last inner message"):
        listed(data, 7)


@pytest.mark.parametrize("magic", [0, 1])
def test_messages_of_a_large_wrapper_are_made_when_asked_for(magic: int) -> None:
    """A wrapper of two million small messages took a gigabyte when it was unpacked."""
    count = 3 * RUN_LIMIT
    content = MessageSet([Batch([Written(value=b"%d" % n) for n in range(count)], magic=magic)], base=50).data
    data = _wrapper(GZIP, gzip.compress(content), 50 + count - 1, magic)
    assert offsets(listed(data, 60)) == list(range(60, 50 + count))
    assert listed(data, 60)[-1].next_offset == 50 + count
    spoiled = bytearray(content)
    at = content.index(b"\x00\x00\x00\x04" + b"1000")
    struct.pack_into(">i", spoiled, at, 5)
    data = _wrapper(GZIP, gzip.compress(bytes(spoiled)), 50 + count - 1, magic)
    seen: list[int] = []
    found = batches(data, check_crc=False, where=WHERE, fetch_offset=60)
    with pytest.raises(CorruptRecordsError, match="a record cannot be read") as caught:
        seen.extend(record.offset for batch in found for record in batch)
    assert seen == list(range(60, 1050))
    assert (caught.value.offset, caught.value.next_offset) == (1050, 50 + count)
