"""Columns have the values of their records, which the tests read one by one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.kafka.column_ways import WAYS, choose, going
from tests.unit.kafka.record_writer import NewRecord, batch_bytes
from tests.unit.kafka.sets import SETS, WHERE, Batch, MessageSet, Written, read_columns
from zkconsumer.errors import InvalidMessageException
from zkconsumer.kafka import arrow_columns
from zkconsumer.kafka.arrow_columns import HEADERS, NAMES, ColumnBuilder, slabs
from zkconsumer.kafka.fetched_batches import batches
from zkconsumer.model import TopicPartition

ALL = (*NAMES, HEADERS)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def all_batches(data: bytes, fetch_offset: int = 0) -> Any:
    return batches(data, check_crc=True, where=WHERE, fetch_offset=fetch_offset)


def slowly(data: bytes, fetch_offset: int = 0, end: int | None = None) -> list[tuple[Any, ...]]:
    """The rows as a plain loop over the records finds them."""
    rows = []
    for batch in all_batches(data, fetch_offset):
        for record in batch:
            if end is not None and record.offset >= end:
                continue
            stamp = None if record.timestamp in (-1, None) else EPOCH + timedelta(milliseconds=record.timestamp)
            kind = -1 if record.timestamp_type is None else record.timestamp_type
            headers = [{"key": name, "value": content} for name, content in record.headers] or None
            rows.append((record.key, record.value, *WHERE, record.offset, stamp, kind, headers))
    return rows


def plain_numbers(arrays: list[Any]) -> list[Any]:
    """Timestamps as microseconds: spoiled bytes may name a year that Python has no date for."""
    return [array.cast(pa.int64()) if pa.types.is_timestamp(array.type) else array for array in arrays]


def rows_of(arrays: list[Any], names: tuple[str, ...] = ALL) -> list[tuple[Any, ...]]:
    return list(zip(*(pa.chunked_array([array]).to_pylist() for array in arrays), strict=True)) if names else []


@pytest.mark.parametrize("names", [ALL, NAMES], ids=["with headers", "without headers"])
@given(SETS, st.integers(0, 40), st.none() | st.integers(0, 60))
def test_columns_equal_the_records_read_one_by_one(
    names: tuple[str, ...], written: MessageSet, skipped: int, length: int | None
) -> None:
    first = written.base + skipped
    end = None if length is None else first + length
    right = [row[: len(names)] for row in slowly(written.data, first, end)]
    for way in WAYS:
        with going(way):
            assert rows_of(read_columns(all_batches(written.data, first), names, end=end)) == right


def long_batch(base: int, sizes: list[int], every: int | None, codec: int) -> bytes:
    records = [
        NewRecord(n, 10**12 + n * 37, None if every and n % every == 0 else b"key", b"x" * size)
        for n, size in enumerate(sizes)
    ]
    return batch_bytes(records, base=base, codec=codec)


# Lengths of records change where they do in life: with the number of an offset's digits, or with the values.
LONG = st.lists(st.tuples(st.sampled_from([0, 5, 60, 200, 9000, 40_000]), st.integers(1, 150)), min_size=1, max_size=5)


@settings(max_examples=50)
@given(LONG, st.sampled_from([None, 3, 70]), st.sampled_from([0, 4]), st.integers(0, 400), st.integers(0, 400))
def test_long_batches_equal_the_records_read_one_by_one(
    runs: list[tuple[int, int]], every: int | None, codec: int, skipped: int, length: int
) -> None:
    sizes = [size for size, count in runs for _ in range(count)]
    base = 10**9
    data = b""
    for part in (sizes, [1] * 100, sizes[:20]):
        data += long_batch(base, part, every, codec)
        base += len(part)
    for first, end in ((0, None), (10**9 + skipped, 10**9 + skipped + length)):
        right = [row[:-1] for row in slowly(data, first, end)]
        for way in WAYS[:-1]:
            with going(way):
                assert rows_of(read_columns(all_batches(data, first), NAMES, end=end), NAMES) == right


@pytest.mark.parametrize("way", WAYS)
def test_what_was_fetched_may_be_converted_in_parts_and_again(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    choose(way, monkeypatch)
    data = b"".join(long_batch(base, [50, 150] * 50, None, 0) for base in (0, 100, 200))
    rows = [row[:-1] for row in slowly(data)]
    builder = ColumnBuilder()
    parts = []
    for batch in all_batches(data):
        builder.add_batch(batch)
        parts += rows_of(builder.take(), NAMES)
    assert parts == rows
    for batch in [*all_batches(data), *all_batches(data)]:
        builder.add_batch(batch)
    assert rows_of(builder.take(), NAMES) == rows + rows


@given(SETS, st.data())
def test_corrupt_bytes_are_told_as_one_by_one(written: MessageSet, data: st.DataObject) -> None:
    spoiled = bytearray(written.data)
    spoiled[data.draw(st.integers(0, len(spoiled) - 1))] ^= data.draw(st.integers(1, 255))
    outcomes: list[list[tuple[Any, ...]] | str] = []
    for way in WAYS:
        unchecked = batches(bytes(spoiled), check_crc=False, where=WHERE, fetch_offset=0)
        with going(way):
            try:
                outcomes.append(rows_of(plain_numbers(read_columns(unchecked, NAMES)), NAMES))
            except InvalidMessageException as error:
                outcomes.append(str(error))
    # Without a checksum bytes may say anything; but then all ways say the same, or know that they are corrupt.
    assert outcomes[0] == outcomes[2]
    assert outcomes[1] == outcomes[2]


@given(SETS)
def test_only_the_wanted_columns_are_made_in_the_wanted_order(written: MessageSet) -> None:
    whole = dict(zip(ALL, read_columns(all_batches(written.data), ALL), strict=True))
    for names in (("value",), ("offset", "key"), ("partition", "topic"), ()):
        arrays = read_columns(all_batches(written.data), names)
        assert [array.to_pylist() for array in arrays] == [whole[name].to_pylist() for name in names]


def test_columns_have_the_types_they_claim_even_without_rows() -> None:
    types = arrow_columns.arrow_types()
    assert [array.type for array in ColumnBuilder(ALL).take()] == [types[name] for name in ALL]
    full = read_columns(all_batches(MessageSet([Batch()]).data), ALL)
    assert [array.type for array in full] == [types[name] for name in ALL]
    for array in full:
        array.validate(full=True)


@pytest.mark.parametrize("way", WAYS)
def test_a_timestamp_that_microseconds_cannot_express_is_null(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    choose(way, monkeypatch)
    stamps = [1_500_000_000_000, 2**62, -1, 1_500_000_000_001]
    written = MessageSet([Batch([Written(timestamp=stamp) for stamp in stamps])])
    (array,) = read_columns(all_batches(written.data), ("timestamp",))
    assert [value is None for value in array.to_pylist()] == [False, True, True, False]


def test_rows_of_several_partitions_keep_their_place() -> None:
    builder_names = ("topic", "partition", "offset")
    builder = ColumnBuilder(builder_names)
    places = [TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0), TopicPartition("a", 0)]
    data = MessageSet([Batch([Written(), Written()])]).data
    for place in places:
        for batch in all_batches(data):
            if place.topic == "a":
                batch.where = place
                builder.add_batch(batch)
            else:
                for slab in slabs(batch):
                    builder.add(place, slab)
    assert builder.rows == 8
    found = rows_of(builder.take(), builder_names)
    assert found == [(*place, offset) for place in places for offset in (0, 1)]
    assert (builder.rows, builder.size) == (0, 0)


def test_many_records_come_in_slabs_and_end_where_they_shall() -> None:
    written = MessageSet([Batch([Written()] * 2500)])
    (batch,) = all_batches(written.data)
    assert [len(slab) for slab in slabs(batch)] == [1024, 1024, 452]
    assert [len(slab) for slab in slabs(batch, 1500)] == [1024, 476]
    assert [len(slab) for slab in slabs(batch, 1024)] == [1024]
    assert list(slabs(batch, 0)) == []


@pytest.mark.parametrize("way", WAYS)
def test_the_size_is_known_early_where_messages_are_large(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    choose(way, monkeypatch)
    builder = ColumnBuilder()
    for batch in all_batches(MessageSet([Batch([Written(value=b"x" * 50_000)] * 3)]).data):
        builder.add_batch(batch)
    assert builder.size > 150_000


def test_an_unknown_column_is_refused() -> None:
    with pytest.raises(ValueError, match="no such column: bytes"):
        ColumnBuilder(("value", "bytes"))
