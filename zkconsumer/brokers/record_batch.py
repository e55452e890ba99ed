"""A batch of records and what can be wrong with it.

Pure. A batch is handed from the reader of a message set to whoever iterates it, one thread at a time.

The hot path: records of format 2 are made by aiokafka's compiled class and come out in slabs through C iterators, so
that no line of Python runs for each.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from struct import Struct
from typing import Any, Final

from aiokafka.record.default_records import DefaultRecordBatch

from zkconsumer.brokers.heads import BATCH_CODEC, CODEC
from zkconsumer.brokers.lenient_records import read_leniently
from zkconsumer.errors import InvalidMessageException
from zkconsumer.model import TopicPartition

logger = logging.getLogger(__name__)

COMPILED: Final[bool] = "_crecords" in DefaultRecordBatch.__module__
"""Whether aiokafka's compiled record classes are there; without them everything works, slowly."""

if not COMPILED:
    logger.warning("aiokafka's compiled record classes are missing: records are read by Python code, many times slower")

DECODED_RECORDS: Final = 384  # of a batch that is decoded in one go, which is the fastest way
_WHOLE_COMPRESSED = 4096  # bytes, which may become much more
_SLAB = 256  # records that are decoded at once otherwise: enough to spread the cost, few enough to hold
# Both stay well below the 700 new objects at which Python looks for cyclic garbage: more, and each batch sets that off,
# which takes another 60 % of the time of a message.
DECODED_BYTES: Final = 256 * 1024
"""Of large records fewer are decoded at a time: as many as are about this large together, or one."""
_COUNT_AT, _COUNT = 57, Struct(">i").unpack_from


class CorruptRecordsError(InvalidMessageException):
    """A place in a message set that cannot be read.

    ``where`` and ``offset`` name it (the offset at which it starts, as far as that can be told); ``next_offset`` is
    where one can go on if the place is given up, always beyond the offset that was asked for.
    """

    def __init__(self, where: TopicPartition, offset: int, next_offset: int, reason: str) -> None:
        super().__init__(f"{where} at offset {offset}: {reason}", where, offset, next_offset)
        self.reason = reason

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.where, self.offset, self.next_offset, self.reason)


class RecordBatch:
    """Records of neighbouring offsets; iterate for aiokafka's record objects, as often as wanted.

    A record has ``offset``, ``timestamp`` (ms, -1 for none), ``timestamp_type`` (0 CreateTime, 1 LogAppendTime, -1
    none), ``key`` and ``value`` (bytes or None) and ``headers``, a list of (str, bytes or None). Records before the
    asked offset are left out. Iterating raises CorruptRecordsError (an InvalidMessageException) where a record cannot
    be read.

    ``base_offset`` is the first offset that the batch covers, ``next_offset`` the one after its last, whether or not
    records are left there (compaction). ``is_control`` marks a transaction marker, ``is_aborted`` a batch of an
    aborted transaction under read_committed; both have no records, but their offsets count. ``wanted`` is not 0 for
    the one batch that stands for a set with nothing but the beginning of a batch: at least so many bytes must be
    fetched to get it, and there are no records and no progress (``next_offset == base_offset``).
    """

    __slots__ = ("_first", "_records", "_view", "base_offset", "next_offset", "where")

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
        records: Sequence[Any] = (),
    ) -> None:
        """Arguments: either ``view``, the bytes of a batch of format 2 of which records before ``first`` are not
        wanted, or the ``records`` themselves, or neither.
        """
        self.where = where
        self.base_offset = base_offset
        self.next_offset = next_offset
        self._view = view
        self._first = first
        self._records = records

    def __repr__(self) -> str:
        return f"<RecordBatch {self.where} [{self.base_offset}, {self.next_offset})>"

    def __iter__(self) -> Iterator[Any]:
        if self._view is None:
            return iter(self._records)
        view = self._view
        size = len(view)
        small = size <= _WHOLE_COMPRESSED or (size <= DECODED_BYTES and not view[BATCH_CODEC] & CODEC)
        if small and _COUNT(view, _COUNT_AT)[0] <= DECODED_RECORDS and self._first <= self.base_offset:
            try:
                return iter(list(DefaultRecordBatch(view)))
            except Exception:  # noqa: BLE001, S110 - told by the exact way, which hands out what is good before it
                pass
        return chain.from_iterable(self._slabs(view))

    def _slabs(self, view: memoryview) -> Iterator[list[Any]]:
        """The records in lists, the last cut short before a record that cannot be read; then the error."""
        first = self._first if self._first > self.base_offset else 0
        reached, done, more = max(self.base_offset, first), 0, True
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
            if slab:
                reached = max(slab[-1].offset + 1, reached)
                yield slab if not first else [record for record in slab if record.offset >= first]
        if failure is not None:
            raise self._failed(reached, failure) from failure

    def _failed(self, offset: int, failure: Exception) -> CorruptRecordsError:
        """The library and the codecs raise errors of many kinds for corrupt data, with no base in common."""
        return CorruptRecordsError(self.where, offset, self.next_offset, f"a record cannot be read: {failure!r}")


class EmptyBatch(RecordBatch):
    """A batch without records that says why."""

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
