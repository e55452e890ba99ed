"""Message sets are read exactly, whatever they are; what cannot be read is named."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable, Sequence
from itertools import islice, pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.kafka import reference
from tests.unit.kafka.record_writer import GZIP, varint
from tests.unit.kafka.sets import (
    CODECS,
    SETS,
    WHERE,
    Batch,
    MessageSet,
    Written,
    listed,
    offsets,
    plain,
    read_columns,
    resealed,
)
from zkconsumer.data_plane.batch_extent import plain_extent
from zkconsumer.errors import InvalidMessageException
from zkconsumer.kafka import CorruptRecordsError, batches
from zkconsumer.kafka.compression import Expansion
from zkconsumer.kafka.fetched_batches import NO_END, closer_extent, extent, offset_after_partial
from zkconsumer.kafka.record_batch import DECODED_BYTES, MANY_RECORDS
from zkconsumer.testing.partition_log import encode_batch

KINDS = [pytest.param(magic, codec, id=f"v{magic}-codec{codec}") for magic, codes in CODECS.items() for codec in codes]
TEN = [Written(value=b"%d" % n, timestamp=1000 + n) for n in range(10)]


def patched(batch: Batch, *changes: tuple[str, int, int], base: int = 0) -> bytes:
    """Return the set of a batch with changed numbers in its head. A change has a format, a place and a number."""
    data = bytearray(MessageSet([batch], base=base).data)
    for form, at, number in changes:
        struct.pack_into(form, data, at, number)
    return bytes(data)


OFFSET, SIZE, DELTA, COUNT = (">q", 0), (">i", 8), (">i", 23), (">i", 57)
"""Fields of a batch's head: its first offset, its size, the offsets after the first, and its records."""


def failure_of(work: Callable[[], object]) -> CorruptRecordsError | None:
    """The one kind of error that is allowed; any other passes through and fails the test."""
    try:
        work()
    except CorruptRecordsError as failure:
        return failure
    return None


@given(SETS, st.data(), st.booleans())
@settings(deadline=None, max_examples=300)
def test_every_set_is_read_like_the_slow_reader_does_it(what: MessageSet, data: st.DataObject, check_crc: bool) -> None:
    fetch_offset = data.draw(st.integers(what.base, what.next_offset - 1))
    found = listed(what.data, fetch_offset, check_crc)
    assert plain(found) == reference.read(what.data, fetch_offset)
    assert found[-1].next_offset == what.next_offset
    assert all(a.next_offset <= b.next_offset for a, b in pairwise(found))
    assert extent(what.data, WHERE, fetch_offset)[:3] == (what.next_offset, False, 0)


@given(SETS, st.data())
@settings(deadline=None, max_examples=100)
def test_a_set_cut_off_anywhere_gives_what_is_whole(what: MessageSet, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(what.data) - 1))
    part = what.data[:cut]
    found = listed(part, what.base)
    assert plain(found) == reference.read(part, what.base)
    reach = extent(part, WHERE, what.base)
    if not reference.read(part, what.base) and cut:
        assert [batch.wanted > cut for batch in found] == [True]
        assert found[0].next_offset == found[0].base_offset == what.base
        assert reach[:3] == (None, True, found[0].wanted)
    elif cut:
        assert not any(batch.wanted for batch in found)
        assert found[-1].next_offset == reach.next_offset


@given(SETS)
@settings(deadline=None, max_examples=100)
def test_heads_tell_how_many_messages_there_are(what: MessageSet) -> None:
    messages = extent(what.data, WHERE, what.base).messages
    exact = len(offsets(listed(what.data, what.base)))
    if all(batch.magic == 2 for batch in what.batches):
        assert messages == exact
    else:  # what was compacted away counts too
        assert exact <= messages <= what.next_offset - what.base


@pytest.mark.parametrize(("size", "at_a_time"), [(2 * DECODED_BYTES, 1), (DECODED_BYTES // 4, 4)])
def test_of_large_messages_few_are_in_memory_twice(size: int, at_a_time: int) -> None:
    (batch,) = listed(MessageSet([Batch([Written(value=bytes(size))] * 9)]).data)
    tracemalloc.start()
    try:
        records = iter(batch)
        next(records)
        assert tracemalloc.get_traced_memory()[1] < at_a_time * size + 64 * 1024
        assert [record.offset for record in records] == list(range(1, 9))
        assert tracemalloc.get_traced_memory()[1] < 2 * at_a_time * size + 64 * 1024, "and those that were before"
    finally:
        tracemalloc.stop()


def test_markers_of_transactions_are_no_messages() -> None:
    what = MessageSet([Batch(TEN), Batch(TEN[:1], control=True), Batch(TEN[:2])])
    assert extent(what.data, WHERE, 0).messages == 12
    assert extent(what.data, WHERE, 7).messages == 5, "those before the asked offset do not count"


def test_the_size_that_is_wanted_is_enough() -> None:
    what = MessageSet([Batch(TEN), Batch(TEN)])
    assert extent(what.data[:50], WHERE, 0)[:3] == (None, True, what.ends[0])
    assert [batch.wanted for batch in listed(what.data[:50])] == [what.ends[0]]
    assert [batch.wanted for batch in listed(what.data[:5])] == [17]  # not even the size is known: a little more
    assert extent(what.data[:-1], WHERE, 0)[:3] == (10, True, len(what.data))


@pytest.mark.tier("standard")
@given(SETS, st.data(), st.booleans())
@settings(deadline=None, max_examples=400)
def test_corrupt_bytes_never_give_another_error(what: MessageSet, data: st.DataObject, check_crc: bool) -> None:
    broken = bytearray(what.data)
    for _ in range(data.draw(st.integers(1, 4))):
        broken[data.draw(st.integers(0, len(broken) - 1))] = data.draw(st.integers(0, 255))
    for failure in (
        failure_of(lambda: plain(batches(bytes(broken), check_crc=check_crc, where=WHERE, fetch_offset=what.base))),
        failure_of(lambda: extent(bytes(broken), WHERE, what.base)),
    ):
        if failure is not None:
            assert str(failure).startswith("t-3 at offset ")
            assert failure.next_offset > what.base


@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_at_all_never_give_another_error(data: bytes, check_crc: bool) -> None:
    try:
        listed(data, 5, check_crc)
    except InvalidMessageException:
        pass


@pytest.mark.parametrize(("magic", "codec"), KINDS)
@pytest.mark.parametrize("at", [8, 12, 16, 17, 22, 23, 30, 57, 61, 64, 70])
@pytest.mark.parametrize("value", [0x00, 0x7F, 0x80, 0xFF])
def test_wrong_content_under_a_right_checksum_is_corrupt(magic: int, codec: int, at: int, value: int) -> None:
    data = bytearray(MessageSet([Batch(TEN, magic, codec)]).data)
    data[at] = value
    for check_crc in (True, False):
        try:
            plain(batches(resealed(bytes(data)), check_crc=check_crc, where=WHERE, fetch_offset=0))
        except CorruptRecordsError:
            pass


@pytest.mark.parametrize(("magic", "codec"), KINDS)
def test_a_wrong_checksum_is_found_unless_switched_off(magic: int, codec: int) -> None:
    what = MessageSet(
        [Batch(TEN[:1], magic, codec), Batch(TEN[:2], magic, codec), Batch(TEN[:1], magic, codec)], base=40
    )
    broken = bytearray(what.data)
    broken[what.ends[0] + (17 if magic == 2 else 12)] ^= 1
    found = batches(bytes(broken), check_crc=True, where=WHERE, fetch_offset=40)
    assert offsets([next(found)]) == [40]
    with pytest.raises(InvalidMessageException, match=r"^t-3 at offset 4[12]: .*checksum") as caught:
        next(found)
    assert isinstance(caught.value, CorruptRecordsError)
    following = 43 if magic == 2 or codec else 42  # uncompressed old messages are given up one by one
    assert (caught.value.where, caught.value.next_offset) == (WHERE, following)
    assert offsets(listed(bytes(broken), following)) == list(range(following, 44))
    assert offsets(listed(bytes(broken), 40, check_crc=False)) == [40, 41, 42, 43]


def test_a_batch_larger_than_a_slab_is_read_to_its_end() -> None:
    many = [Written(value=b"%d" % n) for n in range(256 * 3 + 1)]
    for count in (255, 256, 257, 512, len(many)):
        assert offsets(listed(MessageSet([Batch(many[:count])]).data)) == list(range(count))


def test_what_stands_before_a_corrupt_record_is_handed_out_first() -> None:
    what = MessageSet([Batch(TEN)], base=20)
    broken = bytearray(what.data)
    broken[what.data.index(b"\x027\x00") - 1] = 0x7E  # the key length of the record with value "7"
    (batch,) = listed(resealed(bytes(broken)), 20)
    records = iter(batch)
    seen = [record.offset for record in islice(records, 7)]
    with pytest.raises(CorruptRecordsError, match=r"t-3 at offset 27") as caught:
        next(records)
    assert seen == list(range(20, 27))
    assert caught.value.next_offset == 30


@pytest.mark.parametrize("count", [3, 600])
def test_a_header_name_that_is_no_text_does_not_stop_the_stream(count: int) -> None:
    """Java writes any bytes there, and the original never saw headers; the library refuses the whole batch."""
    records = [Written(b"%d" % n, headers=[(f"name{n % 3}", b"x")]) for n in range(count)]
    data = bytearray(MessageSet([Batch(records)], base=10).data)
    at = data.rindex(b"name2")
    data[at : at + 4] = b"n\xff\xfee"
    found = plain(listed(resealed(bytes(data)), 11))
    assert [(r.offset, r.key) for r in found] == [(n + 10, b"%d" % n) for n in range(1, count)]
    assert [r.headers[0][0] for r in found if "name" not in r.headers[0][0]] == ["n\ufffd\ufffde2"]


def test_compaction_may_leave_a_batch_without_records() -> None:
    empty = patched(Batch(TEN, codec=1), (*SIZE, 49), (*COUNT, 0))[:61]
    (batch,) = listed(resealed(empty), 3)
    assert (list(batch), batch.next_offset) == ([], 10)


def test_an_unreadable_transaction_marker_is_named() -> None:
    marker = Batch([Written(key=b"\0", value=b"")], control=True, transactional=True, producer_id=1)
    what = MessageSet([Batch(TEN[:1], transactional=True, producer_id=1), marker])
    found = batches(what.data, check_crc=True, where=WHERE, fetch_offset=0, aborted=((1, 0),), read_committed=True)
    next(found)
    with pytest.raises(CorruptRecordsError, match=r"t-3 at offset 1: a transaction marker"):
        next(found)


@given(SETS, st.data())
@settings(deadline=None)
def test_the_short_way_to_an_extent_agrees_with_the_closer(what: MessageSet, data: st.DataObject) -> None:
    broken = bytearray(what.data)
    for _ in range(data.draw(st.integers(0, 3))):
        broken[data.draw(st.integers(0, len(broken) - 1))] = data.draw(st.integers(0, 255))
    sent = bytes(broken[: data.draw(st.sampled_from([len(broken), len(broken) - 1, len(broken) // 2]))])
    first, end = what.base + data.draw(st.integers(-1, 30)), data.draw(st.sampled_from([NO_END, what.base + 10]))

    def found(way: Callable[..., Any]) -> Any:
        try:
            return way(sent, WHERE, max(0, first), end)
        except CorruptRecordsError as error:
            return str(error), error.offset, error.next_offset

    assert found(extent) == found(closer_extent)


def test_a_usual_set_needs_no_closer_look() -> None:
    data = MessageSet([Batch(TEN), Batch(TEN)]).data
    assert plain_extent(data, 3, -1) == (20, 17, len(data) // 2, len(data))
    assert plain_extent(data[:-1], 0, 20) == (10, 10, 0, len(data) // 2)
    assert plain_extent(data, 0, 19) is None, "a batch beyond the log's end"
    assert plain_extent(MessageSet([Batch(TEN, 1)]).data, 0, -1) is None, "an older format"


@pytest.mark.parametrize("size", [-1, -12, -13, 0, 13, -(2**31)])
def test_a_negative_or_tiny_size_is_corrupt_and_does_not_loop(size: int) -> None:
    data = patched(Batch(TEN), (*SIZE, size)) + Batch(TEN).encode(10)[0]
    with pytest.raises(CorruptRecordsError, match=r"t-3 at offset 0"):
        listed(data)
    with pytest.raises(CorruptRecordsError, match=r"t-3 at offset 0"):
        extent(data, WHERE, 0)


def test_a_corrupt_head_ends_the_extent_before_it() -> None:
    data = MessageSet([Batch(TEN)]).data + patched(Batch(TEN), (*SIZE, -5), base=10)
    assert extent(data, WHERE, 0)[:3] == (10, False, 0)
    with pytest.raises(CorruptRecordsError, match=r"t-3 at offset 10"):
        extent(data, WHERE, 10)


@pytest.mark.parametrize("delta", [-7, 2_000_000])
def test_a_wild_last_offset_neither_goes_back_nor_skips(delta: int) -> None:
    """Believing it would send the fetcher backwards, for ever, or beyond good messages."""
    with pytest.raises(CorruptRecordsError) as caught:
        listed(patched(Batch(TEN), (*DELTA, delta)))
    assert caught.value.next_offset == 1
    if delta < 0:
        with pytest.raises(CorruptRecordsError):
            listed(resealed(patched(Batch(TEN), (*DELTA, delta))))


def test_offsets_that_go_back_are_handed_out_once() -> None:
    data = MessageSet([Batch(TEN)]).data
    assert offsets(listed(data + data)) == list(range(10))


@pytest.mark.parametrize(("magic", "codec"), [case for case in KINDS if case.values[1]])
def test_a_batch_beyond_the_limit_is_corrupt_at_its_offset(magic: int, codec: int) -> None:
    """32 kB of zstd became 2 GB, before anybody could say what it was."""
    large = Batch([Written(value=bytes(300)) for _ in range(10)], magic, codec)
    what = MessageSet([Batch(TEN, magic, codec), large, Batch(TEN, magic, codec)], base=100)

    def read(limit: int, fetch_offset: int) -> list[int]:
        found = batches(what.data, check_crc=True, where=WHERE, fetch_offset=fetch_offset, expansion=Expansion(limit))
        return offsets(found)

    assert read(4000, 100) == list(range(100, 130))
    seen: list[int] = []
    found = batches(what.data, check_crc=True, where=WHERE, fetch_offset=100, expansion=Expansion(1000))
    with pytest.raises(CorruptRecordsError, match=r"batch\.expanded\.max\.bytes") as caught:
        seen.extend(record.offset for batch in found for record in batch)
    assert seen == list(range(100, 110))
    assert (caught.value.offset, caught.value.next_offset) in [(110, 120), (119, 120)], "a wrapper has its last one's"
    assert read(1000, caught.value.next_offset) == list(range(120, 130))


def test_a_batch_of_many_records_comes_in_parts() -> None:
    """Columns were made of all its records at once, which took twenty times the bytes of small ones."""
    count = MANY_RECORDS + 1
    data = resealed(encode_batch([b""] * count, 5))
    found = listed(data, 3)
    assert max(batch.next_offset - batch.base_offset for batch in found) < 1000
    assert offsets(found) == list(range(3, count))
    assert found[-1].next_offset == count


@pytest.mark.parametrize("delta", [0, 2**31 - 2])
@pytest.mark.parametrize("way", ["messages", "columns"])
def test_a_count_of_records_that_are_not_there_is_corrupt(delta: int, way: str) -> None:
    data = patched(Batch(TEN[:1]), (*DELTA, delta), (*COUNT, 2**31 - 1), base=5)
    found = batches(resealed(data), check_crc=True, where=WHERE, fetch_offset=5)
    with pytest.raises(CorruptRecordsError) as caught:
        (plain if way == "messages" else read_columns)(found)
    assert caught.value.next_offset > caught.value.offset >= 5


def _records(parts: Sequence[bytes]) -> bytes:
    """A batch with these records, of any content."""
    content = b"".join(varint(len(part)) + part for part in parts)
    count = len(parts)
    head = struct.pack(">qiibIhiqqqhii", 0, 49 + len(content), 0, 2, 0, 0, count - 1, 0, 0, -1, -1, -1, count)
    return resealed(head + content)


def _outcome(work: Callable[[], list[tuple[int, bytes | None]]]) -> object:
    try:
        return work()
    except CorruptRecordsError as failure:
        return failure.offset, failure.next_offset


@given(
    st.lists(
        st.tuples(st.integers(0, 255), st.integers(0, 255), st.binary(max_size=6)).map(
            lambda part: bytes((part[0], 0, part[1], 1, len(part[2]) << 1)) + part[2] + b"\0"
        )
        | st.binary(min_size=6, max_size=30),
        min_size=1,
        max_size=4,
    )
)
@settings(max_examples=200, deadline=None)
def test_messages_and_columns_agree_on_any_record(parts: list[bytes]) -> None:
    """An attribute byte from 0x80 on was one byte for columns and the beginning of a longer number for messages."""
    data = _records(parts)

    def columns() -> list[tuple[int, bytes | None]]:
        found = read_columns(listed(data), ("offset", "value"))
        return list(zip(*(column.to_pylist() for column in found), strict=True))

    assert _outcome(lambda: [(r.offset, r.value) for batch in listed(data) for r in batch]) == _outcome(columns)


@pytest.mark.parametrize("count", [3, 1000])
@pytest.mark.parametrize("wild", [0, 1, -1, 5000])
def test_a_last_offset_that_is_not_within_its_batch_is_corrupt(count: int, wild: int) -> None:
    """One that goes back, or beyond the batch, would move the position there. Only the first and the last of those
    that are decoded together are looked at: a checksum covers them.
    """
    records = [bytes((0, 0)) + varint(n if n + 1 < count else wild) + b"\x01\x02v\0" for n in range(count)]
    data = _records(records)
    seen: list[int] = []
    with pytest.raises(CorruptRecordsError) as caught:
        seen.extend(record.offset for batch in listed(data) for record in batch)
    assert seen == list(range(count - 1))
    assert (caught.value.offset, caught.value.next_offset) == (count - 1, count)
    with pytest.raises(CorruptRecordsError):
        read_columns(listed(data))


def test_a_corrupt_batch_is_one_place_from_its_middle_too() -> None:
    """The last batch of a set was given up one offset after the other."""
    broken = bytearray(Batch([Written()] * 9).encode(10)[0])
    broken[-1] ^= 1
    with pytest.raises(CorruptRecordsError) as raised:
        list(batches(bytes(broken), check_crc=True, where=WHERE, fetch_offset=14))
    assert (raised.value.offset, raised.value.next_offset) == (14, 19)


@pytest.mark.parametrize("magic", [1, 2])
def test_nothing_is_read_beyond_the_extent(magic: int) -> None:
    """A second look, after a place was given up, may find another order than the first."""
    what = MessageSet([Batch([Written()] * n, magic=magic, codec=GZIP) for n in (2, 4)])

    def read(end: int) -> list[int]:
        return [r.offset for b in batches(what.data, check_crc=True, where=WHERE, fetch_offset=0, end=end) for r in b]

    assert (read(2), read(6)) == ([0, 1], [0, 1, 2, 3, 4, 5])
    with pytest.raises(CorruptRecordsError, match="a batch ends at offset 6") as raised:
        read(4)
    assert raised.value.next_offset == 4


@pytest.mark.parametrize(("magic", "control"), [(0, False), (1, False), (2, False), (2, True)])
def test_a_set_that_ends_beyond_all_offsets_is_corrupt(magic: int, control: bool) -> None:
    """Bug: the offset after the message has more than 64 bits. A compiled stream raised OverflowError for ever, and
    compiled columns left the message out without a word.
    """
    data = patched(Batch(TEN[:1], magic, control=control), (*OFFSET, 2**63 - 1))
    with pytest.raises(CorruptRecordsError, match="says that") as caught:
        listed(data, 5, check_crc=False)
    assert caught.value.next_offset == 6
    with pytest.raises(CorruptRecordsError, match=r"t-3 at offset 5: .* says that"):
        extent(data, WHERE, 5)


@pytest.mark.parametrize("delta", [1, 2**31 - 1])
def test_a_batch_that_ends_beyond_all_offsets_is_corrupt(delta: int) -> None:
    data = patched(Batch(TEN[:1]), (*OFFSET, 2**63 - 2), (*DELTA, delta))
    with pytest.raises(CorruptRecordsError, match=r"the last \d+ after the first"):
        listed(data, 5, check_crc=False)


def test_a_message_behind_others_is_corrupt_beyond_all_offsets() -> None:
    data = Batch(TEN[:1], 0).encode(2**63 - 2)[0] + patched(Batch(TEN[:1], 0), (*OFFSET, 2**63 - 1))
    found = batches(data, check_crc=False, where=WHERE, fetch_offset=5)
    assert offsets([next(found)]) == [2**63 - 2]
    with pytest.raises(CorruptRecordsError):
        next(found)


def test_the_end_of_an_unreadable_batch_is_a_place_to_go_on() -> None:
    """Bug: the beginning of a batch said an end of more than 64 bits, and ``skip`` could not go there."""
    assert offset_after_partial(patched(Batch(TEN), (*OFFSET, 2**63 - 2))[:40], 7) == 8
