"""The quickest way to columns: the batches that it refuses, and the modules that it does not import."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tests.programs import run_python
from tests.unit.kafka.sets import Batch, MessageSet, Written
from zkconsumer.data_plane.columns import ColumnMemory, RowScanner
from zkconsumer.kafka.arrow_columns import NAMES, NativeColumns, constant
from zkconsumer.kafka.record_batch import FROM_ANYWHERE, NO_END, Block, StrangeBytesError

RECORD = bytes((14, 0, 0, 0, 1, 2, ord("v"), 0))
"""Its length, attributes, two differences of 0, no key, a value of one byte, no headers."""


def a_block(data: bytes, total: int = 1, oldest: int = 1000) -> Block:
    return Block(memoryview(data), total, 5, 5 + max(total - 1, 0), oldest, None, FROM_ANYWHERE, NO_END)


@pytest.mark.parametrize(
    ("data", "total"),
    [
        (RECORD, 2**31 - 1),
        (RECORD, 0),
        (RECORD + b"\0", 1),
        (RECORD[:-1], 1),
        (RECORD.replace(b"\x0e", b"\x0c"), 1),
        (b"\x0d" + RECORD[1:], 1),
        (RECORD[:1] + b"\x80" + RECORD[2:], 1),
        (RECORD[:5] + b"\x03" + RECORD[6:], 1),
        (RECORD[:5] + b"\x40" + RECORD[6:], 1),
        (RECORD[:-1] + b"\x01", 1),
        (RECORD[:-1] + b"\x02", 1),
        (RECORD + RECORD, 2),
        (b"\xff" * 9 + b"\x01" + RECORD[1:], 1),
    ],
    ids=[
        "a count that takes much memory",
        "no record",
        "a byte more",
        "a byte less",
        "a length too small",
        "a negative length",
        "long attributes",
        "a value below null",
        "a value beyond the record",
        "fewer than no headers",
        "a header that is not there",
        "an offset twice",
        "a number of ten bytes",
    ],
)
def test_strange_bytes_are_left_to_the_reader_of_records(data: bytes, total: int) -> None:
    with pytest.raises(StrangeBytesError):
        NativeColumns([a_block(data, total)], NAMES)


def test_timestamps_beyond_64_bits_are_left_to_it_as_well() -> None:
    later = RECORD[:2] + b"\x02" + RECORD[3:]

    with pytest.raises(StrangeBytesError):
        NativeColumns([a_block(later, oldest=2**63 - 1)], NAMES)


def memory(**sizes: int) -> ColumnMemory:
    """Memory for two rows, or as many bytes as ``sizes`` says, between bytes that must not change."""
    kinds = dict(zip(ColumnMemory.__annotations__, "qqiiBBBBB", strict=True))
    enough = {"q": 16, "i": 12, "B": 2}
    wanted = {name: sizes.get(name, enough[kind]) for name, kind in kinds.items()}
    return ColumnMemory(*(memoryview(bytearray(wanted[name])).cast(kind) for name, kind in kinds.items()))  # type: ignore[call-overload]


SECOND = RECORD[:3] + b"\x02" + RECORD[4:6] + b"w" + RECORD[7:]


@pytest.mark.parametrize(
    "sizes",
    [{"offsets": 8}, {"timestamps": 8}, {"key_ends": 8}, {"value_ends": 8}, {"values": 1}, {"valid_keys": 0}],
    ids=lambda sizes: next(iter(sizes)),
)
def test_too_little_memory_for_the_rows_is_never_overrun(sizes: dict[str, int]) -> None:
    """The second row does not fit: an error, and nothing is written behind the end."""
    scanner = RowScanner(memory(**sizes), True, True)

    assert not scanner.scan(memoryview(RECORD + SECOND), 2, 5, 6, 0, 0, False, FROM_ANYWHERE, NO_END)


def test_an_unwanted_column_takes_no_memory() -> None:
    rows = NativeColumns([a_block(RECORD)], ["offset"])

    assert rows.row_count == 1
    assert rows._buffers.values.size == 0


def test_a_view_that_skips_bytes_is_refused() -> None:
    with pytest.raises(BufferError):
        RowScanner(memory(), True, True).scan(memoryview(RECORD)[::2], 1, 5, 5, 0, 0, False, FROM_ANYWHERE, NO_END)


@pytest.mark.parametrize("count", [0, 1, 3, 1024, 65_536, 70_000])
def test_a_constant_column_has_its_value_in_every_row(count: int) -> None:
    assert constant("topic", count).equals(pa.repeat(pa.scalar("topic"), count))
    assert constant(7, count).equals(pa.repeat(pa.scalar(7, pa.int32()), count))


def test_constant_columns_of_long_names_are_not_kept() -> None:
    """Bug: twelve topics of 249 characters, read 65,536 rows at a time, kept 200 MB as long as the process lived."""
    before = pa.total_allocated_bytes()

    for number in range(12):
        constant(f"{number:0249}", 65_536)

    assert pa.total_allocated_bytes() - before <= 12 << 20


_NO_PANDAS = f"""
import sys, zkconsumer.kafka.arrow_columns as scanned
scanned.AVAILABLE = True
from zkconsumer.kafka.arrow_columns import ColumnBuilder
from zkconsumer.kafka.fetched_batches import batches
from zkconsumer.model import TopicPartition
builder = ColumnBuilder()
data = bytes.fromhex({MessageSet([Batch([Written()] * 3)]).data.hex()!r})
for batch in batches(data, check_crc=True, where=TopicPartition("t", 0), fetch_offset=0):
    builder.add_batch(batch)
print(len(builder.take()[0]), "pandas" in sys.modules)
"""


def test_columns_do_not_import_pandas() -> None:
    """``pyarrow.scalar`` and ``pyarrow.array`` import it where it is installed, which takes 0.2 s and 40 MB."""
    assert run_python("-c", _NO_PANDAS).stdout == "3 False\n"
