"""Turns records into Arrow columns, for the data source and for a stream's batches.

Responsible for the seven columns of Spark's own Kafka source and the headers, in all message formats. Pure, one thread
at a time. pyarrow and numpy are imported when the first column is made, never before.

Batches of format 2 are read many at a time: by compiled code (``native_columns``), or by vector operations
(``numpy_columns``) in an installation without it. Without compiled code and numpy, with headers, for older formats and
for strange bytes, a loop reads record after record. A thousand of them at a time become one Arrow array a column. All
ways give the same columns, byte for byte. The arrays are joined when there are enough rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Protocol

from zkconsumer.errors import UnreadableMessageError
from zkconsumer.kafka import native_columns
from zkconsumer.kafka.arrow_arrays import binaries, constant, numbers
from zkconsumer.kafka.record_batch import FROM_ANYWHERE, LARGEST_MS, RecordBatch, StrangeBytesError, block
from zkconsumer.model import TopicPartition

if TYPE_CHECKING:
    from zkconsumer.kafka.record_batch import Block

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
    if native_columns.AVAILABLE:
        return partial(native_columns.NativeColumns, names=names)
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
