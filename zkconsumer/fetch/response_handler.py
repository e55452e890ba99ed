"""What a fetch answer says of a partition, and what is done about it: queued, asked for more, given up or sorted out.

Threads: the fetcher's thread. The fetched offset moves on only after the chunk is queued (KAFKA-154), and is taken
from the data's own headers.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from zkconsumer.core.leader_epochs import NO_EPOCH, epoch_before, with_epochs
from zkconsumer.errors import LogTruncatedError, MessageSizeTooLargeException, UnreadableMessageError
from zkconsumer.fetch.fetch_session import Wanted
from zkconsumer.fetch.partition_fetch import FetchSettings, Flow
from zkconsumer.kafka import CorruptRecordsError, FetchedPartition
from zkconsumer.kafka import error_codes as codes
from zkconsumer.kafka.message_set_extent import (
    EPOCH_AT,
    EPOCH_END,
    NO_END,
    Extent,
    epochs_in,
    extent,
    offset_after_partial,
)

log = logging.getLogger(__name__)

NOTHING = Extent(None, False)


class Suspect(NamedTuple):
    """A chunk of another leader epoch than the chunk before it; its log may be another one."""

    flow: Flow
    asked: Wanted
    part: FetchedPartition
    epoch: int


class Told:
    """What a fetch answer said of partitions, by what is to be done about them."""

    __slots__ = ("corrupt", "moved", "out_of_range", "served", "suspect")

    def __init__(self) -> None:
        self.suspect: list[Suspect] = []
        self.served: list[Flow] = []
        self.moved: list[Flow] = []
        self.out_of_range: list[Flow] = []
        self.corrupt: list[tuple[Flow, CorruptRecordsError]] = []


class Judge:
    """Judges the answers of one broker."""

    def __init__(self, broker_id: int, settings: FetchSettings) -> None:
        self._broker_id = broker_id
        self._settings = settings

    def judge(self, flow: Flow, asked: Wanted, part: FetchedPartition, told: Told, *, follows: bool = False) -> None:
        """Take one partition's data, or find out what to do about it instead.

        Arguments: ``follows`` says that the leader's log is known to be the one that was read.
        """
        position = flow.position
        if position.revoked or position.fetched != asked.offset or position.fetch_from is not None:
            return  # it left, or moved, while the answer was under way
        if part.error == codes.NONE:
            try:
                if self._take(flow, asked, part, told, follows=follows):
                    told.served.append(flow)
            except CorruptRecordsError as e:
                told.corrupt.append((flow, e))
        elif part.error == codes.CORRUPT_MESSAGE:
            reason = f"broker {self._broker_id} cannot read it and answers {codes.name(part.error)}"
            told.corrupt.append((flow, CorruptRecordsError(flow.tp, asked.offset, asked.offset + 1, reason)))
        elif part.error == codes.OFFSET_OUT_OF_RANGE:
            told.out_of_range.append(flow)
        else:
            flow.note(f"{flow.tp}: broker {self._broker_id} answered {codes.name(part.error)}")
            told.moved.append(flow)

    def _take(self, flow: Flow, asked: Wanted, part: FetchedPartition, told: Told, *, follows: bool) -> bool:
        """Queue one partition's data; returns whether there was any. Raises CorruptRecordsError where not even the
        first batch can be told, or where it is cut off.
        """
        position = flow.position
        position.log_end = part.end(self._settings.isolation_level)
        log_end = part.high_watermark if part.high_watermark >= 0 else NO_END
        reach = extent(part.records, flow.tp, asked.offset, log_end) if part.records else NOTHING
        # nearly always the leader's epoch is the one of the last chunk, from the first batch to the last
        known, last = flow.epoch, reach.last + EPOCH_AT
        follows = follows or (known != b"" and part.records[EPOCH_AT:EPOCH_END] == known)
        read = (
            ()
            if follows and part.records[last : last + 4] == known
            else epochs_in(part.records, asked.offset, reach.last)
        )
        if read and not follows and NO_EPOCH < epoch_before(position.epochs, asked.offset) != read[0][1]:
            told.suspect.append(Suspect(flow, asked, part, read[0][1]))
            return False
        flow.trouble, flow.refusals = "", 0
        if reach.next_offset is None:
            if reach.wanted:
                self._grow(flow, asked, reach.wanted, part.records)
            return False
        if read:
            position.epochs = with_epochs(position.epochs, read)
            flow.epoch = part.records[last : last + 4]
        flow.sink.deliver(position, part.records, (asked.offset, reach.next_offset), part.aborted, reach.messages)
        # only now: an interruption before this line fetches the chunk again, after it nothing is lost (KAFKA-154)
        position.fetched = flow.reached = reach.next_offset
        flow.least = min(flow.least, self._settings.partition_bytes)  # one huge message makes no others
        return True

    def _grow(self, flow: Flow, asked: Wanted, wanted: int, records: bytes) -> None:
        """Ask for more where only a part of a message came, because it is larger than what was asked for (KAFKA-160,
        KAFKA-994).

        Raises CorruptRecordsError where the whole would have fitted and did not come twice: more of it will not come.
        """
        offset = asked.offset
        if wanted <= asked.max_bytes:
            if flow.cut_off != offset:
                flow.cut_off = offset  # once may be chance, and what is corrupt may be skipped: ask again
                return
            reason = f"the broker sent only {len(records)} of {wanted} bytes, and {asked.max_bytes} were asked for"
            raise CorruptRecordsError(flow.tp, offset, offset_after_partial(records, offset), reason)
        limit = max(self._settings.max_bytes, self._settings.partition_bytes)
        if wanted <= limit:
            flow.least = wanted
            log.info("%s: the message at offset %d needs a fetch of %d bytes", flow.tp, offset, wanted)
            return
        give_up(
            flow,
            MessageSizeTooLargeException(
                f"{flow.tp} at offset {offset}: the message takes {wanted} bytes, the largest fetch allowed is {limit}:"
                " raise fetch.max.bytes, or call skip() on the stream",
                flow.tp,
                offset,
                offset_after_partial(records, offset),
            ),
        )


def give_up(flow: Flow, error: UnreadableMessageError | LogTruncatedError) -> None:
    """Have the stream raise when it comes to that place, and fetch nothing behind it until it is given up there."""
    flow.parked = True
    flow.position.fetched = None  # before anybody can give the place up, which sets it
    flow.sink.fail(flow.position, error)
