"""The reader of records on bytes that no producer writes; the rest is compared with a slow reader."""

from __future__ import annotations

import gc
import pickle
import struct
from collections.abc import Sequence
from contextlib import suppress

import pytest

from zkconsumer.data_plane import COMPILED
from zkconsumer.data_plane.records import MalformedRecordError, Record, RecordReader

LARGEST = 2**63 - 1
TEN = b"\xff" * 9


def batch(records: Sequence[bytes], *, stamp: int = 0, attributes: int = 0, count: int | None = None) -> bytes:
    """A batch with these records, each behind its length. No checksum: that is not the reader's matter."""
    content = b"".join(bytes((len(record) << 1,)) + record for record in records)
    total = len(records) if count is None else count
    return struct.pack(">qiibIhiqqqhii", 0, 0, 0, 2, 0, attributes, 9, stamp, 77, -1, -1, -1, total) + content


def read(data: bytes | memoryview, *, base: int = 0, span: int = 10, first: int = 0) -> tuple[list[Record], str]:
    """Return the records, and the fault of the record behind them."""
    reader = RecordReader(data, base, span, first)
    found = []
    while reader.left:
        found += reader.take(2)
    assert reader.take(5) == []
    assert not found or reader.reached == found[-1].offset + 1
    assert _iterated(RecordReader(data, base, span, first)) == ([repr(record) for record in found], str(reader.failure))
    return found, str(reader.failure or "")


def _iterated(reader: RecordReader) -> tuple[list[str], str]:
    """The same by the reader's own iterator, which has nothing more to give after the error."""
    found: list[str] = []
    with suppress(MalformedRecordError):
        found.extend(map(repr, reader))
    assert list(reader) == []
    return found, str(reader.failure)


def test_the_readers_iterator_raises_the_callers_error() -> None:
    reader = RecordReader(batch([GOOD, b""]), 7, 10, 0, lambda reached, failure: KeyError(reached, str(failure)))
    assert next(reader).value == b"v"
    with pytest.raises(KeyError) as caught:
        next(reader)
    assert caught.value.args[0] == 8
    assert caught.value.__cause__ is reader.failure
    assert next(reader, None) is None


@pytest.mark.parametrize(
    ("first", "delta", "sum_of_both"),
    [
        (5, b"\x01", 4),
        (LARGEST, b"\x02", -LARGEST - 1),
        (-LARGEST - 1, b"\x01", LARGEST),
        (0, TEN + b"\x01", -LARGEST - 1),
        (0, TEN + b"\x7f", -LARGEST - 1),
        (-1, b"\xfe" + b"\xff" * 8 + b"\x01", LARGEST - 1),
    ],
)
def test_a_timestamp_wraps_around_like_javas(first: int, delta: bytes, sum_of_both: int) -> None:
    records, failure = read(batch([b"\0" + delta + b"\0\x01\x01\0"], stamp=first))
    assert ([record.timestamp for record in records], failure) == ([sum_of_both], "")


GOOD = b"\0\0\0\x01\x02v\0"


@pytest.mark.parametrize(
    ("record", "complaint"),
    [
        (b"", "a record of 0 bytes"),
        (b"\0\0\x02\x01\x01", "a record of 5 bytes"),
        (b"\x80\0\x02\x01\x01\0", "the attributes 128"),
        (b"\0\0\0\x01\x01\0", "its offset is not between"),
        (b"\0\0\x01\x01\x01\0", "its offset is not between"),
        (b"\0\0\x14\x01\x01\0", "its offset is not between"),
        (b"\0\0\x02\x10\x01\0", "a key of 8 bytes"),
        (b"\0\0\x02\x01\x10v\0", "a value of 8 bytes"),
        (b"\0\0\x02\xfe" + TEN[1:] + b"\x01\x01\0", f"a key of {LARGEST} bytes"),
        (b"\0\0\x02\x01\x02vv", "a number does not end where it should"),
        (b"\0\0\x02\x01\x01\x01", "a record of -1 headers"),
        (b"\0\0\x02\x01\x01\x02", "a number does not end where it should"),
        (b"\0\0\x02\x01\x01\x02\x01\x01", "a header's name of -1 bytes"),
        (b"\0\0\x02\x01\x01\x02\x04n\x01", "a number does not end where it should"),
        (b"\0\0\x02\x01\x01\x02\x02n\x10v", "a header of 8 bytes"),
        (b"\0\0\x02\x01\x01" + TEN + b"\x01", f"a record of {-LARGEST - 1} headers"),
        (b"\0\0\x02\x01\x01\0\0", "a record of 1 bytes more than its fields"),
        (b"\0" + b"\x80" * 10 + b"\x01\x02\x01\x01\0", "a number of more than ten bytes"),
    ],
)
def test_a_wrong_record_is_named_and_those_before_it_read(record: bytes, complaint: str) -> None:
    records, failure = read(batch([GOOD, record, b"\0\0\x04\x01\x02v\0"]))
    assert [record.offset for record in records] == [0]
    assert complaint in failure


@pytest.mark.parametrize(
    ("count", "complaint"),
    [(1, "8 bytes are behind the last record"), (3, "a number does not"), (LARGEST >> 32, "a numb")],
)
def test_a_count_that_lies_is_found(count: int, complaint: str) -> None:
    records, failure = read(batch([GOOD, b"\0\0\x02\x01\x02v\0"], count=count))
    assert [record.offset for record in records] == [0, 1][:count]
    assert complaint in failure


def test_nothing_is_read_behind_the_bytes_of_a_view() -> None:
    whole = batch([GOOD, b"\0\0\x02\x01\x02v\0"])
    for end in range(61, len(whole)):
        records, failure = read(memoryview(whole + whole)[:end])
        assert len(records) == (end >= 69)
        assert failure


@pytest.mark.parametrize(("size", "base", "span"), [(60, 0, 1), (69, -1, 1), (69, LARGEST, 1), (69, 5, -1)])
def test_a_batch_that_covers_no_offsets_of_kafka_is_refused(size: int, base: int, span: int) -> None:
    with pytest.raises(MalformedRecordError):
        RecordReader(batch([GOOD])[:size], base, span, 0)


def test_bytes_that_do_not_lie_together_are_refused() -> None:
    data = memoryview(batch([GOOD]) * 8)
    for view in (data[::2], data[::-1], data[:400].cast("i")):
        with pytest.raises(BufferError):
            RecordReader(view, 0, 10, 0)


def test_the_headers_of_a_record_are_a_list_of_the_callers_own() -> None:
    ((record,), _) = read(batch([b"\0\0\0\x01\x01\x04\x02n\x02v\x02m\x01"]))
    record.headers.append(("o", None))
    assert record.headers == [("n", b"v"), ("m", None)]
    assert Record(1, 2, 0, b"k", None).headers == []


def test_a_record_is_shown_and_copied_by_its_fields() -> None:
    record = Record(1, 2, 0, b"k", None, [("n", b"v")])
    assert repr(pickle.loads(pickle.dumps(record))) == repr(record)
    assert "offset=1, timestamp=2, timestamp_type=0, key=b'k', value=None, headers=[('n', b'v')]" in repr(record)


def test_a_refused_second_call_leaves_a_reader_as_it_is() -> None:
    """Bug: the compiled one read on in memory that it had given up."""
    reader = RecordReader(batch([b"\0\0\0\x01\x02v\0"] * 1), 0, 10, 0)
    with pytest.raises(BufferError):
        reader.__init__(memoryview(bytearray(200)).cast("H"), 0, 10, 0)  # type: ignore[misc]
    taken = [bytes([255]) * 76 for _ in range(100)]  # the memory that was given up
    assert [record.value for record in reader.take(5)] == [b"v"]
    assert reader.failure is None, taken


@pytest.mark.skipif(not COMPILED, reason="the plain class is known to the garbage collector")
def test_compiled_records_set_no_collection_off() -> None:
    assert not gc.is_tracked(Record(1, 2, 0, None, b"v"))
