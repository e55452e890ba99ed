"""Finds how far a message set reaches, and its leader epochs, from the heads of its batches alone. Pure.

Fetchers call it. They must know where to fetch on before a stream has decoded the set, and while it does. Mirrors the
original's fetcher, which reads the outer messages of a set, for all three formats.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple, NoReturn

from zkconsumer.core.leader_epochs import Epochs
from zkconsumer.data_plane.batch_extent import plain_extent
from zkconsumer.kafka.batch_headers import (
    CONTROL,
    START,
    MalformedSetError,
    checksum_is_right,
    given_up,
    misplaced,
    missing,
    read_head,
)
from zkconsumer.kafka.message_set import corrupt_at
from zkconsumer.kafka.record_batch import CorruptRecordsError
from zkconsumer.model import TopicPartition, new_tuple

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
