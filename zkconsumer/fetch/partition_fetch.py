"""What a fetcher works with: its settings, the partitions it fetches, and where their data goes."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Protocol

from zkconsumer.core.backoff import backoff
from zkconsumer.core.partition_position import PartitionPosition
from zkconsumer.errors import LogTruncatedError, UnreadableMessageError
from zkconsumer.fetch.fetch_session import FetchRange
from zkconsumer.kafka import Security

log = logging.getLogger(__name__)

EARLIEST, LATEST = -2, -1
FIRST_REFUSAL, LONGEST_REFUSAL = 0.5, 30.0
"""Seconds of the first and of the longest pause of a partition whose broker contradicts itself."""


class Sink(Protocol):
    """Where a partition's data goes: the queue of its stream."""

    def has_room(self, free: int | None = None) -> bool:
        """Whether a fetch is welcome now, where all streams together have ``free`` bytes left (None: look)."""

    def deliver(
        self,
        position: PartitionPosition,
        records: bytes,
        span: tuple[int, int],
        aborted: tuple[tuple[int, int], ...],
        messages: int | None = None,
    ) -> None:
        """Queue what was fetched; ``span`` is (fetch offset, next offset), ``messages`` how many are in it, if that
        is known.
        """

    def jump(self, position: PartitionPosition, offset: int) -> None:
        """The position was moved to ``offset`` by ``auto.offset.reset``, or because the log was truncated."""

    def fail(self, position: PartitionPosition, error: UnreadableMessageError | LogTruncatedError) -> None:
        """Raise ``error`` to the application when it comes to this point of the partition; if that gives the place up,
        ``position.fetch_from`` is set to where to go on.
        """

    def skip(self, position: PartitionPosition, error: UnreadableMessageError) -> None:
        """A corrupt place is given up (``corrupt.message.policy=skip``); consumption continues after it."""


class Budget(Protocol):
    """The bytes that may wait for the application, in all streams together and on the way to them."""

    def free(self) -> int:
        """How many are left; none (0 or less) means that only a stream whose reader waits may be served."""

    def reserve(self, wanted: int) -> int:
        """Bytes that may be asked for in one request, at least 1; they count until :meth:`release`."""

    def release(self, count: int) -> None:
        """What was asked for is here, or will not come."""


class UnlimitedBudget:
    """A budget that knows no limit, for who fetches outside of a member."""

    def free(self) -> int:
        """Enough."""
        return 1 << 62

    def reserve(self, wanted: int) -> int:
        """All of it."""
        return wanted

    def release(self, count: int) -> None:
        """Nothing is counted."""


@dataclass(frozen=True, slots=True)
class FetchSettings:
    """What of the configuration concerns fetching; seconds and bytes.

    ``largest_batch`` is ``fetch.max.bytes``, where ``max_bytes`` may be less (``queued.max.bytes``).
    """

    client_id: str
    max_wait: float
    min_bytes: int
    partition_bytes: int
    max_bytes: int
    reset_to: int
    socket_timeout: float
    receive_buffer: int
    backoff: float
    isolation_level: int = 0
    security: Security | None = None
    skip_corrupt: bool = False
    largest_batch: int = 0
    raise_truncated: bool = False


class PartitionFetch:
    """A partition being fetched: its position and where the data goes.

    ``least`` is how many bytes its next message is known to take at the least, 0 as long as nothing is known.
    ``cut_off`` is the offset of a batch that came cut off although it would have fitted, -1 where there was none. A
    parked flow is at a place that cannot be read, and has no fetched offset until the application gives that up.
    ``trouble`` says why fetching failed last, and ``retry_at`` when it may be tried again (monotonic time).
    ``refusals`` counts how often in a row the broker refused an offset that it had named itself. ``epoch`` is the
    leader epoch of the last batch fetched, as it stands there; empty: none, or another log. ``reached`` is the offset
    up to which the log is known to have been: what was fetched, or a start or end that the leader named; -1 for none.
    """

    __slots__ = (
        "_range",
        "cut_off",
        "epoch",
        "least",
        "parked",
        "position",
        "reached",
        "refusals",
        "resolving",
        "retry_at",
        "sink",
        "tp",
        "trouble",
    )

    def __init__(self, position: PartitionPosition, sink: Sink) -> None:
        self.position = position
        self.tp = position.tp
        self.sink = sink
        self.least = 0
        self.cut_off = -1
        self.resolving = False
        self.parked = False
        self.retry_at = 0.0
        self.refusals = 0
        self.epoch = b""
        self.reached = -1
        self.trouble = ""
        self._range = FetchRange(-1, 0)

    def note(self, trouble: str) -> None:
        """Note why fetching failed. It is logged once, not at every try that fails alike."""
        log.log(logging.DEBUG if trouble == self.trouble else logging.INFO, "%s", trouble)
        self.trouble = trouble

    @property
    def pause(self) -> float:
        """Seconds to wait at least before the next try."""
        return backoff(self.refusals, FIRST_REFUSAL, LONGEST_REFUSAL) if self.refusals else 0.0

    def range_from(self, offset: int, max_bytes: int) -> FetchRange:
        """What is wanted of it; the same object as last time where nothing has changed."""
        wanted = self._range
        if wanted.offset != offset or wanted.max_bytes != max_bytes:
            wanted = self._range = FetchRange(offset, max_bytes)
        return wanted
