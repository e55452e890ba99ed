"""What a fetch answer says of a partition, and what is done about it: queued, asked for more, given up or sorted out.

Threads: the fetcher's thread. The fetched offset moves on only after the chunk is queued (KAFKA-154), and is taken
from the data's own headers.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from zkconsumer.core.leader_epochs import NO_EPOCH, epoch_before, with_epochs
from zkconsumer.errors import LogTruncatedError, MessageSizeTooLargeException, UnreadableMessageError
from zkconsumer.fetch.fetch_session import FetchRange
from zkconsumer.fetch.partition_fetch import FetchSettings, PartitionFetch
from zkconsumer.kafka import CorruptRecordsError, PartitionResponse
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


class SuspectResponse(NamedTuple):
    """A chunk of another leader epoch than the chunk before it; its log may be another one."""

    fetch: PartitionFetch
    request: FetchRange
    response: PartitionResponse
    epoch: int


class Outcomes:
    """What a fetch answer said of partitions, by what is to be done about them."""

    __slots__ = ("corrupt", "moved", "out_of_range", "served", "suspects")

    def __init__(self) -> None:
        self.suspects: list[SuspectResponse] = []
        self.served: list[PartitionFetch] = []
        self.moved: list[PartitionFetch] = []
        self.out_of_range: list[PartitionFetch] = []
        self.corrupt: list[tuple[PartitionFetch, CorruptRecordsError]] = []


class ResponseHandler:
    """Judges the answers of one broker."""

    def __init__(self, broker_id: int, settings: FetchSettings) -> None:
        self._broker_id = broker_id
        self._settings = settings

    def handle(
        self,
        fetch: PartitionFetch,
        request: FetchRange,
        response: PartitionResponse,
        outcomes: Outcomes,
        *,
        follows: bool = False,
    ) -> None:
        """Take one partition's data, or find out what to do about it instead.

        Arguments: ``follows`` says that the leader's log is known to be the one that was read.
        """
        position = fetch.position
        if position.revoked or position.fetched != request.offset or position.fetch_from is not None:
            return  # it left, or moved, while the answer was under way
        if response.error == codes.NONE:
            try:
                if self._take(fetch, request, response, outcomes, follows=follows):
                    outcomes.served.append(fetch)
            except CorruptRecordsError as e:
                outcomes.corrupt.append((fetch, e))
        elif response.error == codes.CORRUPT_MESSAGE:
            reason = f"broker {self._broker_id} cannot read it and answers {codes.name(response.error)}"
            outcomes.corrupt.append((fetch, CorruptRecordsError(fetch.tp, request.offset, request.offset + 1, reason)))
        elif response.error == codes.OFFSET_OUT_OF_RANGE:
            outcomes.out_of_range.append(fetch)
        else:
            fetch.note(f"{fetch.tp}: broker {self._broker_id} answered {codes.name(response.error)}")
            outcomes.moved.append(fetch)

    def _take(
        self,
        fetch: PartitionFetch,
        request: FetchRange,
        response: PartitionResponse,
        outcomes: Outcomes,
        *,
        follows: bool,
    ) -> bool:
        """Queue one partition's data; returns whether there was any. Raises CorruptRecordsError where not even the
        first batch can be told, or where it is cut off.
        """
        position = fetch.position
        position.log_end = response.end(self._settings.isolation_level)
        log_end = response.high_watermark if response.high_watermark >= 0 else NO_END
        reach = extent(response.records, fetch.tp, request.offset, log_end) if response.records else NOTHING
        # nearly always the leader's epoch is the one of the last chunk, from the first batch to the last
        known, last = fetch.epoch, reach.last + EPOCH_AT
        follows = follows or (known != b"" and response.records[EPOCH_AT:EPOCH_END] == known)
        read = (
            ()
            if follows and response.records[last : last + 4] == known
            else epochs_in(response.records, request.offset, reach.last)
        )
        if read and not follows and NO_EPOCH < epoch_before(position.epochs, request.offset) != read[0][1]:
            outcomes.suspects.append(SuspectResponse(fetch, request, response, read[0][1]))
            return False
        fetch.trouble, fetch.refusals = "", 0
        if reach.next_offset is None:
            if reach.wanted:
                self._grow(fetch, request, reach.wanted, response.records)
            return False
        if read:
            position.epochs = with_epochs(position.epochs, read)
            fetch.epoch = response.records[last : last + 4]
        fetch.sink.deliver(
            position, response.records, (request.offset, reach.next_offset), response.aborted, reach.messages
        )
        # only now: an interruption before this line fetches the chunk again, after it nothing is lost (KAFKA-154)
        position.fetched = fetch.reached = reach.next_offset
        fetch.least = min(fetch.least, self._settings.partition_bytes)  # one huge message makes no others
        return True

    def _grow(self, fetch: PartitionFetch, request: FetchRange, wanted: int, records: bytes) -> None:
        """Ask for more where only a part of a message came, because it is larger than what was asked for (KAFKA-160,
        KAFKA-994).

        Raises CorruptRecordsError where the whole would have fitted and did not come twice: more of it will not come.
        """
        offset = request.offset
        if wanted <= request.max_bytes:
            if fetch.cut_off != offset:
                fetch.cut_off = offset  # once may be chance, and what is corrupt may be skipped: ask again
                return
            reason = f"the broker sent only {len(records)} of {wanted} bytes, and {request.max_bytes} were asked for"
            raise CorruptRecordsError(fetch.tp, offset, offset_after_partial(records, offset), reason)
        limit = max(self._settings.max_bytes, self._settings.partition_bytes)
        if wanted <= limit:
            fetch.least = wanted
            log.info("%s: the message at offset %d needs a fetch of %d bytes", fetch.tp, offset, wanted)
            return
        park(
            fetch,
            MessageSizeTooLargeException(
                f"{fetch.tp} at offset {offset}: the message takes {wanted} bytes, the largest fetch is {limit}:"
                " raise fetch.max.bytes, or call skip() on the stream",
                fetch.tp,
                offset,
                offset_after_partial(records, offset),
            ),
        )


def park(fetch: PartitionFetch, error: UnreadableMessageError | LogTruncatedError) -> None:
    """Have the stream raise when it comes to that place, and fetch nothing behind it until it is given up there."""
    fetch.parked = True
    fetch.position.fetched = None  # before anybody can give the place up, which sets it
    fetch.sink.fail(fetch.position, error)
