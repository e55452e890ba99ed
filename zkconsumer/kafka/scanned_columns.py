"""Decodes batches of format 2 into Arrow columns with ``data_plane.columns``: the quickest way, if that is compiled.

Pure, one thread at a time. pyarrow is imported when the first column is made. Its pool gives the memory of columns, and
uses memory again that users have let go of. Fresh memory from the system costs more than filling it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from zkconsumer.data_plane import COMPILED
from zkconsumer.data_plane.columns import SMALLEST_RECORD, RowScanner
from zkconsumer.kafka.column_blocks import Block, StrangeBytesError
from zkconsumer.kafka.constant_columns import constant

AVAILABLE: Final[bool] = COMPILED

_LARGEST = 2**31 - 1


class ScannedRows:
    """The rows of some blocks, with the memory of the columns that need no copy of theirs.

    Raises: StrangeBytesError, also for more than 2 GB, which binary columns cannot have.
    """

    def __init__(self, blocks: Sequence[Block]) -> None:
        if sum(len(block.data) for block in blocks) > _LARGEST:
            raise StrangeBytesError
        # the number of records is not believed: memory is taken for as many as the bytes can hold
        if any(not 0 < block.total * SMALLEST_RECORD <= len(block.data) for block in blocks):
            raise StrangeBytesError
        most = sum(block.total for block in blocks)
        self._blocks = blocks
        self._offsets, offsets = _memory(8 * most, "q")
        self._timestamps, timestamps = _memory(8 * most, "q")
        self._key_ends, key_ends = _memory(4 * most + 4, "i")
        self._value_ends, value_ends = _memory(4 * most + 4, "i")
        starts = _memory(8 * most, "i")[1]
        self._scanner = RowScanner(offsets, timestamps, key_ends, value_ends, starts)
        self._ends = [self._scan(block) for block in blocks]
        self.row_count = self._ends[-1]

    def _scan(self, block: Block) -> int:
        time = block.append_time
        if not self._scanner.scan(
            block.data,
            block.total,
            block.base_offset,
            block.last_offset,
            block.first_timestamp,
            time or 0,
            time is not None,
            block.first,
            block.end,
        ):
            raise StrangeBytesError
        return self._scanner.totals()[0]

    def column(self, name: str) -> Any:
        """Return one column as an Arrow array."""
        import pyarrow as pa

        if name in {"key", "value"}:
            return self._binary(name == "value")
        if name == "timestampType":
            return self._timestamp_types()
        if name == "offset":
            return pa.Array.from_buffers(pa.int64(), self.row_count, [None, self._offsets])
        nulls = self._scanner.nulls()[2]
        valid = None
        if nulls:
            valid, bits = _bits(self.row_count)
            self._scanner.valid_timestamps(bits)
        stamp = pa.timestamp("us", tz="UTC")
        return pa.Array.from_buffers(stamp, self.row_count, [valid, self._timestamps], nulls)

    def _binary(self, values: bool) -> Any:
        import pyarrow as pa

        nulls = self._scanner.nulls()[values]
        if nulls == self.row_count:
            return pa.nulls(nulls, pa.binary())
        valid = None
        if nulls:
            valid, bits = _bits(self.row_count)
            self._scanner.valid_fields(values, bits)
        content, target = _memory(self._scanner.totals()[1 + values], "B")
        begin = 0
        for block, end in zip(self._blocks, self._ends, strict=True):
            self._scanner.gather(block.data, begin, end, values, target)
            begin = end
        ends = self._value_ends if values else self._key_ends
        return pa.Array.from_buffers(pa.binary(), self.row_count, [valid, ends, content], nulls)

    def _timestamp_types(self) -> Any:
        """A batch has one kind of timestamp."""
        import pyarrow as pa

        kinds = [int(block.append_time is not None) for block in self._blocks]
        if kinds.count(kinds[0]) == len(kinds):
            return constant(kinds[0], self.row_count)
        counts = [end - begin for begin, end in zip([0, *self._ends], self._ends, strict=False)]
        runs = zip(kinds, counts, strict=True)
        return pa.concat_arrays([constant(kind, count) for kind, count in runs])


def _memory(size: int, kind: str) -> tuple[Any, memoryview]:
    """Return memory for a column, and a view of it as numbers of a kind that ``struct`` names."""
    import pyarrow as pa

    buffer = pa.allocate_buffer(size)
    return buffer, memoryview(buffer).cast("B").cast(kind)  # type: ignore[call-overload]


def _bits(count: int) -> tuple[Any, memoryview]:
    buffer, view = _memory(-(-count // 8), "B")
    view[:] = bytes(len(view))
    return buffer, view
