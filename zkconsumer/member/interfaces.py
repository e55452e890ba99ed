"""The interfaces of the member engine to fetching, to messages in the user's hands, and to commits.

Called by the group thread, unless a method says otherwise. The engine's side of them is ``owned_partitions``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol

from zkconsumer.core.poll_watchdog import Place, StreamKey
from zkconsumer.errors import LogTruncatedError, OffsetConflictError
from zkconsumer.model import TopicPartition
from zkconsumer.ownership.partition_position import Held, PartitionPosition
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.zookeeper.ownership_transactions import KnownOffset


class Source(Protocol):
    """Fetches partitions into the queues of their streams."""

    def start(self, partitions: Iterable[tuple[PartitionPosition, Any]]) -> None:
        """Fetch these positions, each into the queue that :meth:`Delivery.accept` returned."""

    def forget(self) -> None:
        """Stop fetching revoked positions."""

    def wake(self) -> None:
        """Wake the fetchers, because a start offset has become known."""


class Delivery(Protocol):
    """Messages in the user's hands, or about to get there: the streams, or the batch of a Spark query."""

    def accept(self, positions: Sequence[PartitionPosition]) -> Sequence[tuple[PartitionPosition, Any]]:
        """Hand out messages of these from now on.

        Returns each with the queue to fetch it into; nothing if the holder reads by itself.
        """

    def revoke(self, positions: Sequence[PartitionPosition]) -> None:
        """Stop the hand-out of these positions; return at once. Any thread."""

    def wait(self, positions: Sequence[PartitionPosition], limit: Deadline) -> None:
        """Wait until no message of these revoked positions is in the user's hands, or until the limit."""

    def replace(self, old: PartitionPosition, new: PartitionPosition) -> None:
        """Hand out nothing more of ``old``. The partition goes on at ``new``, paused if ``old`` is."""

    def fail(self, position: PartitionPosition, error: OffsetConflictError | LogTruncatedError) -> None:
        """Raise ``error`` to the reader of this partition until the position ends."""

    def end(self) -> None:
        """End all streams: their readers wake and finish."""


class Readers(Protocol):
    """The readers of streams, as the poll watchdog sees them."""

    def places(self) -> Mapping[StreamKey, Place]:
        """Return the place of each stream whose reader is not waiting in it."""

    def came_back(self, key: StreamKey, place: Place) -> bool:
        """Return whether the reader of a stream has come back since the stream was at this place."""


class Commits(Protocol):
    """The committer, as the group thread sees it."""

    @property
    def asks(self) -> bool:
        """Whether starts must be read from a store outside ZooKeeper."""

    @property
    def reads_nodes(self) -> bool:
        """Whether the group's offsets are stored in ZooKeeper's offset nodes."""

    def find_starts(
        self, positions: Sequence[PartitionPosition], found: Callable[[Mapping[PartitionPosition, int | None]], None]
    ) -> Sequence[PartitionPosition]:
        """Look up the starts of these positions. Returns the positions that need no lookup."""

    def track(self, claimed: Sequence[tuple[PartitionPosition, KnownOffset]]) -> None:
        """Commit the progress of claimed partitions from now on."""

    def succeed(self, old: PartitionPosition, new: PartitionPosition) -> None:
        """Commit the progress of ``new`` instead of ``old``."""

    def begin_other_log(self, old: PartitionPosition, new: PartitionPosition, known: KnownOffset) -> None:
        """Commit the progress of ``new``, which reads another log, instead of ``old``."""

    def store_starts(
        self, starts: Mapping[PartitionPosition, int], done: Callable[[Mapping[PartitionPosition, bool]], None]
    ) -> None:
        """Store start offsets. ``done`` is called once or more, and gets for each position whether it is stored."""

    def overwrite(self, position: PartitionPosition, known: KnownOffset | None) -> None:
        """Let the next commit overwrite another client's offset: ``known``, or with None one outside ZooKeeper."""

    def write_starts(self, positions: Collection[PartitionPosition]) -> None:
        """Write the starts of these positions to all stores, because only one store has the starts."""

    def hurry(self) -> None:
        """Make the next automatic commit now, if commits are automatic."""

    def commit_last(
        self,
        positions: Collection[PartitionPosition],
        *,
        commit: bool,
        held: Held,
        deadline: Deadline,
        meanwhile: Callable[[], None],
        release: bool = False,
    ) -> Mapping[TopicPartition, KnownOffset | None]:
        """Make the last commit of partitions before they are revoked. With ``release`` it may delete their owner nodes.

        Arguments: messages that a caller ``held`` as it unsubscribed count as finished; ``meanwhile`` is called a few
        times a second.
        Returns the offset node of each partition; None: it is released. A partition that may be released or not is
        left out.
        """

    def check(self) -> None:
        """Check whether another client wrote our offsets. The events are CommitsRefused and OffsetsMoved."""

    def forget(self, positions: Collection[PartitionPosition]) -> None:
        """Stop the commits of lost partitions."""
