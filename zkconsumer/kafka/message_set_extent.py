"""How far a message set reaches, from the heads of its batches alone.

Pure; called by fetchers, which must know where to read on before anybody has decoded the set (and while somebody does).
Mirrors what the original's fetcher does with the outer messages of a set, in all three formats.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple, NoReturn

from zkconsumer.core.leader_epochs import Epochs
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
from zkconsumer.model import TopicPartition

_OFFSET = Struct(">q").unpack_from
NO_END = 1 << 63
"""A log's end that is not known."""
_HEAD = Struct(">qii").unpack_from  # offset, size of what follows, leader epoch
_EPOCH = Struct(">i").unpack_from
EPOCH_AT, EPOCH_END = 12, 16
"""Where the leader epoch stands in a batch of format 2; in older formats other bytes stand there."""
_MAGIC, _START = 16, 12


class Extent(NamedTuple):
    """How far a set reaches.

    ``next_offset`` is the one to ask for next, after the last whole batch; None where no new batch is whole.
    ``partial`` says that the set ends inside a batch; ``wanted`` is at least how many bytes a fetch at the same
    offset must have to get that batch too. ``messages`` is how many new messages there are, as far as heads tell: those
    of older formats count with what was compacted away before them. ``last`` is where in the set the last whole batch
    begins.
    """

    next_offset: int | None
    partial: bool
    wanted: int = 0
    messages: int = 0
    last: int = 0


def extent(records: bytes, where: TopicPartition, fetch_offset: int, log_end: int = NO_END) -> Extent:
    """How far a set reaches that was fetched at ``fetch_offset``. Costs under a microsecond a batch.

    Arguments: ``log_end`` is how far the log is said to reach. A batch of format 2 that says it reaches further is
    believed only if its checksum is right: to go on where it says would be out of range, and look like another log.
    Raises CorruptRecordsError, naming the position, where the head of the first new batch makes no sense. One further
    behind ends the extent before it, so that what is good is not held back.
    """
    at, reached, messages, last, last_offset = 0, fetch_offset, 0, 0, -1
    looked_at = len(records) - START.size  # before that there is an offset
    try:
        while (head := read_head(records, at)) is not None:
            begins = at
            offset, next_offset, at, magic, attributes, _, count = head
            if magic < 2:
                # nearly always the offsets grow, and that is seen here at a third of the cost
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
    wanted = missing(records, at)
    return Extent(reached if reached > fetch_offset else None, wanted > 0, wanted, messages, last)


def _raise(failure: Exception, where: TopicPartition, offset: int) -> NoReturn:
    if isinstance(failure, CorruptRecordsError):
        raise failure
    raise CorruptRecordsError(where, offset, offset + 1, str(failure)) from failure


def _check(records: bytes, at: int, end: int, where: TopicPartition, reached: int) -> None:
    if not checksum_is_right(memoryview(records)[at:end]):
        raise corrupt_at(records, at, where, reached, "the checksum of a batch is wrong")


def offset_after_partial(records: bytes, fetch_offset: int) -> int:
    """Where to go on without the batch of which only a part came, for a set that holds nothing else new: after its
    last message where its head tells that, at least after ``fetch_offset``.
    """
    at = 0
    while (head := read_head(records, at)) is not None:
        at = head[2]
    return given_up(records, at, fetch_offset)


def epochs_in(records: bytes, fetch_offset: int, last: int) -> Epochs:
    """The epochs of a set of whole batches, each with the first offset in it that was asked for; none for sets of older
    formats, and for batches that name none.

    Arguments: ``last`` is where the last whole batch begins in the set. Almost always all have the first one's epoch,
    and nothing but two heads is looked at.
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
