"""Handles a fetch response, partition by partition: queues the chunk, asks for more bytes, or parks the partition.

Threads: the fetcher's thread. The fetched offset moves on only after the chunk is queued (KAFKA-154). It is taken from
the chunk's own batch headers.

A follower (KIP-392) only delivers chunks. After any other answer the leader is asked, since the follower may be behind,
or its disk may be damaged.
"""

from __future__ import annotations

import logging

from zkconsumer.core.leader_epochs import NO_EPOCH, epoch_before, with_epochs
from zkconsumer.errors import LogTruncatedError, MessageSizeTooLargeException, UnreadableMessageError
from zkconsumer.fetch.broker_failures import note_trouble
from zkconsumer.fetch.broker_fetch import FetchedPart, FetchSettings
from zkconsumer.fetch.replica_choice import follow
from zkconsumer.kafka import CorruptRecordsError
from zkconsumer.kafka import error_codes as codes
from zkconsumer.kafka.fetched_batches import (
    EPOCH_AT,
    EPOCH_END,
    NO_END,
    Extent,
    epochs_in,
    extent,
    offset_after_partial,
)
from zkconsumer.ownership.fetch_cursor import LEADER, FetchCursor

log = logging.getLogger(__name__)

NOTHING = Extent(None, False)


class Outcomes:
    """The partitions of a fetch response, sorted by the next step.

    ``suspects`` are chunks of another leader epoch than the chunk before, with that epoch; their log may be another
    one.
    """

    __slots__ = ("corrupt", "moved", "out_of_range", "served", "suspects")

    def __init__(self) -> None:
        self.suspects: list[tuple[FetchedPart, int]] = []
        self.served: list[FetchCursor] = []
        self.moved: list[FetchCursor] = []
        self.out_of_range: list[FetchCursor] = []
        self.corrupt: list[tuple[FetchCursor, CorruptRecordsError]] = []


class ResponseHandler:
    """Handles the responses of one broker."""

    def __init__(self, broker_id: int, settings: FetchSettings) -> None:
        self._broker_id = broker_id
        self._settings = settings

    def handle(self, part: FetchedPart, outcomes: Outcomes, *, follows: bool = False) -> None:
        """Queue one partition's chunk, or note in ``outcomes`` what else to do. The caller wakes the readers.

        Arguments: ``follows`` says that the leader's log is known to be the one that was read before.
        """
        fetch, request, response = part
        position = fetch.position
        if (position.halted and position.revoked) or fetch.fetched != request.offset or fetch.fetch_from is not None:
            return  # the partition left, or moved, during the request
        if response.error == 0:
            try:
                if self._take(part, outcomes, follows=follows):
                    outcomes.served.append(fetch)
                elif response.read_replica != LEADER:
                    self._redirected(fetch, response.read_replica, outcomes)
            except CorruptRecordsError as e:
                if not self._doubted(fetch, str(e), outcomes):
                    outcomes.corrupt.append((fetch, e))
        elif self._doubted(fetch, f"answered {codes.name(response.error)}", outcomes):
            pass
        elif response.error == codes.CORRUPT_MESSAGE:
            reason = f"broker {self._broker_id} cannot read it and answers {codes.name(response.error)}"
            outcomes.corrupt.append((fetch, CorruptRecordsError(fetch.tp, request.offset, request.offset + 1, reason)))
        elif response.error == codes.OFFSET_OUT_OF_RANGE:
            outcomes.out_of_range.append(fetch)
        else:
            note_trouble(fetch, f"{fetch.tp}: broker {self._broker_id} answered {codes.name(response.error)}")
            outcomes.moved.append(fetch)

    def _doubted(self, fetch: FetchCursor, said: str, outcomes: Outcomes) -> bool:
        """Return whether a follower said this, so that the leader is asked first."""
        if fetch.replica == LEADER:
            return False
        note_trouble(fetch, f"{fetch.tp}: broker {self._broker_id}, a follower: {said}; the leader is asked")
        outcomes.moved.append(fetch)
        return True

    def _redirected(self, fetch: FetchCursor, replica: int, outcomes: Outcomes) -> None:
        """Fetch from the replica that the leader names. A follower that names one is a leader by now, or wrong."""
        if self._doubted(fetch, f"names replica {replica} to read from", outcomes):
            return
        if replica != self._broker_id:
            log.debug("%s is read from broker %d, as its leader %d says", fetch.tp, replica, self._broker_id)
        follow(fetch, replica, self._broker_id)
        outcomes.moved.append(fetch)

    def _take(self, part: FetchedPart, outcomes: Outcomes, *, follows: bool) -> bool:
        """Queue one partition's chunk; returns whether there was any. Raises: CorruptRecordsError if not even the first
        batch can be read, or if it is cut off.
        """
        fetch, request, response = part
        position = fetch.position
        records, log_end = response.records, response.high_watermark
        fetch.log_end = response.end(self._settings.isolation_level)
        if fetch.first_log_end < 0:
            fetch.first_log_end = fetch.log_end
        if log_end < 0:
            log_end = NO_END
        reach = extent(records, fetch.tp, request.offset, log_end) if records else NOTHING
        next_offset, _, wanted, messages, last_batch = reach
        # nearly always the epochs of the first and the last batch are that of the last chunk
        known, last = fetch.epoch, last_batch + EPOCH_AT
        follows = follows or (known != b"" and records[EPOCH_AT:EPOCH_END] == known)
        same = follows and records[last : last + 4] == known
        read = () if same else epochs_in(records, request.offset, last_batch)
        if read and not follows and NO_EPOCH < epoch_before(fetch.epochs, request.offset) != read[0][1]:
            if not self._doubted(fetch, f"sent epoch {read[0][1]} after another one", outcomes):
                outcomes.suspects.append((part, read[0][1]))
            return False
        fetch.trouble, fetch.refusals = "", 0
        if next_offset is None:
            if wanted:
                self._grow(part, wanted, outcomes)
            return False
        if read:
            fetch.epochs = with_epochs(fetch.epochs, read)
            fetch.epoch = records[last : last + 4]
        span = (request.offset, next_offset)
        fetch.sink.deliver(position, records, span, response.aborted, messages, wake=False)
        # only now: an interruption before this line fetches the chunk again, and after it nothing is lost (KAFKA-154)
        fetch.fetched = fetch.reached = next_offset
        # after one huge message the next are of normal size
        if fetch.least > self._settings.partition_bytes:
            fetch.least = self._settings.partition_bytes
        return True

    def _grow(self, part: FetchedPart, wanted: int, outcomes: Outcomes) -> None:
        """Ask for more bytes if only a part of a message came, because it is larger than the request (KAFKA-160,
        KAFKA-994). Raises: CorruptRecordsError if the whole message would have fitted and did not come twice: more of
        it will not come.
        """
        fetch, request, records = part.fetch, part.request, part.response.records
        offset = request.offset
        if wanted <= request.max_bytes:
            if fetch.cut_off != offset:
                fetch.cut_off = offset  # once may be chance, and a corrupt place may be skipped: ask again
                return
            reason = f"the broker sent only {len(records)} of {wanted} bytes, and {request.max_bytes} were asked for"
            raise CorruptRecordsError(fetch.tp, offset, offset_after_partial(records, offset), reason)
        limit = max(self._settings.max_bytes, self._settings.partition_bytes)
        if wanted <= limit:
            fetch.least = wanted
            log.info("%s: the message at offset %d needs a fetch of %d bytes", fetch.tp, offset, wanted)
            return
        if self._doubted(fetch, f"says that the message at offset {offset} takes {wanted} bytes", outcomes):
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


def park(fetch: FetchCursor, error: UnreadableMessageError | LogTruncatedError) -> None:
    """Stop fetching the partition at an unreadable place, and have its stream raise ``error`` there.

    It is fetched again once the application gives the place up.
    """
    fetch.parked = True
    fetch.fetched = None  # first: giving the place up sets it
    fetch.sink.fail(fetch.position, error)
