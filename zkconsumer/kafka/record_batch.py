"""A batch of records, its head, and the error for a corrupt one. Pure.

The reader of a message set hands a batch to its iterator, one thread at a time. This is the hot path: the reader of
the data plane makes the records of format 2. Compiled, it is the iterator. In plain Python its records come out in
slabs through C iterators. So no line of this module runs for each record.

The head is read without the records. All three formats begin with an offset, the size of the rest, and (at the same
place) the number of the format. In formats 0 and 1 the offset is that of the last message inside. In format 2 it is the
first that the batch covers.

Checking the checksum (CRC-32C) of format 2 took a third of the time of columns. So the compiled data plane uses the
processor's own instruction. Where it has none, or is not compiled, google-crc32c takes its place. Without either the
data plane computes the same, five times slower, or a thousand times without its compiled copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from struct import Struct
from typing import Any, Final, NamedTuple

from zkconsumer.data_plane import COMPILED
from zkconsumer.data_plane.records import CRC_BY_PROCESSOR, MalformedRecordError, Record, RecordReader, crc32c
from zkconsumer.errors import InvalidMessageException
from zkconsumer.kafka.compression import Expansion, decompress
from zkconsumer.model import TopicPartition

START = Struct(">qi")  # offset, size of the rest
# offset, size, leader epoch, magic, CRC, attributes, last offset delta, first and max timestamp, producer id, producer
# epoch, base sequence, count of records
_BATCH = Struct(">qiibIhiqqqhii").unpack_from
BATCH_SIZE = 61
"""Bytes of a batch of format 2 before its records."""
_PARTIAL = Struct(">qi4xb6xi").unpack_from  # offset, size, magic, last offset delta (where magic is 2)
_TOLD = 27  # bytes of a head that hold these fields
_MAGIC = 16
_SMALLEST = 14  # the size of an empty message of format 0
LARGEST_OFFSET: Final = (1 << 63) - 1
"""The largest offset to go on at. So no message has it, since nothing could follow: neither a commit nor a fetch."""

_MESSAGE_CODEC, BATCH_CODEC = 17, 22  # the bytes that name the compression
CODEC = 0x07
TRANSACTIONAL = 0x10
CONTROL = 0x20


class MalformedSetError(ValueError):
    """The bytes break the format. It becomes an InvalidMessageException with the position."""


def is_compressed(records: bytes) -> bool:
    """Return whether the first batch or message of a set is compressed; the next ones most likely are as well."""
    if len(records) <= BATCH_CODEC:
        return False
    return records[BATCH_CODEC if records[_MAGIC] == 2 else _MESSAGE_CODEC] & CODEC != 0


Head = tuple[int, int, int, int, int, int, int]
"""Of a whole batch: offset, next offset, its end in the set, format; and for format 2 only: attributes, producer id,
count of records. A plain tuple, because one is made for each message if producers do not batch.
"""


def read_head(records: bytes, at: int) -> Head | None:
    """Return the head of the batch at ``at``; None if nothing is left, or nothing whole. Raises: MalformedSetError."""
    left = len(records) - at
    if left < START.size:
        return None
    offset, size = START.unpack_from(records, at)
    if size < _SMALLEST:
        raise MalformedSetError(f"a batch says that its size is {size}")
    end = at + START.size + size
    if end > len(records):
        return None
    if offset < 0:
        raise MalformedSetError(f"a batch says that its offset is {offset}")
    magic = records[at + _MAGIC]
    if magic < 2:
        return offset, offset + 1, end, magic, 0, -1, 0
    if magic > 2:
        raise MalformedSetError(f"a batch says that its format is {magic}")
    if end - at < BATCH_SIZE:
        raise MalformedSetError(f"a batch says that its size is {size}")
    _, _, _, _, _, attributes, delta, _, _, producer, _, _, total = _BATCH(records, at)
    if not 0 <= delta < LARGEST_OFFSET - offset or total < 0:
        raise MalformedSetError(f"a batch says that it has {total} records, the last {delta} after the first")
    return offset, offset + delta + 1, end, 2, attributes, producer, total


def misplaced(records: bytes, head: Head, last: int, reached: int) -> int | None:
    """Return the offset after a message of format 0 or 1 with a wrong offset, or None if its offset is right.

    An offset fits between those of its neighbours. No checksum covers it, and a wild one would move the position
    anywhere, back or beyond the log. A place before ``reached`` need not be checked, since the messages there are not
    asked for.

    Arguments: ``last`` is the last offset before it in the set, -1 for none; ``reached`` the offset to be read next.
    """
    offset, _, end, magic, *_ = head
    if magic == 2:
        return None
    following, plain = -1, False
    if len(records) - end > _MESSAGE_CODEC and records[end + _MAGIC] < 2:
        following = int(START.unpack_from(records, end)[0])
        plain = not records[end + _MESSAGE_CODEC] & CODEC  # a wrapper has the offset of its last message
    believed = (last if last >= 0 else reached - 1) < following
    if last < offset < LARGEST_OFFSET and not (believed and following <= offset):
        return None
    if believed and (plain or last < 0):
        return following
    return last + 2 if last >= 0 else reached + 1


def missing(records: bytes, at: int) -> int:
    """Return the bytes that a fetch must have at least for the batch at ``at``, which is not whole; 0 for no batch."""
    left = len(records) - at
    if left >= START.size:
        return at + START.size + int(START.unpack_from(records, at)[1])
    return len(records) + START.size if left else 0


def given_up(records: bytes, at: int, offset: int) -> int:
    """Return the offset after the unreadable batch at ``at``, which may be incomplete.

    That is after ``offset`` in any case, and after the batch's last message if its head tells that.
    """
    after = 0
    if len(records) - at >= _TOLD:
        first, _, magic, delta = _PARTIAL(records, at)
        after = first + 1 if magic < 2 else first + max(delta, 0) + 1
    return int(max(after if after <= LARGEST_OFFSET else 0, offset + 1))


_SUMMED = 21  # where the checksummed part begins
_CHECKSUM = slice(17, 21)


def _by_data_plane(view: memoryview) -> bool:
    return crc32c(view[_SUMMED:]) == int.from_bytes(view[_CHECKSUM], "big")


def _by_library() -> Callable[[memoryview], bool] | None:
    """Return the check by google-crc32c, None where it does not use the processor's instruction."""
    try:
        from google_crc32c import implementation, value
    except ImportError:  # pragma: no cover - it has no wheel for every machine
        return None
    if implementation != "c":  # pragma: no cover
        return None
    # a copy, since it takes no view; the instruction saves ten times the cost of the copy
    return lambda view: bool(value(bytes(view[_SUMMED:])) == int.from_bytes(view[_CHECKSUM], "big"))


_library = None if CRC_BY_PROCESSOR else _by_library()

CRC_IS_FAST: Final = CRC_BY_PROCESSOR or _library is not None

checksum_is_right: Final[Callable[[memoryview], bool]] = _library or _by_data_plane
"""Return whether a whole batch of format 2 has the checksum that it says."""


# For plain Python: both limits stay well below the 700 new objects at which Python looks for cyclic garbage. Otherwise
# each batch would set that off, which takes another 60 % of the time of a message.
DECODED_RECORDS: Final = 384  # A batch of at most so many is decoded in one go, which is fastest.
_SLAB = 256  # Records of a larger batch that are decoded at once.
MANY_RECORDS: Final = 65_536
"""A larger batch is read in parts: columns of small records take many times the bytes of the records."""
DECODED_BYTES: Final = 256 * 1024
"""Fewer large records are decoded at a time: as many as take about this many bytes, or one."""
_COUNT_AT, _COUNT = 57, Struct(">i").unpack_from


class CorruptRecordsError(InvalidMessageException):
    """An unreadable place in a message set.

    ``where`` and ``offset`` name the place, as far as its start can be told. ``next_offset`` is the offset to go on at
    if the place is given up. It is always beyond the requested offset.
    """

    def __init__(self, where: TopicPartition, offset: int, next_offset: int, reason: str) -> None:
        super().__init__(f"{where} at offset {offset}: {reason}", where, offset, next_offset)
        self.reason = reason

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.where, self.offset, self.next_offset, self.reason)


_UNTOLD: Final = Expansion()
"""For readers that need no limit and no count of decompressed bytes."""


def expanded(view: memoryview, limit: int) -> memoryview:
    """Return a compressed batch of format 2 as the same batch uncompressed, for readers that must not decompress it.

    Arguments: ``limit`` is the most bytes that the decompressed records may have. Raises: ValueError.
    """
    batch = decompress(view[BATCH_CODEC] & CODEC, view[BATCH_SIZE:], 2, limit, view[:BATCH_SIZE])
    batch[BATCH_CODEC] &= ~CODEC
    return batch


class RecordBatch:
    """Records of neighbouring offsets; iterate for its ``Record`` objects, any number of times.

    Records before the requested offset are left out. Iterating raises CorruptRecordsError (an
    InvalidMessageException) at an unreadable record.

    ``base_offset`` is the first offset that the batch covers, ``next_offset`` the one after its last, also if
    compaction removed records there. ``is_control`` marks a transaction marker, ``is_aborted`` a batch of an aborted
    transaction under read_committed. Both have no records, but their offsets count.

    ``wanted`` is not 0 for the one empty batch that stands for a set with nothing but the beginning of a batch. At
    least so many bytes must be fetched to get it, and ``next_offset == base_offset``.
    """

    __slots__ = ("_records", "base_offset", "expansion", "first", "next_offset", "view", "where")

    is_control: bool = False
    is_aborted: bool = False
    wanted: int = 0

    def __init__(
        self,
        where: TopicPartition,
        base_offset: int,
        next_offset: int,
        view: memoryview | None = None,
        first: int = 0,
        records: Iterable[Record] = (),
        expansion: Expansion | None = None,
    ) -> None:
        """Arguments: ``view`` is a batch of format 2, without its records before ``first``; ``records`` are the records
        themselves. Only one of the two is given. ``expansion`` limits the decompressed batch, and counts its bytes.
        """
        self.where = where
        self.base_offset = base_offset
        self.next_offset = next_offset
        self.view = view
        self.first = first
        self._records = records
        self.expansion = expansion or _UNTOLD

    def __repr__(self) -> str:
        return f"<RecordBatch {self.where} [{self.base_offset}, {self.next_offset})>"

    def __iter__(self) -> Iterator[Record]:
        if self.view is None:
            return iter(self._records)
        view = self._uncompressed(self.view)
        if COMPILED:
            return self._reader(view, self._failed)
        if len(view) <= DECODED_BYTES and _COUNT(view, _COUNT_AT)[0] <= DECODED_RECORDS:
            reader = self._reader(view)
            records = reader.take(DECODED_RECORDS)
            if reader.failure is None:
                return iter(records)
        return chain.from_iterable(self._slabs(view))

    @property
    def many(self) -> bool:
        """Whether there are so many records that they must not be taken all at once."""
        return self.view is not None and bool(_COUNT(self.view, _COUNT_AT)[0] > MANY_RECORDS)

    def in_parts(self) -> Iterator[RecordBatch]:
        """Return the same as batches of some hundred records. Raises CorruptRecordsError at an unreadable record."""
        reached = self.base_offset
        for records in self._lists():
            if records:
                end = records[-1].offset + 1
                yield RecordBatch(self.where, reached, end, None, 0, records)
                reached = end
        if reached < self.next_offset:
            yield RecordBatch(self.where, reached, self.next_offset)

    def _lists(self) -> Iterator[list[Record]]:
        """Return the records in lists, the last cut short before an unreadable record; then raise the error."""
        view = self.view
        assert view is not None
        return self._slabs(self._uncompressed(view))

    def _uncompressed(self, view: memoryview) -> memoryview:
        if not view[BATCH_CODEC] & CODEC:
            return view
        try:
            view = expanded(view, self.expansion.limit)
        except ValueError as failure:
            raise self._failed(self.base_offset, failure) from failure
        self.expansion.held = len(view)
        return view

    def _reader(self, view: memoryview, failed: Callable[[int, ValueError], Exception] | None = None) -> RecordReader:
        try:
            return RecordReader(view, self.base_offset, self.next_offset - self.base_offset, self.first, failed)
        except MalformedRecordError as failure:
            raise self._failed(self.base_offset, failure) from failure

    def _slabs(self, view: memoryview) -> Iterator[list[Record]]:
        reader = self._reader(view)
        at_a_time = max(1, min(_SLAB, DECODED_BYTES * reader.left // len(view)))
        while reader.left:
            slab = reader.take(at_a_time)
            if slab:
                yield slab
        if reader.failure is not None:
            raise self._failed(reader.reached, reader.failure) from reader.failure

    def _failed(self, offset: int, failure: ValueError) -> CorruptRecordsError:
        """Return the error for corrupt data. Arguments: ``offset`` is the one after the last readable record."""
        offset = max(offset, self.first)
        next_offset = max(self.next_offset, offset + 1)
        return CorruptRecordsError(self.where, offset, next_offset, f"a record cannot be read: {failure!r}")


class EmptyBatch(RecordBatch):
    """A batch without records, and the reason."""

    __slots__ = ("is_aborted", "is_control", "wanted")

    def __init__(
        self,
        where: TopicPartition,
        base_offset: int,
        next_offset: int,
        *,
        is_control: bool = False,
        is_aborted: bool = False,
        wanted: int = 0,
    ) -> None:
        super().__init__(where, base_offset, next_offset)
        self.is_control = is_control
        self.is_aborted = is_aborted
        self.wanted = wanted


# ---- for columns

# attributes, last offset delta, first and max timestamp, producer id, producer epoch, base sequence, count of records
_FIELDS = Struct(">hiqqqhii").unpack_from
_BASE = Struct(">q").unpack_from
_ATTRIBUTES = 21
_LOG_APPEND_TIME = 0x08

FROM_ANYWHERE: Final = -(2**63)
"""A ``first`` that every offset is after."""
NO_END: Final = 2**63 - 1
LARGEST_MS: Final = (2**63 - 1) // 1000
"""The largest timestamp that microseconds of 64 bits express."""


class StrangeBytesError(Exception):
    """The bytes are not as expected; the caller reads them record by record instead."""


class Block(NamedTuple):
    """A batch with its records unpacked.

    ``data`` holds ``total`` records, of which those from offset ``first`` on and before ``end`` are wanted.
    """

    data: memoryview
    total: int
    base_offset: int
    last_offset: int
    first_timestamp: int
    append_time: int | None
    first: int
    end: int


def block(view: memoryview, first: int, end: int | None, limit: int) -> Block:
    """Return the content of a batch of format 2, decompressed to at most ``limit`` bytes; see ``Block`` for the rest.

    Raises: StrangeBytesError.
    """
    attributes, last, oldest, newest, _, _, _, count = _FIELDS(view, _ATTRIBUTES)
    data = view[BATCH_SIZE:]
    if attributes & CODEC:
        try:
            data = decompress(attributes & CODEC, data, 2, limit)
        except ValueError as error:
            raise StrangeBytesError from error
    append_time = newest if attributes & _LOG_APPEND_TIME else None
    base = _BASE(view)[0]
    return Block(data, count, base, base + last, oldest, append_time, first, NO_END if end is None else end)
