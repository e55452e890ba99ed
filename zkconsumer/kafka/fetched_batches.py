"""Splits a message set, as brokers send it, into batches of records of formats 0, 1 and 2.

Responsible for finding the batches, for their checksums, for aborted transactions, for a message that does not fit, and
for the position of a corrupt place. Pure; used by the thread that reads a stream. A set is only read, never changed, so
several threads may read one.

:func:`extent` and :func:`epochs_in` read only the heads of the batches. Fetchers call them: they must know where to
fetch on before a stream has decoded the set, and while it does.

Sets of mixed formats exist after an upgrade of the brokers, so each batch is asked for its own. No size in a batch's
head is trusted.

Mirrors the original's ByteBufferMessageSet, its fetcher, which reads the outer messages of a set, and, for
transactions, the newer client's fetcher. Differs on purpose: records before the requested offset are never handed out.
The error for a corrupt place also names the offset to go on at.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from struct import Struct
from typing import NamedTuple, NoReturn

from zkconsumer.core.leader_epochs import Epochs
from zkconsumer.data_plane.batch_extent import plain_extent
from zkconsumer.data_plane.records import RecordReader
from zkconsumer.kafka.compression import Expansion
from zkconsumer.kafka.legacy_records import WrappedMessages, WrapperBatch, read_run
from zkconsumer.kafka.record_batch import (
    BATCH_CODEC,
    CODEC,
    CONTROL,
    MANY_RECORDS,
    START,
    TRANSACTIONAL,
    CorruptRecordsError,
    EmptyBatch,
    Head,
    MalformedSetError,
    RecordBatch,
    checksum_is_right,
    expanded,
    given_up,
    misplaced,
    missing,
    read_head,
)
from zkconsumer.model import TopicPartition, new_tuple

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


_OFFSET = Struct(">q").unpack_from
NO_END = 1 << 63
"""A log end that is not known."""
_HEAD = Struct(">qii").unpack_from  # offset, size of the rest, leader epoch
_EPOCH = Struct(">i").unpack_from
EPOCH_AT, EPOCH_END = 12, 16
"""The place of the leader epoch in a batch of format 2; older formats have other bytes there."""
_MAGIC, _START = 16, 12


class Extent(NamedTuple):
    """How far a set reaches.

    - ``next_offset``: the offset to fetch next, after the last whole batch; None if no new batch is whole
    - ``partial``: the set ends inside a batch
    - ``wanted``: bytes that a fetch at the same offset must have at least to get that batch too
    - ``messages``: the number of new messages, as far as heads tell; older formats count compacted messages as well
    - ``last``: where in the set the last whole batch begins
    """

    next_offset: int | None
    partial: bool
    wanted: int = 0
    messages: int = 0
    last: int = 0


def extent(records: bytes, where: TopicPartition, fetch_offset: int, log_end: int = NO_END) -> Extent:
    """Return how far a set reaches that was fetched at ``fetch_offset``. Costs under a microsecond a batch.

    Arguments: ``log_end`` is the end of the log as the leader says. A batch of format 2 that says it reaches further is
    believed only if its checksum is right. Otherwise the next fetch would be out of range, and look like another log.
    Raises: CorruptRecordsError, with the position, if the head of the first new batch makes no sense. A later bad head
    ends the extent, so that the good batches before are not held back.
    """
    total = len(records)
    if (plain := plain_extent(records, fetch_offset, log_end if log_end < NO_END else -1)) is not None:
        reached, messages, last, at = plain
        wanted = missing(records, at) if at < total else 0
        fields = (reached if reached > fetch_offset else None, wanted > 0, wanted, messages, last)
        return new_tuple(Extent, fields)  # type: ignore[no-any-return]
    return closer_extent(records, where, fetch_offset, log_end)


def closer_extent(records: bytes, where: TopicPartition, fetch_offset: int, log_end: int) -> Extent:
    """Return what :func:`extent` does, for sets of any format and with any faults."""
    at, reached, messages, last, last_offset = 0, fetch_offset, 0, 0, -1
    total = len(records)
    looked_at = total - START.size  # before that there is an offset
    try:
        while at < total and (head := read_head(records, at)) is not None:
            begins = at
            offset, next_offset, at, magic, attributes, _, count = head
            if magic < 2:
                # nearly always the offsets grow; this finds that at a third of the cost
                grow = last_offset < offset and at < looked_at and offset < _OFFSET(records, at)[0]
                beyond = None if grow else misplaced(records, head, last_offset, reached)
                if beyond is not None:
                    if beyond > reached:
                        raise MalformedSetError(f"a message says that its offset is {offset}")
                    continue
            elif next_offset > log_end:
                _check(records, begins, at, where, reached)
            last, last_offset = begins, next_offset - 1
            if next_offset > reached:
                passed = next_offset - reached
                if magic < 2:
                    messages += passed
                elif not attributes & CONTROL:
                    messages += min(count, passed)
                reached = next_offset
    except (CorruptRecordsError, MalformedSetError) as failure:
        if reached == fetch_offset:
            _raise(failure, where, fetch_offset)
        return Extent(reached, False, 0, messages, last)
    wanted = missing(records, at) if at < total else 0
    return Extent(reached if reached > fetch_offset else None, wanted > 0, wanted, messages, last)


def _raise(failure: Exception, where: TopicPartition, offset: int) -> NoReturn:
    if isinstance(failure, CorruptRecordsError):
        raise failure
    raise CorruptRecordsError(where, offset, offset + 1, str(failure)) from failure


def _check(records: bytes, at: int, end: int, where: TopicPartition, reached: int) -> None:
    if not checksum_is_right(memoryview(records)[at:end]):
        raise corrupt_at(records, at, where, reached, "the checksum of a batch is wrong")


def offset_after_partial(records: bytes, fetch_offset: int) -> int:
    """Return the offset after an incomplete batch, in a set with no other new batch.

    That is after the batch's last message if its head tells that, and at least after ``fetch_offset``.
    """
    at = 0
    while (head := read_head(records, at)) is not None:
        at = head[2]
    return given_up(records, at, fetch_offset)


def epochs_in(records: bytes, fetch_offset: int, last: int) -> Epochs:
    """Return the leader epochs of a set of whole batches, each with its first requested offset.

    Sets of older formats have none, and batches may name none. Arguments: ``last`` is where the last whole batch
    begins. Almost always all have the first one's epoch, and only two heads are read.
    """
    if len(records) <= _MAGIC or records[_MAGIC] != 2:
        return ()
    first, _, epoch = _HEAD(records, 0)
    if epoch == _EPOCH(records, last + EPOCH_AT)[0]:
        return ((max(first, fetch_offset), epoch),) if epoch >= 0 else ()
    found: list[tuple[int, int]] = []
    at = 0
    while at <= last:
        first, size, epoch = _HEAD(records, at)
        if records[at + _MAGIC] == 2 and epoch >= 0 and (not found or found[-1][1] != epoch):
            found.append((max(first, fetch_offset), epoch))
        at += _START + size
    return tuple(found)
