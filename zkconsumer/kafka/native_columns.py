"""Decodes batches of format 2 into Arrow columns with ``data_plane.columns``: the quickest way, if that is compiled.

Pure, one thread at a time. pyarrow is imported when the first column is made. Its pool gives the memory of columns, and
uses memory again that users have let go of. Fresh memory from the system costs more than filling it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

from zkconsumer.data_plane import COMPILED
from zkconsumer.data_plane.columns import SMALLEST_RECORD, ColumnMemory, RowScanner
from zkconsumer.kafka.arrow_arrays import constant
from zkconsumer.kafka.record_batch import Block, StrangeBytesError

AVAILABLE: Final[bool] = COMPILED

_LARGEST = 2**31 - 1


class NativeColumns:
    """The rows of some blocks. Arguments: ``names`` are the columns that may be asked for.

    Raises: StrangeBytesError, also for more than 2 GB, which binary columns cannot have.
    """

    def __init__(self, blocks: Sequence[Block], names: Collection[str]) -> None:
        size = sum([len(block.data) for block in blocks])
        # the number of records is not believed: memory is taken for as many as the bytes can hold
        if size > _LARGEST or any(not 0 < one.total * SMALLEST_RECORD <= len(one.data) for one in blocks):
            raise StrangeBytesError
        most = sum([block.total for block in blocks])
        content = size - SMALLEST_RECORD * most  # keys and values have no more bytes together
        self._buffers = _buffers(most, content if "key" in names else 0, content if "value" in names else 0)
        scanner = RowScanner(_views(self._buffers), "key" in names, "value" in names)
        self._kinds = [(int(block.append_time is not None), _scanned(scanner, block)) for block in blocks]
        self.row_count, *self._sizes = scanner.totals()
        self._nulls = scanner.nulls()

    def column(self, name: str) -> Any:
        """Return one column as an Arrow array, once."""
        import pyarrow as pa

        if name == "key":
            return self._binary(self._buffers.key_ends, self._buffers.keys, 0, self._buffers.valid_keys)
        if name == "value":
            return self._binary(self._buffers.value_ends, self._buffers.values, 1, self._buffers.valid_values)
        if name == "timestampType":
            return self._timestamp_types()
        if name == "offset":
            return pa.Array.from_buffers(pa.int64(), self.row_count, [None, self._buffers.offsets])
        nulls = self._nulls[2]
        buffers = [self._buffers.valid_timestamps if nulls else None, self._buffers.timestamps]
        return pa.Array.from_buffers(pa.timestamp("us", tz="UTC"), self.row_count, buffers, nulls)

    def _binary(self, ends: Any, content: Any, which: int, valid: Any) -> Any:
        import pyarrow as pa

        nulls = self._nulls[which]
        if nulls == self.row_count:
            return pa.nulls(nulls, pa.binary())
        content.resize(self._sizes[which], shrink_to_fit=True)  # there are no views of it any more
        return pa.Array.from_buffers(pa.binary(), self.row_count, [valid if nulls else None, ends, content], nulls)

    def _timestamp_types(self) -> Any:
        """A batch has one kind of timestamp."""
        import pyarrow as pa

        kinds = [kind for kind, _ in self._kinds]
        if kinds.count(kinds[0]) == len(kinds):
            return constant(kinds[0], self.row_count)
        return pa.concat_arrays([constant(kind, count) for kind, count in self._kinds])


def _scanned(scanner: RowScanner, block: Block) -> int:
    """Return the number of rows that a block adds. Raises: StrangeBytesError."""
    before = scanner.totals()[0]
    time = block.append_time
    if not scanner.scan(
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
    return scanner.totals()[0] - before


def _buffers(rows: int, keys: int, values: int) -> ColumnMemory:
    """Return memory for so many rows and bytes; that of keys and values can be made smaller."""
    import pyarrow as pa

    allocate, bits = pa.allocate_buffer, -(-rows // 8)
    return ColumnMemory(
        allocate(8 * rows),
        allocate(8 * rows),
        allocate(4 * rows + 4),
        allocate(4 * rows + 4),
        allocate(keys, resizable=True),
        allocate(values, resizable=True),
        allocate(bits),
        allocate(bits),
        allocate(bits),
    )


def _views(buffers: ColumnMemory) -> ColumnMemory:
    """Return the buffers as numbers of their kinds, with all bits set."""
    found = ColumnMemory(*(_view(buffer, kind) for buffer, kind in zip(buffers, "qqiiBBBBB", strict=True)))
    for bits in found[6:]:
        bits[:] = b"\xff" * len(bits)
    return found


def _view(buffer: Any, kind: str) -> memoryview:
    return memoryview(buffer).cast("B").cast(kind)  # type: ignore[call-overload, no-any-return]
