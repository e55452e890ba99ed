"""The data of a fetcher: its settings, its partitions, and the protocols of the streams' queues and budget."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Protocol

from zkconsumer.core.backoff import backoff
from zkconsumer.core.partition_position import PartitionPosition
from zkconsumer.errors import LogTruncatedError, UnreadableMessageError
from zkconsumer.fetch.fetch_session import FetchRange
from zkconsumer.kafka import BrokerChannel, Security
from zkconsumer.kafka.broker_channel import LARGEST_ANSWER
from zkconsumer.model import Endpoint, TopicPartition

log = logging.getLogger(__name__)

_NO_RANGE = FetchRange(-1, 0)

FIRST_REFUSAL, LONGEST_REFUSAL = 0.5, 30.0
"""Seconds of the first and of the longest pause of a partition whose broker contradicts itself."""


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

        If the application skips the unreadable messages, ``position.fetch_from`` is set to the offset after them.
        """

    def skip(self, position: PartitionPosition, error: UnreadableMessageError) -> None:
        """Give up a corrupt place (``corrupt.message.policy=skip``); consumption continues after it."""


class Budget(Protocol):
    """The bytes that may wait for the application, in all streams together and on the way to them."""

    def free(self) -> int:
        """Return the bytes that are left; at 0 or less only a stream whose reader waits may be served."""

    def reserve(self, wanted: int) -> int:
        """Return the bytes that one request may ask for, at least 1; they count until :meth:`release`."""

    def release(self, count: int) -> None:
        """Count these bytes no more: they have arrived, or will not come."""


@dataclass(frozen=True, slots=True)
class FetchSettings:
    """The configuration of fetching, in seconds and bytes.

    ``largest_batch`` is ``fetch.max.bytes``; ``max_bytes`` may be less, by ``queued.max.bytes``.
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

    def channel(self, endpoint: Endpoint) -> BrokerChannel:
        """Return a channel to that broker, not yet connected."""
        return BrokerChannel(
            endpoint,
            client_id=self.client_id,
            socket_timeout=self.socket_timeout,
            receive_buffer=self.receive_buffer,
            security=self.security,
            largest_fetch=max(self.largest_batch, LARGEST_ANSWER),
        )


@dataclass(slots=True, eq=False)
class PartitionFetch:
    """A partition being fetched: its position, its stream's queue, and the state of the last tries.

    - ``least``: bytes that its next message takes at least, 0 while unknown
    - ``cut_off``: offset of a batch that came cut off although it would have fitted, -1 for none
    - ``resolving``: its start offset is being resolved
    - ``parked``: it is at an unreadable place, and has no fetched offset until the application gives that place up
    - ``trouble``, ``retry_at``: why the last try failed, and the monotonic time of the next one
    - ``refusals``: how often in a row the broker refused an offset that it had named itself
    - ``epoch``: leader epoch of the last fetched batch, as its bytes; empty for none, or after a jump to another log
    - ``reached``: offset up to which the log is known to have been, by a chunk or by the leader's word; -1 for none
    - ``range``: the range that was last requested
    """

    position: PartitionPosition
    sink: Sink
    tp: TopicPartition = field(init=False)
    least: int = 0
    cut_off: int = -1
    resolving: bool = False
    parked: bool = False
    retry_at: float = 0.0
    refusals: int = 0
    epoch: bytes = b""
    reached: int = -1
    trouble: str = ""
    range: FetchRange = _NO_RANGE

    def __post_init__(self) -> None:
        self.tp = self.position.tp

    def note(self, trouble: str) -> None:
        """Note why fetching failed. It is logged once, not at every try that fails alike."""
        log.log(logging.DEBUG if trouble == self.trouble else logging.INFO, "%s", trouble)
        self.trouble = trouble

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
