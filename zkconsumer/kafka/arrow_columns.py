"""Turns records into Arrow columns, for the data source and for a stream's batches.

Responsible for the seven columns of Spark's own Kafka source and the headers, in all message formats. Pure, one thread
at a time. pyarrow and numpy are imported when the first column is made, never before.

Batches of format 2 are read many at a time: by compiled code (:class:`NativeColumns`), or by vector operations
(``numpy_columns``) in an installation without it. Without compiled code and numpy, with headers, for older formats and
for strange bytes, a loop reads record after record. A thousand of them at a time become one Arrow array a column. All
ways give the same columns, byte for byte. The arrays are joined when there are enough rows.

``pyarrow.array`` and ``pyarrow.scalar`` import pandas where pandas is installed. That takes up to 2 s of CPU time and
40 MB once per process. So :func:`numbers` and the functions beside it fill the buffers of an array themselves.

The memory of columns comes from pyarrow's pool, which uses memory again that users have let go of. Fresh memory from
the system costs more than filling it.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache, lru_cache, partial
from itertools import accumulate, islice
from struct import Struct
from typing import Any, Final, Protocol

from zkconsumer.data_plane import COMPILED
from zkconsumer.data_plane.columns import SMALLEST_RECORD, ColumnMemory, RowScanner
from zkconsumer.errors import UnreadableMessageError
from zkconsumer.kafka.record_batch import FROM_ANYWHERE, LARGEST_MS, Block, RecordBatch, StrangeBytesError, block
from zkconsumer.model import TopicPartition

_KEPT_ARRAYS = 12
_KEPT_BYTES = 1024 * 1024  # of each array: many long names must not stay in memory
_INT = Struct("=i").pack
_ENDS = Struct("=ii").pack


def numbers(values: Sequence[int | None], kind: Any) -> Any:
    """Return numbers as an Arrow array; None becomes null.

    Arguments: ``kind`` is an Arrow type of 32 or 64 bits. Raises OverflowError for a number with more bits.
    """
    import pyarrow as pa

    content = array("i" if kind.bit_width == 32 else "q", [0 if value is None else value for value in values])
    valid = _valid(values) if None in values else None
    return pa.Array.from_buffers(kind, len(values), [valid, pa.py_buffer(content)])


def binaries(values: Sequence[bytes | None], kind: Any) -> Any:
    """Return byte strings as an Arrow array; None becomes null.

    Arguments: ``kind`` is ``pyarrow.binary()``, or ``pyarrow.string()`` for text in UTF-8. Raises OverflowError for
    more than 2 GB.
    """
    import pyarrow as pa

    present = [value or b"" for value in values]
    ends = array("i", accumulate(map(len, present), initial=0))
    valid = _valid(values) if None in values else None
    return pa.Array.from_buffers(kind, len(values), [valid, pa.py_buffer(ends), pa.py_buffer(b"".join(present))])


def _valid(values: Collection[object]) -> Any:
    """Return the bits that tell which values are not None, the first one lowest, as Arrow has them."""
    import pyarrow as pa

    bits = "".join(["0" if value is None else "1" for value in values])[::-1]
    return pa.py_buffer(int(bits, 2).to_bytes(-(-len(bits) // 8), "little"))


def constant(value: int | str, count: int) -> Any:
    """Return ``count`` times the same text, or number of 32 bits, as an Arrow array.

    The array is a slice of one that is kept for a while, at most 12 MB in all. Filling new memory for each batch would
    cost as much as copying a short value for each row.
    """
    import pyarrow as pa

    rows = 1 << max(0, count - 1).bit_length()
    width = 4 + len(value) if isinstance(value, str) else 4
    if count == 0 or rows * width > _KEPT_BYTES:
        return pa.repeat(_scalar(value), count)
    return _kept(value, rows).slice(0, count)


@lru_cache(_KEPT_ARRAYS)
def _kept(value: int | str, count: int) -> Any:
    """Arguments: ``count`` is a power of two. So a read of many sizes keeps few arrays of a value."""
    import pyarrow as pa

    return pa.repeat(_scalar(value), count)


def _scalar(value: int | str) -> Any:
    """Return an Arrow scalar."""
    import pyarrow as pa

    if isinstance(value, str):
        text = value.encode()
        content = [None, pa.py_buffer(_ENDS(0, len(text))), pa.py_buffer(text)]
        return pa.Array.from_buffers(pa.string(), 1, content)[0]
    return pa.Array.from_buffers(pa.int32(), 1, [None, pa.py_buffer(_INT(value))])[0]


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


KEY: Final = "key"
VALUE: Final = "value"
TOPIC: Final = "topic"
PARTITION: Final = "partition"
OFFSET: Final = "offset"
TIMESTAMP: Final = "timestamp"
TIMESTAMP_TYPE: Final = "timestampType"
HEADERS: Final = "headers"

NAMES: Final = (KEY, VALUE, TOPIC, PARTITION, OFFSET, TIMESTAMP, TIMESTAMP_TYPE)
"""The columns in the order of Spark's Kafka source, without the headers."""

SLAB: Final = 1024
"""Records that are turned into columns at once."""

_HEAVY = 4096  # bytes of a value


@cache
def arrow_types() -> Mapping[str, Any]:
    """The Arrow type of every column, by name. Raises ImportError without pyarrow."""
    import pyarrow as pa

    header = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
    return {
        KEY: pa.binary(),
        VALUE: pa.binary(),
        TOPIC: pa.string(),
        PARTITION: pa.int32(),
        OFFSET: pa.int64(),
        TIMESTAMP: pa.timestamp("us", tz="UTC"),
        TIMESTAMP_TYPE: pa.int32(),
        HEADERS: pa.list_(pa.field("element", header)),
    }


def slabs(batch: RecordBatch, end: int | None = None) -> Iterator[list[Any]]:
    """Return the records of a batch in lists of at most ``SLAB``, those before offset ``end`` only.

    Raises: CorruptRecordsError at an unreadable record, after the records before it.
    """
    records = iter(batch)
    failure: UnreadableMessageError | None = None
    while failure is None:
        slab: list[Any] = []
        try:
            slab.extend(islice(records, SLAB))
        except UnreadableMessageError as error:
            failure = error  # the good records before it stay in the list
        if not slab:
            break
        if end is not None and slab[-1].offset >= end:
            slab = [record for record in slab if record.offset < end]
            if slab:
                yield slab
            return
        yield slab
    if failure is not None:
        raise failure


class RowsOfBlocks(Protocol):
    """Some rows that were read in one go."""

    @property
    def row_count(self) -> int:
        """The number of rows."""

    def column(self, name: str) -> Any:
        """Return one column as an Arrow array."""


def _reader_of_blocks(names: Collection[str]) -> Callable[[Sequence[Block]], RowsOfBlocks] | None:
    """Return the quickest way to read many records at once, None if there is no such way."""
    if AVAILABLE:
        return partial(NativeColumns, names=names)
    from zkconsumer.kafka import numpy_columns  # imported where it is used, since it imports numpy (14 MB)

    return numpy_columns.read_fields if numpy_columns.AVAILABLE else None


class ColumnBuilder:
    """Collects records and hands them out as columns.

    ``rows`` and ``size`` (bytes, about) say how much there is. A timestamp is null if the message has none (format 0),
    or if no number of microseconds expresses it. So are the headers of a message without any, as in Spark's source.

    Arguments: ``names`` are the wanted columns, in their order; the others cost nothing.
    """

    def __init__(self, names: Sequence[str] = NAMES) -> None:
        self._types = arrow_types()
        unknown = [name for name in names if name not in self._types]
        if unknown:
            raise ValueError(f"no such column: {', '.join(unknown)}")
        self._names = tuple(names)
        self._read_blocks = None if HEADERS in names else _reader_of_blocks(names)
        self._makers = {name: maker for name, maker in self._varying().items() if name in names}
        self._clear()

    def _varying(self) -> dict[str, Any]:
        return {
            KEY: self._keys,
            VALUE: self._values,
            OFFSET: self._offsets,
            TIMESTAMP: self._timestamps,
            TIMESTAMP_TYPE: self._timestamp_types,
            HEADERS: self._headers,
        }

    def _clear(self) -> None:
        self.rows = 0
        self.size = 0
        self._made: dict[str, list[Any]] = {name: [] for name in self._makers}
        self._runs: list[tuple[TopicPartition, int]] = []
        self._pending: list[Any] = []
        self._blocks: list[tuple[RecordBatch, int | None, Block]] = []
        self._where = TopicPartition("", -1)

    def add(self, where: TopicPartition, records: Sequence[Any]) -> None:
        """Take records of one partition, in lists that ``slabs`` returns."""
        if self._blocks or where != self._where or len(self._pending) >= SLAB:
            self._convert()
            self._where = where
        self._pending.extend(records)
        self.rows += len(records)
        if records and len(records[-1].value or b"") > _HEAVY:
            self._convert()  # so that the size is known, and the memory that of one slab

    def add_batch(self, batch: RecordBatch, end: int | None = None) -> None:
        """Take the records of a batch before offset ``end``; ``rows`` may count some that will be left out.

        Raises: CorruptRecordsError at an unreadable record, perhaps only when a later batch is added, or by ``take``.
        """
        view = batch.view
        if self._read_blocks is None or view is None:
            self._add_slowly(batch, end)
            return
        try:
            # a batch that begins at or after the requested offset is not filtered, as when it is iterated
            first = batch.first if batch.first > batch.base_offset else FROM_ANYWHERE
            made = block(view, first, end, batch.expansion.limit)
        except StrangeBytesError:
            self._add_slowly(batch, end)
            return
        if self._pending or (self._blocks and self._blocks[-1][0].where != batch.where):
            self._convert()
        self._blocks.append((batch, end, made))
        if made.data.obj is not view.obj:  # else it is a part of the fetched bytes
            batch.expansion.held += len(made.data)
        self.rows += made.total
        self.size += len(made.data)

    def _add_slowly(self, batch: RecordBatch, end: int | None) -> None:
        for slab in slabs(batch, end):
            self.add(batch.where, slab)

    def _convert_blocks(self) -> None:
        taken, self._blocks = self._blocks, []
        try:
            self._add_blocks(taken)
        finally:
            for batch, _, _ in taken:
                batch.expansion.held = 0

    def _add_blocks(self, taken: Sequence[tuple[RecordBatch, int | None, Block]]) -> None:
        assert self._read_blocks is not None
        blocks = [made for _, _, made in taken]
        self.rows -= sum([made.total for made in blocks])
        try:
            rows = self._read_blocks(blocks)
        except StrangeBytesError:
            self.size -= sum([len(made.data) for made in blocks])
            for batch, end, _ in taken:
                self._add_slowly(batch, end)
            return
        if not rows.row_count:
            return
        for name in self._makers:
            self._made[name].append(rows.column(name))
        self._runs.append((taken[0][0].where, rows.row_count))
        self.rows += rows.row_count

    def _convert(self) -> None:
        """Make arrays of the pending records, so that their objects are freed."""
        if self._blocks:
            self._convert_blocks()
        records, self._pending = self._pending, []
        if not records:
            return
        for name, make in self._makers.items():
            array = make(records)
            self.size += array.nbytes
            self._made[name].append(array)
        self._runs.append((self._where, len(records)))

    def take(self) -> list[Any]:
        """Return the columns of all added records, in the order of ``names``; the builder is empty afterwards."""
        import pyarrow as pa

        self._convert()
        columns = []
        for name in self._names:
            if name in self._made:
                arrays = self._made[name]
            else:
                arrays = [constant(getattr(where, name), count) for where, count in self._runs]
            if not arrays:
                columns.append(pa.nulls(0, self._types[name]))
            else:
                columns.append(arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays))
        self._clear()
        return columns

    # ---- one column each ----

    def _keys(self, records: Sequence[Any]) -> Any:
        return binaries([record.key for record in records], self._types[KEY])

    def _values(self, records: Sequence[Any]) -> Any:
        return binaries([record.value for record in records], self._types[VALUE])

    def _offsets(self, records: Sequence[Any]) -> Any:
        return numbers([record.offset for record in records], self._types[OFFSET])

    def _timestamps(self, records: Sequence[Any]) -> Any:
        return numbers([_microseconds(record.timestamp) for record in records], self._types[TIMESTAMP])

    def _timestamp_types(self, records: Sequence[Any]) -> Any:
        kinds = [-1 if record.timestamp_type is None else record.timestamp_type for record in records]
        return numbers(kinds, self._types[TIMESTAMP_TYPE])

    def _headers(self, records: Sequence[Any]) -> Any:
        import pyarrow as pa

        of_records = [record.headers for record in records]
        ends: list[int | None] = []
        names: list[bytes] = []
        contents: list[bytes | None] = []
        for headers in of_records:
            # an entry without a beginning is a null list; the next one begins where it would have begun
            ends.append(len(names) if headers else None)
            for name, content in headers:
                names.append(name.encode())
                contents.append(content)
        ends.append(len(names))
        kind = self._types[HEADERS]
        pairs = pa.StructArray.from_arrays(
            [binaries(names, pa.string()), binaries(contents, pa.binary())], fields=list(kind.value_type)
        )
        return pa.ListArray.from_arrays(numbers(ends, pa.int32()), pairs, type=kind)


def _microseconds(stamp: int | None) -> int | None:
    return None if stamp is None or stamp == -1 or abs(stamp) > LARGEST_MS else 1000 * stamp
