"""Where one owned partition stands: what was fetched, what the application has finished, what is committed.

A :class:`PartitionPosition` belongs to one ownership: a partition that leaves and comes back gets a new one, so
whatever still refers to the old one (an answer under way, a queued chunk, a message in the user's hands) can be told
apart and dropped.

Written without a lock by exactly one thread per field: ``fetched`` and ``log_end`` by the fetcher, ``consumed``,
``held_until`` and ``fetch_from`` by the thread that iterates the stream, ``committed`` by the committer, ``revoked``
(only ever set) by the group's thread, and by the one that shuts down. ``paused``, ``halted`` and ``successor`` are
written under the lock of the stream's queue.

The pair (``held``, ``halted``) is the hand-over protocol: the stream announces the message it is about to hand out
*before* it looks at ``halted``, the group's thread sets ``revoked`` and with it ``halted`` *before* it looks whether a
message is held. One of the two always sees the other. That a message is held is told by ``consumed`` itself, so that
finishing the last message of a batch is one write: were it two, who waits for the message to be let go could commit in
between, and it would be consumed again.

Mirrors the original's ``PartitionTopicInfo``. It counts a message as consumed when it is handed out and so loses it
in a crash.
"""

from __future__ import annotations

from zkconsumer.core.leader_epochs import Epochs
from zkconsumer.model import ThreadId, TopicPartition

NOTHING_HELD = -1
"""``held_until`` while no message is in the user's hands."""


class PartitionPosition:
    """Offsets of one owned partition; every one is "next to ...".

    ``consumed`` is the first offset the application has not finished, None until the start position is known;
    ``paused`` says that the application wants none of it for now; ``halted`` that it is revoked or paused, which is
    what the hand-out path looks at; ``held_until`` is the end of the batch that is being handed out, ``batch_until``
    the end of the rows in the user's hands where these are more than one message (columns), else never beyond
    ``consumed``; ``fetched`` is the next offset to ask the broker for; ``fetch_from`` where the fetcher shall go on
    instead, None where it shall not; ``committed`` what was last written or read; ``log_end`` the end of what may be
    handed out: the high watermark, or, with ``isolation.level=read_committed``, the last stable offset (-1: unknown);
    ``epochs`` the leader epochs in which it was fetched, written by the fetcher; ``from_start`` says that the topic was
    made anew, so that nothing of its log was read yet; ``successor`` is the position at which the partition goes on in
    the same stream, if it does.
    """

    __slots__ = (
        "_revoked",
        "batch_until",
        "committed",
        "consumed",
        "epochs",
        "fetch_from",
        "fetched",
        "from_start",
        "halted",
        "held_until",
        "log_end",
        "partition",
        "paused",
        "successor",
        "thread",
        "topic",
        "tp",
    )

    def __init__(self, tp: TopicPartition, thread: ThreadId, start: int | None = None) -> None:
        self.tp = tp
        self.topic = tp.topic
        self.partition = tp.partition
        self.thread = thread
        self.consumed: int | None = start
        self.fetched: int | None = start
        self.fetch_from: int | None = None
        self.committed: int | None = start
        self.held_until = NOTHING_HELD
        self.batch_until = NOTHING_HELD
        self.log_end = -1
        self.epochs: Epochs = ()
        self.from_start = False
        self._revoked = False
        self.paused = False
        self.halted = False
        self.successor: PartitionPosition | None = None

    @property
    def revoked(self) -> bool:
        """Whether this position has ended: the partition is no longer ours, or goes on at another one. Only ever
        set.
        """
        return self._revoked

    @revoked.setter
    def revoked(self, value: bool) -> None:
        self._revoked = value
        if value:
            self.halted = True

    def begin(self, offset: int) -> None:
        """The start position was resolved by ``auto.offset.reset`` and is stored: fetching may begin there."""
        self.consumed = offset
        self.committed = offset
        self.fetched = offset

    def start_at(self, offset: int) -> None:
        """Begin here, whatever is committed: fetching may begin, and the next commit writes this if it is another."""
        self.consumed = offset
        self.fetched = offset

    @property
    def held(self) -> bool:
        """Whether the message at ``consumed``, or rows from there on, are in the user's hands."""
        consumed = self.consumed
        return consumed is not None and consumed < self.held_until

    def finished(self, *, including_held: bool) -> int | None:
        """The offset to commit: the first one not finished, or the one after what is in the user's hands if that shall
        count as finished.
        """
        consumed = self.consumed
        if including_held and consumed is not None and consumed < self.held_until:
            return max(consumed + 1, self.batch_until)
        return consumed

    @property
    def lag(self) -> int:
        """Messages between what is finished and the log's end; never negative (KAFKA-2678); -1 where unknown."""
        if self.log_end < 0 or self.consumed is None:
            return -1
        return max(0, self.log_end - self.consumed)

    def __repr__(self) -> str:
        state = " revoked" if self.revoked else ""
        return f"<{self.tp} consumed={self.consumed} fetched={self.fetched} committed={self.committed}{state}>"
