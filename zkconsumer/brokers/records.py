"""Message sets as brokers send them -> batches of records, formats 0, 1 and 2.

Responsible for: finding the batches, their checksums, the transactions that were aborted, the message that does not
fit, and the position of whatever is corrupt. Pure; used by the thread that reads a stream (``batches``) and by a
fetcher that wants to know where to read on (``extent``). A set is only read, never changed, so several threads may
read one.

The batches are found here and not by aiokafka's ``MemoryRecords``, which takes the format of the first batch for that
of all (sets of mixed formats exist after an upgrade of the brokers) and trusts the sizes in a batch's head.

Mirrors the original's ByteBufferMessageSet and the newer client's fetcher (transactions). Differs on purpose: records
before the asked offset are never handed out, and a corrupt place is named together with where one can go on after it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from struct import Struct

from aiokafka.record.default_records import DefaultRecordBatch

from zkconsumer.brokers.checksum import checksum_is_right
from zkconsumer.brokers.heads import CONTROL, START, TRANSACTIONAL, Head, MalformedSetError, missing, read_head
from zkconsumer.brokers.legacy_records import read_run
from zkconsumer.brokers.record_batch import CorruptRecordsError, EmptyBatch, RecordBatch
from zkconsumer.model import TopicPartition

__all__ = ["CorruptRecordsError", "RecordBatch", "batches"]

_CONTROL_KEY = Struct(">hh")  # version, type
_ABORT = 0


def batches(
    records: bytes,
    *,
    check_crc: bool,
    where: TopicPartition,
    fetch_offset: int,
    aborted: Sequence[tuple[int, int]] = (),
    read_committed: bool = False,
) -> Iterator[RecordBatch]:
    """The batches of a message set, in order.

    Arguments: ``fetch_offset`` is the offset that was asked for: batches wholly before it are left out, and records
    before it; ``where`` is for errors; ``aborted`` the (producer id, first offset) from the answer, used with
    ``read_committed``. A batch that is cut off at the end is left out, but if there is nothing else one batch stands
    for it (``wanted``). Raises CorruptRecordsError (an InvalidMessageException) at a corrupt place, after the batches
    before it. To go on after it, call again with its ``next_offset`` as ``fetch_offset``, or fetch from there.
    """
    transactions = _Transactions(aborted) if read_committed and aborted else None
    view = memoryview(records)
    at, reached = 0, fetch_offset
    while True:
        try:
            head = read_head(records, at)
            if head is None:
                break
            _, next_offset, end, magic, *_ = head
            if next_offset <= reached:  # not looked into: after a corrupt place one can go on with the same set
                if magic == 2 and transactions is not None and reached == fetch_offset:
                    transactions.skip(head, view[at:end])
                at = end
                continue
            if magic == 2:
                batch = _batch(head, view[at:end], where, reached, check_crc, transactions)
                at = end
            else:
                batch, at = _legacy(records, at, where, reached, check_crc)
        except MalformedSetError as failure:
            raise _corrupt(records, at, where, reached, str(failure)) from failure
        reached = batch.next_offset
        yield batch
    if reached == fetch_offset and (size := missing(records, at)):
        yield EmptyBatch(where, fetch_offset, fetch_offset, wanted=size)


def _batch(
    head: Head,
    view: memoryview,
    where: TopicPartition,
    first: int,
    check_crc: bool,
    transactions: _Transactions | None,
) -> RecordBatch:
    """A batch of format 2. Raises MalformedSetError for a wrong checksum or an unreadable transaction marker."""
    if check_crc and not checksum_is_right(view):
        raise MalformedSetError("the checksum of a batch is wrong")
    offset, next_offset, _, _, attributes, _, total = head
    is_aborted = transactions is not None and transactions.observe(head, view)
    is_control = attributes & CONTROL != 0
    if is_control or is_aborted:
        return EmptyBatch(where, offset, next_offset, is_control=is_control, is_aborted=is_aborted and not is_control)
    return RecordBatch(where, offset, next_offset, view if total else None, first)


def _legacy(records: bytes, at: int, where: TopicPartition, first: int, check_crc: bool) -> tuple[RecordBatch, int]:
    """Messages of formats 0 and 1, and where the next ones start. Raises MalformedSetError."""
    run = read_run(records, at, len(records), check_crc)
    base, found = run.records[0].offset, run.records
    if base < first:
        found = [record for record in found if record.offset >= first]
    return RecordBatch(where, base, run.next_offset, None, 0, found), run.end


def _corrupt(records: bytes, at: int, where: TopicPartition, reached: int, reason: str) -> CorruptRecordsError:
    """The error for the place at ``at``, with the next offset as far as the neighbours tell it.

    A wrong checksum makes the batch's own last offset doubtful (a wild one would skip good messages), so it counts
    only if it agrees with the number of records; better known is where the next batch starts.
    """
    if len(records) - at < START.size:
        return CorruptRecordsError(where, reached, reached + 1, reason)
    offset = max(int(START.unpack_from(records, at)[0]), 0)
    next_offset = 0
    try:
        head = read_head(records, at)
        if head is not None:
            _, after, end, magic, _, _, total = head
            following = read_head(records, end) if magic == 2 else None
            if following is not None and following[3] == 2 and following[0] > offset:
                next_offset = following[0]
            elif magic < 2 or after == offset + total:
                next_offset = after
    except MalformedSetError:
        pass
    return CorruptRecordsError(where, offset, max(next_offset, reached + 1), reason)


class _Transactions:
    """Which producers' records belong to an aborted transaction, while the batches go by in order.

    A broker sends with a read_committed answer the (producer id, first offset) of the aborted transactions in it;
    each ends at its producer's next abort marker.
    """

    def __init__(self, aborted: Sequence[tuple[int, int]]) -> None:
        self._coming = sorted(((first, producer) for producer, first in aborted), reverse=True)
        self._open: set[int] = set()

    def observe(self, head: Head, view: memoryview) -> bool:
        """Whether the records of this batch are aborted. Raises MalformedSetError for an unreadable marker."""
        _, next_offset, _, _, attributes, producer_id, _ = head
        while self._coming and self._coming[-1][0] < next_offset:
            self._open.add(self._coming.pop()[1])
        if producer_id not in self._open or not attributes & TRANSACTIONAL:
            return False
        if attributes & CONTROL and _marker(view) == _ABORT:
            self._open.discard(producer_id)
        return True

    def skip(self, head: Head, view: memoryview) -> None:
        """A batch before the asked offset went by, which may be corrupt and need not be read."""
        with suppress(MalformedSetError):
            self.observe(head, view)


def _marker(view: memoryview) -> int:
    """The kind of a transaction marker: 0 abort, 1 commit; -1 where compaction removed the record."""
    try:
        for record in DefaultRecordBatch(view):
            return int(_CONTROL_KEY.unpack_from(record.key)[1])
    except Exception as failure:
        raise MalformedSetError(f"a transaction marker cannot be read: {failure!r}") from failure
    return -1
