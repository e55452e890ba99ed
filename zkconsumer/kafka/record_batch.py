"""A batch of records, and the error for a corrupt one. Pure.

The reader of a message set hands a batch to its iterator, one thread at a time. This is the hot path: aiokafka's
compiled class makes the records of format 2, and they come out in slabs through C iterators. So no line of Python runs
for each record.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice, pairwise
from struct import Struct
from typing import Any, Final

from aiokafka.record.default_records import DefaultRecordBatch

from zkconsumer.errors import InvalidMessageException
from zkconsumer.kafka.batch_headers import BATCH_CODEC, BATCH_SIZE, CODEC
from zkconsumer.kafka.compression import Expansion, decompress
from zkconsumer.kafka.python_record_parser import read_leniently
from zkconsumer.model import TopicPartition

logger = logging.getLogger(__name__)

COMPILED: Final[bool] = "_crecords" in DefaultRecordBatch.__module__
"""Whether aiokafka's compiled record classes are there; without them everything works, slowly."""

if not COMPILED:
    logger.warning("aiokafka's compiled record classes are missing: records are read by Python code, many times slower")

# Both limits stay well below the 700 new objects at which Python looks for cyclic garbage. Otherwise each batch would
# set that off, which takes another 60 % of the time of a message.
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


def ascend(records: Sequence[Any], first: int, end: int) -> bool:
    """Return whether the offsets of some records grow, begin at ``first`` or later and end before ``end``.

    If the first and the last show that they go up one by one, the others are not compared.
    """
    low, high = records[0].offset, records[-1].offset
    if not first <= low <= high < end:
        return False
    return high - low == len(records) - 1 or all(a.offset < b.offset for a, b in pairwise(records))


class RecordBatch:
    """Records of neighbouring offsets; iterate for aiokafka's record objects, any number of times.

    A record has ``offset``, ``timestamp`` (ms, -1 for none), ``timestamp_type`` (0 CreateTime, 1 LogAppendTime, -1
    none), ``key`` and ``value`` (bytes or None) and ``headers``, a list of (str, bytes or None). Records before the
    requested offset are left out. Iterating raises CorruptRecordsError (an InvalidMessageException) at an unreadable
    record.

    ``base_offset`` is the first offset that the batch covers, ``next_offset`` the one after its last, also if
    compaction removed records there. ``is_control`` marks a transaction marker, ``is_aborted`` a batch of an aborted
    transaction under read_committed. Both have no records, but their offsets count.

    ``wanted`` is not 0 for the one empty batch that stands for a set with nothing but the beginning of a batch. At
    least so many bytes must be fetched to get it, and ``next_offset == base_offset``.
    """

    __slots__ = ("_first", "_records", "_view", "base_offset", "expansion", "next_offset", "where")

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
        records: Iterable[Any] = (),
        expansion: Expansion | None = None,
    ) -> None:
        """Arguments: ``view`` is a batch of format 2, without its records before ``first``; ``records`` are the records
        themselves. Only one of the two is given. ``expansion`` limits the decompressed batch, and counts its bytes.
        """
        self.where = where
        self.base_offset = base_offset
        self.next_offset = next_offset
        self._view = view
        self._first = first
        self._records = records
        self.expansion = expansion or _UNTOLD

    def __repr__(self) -> str:
        return f"<RecordBatch {self.where} [{self.base_offset}, {self.next_offset})>"

    def __iter__(self) -> Iterator[Any]:
        if self._view is None:
            return iter(self._records)
        view = self._view
        if view[BATCH_CODEC] & CODEC:
            view = self._expanded(view)
        if (
            len(view) <= DECODED_BYTES
            and _COUNT(view, _COUNT_AT)[0] <= DECODED_RECORDS
            and self._first <= self.base_offset
        ):
            try:
                records = list(DefaultRecordBatch(view))
            except MemoryError:
                raise
            except Exception as failed:  # noqa: BLE001 - the exact way raises it, after the good records before it
                return chain.from_iterable(self._slabs(view, failed))
            base, last = self.base_offset, self.base_offset + len(records) - 1
            as_usual = last < self.next_offset and records[0].offset == base and records[-1].offset == last
            if as_usual or ascend(records, base, self.next_offset):
                return iter(records)
        return chain.from_iterable(self._slabs(view))

    @property
    def many(self) -> bool:
        """Whether there are so many records that they must not be taken all at once."""
        return self._view is not None and bool(_COUNT(self._view, _COUNT_AT)[0] > MANY_RECORDS)

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

    def _lists(self) -> Iterator[list[Any]]:
        """Return the records in lists, the last cut short before an unreadable record; then raise the error."""
        view = self._view
        assert view is not None
        return self._slabs(self._expanded(view) if view[BATCH_CODEC] & CODEC else view)

    def _expanded(self, view: memoryview) -> memoryview:
        try:
            view = expanded(view, self.expansion.limit)
        except ValueError as failure:
            raise self._failed(max(self.base_offset, self._first), failure) from failure
        self.expansion.held = len(view)
        return view

    def _slabs(self, view: memoryview, before: Exception | None = None) -> Iterator[list[Any]]:
        """Return the records in lists, the last cut short before an unreadable record; then raise the error. Arguments:
        ``before`` is the error of a quicker try. If all records can be read, a signal handler raised it.
        """
        first = self._first if self._first > self.base_offset else 0
        unread = self.base_offset
        reached, done, more = max(unread, first), 0, True
        at_a_time = max(1, min(_SLAB, DECODED_BYTES * _COUNT(view, _COUNT_AT)[0] // len(view)))
        failure: Exception | None = None
        slab: list[Any] = []
        try:
            records: Iterator[Any] = chain(
                DefaultRecordBatch(view)
            )  # the library's own iterator cannot be asked for iter() again
        except Exception as error:
            raise self._failed(reached, error) from error
        while more:
            slab = []
            try:
                slab.extend(islice(records, at_a_time))  # what was read before an error stays in the list
                more = len(slab) == at_a_time
            except UnicodeDecodeError:
                records = chain(islice(read_leniently(view), done + len(slab), None))
            except Exception as error:  # noqa: BLE001 - see _failed
                failure, more = error, False
            done += len(slab)
            if slab and not ascend(slab, unread, self.next_offset):
                slab, failure, more = _ascending(slab, unread, self.next_offset), _DISORDER, False
            if slab:
                unread = slab[-1].offset + 1
                reached = max(unread, reached)
                yield slab if not first else [record for record in slab if record.offset >= first]
        if failure is not None:
            raise self._failed(reached, failure) from failure
        if before is not None and not isinstance(before, UnicodeDecodeError):  # that is read leniently
            raise before

    def _failed(self, offset: int, failure: Exception) -> CorruptRecordsError:
        """Return the error for corrupt data; the library and the codecs raise many kinds, with no base in common."""
        next_offset = max(self.next_offset, offset + 1)
        return CorruptRecordsError(self.where, offset, next_offset, f"a record cannot be read: {failure!r}")


_DISORDER: Final = ValueError("its offset is not between that of the one before and the batch's end")


def _ascending(records: Sequence[Any], first: int, end: int) -> list[Any]:
    """Return the records before the first whose offset does not grow, or is not within the batch."""
    good: list[Any] = []
    for record in records:
        if not first <= record.offset < end:
            break
        good.append(record)
        first = record.offset + 1
    return good


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
