"""Splits a message set, as brokers send it, into batches of records of formats 0, 1 and 2.

Responsible for finding the batches, for their checksums, for aborted transactions, for a message that does not fit, and
for the position of a corrupt place. Pure; used by the thread that reads a stream. A set is only read, never changed, so
several threads may read one.

Sets of mixed formats exist after an upgrade of the brokers, so each batch is asked for its own. No size in a batch's
head is trusted.

Mirrors the original's ByteBufferMessageSet and, for transactions, the newer client's fetcher. Differs on purpose:
records before the requested offset are never handed out. The error for a corrupt place also names the offset to go on
at.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from struct import Struct

from zkconsumer.data_plane.records import RecordReader
from zkconsumer.kafka.batch_headers import (
    BATCH_CODEC,
    CODEC,
    CONTROL,
    START,
    TRANSACTIONAL,
    Head,
    MalformedSetError,
    checksum_is_right,
    misplaced,
    missing,
    read_head,
)
from zkconsumer.kafka.compression import Expansion
from zkconsumer.kafka.legacy_records import WrappedMessages, WrapperBatch, read_run
from zkconsumer.kafka.record_batch import MANY_RECORDS, CorruptRecordsError, EmptyBatch, RecordBatch, expanded
from zkconsumer.model import TopicPartition

__all__ = ["CorruptRecordsError", "RecordBatch", "batches"]

_CONTROL_KEY = Struct(">hh")  # version, type
_ABORT = 0
_ALL_OFFSETS = 1 << 31  # in a batch


def batches(
    records: bytes,
    *,
    check_crc: bool,
    where: TopicPartition,
    fetch_offset: int,
    aborted: Sequence[tuple[int, int]] = (),
    read_committed: bool = False,
    expansion: Expansion | None = None,
    end: int = 1 << 63,
) -> Iterator[RecordBatch]:
    """Return the batches of a message set, in order.

    A batch that is cut off at the end is left out. If there is nothing else, one empty batch stands for it
    (``wanted``).

    Arguments: ``fetch_offset`` is the requested offset; batches and records before it are left out. ``where`` is for
    errors. ``aborted`` are (producer id, first offset) from the response, used with ``read_committed``. ``expansion``
    limits the decompressed batches. ``end`` is the end of the set by its extent: nothing behind it is read, and a batch
    that reaches further is corrupt. Raises: CorruptRecordsError (an InvalidMessageException) at a corrupt place, after
    the batches before it. To go on after it, call again with its ``next_offset`` as ``fetch_offset``, or fetch from
    there.
    """
    expansion = expansion or Expansion()
    transactions = _Transactions(aborted, expansion) if read_committed and aborted else None
    view = memoryview(records)
    at, reached, last = 0, fetch_offset, -1
    while reached < end:
        try:
            head = read_head(records, at)
            if head is None:
                break
            offset, next_offset, stop, magic, *_ = head
            if magic < 2:
                beyond = misplaced(records, head, last, reached)
                if beyond is not None and beyond > reached:
                    raise CorruptRecordsError(where, reached, beyond, f"a message says that its offset is {offset}")
                last = offset if beyond is None else last
                if beyond is not None or next_offset <= reached:
                    at = stop
                    continue
                batch, at = _legacy(records, at, where, reached, check_crc, expansion)
            elif next_offset <= reached:  # not read, so that reading can go on after a corrupt place of the same set
                if transactions is not None and reached == fetch_offset:
                    transactions.skip(head, view[at:stop])
                at, last = stop, next_offset - 1
                continue
            else:
                batch = _batch(head, view[at:stop], where, reached, check_crc, transactions, expansion)
                at = stop
            if batch.next_offset > end:
                raise CorruptRecordsError(where, reached, end, f"a batch ends at offset {batch.next_offset}")
        except MalformedSetError as failure:
            raise corrupt_at(records, at, where, reached, str(failure)) from failure
        reached = batch.next_offset
        last = reached - 1
        if (magic < 2 or head[6] > MANY_RECORDS) and batch.many:
            yield from batch.in_parts()
        else:
            yield batch
    if reached == fetch_offset < end and (size := missing(records, at)):
        yield EmptyBatch(where, fetch_offset, fetch_offset, wanted=size)


def _batch(
    head: Head,
    view: memoryview,
    where: TopicPartition,
    first: int,
    check_crc: bool,
    transactions: _Transactions | None,
    expansion: Expansion,
) -> RecordBatch:
    """Return a batch of format 2. Raises: MalformedSetError for a wrong checksum, a wrong count or an unreadable
    transaction marker.
    """
    if check_crc and not checksum_is_right(view):
        raise MalformedSetError("the checksum of a batch is wrong")
    offset, next_offset, _, _, attributes, _, total = head
    if total > next_offset - offset:
        raise MalformedSetError(f"a batch says that it has {total} records for {next_offset - offset} offsets")
    is_aborted = transactions is not None and transactions.observe(head, view)
    is_control = attributes & CONTROL != 0
    if is_control or is_aborted:
        return EmptyBatch(where, offset, next_offset, is_control=is_control, is_aborted=is_aborted and not is_control)
    return RecordBatch(where, offset, next_offset, view if total else None, first, (), expansion)


def _legacy(
    records: bytes, at: int, where: TopicPartition, first: int, check_crc: bool, expansion: Expansion
) -> tuple[RecordBatch, int]:
    """Return messages of formats 0 and 1, and where the next ones start. Raises MalformedSetError."""
    run = read_run(records, at, len(records), check_crc, expansion)
    base, found = run.base_offset, run.records
    if isinstance(found, WrappedMessages):
        if not found.few:
            return WrapperBatch(where, base, run.next_offset, None, first, found), run.end
        found = list(found)
    if base < first:
        found = [record for record in found if record.offset >= first]
    return RecordBatch(where, base, run.next_offset, None, 0, found), run.end


def corrupt_at(records: bytes, at: int, where: TopicPartition, reached: int, reason: str) -> CorruptRecordsError:
    """Return the error for the corrupt place at ``at``, with the offset to go on at, as far as the neighbours tell it.

    A wrong checksum makes the batch's own last offset doubtful, and a wild one would skip good messages. So the last
    offset counts only if it agrees with the number of records. The start of the next batch is better evidence.
    """
    if len(records) - at < START.size:
        return CorruptRecordsError(where, reached, reached + 1, reason)
    base = int(START.unpack_from(records, at)[0])
    offset = max(base, reached)
    next_offset = 0
    try:
        head = read_head(records, at)
        if head is not None:
            _, after, end, magic, _, _, total = head
            following = read_head(records, end) if magic == 2 else None
            if following is not None and following[3] == 2 and following[0] > offset:
                next_offset = following[0]
            elif magic < 2 or after == base + total:
                next_offset = after
    except MalformedSetError:
        pass
    return CorruptRecordsError(where, offset, max(next_offset, reached + 1), reason)


class _Transactions:
    """Tells which producers' records belong to an aborted transaction, while the batches go by in order. A broker sends
    with a read_committed response the (producer id, first offset) of its aborted transactions. Each ends at its
    producer's next abort marker.
    """

    def __init__(self, aborted: Sequence[tuple[int, int]], expansion: Expansion) -> None:
        self._limit = expansion.limit
        self._coming = sorted(((first, producer) for producer, first in aborted), reverse=True)
        self._open: set[int] = set()

    def observe(self, head: Head, view: memoryview) -> bool:
        """Return whether the records of this batch are aborted. Raises MalformedSetError for an unreadable marker."""
        _, next_offset, _, _, attributes, producer_id, _ = head
        while self._coming and self._coming[-1][0] < next_offset:
            self._open.add(self._coming.pop()[1])
        if producer_id not in self._open or not attributes & TRANSACTIONAL:
            return False
        if attributes & CONTROL and _marker(view, self._limit) == _ABORT:
            self._open.discard(producer_id)
        return True

    def skip(self, head: Head, view: memoryview) -> None:
        """Pass a batch before the requested offset, which may be corrupt and need not be read."""
        with suppress(MalformedSetError):
            self.observe(head, view)


def _marker(view: memoryview, limit: int) -> int:
    """Return the kind of a transaction marker: 0 abort, 1 commit; -1 if compaction removed the record."""
    try:
        if view[BATCH_CODEC] & CODEC:
            view = expanded(view, limit)
        reader = RecordReader(view, 0, _ALL_OFFSETS, 0)
        for record in reader.take(1):
            if record.key is None or len(record.key) < _CONTROL_KEY.size:
                raise ValueError("its key does not say its kind")
            return int(_CONTROL_KEY.unpack_from(record.key)[1])
        if reader.failure is not None:
            raise reader.failure
    except ValueError as failure:
        raise MalformedSetError(f"a transaction marker cannot be read: {failure!r}") from failure
    return -1
