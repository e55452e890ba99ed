"""The offsets of one owned partition: fetched, consumed and committed.

A :class:`PartitionPosition` belongs to one ownership. A partition that is released and claimed again gets a new
position, so that late responses, queued chunks and messages of the old one can be recognised and dropped.

Threads: each field has one usual writer. The first four take no lock:

* the fetcher: ``cursor``, see :mod:`zkconsumer.ownership.fetch_cursor`
* the thread that iterates the stream: ``consumed``, ``held_until``, ``batch_until``
* the committer: ``stored``, see :mod:`zkconsumer.ownership.stored_offset`
* the group thread, and the thread that shuts down: ``revoked``, which is only ever set
* under the lock of the stream's queue: ``paused``, ``halted``, ``successor``
* the reader of a balanced run: ``ledger``, ``full``, and ``ledger_start`` once the start offset is known

The exceptions:

* The group thread sets ``consumed``, ``cursor.fetched`` and ``stored.committed`` at the start
  (:meth:`PartitionPosition.begin`, :meth:`PartitionPosition.start_at`). No message of the position is queued before
  that. It sets ``ledger_start`` before that, and the committer does where another store has the start.
* A thread that closes the connector finishes or puts down its own message: it writes ``consumed`` and ``held_until``.
* A streaming query has no reader: its own threads write ``consumed`` when a batch ends.

``held`` and ``halted`` make the hand-over protocol. The stream announces the next message (``held_until``) *before* it
looks at ``halted``. The group thread sets ``revoked``, and with it ``halted``, *before* it looks at ``held``. So the
stream sees ``halted``, or the group thread sees ``held``. ``held`` follows from ``consumed``, so that one write
finishes the last message of a batch. With two writes the group thread could commit between them, and the message would
be consumed again.

Mirrors the original's ``PartitionTopicInfo``. The original counts a message as consumed at the hand-out, and so loses
it in a crash.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from zkconsumer.core.finished_note import FinishedNote
from zkconsumer.data_plane.hand_out import NOTHING_HELD, HandOutMarks
from zkconsumer.model import ThreadId, TopicPartition
from zkconsumer.ownership.fetch_cursor import FetchCursor
from zkconsumer.ownership.stored_offset import StoredOffset

if TYPE_CHECKING:
    from zkconsumer.ownership.balanced_ledger import BalancedLedger

__all__ = ["NONE_HELD", "NOTHING_HELD", "Held", "LedgerStart", "PartitionPosition"]


@dataclass(slots=True, eq=False)
class LedgerStart:
    """What the next ledger of a position begins with, where messages are finished in any order.

    * ``note``: what the store, or an earlier ledger, told of finished messages beyond the start
    * ``log_end_compared``: whether ``note`` was compared with ``cursor.first_log_end``, which is done once
    * ``cut``: the offset from which the log is another one than that of the pointers; -1 if it is not

    The pointers are those of ``stored``.
    """

    note: FinishedNote | None = None
    log_end_compared: bool = False
    cut: int = -1


class PartitionPosition(HandOutMarks):
    """The offsets of one owned partition. Every offset is "next to ...". ``stored`` is what an earlier position of the
    same ownership had, if there was one.

    * ``cursor``: where the fetcher is in the log
    * ``consumed``: the first offset that the application has not finished; None until the start is known. The hand-out
      writes it as ``finished_to``.
    * ``held_until``: the end of the batch that the stream is handing out
    * ``batch_until``: the end of the rows in the user's hands, if these are several messages (columns); otherwise never
      greater than ``consumed``
    * ``stored``: the committed offset and all else that is stored of the ownership
    * ``from_start``: true if the topic was created anew, so that nothing of its log has been read
    * ``paused``: true while the application wants no messages of the partition
    * ``halted``: true if the partition is revoked or paused; the hand-out path looks at this
    * ``successor``: the position at which the same stream goes on with the partition, if it does
    * ``ledger``: the messages of the partition, where they are finished in any order; ``consumed`` is its base then
    * ``ledger_start``: what the next ledger begins with
    * ``full``: true while the reader has enough messages of the partition, so that no more are fetched
    """

    __slots__ = (
        "_revoked",
        "batch_until",
        "cursor",
        "from_start",
        "full",
        "ledger",
        "ledger_start",
        "paused",
        "stored",
        "successor",
        "thread",
        "tp",
    )

    def __init__(
        self, tp: TopicPartition, thread: ThreadId, start: int | None = None, stored: StoredOffset | None = None
    ) -> None:
        super().__init__(start)
        self.tp = tp
        self.thread = thread
        self.cursor = FetchCursor(self, start)
        self.stored = StoredOffset(self, start) if stored is None else stored
        self.batch_until = NOTHING_HELD
        self.from_start = False
        self._revoked = False
        self.paused = False
        self.successor: PartitionPosition | None = None
        self.ledger: BalancedLedger | None = None
        self.ledger_start = LedgerStart()
        self.full = False

    @property
    def revoked(self) -> bool:
        """Whether this position has ended: the partition was released, or goes on at another position."""
        return self._revoked

    @revoked.setter
    def revoked(self, value: bool) -> None:
        self._revoked = value
        if value:
            self.halted = True

    @property
    def latest(self) -> PartitionPosition:
        """The position at which the same ownership goes on now; this position if it was not replaced."""
        found = self
        while found.successor is not None:
            found = found.successor
        return found

    @property
    def range_in_hand(self) -> range:
        """The offsets of the message or rows in the user's hands, empty if there are none.

        Always empty where messages are finished in any order.
        """
        consumed, end = self.consumed, self.finished(including_held=True)
        return range(0) if consumed is None or end is None else range(consumed, end)

    def begin(self, offset: int) -> None:
        """Begin at an offset that ``auto.offset.reset`` chose and that is already stored."""
        self.consumed = offset
        self.stored.committed = offset
        self.cursor.fetched = offset

    def start_at(self, offset: int) -> None:
        """Begin at this offset, whatever is committed. The next commit writes it if the committed one differs."""
        self.consumed = offset
        self.cursor.fetched = offset

    @property
    def held(self) -> bool:
        """Whether the user has the message at ``consumed`` in hand, or rows that begin there."""
        consumed = self.consumed
        return consumed is not None and consumed < self.held_until

    def finished(self, *, including_held: bool) -> int | None:
        """Return the offset to commit, None if the start is unknown.

        ``including_held`` counts the message or rows in the user's hands as finished.
        """
        consumed = self.consumed
        if self.ledger is not None:
            return consumed  # what is in hand there is never counted
        if including_held and consumed is not None and consumed < self.held_until:
            return max(consumed + 1, self.batch_until)
        return consumed

    @property
    def lag(self) -> int:
        """Messages from ``consumed`` to the log's end, never a negative count (KAFKA-2678); -1 if unknown."""
        log_end = self.cursor.known_end  # a follower that stands still says nothing
        if log_end < 0 or self.consumed is None:
            return -1
        beyond = 0 if self.ledger is None else self.ledger.finished_beyond
        return max(0, log_end - self.consumed - beyond)

    def __repr__(self) -> str:
        state = " revoked" if self.revoked else ""
        fetched, committed = self.cursor.fetched, self.stored.committed
        return f"<{self.tp} consumed={self.consumed} fetched={fetched} committed={committed}{state}>"


Held = Mapping[PartitionPosition, range]
"""The offsets of the messages that a caller had in hand at its call, by their positions."""
NONE_HELD: Final[Held] = {}
