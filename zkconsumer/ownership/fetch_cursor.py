"""Where a fetcher is in the log of one partition.

A :class:`FetchCursor` belongs to one position, so that a late response for another position does not move the cursor.

Threads: the fetcher that has the cursor writes it, and the leader finder while no fetcher has it. The leader finder
writes ``leader_end`` at any time. The group thread sets ``fetched`` before the first fetch. A reader
sets ``fetch_from`` to have messages fetched again; the fetcher moves it to ``fetched`` and clears it. Any thread may
read the offsets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from zkconsumer.core.leader_epochs import Epochs
from zkconsumer.errors import LogTruncatedError, UnreadableMessageError
from zkconsumer.runtime.deadline import backoff

if TYPE_CHECKING:
    from zkconsumer.ownership.partition_position import PartitionPosition

FIRST_REFUSAL, LONGEST_REFUSAL = 0.5, 30.0
"""Seconds of the first and of the longest pause of a partition whose broker contradicts itself."""


class FetchRange(NamedTuple):
    """The part of a partition to fetch: the first offset, and the most bytes."""

    offset: int
    max_bytes: int


NO_RANGE = FetchRange(-1, 0)
LEADER = -1


class Budget(Protocol):
    """The bytes that may wait for the application, in all streams together and on the way to them."""

    def free(self) -> int:
        """Return the bytes that are left; at 0 or less only a stream whose reader waits may be served."""

    def reserve(self, wanted: int) -> int:
        """Return the bytes that one request may ask for, at least 1; they count until :meth:`release`."""

    def release(self, count: int) -> None:
        """Count these bytes no more: they have arrived, or will not come."""


class Sink(Protocol):
    """The queue of a stream, which takes the fetched chunks of a partition."""

    def has_room(self, free: int | None = None) -> bool:
        """Return whether a fetch is welcome now, with ``free`` bytes left for all streams together (None: look)."""

    def deliver(
        self,
        position: PartitionPosition,
        records: bytes,
        span: tuple[int, int],
        aborted: tuple[tuple[int, int], ...],
        messages: int | None = None,
        *,
        wake: bool = True,
    ) -> None:
        """Queue a fetched chunk.

        ``span`` is (fetch offset, next offset); ``messages`` is their number, None if it is unknown. Unless ``wake``,
        :meth:`wake_reader` must follow.
        """

    def wake_reader(self) -> None:
        """Wake the reader, if it waits for a chunk."""

    def jump(self, position: PartitionPosition, offset: int) -> None:
        """Continue the partition at ``offset``, by ``auto.offset.reset`` or because the log was truncated."""

    def fail(self, position: PartitionPosition, error: UnreadableMessageError | LogTruncatedError) -> None:
        """Raise ``error`` to the application when its reader reaches this offset.

        If the application skips the unreadable messages, ``position.cursor.fetch_from`` is set to the offset after
        them.
        """

    def skip(self, position: PartitionPosition, error: UnreadableMessageError) -> None:
        """Give up a corrupt place (``corrupt.message.policy=skip``); consumption continues after it."""


class FetchCursor:
    """A partition being fetched. Every offset is "next to ...".

    * ``fetched``: the next offset to request from the broker, None while it is unknown
    * ``fetch_from``: the offset at which the fetcher must go on instead, or None
    * ``log_end``: the end of the messages that may be handed out: the high watermark, or the last stable offset with
      ``isolation.level=read_committed``; -1 if unknown. A follower may not have all of the leader's: see ``known_end``
    * ``leader_end``: the log end by the leader's word while another replica is fetched from, -1 if unknown
    * ``first_log_end``: ``log_end`` as it was in the first response of this position; -1 before
    * ``epochs``: the leader epochs of the fetched messages
    * ``epoch``: leader epoch of the last fetched batch, as its bytes; empty for none, or after a jump to another log
    * ``reached``: offset up to which the log is known to have been, by a chunk or by the leader's word; -1 for none
    * ``least``: bytes that its next message takes at least, 0 while unknown
    * ``cut_off``: offset of a batch that came cut off although it would have fitted, -1 for none
    * ``resolving``: its start offset is being resolved
    * ``parked``: it is at an unreadable place, and has no fetched offset until the application gives that place up
    * ``trouble``, ``retry_at``: why the last try failed, and the monotonic time of the next one
    * ``refusals``: how often in a row the broker refused an offset that it had named itself
    * ``range``: the range that was last requested
    * ``replica``: the id of the follower to fetch from, -1 for the leader
    * ``stays_until``: the monotonic time until which the replica is not chosen anew; 0 for at once
    * ``sink``: the queue of its stream, from the start of the fetching on
    """

    __slots__ = (
        "cut_off",
        "epoch",
        "epochs",
        "fetch_from",
        "fetched",
        "first_log_end",
        "leader_end",
        "least",
        "log_end",
        "parked",
        "position",
        "range",
        "reached",
        "refusals",
        "replica",
        "resolving",
        "retry_at",
        "sink",
        "stays_until",
        "tp",
        "trouble",
    )

    def __init__(self, position: PartitionPosition, start: int | None = None) -> None:
        self.position = position
        self.tp = position.tp
        self.sink: Sink
        self.fetched = start
        self.fetch_from: int | None = None
        self.log_end = self.leader_end = self.first_log_end = -1
        self.epochs: Epochs = ()
        self.epoch = b""
        self.reached = self.cut_off = -1
        self.least = self.refusals = 0
        self.resolving = self.parked = False
        self.trouble, self.retry_at = "", 0.0
        self.range = NO_RANGE
        self.replica, self.stays_until = LEADER, 0.0

    def deliver_to(self, sink: Sink) -> FetchCursor:
        """Fetch into this queue from now on. Returns itself."""
        self.sink = sink
        return self

    def read_from(self, replica: int, stays_until: float) -> None:
        """Fetch from that follower, or from the ``LEADER``, and choose anew at that monotonic time."""
        self.replica, self.stays_until, self.leader_end = replica, stays_until, -1

    @property
    def known_end(self) -> int:
        """The log end by the leader's word, as far as it is known, whatever replica is fetched from."""
        return self.log_end if self.replica == LEADER else max(self.log_end, self.leader_end)

    @property
    def pause(self) -> float:
        """Seconds to wait at least before the next try."""
        return backoff(self.refusals, FIRST_REFUSAL, LONGEST_REFUSAL) if self.refusals else 0.0

    def range_from(self, offset: int, max_bytes: int) -> FetchRange:
        """Return the range to fetch; the same object as last time if nothing has changed."""
        wanted = self.range
        if wanted.offset != offset or wanted.max_bytes != max_bytes:
            wanted = self.range = FetchRange(offset, max_bytes)
        return wanted
