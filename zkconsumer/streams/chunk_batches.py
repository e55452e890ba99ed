"""Decodes a chunk into Arrow record batches or lists of messages, a part of the chunk at a time.

Threads: the application thread that reads the stream, no other. Nothing here hands anything out or moves a position.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from zkconsumer.errors import MissingExtraError, UnreadableMessageError
from zkconsumer.kafka.record_batch import RecordBatch
from zkconsumer.model import TopicPartition
from zkconsumer.ownership.partition_position import PartitionPosition
from zkconsumer.streams.chunk_reader import ChunkReader
from zkconsumer.streams.message import MessageAndMetadata
from zkconsumer.streams.stream_queue import Chunk

if TYPE_CHECKING:
    import pyarrow as pa

    from zkconsumer.kafka.arrow_columns import ColumnBuilder

MAX_ROWS = 65_536
MAX_BYTES = 32 * 1024 * 1024
ANY = 1 << 62
"""A number of rows or bytes that is no limit."""

SPARK_COLUMNS = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"
)
SPARK_HEADERS = "headers array<struct<key: string, value: binary>>"


class BatchLimits(NamedTuple):
    """The most that one batch may hold: ``rows``, and bytes of keys and values (one row may be more)."""

    rows: int = MAX_ROWS
    size: int = MAX_BYTES


def arrow_schema(headers: bool) -> pa.Schema:
    """Return the schema of Spark's Kafka source. Raises MissingExtraError without pyarrow."""
    try:
        import pyarrow as pa
        import pyarrow.compute
    except ImportError:
        raise MissingExtraError("reading a stream as columns", "arrow") from None
    from zkconsumer.kafka.arrow_columns import HEADERS, NAMES, ColumnBuilder, arrow_types

    ColumnBuilder()  # imports what it needs
    types = arrow_types()
    return pa.schema([pa.field(name, types[name]) for name in ((*NAMES, HEADERS) if headers else NAMES)])


@dataclass(frozen=True, slots=True)
class ArrowForm:
    """Rows as ``pyarrow.RecordBatch`` of this schema."""

    schema: pa.Schema

    def builder(self) -> ColumnBuilder:
        """Return what takes batches of records."""
        from zkconsumer.kafka.arrow_columns import ColumnBuilder

        return ColumnBuilder(self.schema.names)

    def made(self, builder: Any) -> pa.RecordBatch:
        """Return the rows that the builder took."""
        import pyarrow as pa

        return pa.RecordBatch.from_arrays(builder.take(), schema=self.schema)

    def content(self, rows: Any) -> int:
        """Return the bytes of keys and values, or a little more. Counting all columns takes four times as long."""
        return sum([rows.column(name).nbytes for name in ("key", "value")])

    def fitting(self, rows: Any, limits: BatchLimits) -> int:
        """Return how many of the rows are within the limits; at least one."""
        import pyarrow.compute as pc

        sizes = [pc.fill_null(pc.binary_length(rows.column(name)), 0).cast("int64") for name in ("key", "value")]
        reached = pc.cumulative_sum(pc.add(*sizes))
        within = pc.sum(pc.less_equal(reached, limits.size)).as_py()
        return int(max(1, min(within, limits.rows)))

    def offset(self, rows: Any, index: int) -> int:
        """Return the offset of a row."""
        return int(rows.column("offset")[index].as_py())


class MessageRows:
    """Messages of one partition, as rows."""

    __slots__ = ("messages",)

    def __init__(self, messages: list[MessageAndMetadata[Any, Any]]) -> None:
        self.messages = messages

    @property
    def num_rows(self) -> int:
        """The number of messages."""
        return len(self.messages)

    def slice(self, offset: int = 0, length: int | None = None) -> MessageRows:
        """Return some of them."""
        return MessageRows(self.messages[offset : None if length is None else offset + length])


class MessageBuilder:
    """Makes messages of a class from batches of records."""

    size = 0

    def __init__(self, kind: type[MessageAndMetadata[Any, Any]]) -> None:
        self._kind = kind
        self.messages: list[MessageAndMetadata[Any, Any]] = []

    @property
    def rows(self) -> int:
        """The number of messages."""
        return len(self.messages)

    def add_batch(self, batch: RecordBatch) -> None:
        """Take all records of a batch, or none. Raises: CorruptRecordsError at an unreadable record."""
        self.add(batch.where, batch)

    def add(self, where: TopicPartition, records: Iterable[Any]) -> None:
        """Take these records of a partition."""
        kind, place = self._kind, tuple(where)
        self.messages += [kind(record, place) for record in records]


@dataclass(frozen=True, slots=True)
class MessageForm:
    """Rows as messages of this class. Bytes have no limit."""

    kind: type[MessageAndMetadata[Any, Any]]

    def builder(self) -> MessageBuilder:
        """Return what takes batches of records."""
        return MessageBuilder(self.kind)

    def made(self, builder: Any) -> MessageRows:
        """Return the rows that the builder took."""
        return MessageRows(builder.messages)

    def content(self, rows: Any) -> int:
        """Return 0: messages are counted, not measured."""
        return 0

    def fitting(self, rows: Any, limits: BatchLimits) -> int:
        """Return how many of the rows are within the limits; at least one."""
        return int(min(rows.num_rows, limits.rows))

    def offset(self, rows: Any, index: int) -> int:
        """Return the offset of a row."""
        return int(rows.messages[index].offset)


Rows: TypeAlias = "pa.RecordBatch | MessageRows"
"""Some messages in a row."""
RowForm = ArrowForm | MessageForm
"""The form of rows. Two equal forms make the same rows."""


class ChunkPart(NamedTuple):
    """Some rows of a chunk: the offsets from ``first`` on and before ``end``, also those without a row.

    ``whole`` says that nothing of the chunk is left.
    """

    chunk: Chunk
    first: int
    end: int
    rows: Rows | None
    whole: bool

    @property
    def position(self) -> PartitionPosition:
        """The position of the partition."""
        return self.chunk.position


class ChunkDecoder:
    """Decodes a chunk from offset ``at`` on, a part at a time.

    ``at`` is None after an interrupt. Then it is unknown how far decoding came, and the chunk is decoded anew.
    """

    def __init__(self, reader: ChunkReader, chunk: Chunk, at: int, form: RowForm) -> None:
        self.chunk = chunk
        self.at: int | None = at
        self.form = form
        self._reader = reader
        self._batches: Iterator[RecordBatch] | None = None
        self._rest: Rows | None = None
        self._rest_end = at
        self._exhausted = False
        self.failure: UnreadableMessageError | None = None

    @property
    def fails(self) -> bool:
        """Whether the next read raises an unreadable place."""
        return self.failure is not None and self._rest is None

    def next_part(self, limits: BatchLimits) -> ChunkPart:
        """Return the next rows; a part without rows if no message is left.

        Raises: UnreadableMessageError if nothing good is left before the unreadable place (``failure``).
        """
        first, self.at = self.at, None
        assert first is not None
        if self.failure is not None and self._rest is None:
            raise self.failure
        if self._rest is None:
            self._rest, self._rest_end = self._decoded(first, limits)
        rows, self._rest, end = self._rest, None, self._rest_end
        if rows is not None and (rows.num_rows > limits.rows or self.form.content(rows) > limits.size):
            count = self.form.fitting(rows, limits)
            if count < rows.num_rows:
                self._rest = rows.slice(count)
                rows = rows.slice(0, count)
                # never back: offsets have no checksum, and one that does not ascend would make it begin anew for ever
                end = max(first, self.form.offset(rows, count - 1) + 1)
        self.at = end
        whole = self._rest is None and self.failure is None and (self._exhausted or end >= self.chunk.next_offset)
        return ChunkPart(self.chunk, first, end, rows, whole)

    def _decoded(self, first: int, limits: BatchLimits) -> tuple[Rows | None, int]:
        builder = self.form.builder()
        if self._batches is None:
            self._batches = self._reader.batches(self.chunk, first)
        end = first
        try:
            for batch in self._batches:
                builder.add_batch(batch)
                end = batch.next_offset
                if builder.rows >= limits.rows or builder.size >= limits.size:
                    break
            else:
                end = max(end, self.chunk.next_offset)  # the rest was compacted away
                self._exhausted = True
            return self._made(builder), end
        except UnreadableMessageError as failed:
            self._batches = None
            interrupt = failed.__cause__
        if isinstance(interrupt, MemoryError):
            raise interrupt
        made = self._decoded_carefully(first)
        if self.failure is None and isinstance(interrupt, Exception):
            raise interrupt  # the whole chunk can be read, so a signal handler raised the error
        return made

    def _decoded_carefully(self, first: int) -> tuple[Rows | None, int]:
        """Return the rows before the unreadable place, the same that messages would give, and that place's offset."""
        from zkconsumer.kafka.arrow_columns import slabs

        builder = self.form.builder()
        end = first
        try:
            for batch in self._reader.batches(self.chunk, first):
                for slab in slabs(batch):
                    builder.add(batch.where, slab)
                    end = slab[-1].offset + 1
                end = batch.next_offset
        except UnreadableMessageError as failure:
            if end == first:
                raise
            self.failure = failure
        return self._made(builder), end

    def _made(self, builder: Any) -> Rows | None:
        rows: Rows | None = self.form.made(builder) if builder.rows else None
        return rows if rows is not None and rows.num_rows else None


def one_table(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    """Return all rows as one table."""
    import pyarrow as pa

    # a table of no batches would have no chunks, and Spark refuses a column of headers without a chunk
    return pa.Table.from_batches(list(batches), schema=schema) if batches else schema.empty_table()


def one_list(rows: Sequence[MessageRows]) -> list[Any]:
    """Return all messages as one list."""
    return rows[0].messages if len(rows) == 1 else [message for part in rows for message in part.messages]


def by_partition(rows: Sequence[MessageRows]) -> dict[TopicPartition, list[Any]]:
    """Return all messages in lists by their partitions."""
    found: dict[TopicPartition, list[Any]] = {}
    for part in rows:
        first = part.messages[0]
        found.setdefault(TopicPartition(first.topic, first.partition), []).extend(part.messages)
    return found
