"""The stored values of one owned partition, as last read or written by the committer.

A :class:`StoredOffset` begins with a claim and ends with the release. A seek keeps it: the next position of the same
ownership goes on with it. No other object keeps the stores' values of an owned partition.

Threads: the committer's thread alone writes it, after the group thread has made it, or has begun a position at a stored
offset. Any thread may read ``committed``, ``pointers``, ``may_park`` and ``parking_trouble``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from zkconsumer.core.finished_note import FinishedNote
from zkconsumer.core.message_pointers import Pointer

if TYPE_CHECKING:
    from zkconsumer.ownership.balanced_ledger import CommitPoint
    from zkconsumer.ownership.partition_position import PartitionPosition
    from zkconsumer.runtime.deadline import Deadline

NEGATIVE = float("-inf")
UNREAD = "the pointers to parked messages are not read yet"


@dataclass(slots=True, eq=False)
class SeenNode:
    """The offset node in ZooKeeper as last seen: content and data version, both None if there is no node.

    ``unanswered`` are the contents of writes whose outcome is unknown. ``session`` is the id of the session that
    claimed the partition, 0 if unknown.
    """

    offset: int | None = None
    version: int | None = None
    unanswered: set[bytes] = field(default_factory=set)
    session: int = 0


@dataclass(slots=True, eq=False)
class StoredNotes:
    """The note and the pointers in ZooKeeper as last read or written.

    * ``has_note``: whether there is a node for the note; ``start_note``: the note that was read with the start
    * ``keeps_notes``: whether a note can be written
    * ``pointers``, and the data ``version`` of their node; None: there is no node
    * ``restoring``: the node of pointers must be written again: it is gone, or names messages of a deleted topic
    * ``trouble``: why no pointers can be stored, in words; empty if they can
    * ``encoded``: the pointers that were encoded last, and their bytes: a commit that is tried again encodes nothing
    * ``met``: a commit read the pointers again: the next look tells of them, though nothing moves since
    """

    has_note: bool = False
    start_note: FinishedNote | None = None
    keeps_notes: bool = True
    pointers: Mapping[int, Pointer] = field(default_factory=dict)
    version: int | None = None
    restoring: bool = False
    trouble: str = ""
    encoded: tuple[Mapping[int, Pointer], bytes] | None = None
    met: bool = False


@dataclass(slots=True, eq=False)
class OffsetElsewhere:
    """The offset in a store outside ZooKeeper as last read or written, None if unknown, and the note read with it.

    ``doubtful`` are the lowest and highest offset of tries whose outcome is unknown. ``epoch`` is the ownership epoch
    of the claim in a group that the brokers coordinate; None: a newer generation had begun. A bridge keeps the last
    epoch that had ended before its claim, None if the brokers did not give the partition.
    """

    offset: int | None = None
    note: FinishedNote | None = None
    doubtful: tuple[int, int] | None = None
    epoch: int | None = None


class StoredOffset:
    """The stored state of one ownership.

    * ``committed``: the offset that was last written to or read from a store; None if nothing is stored
    * ``position``: the position whose progress is committed
    * ``node``, ``notes`` and ``elsewhere``: what each store knows; ``notes`` is None until they are read
    * ``written``, ``tried``: when the offset was last written, and when a commit was last tried (monotonic seconds)
    * ``ahead``: a commit of this position counted a message that is still in the user's hands
    * ``stores_differ``: its stores do not agree; see :attr:`must_write`
    * ``undecided``: the offset that another client wrote elsewhere, until the group thread decides about it
    * ``seeks``: the time limits of seeks. Until all are over nothing is committed, or a seek could be undone
    """

    __slots__ = (
        "ahead",
        "committed",
        "elsewhere",
        "node",
        "notes",
        "position",
        "seeks",
        "stores_differ",
        "tried",
        "undecided",
        "written",
    )

    def __init__(self, position: PartitionPosition, committed: int | None = None) -> None:
        self.position = position
        self.committed = committed
        self.node = SeenNode()
        self.notes: StoredNotes | None = None
        self.elsewhere = OffsetElsewhere()
        self.written = self.tried = NEGATIVE
        self.ahead = self.stores_differ = False
        self.undecided: int | None = None
        self.seeks: list[Deadline] = []

    @property
    def may_park(self) -> bool:
        """Whether pointers to messages can be stored."""
        return not self.parking_trouble

    @property
    def parking_trouble(self) -> str:
        """Why no pointers to messages can be stored, in words; empty if they can."""
        return UNREAD if self.notes is None else self.notes.trouble

    @property
    def pointers(self) -> Mapping[int, Pointer]:
        """The pointers to messages as last read or written. The next ledger of the ownership begins with these.

        Without the stored pointer of a message that has changed since, nobody would try that message again.
        """
        return {} if self.notes is None else self.notes.pointers

    @property
    def must_write(self) -> bool:
        """Whether the next commit writes an unchanged offset, too: a store may have a lower one.

        A write whose answer was lost may have landed, for instance that of a seek back. A higher offset may be that of
        messages in hand, and stays.
        """
        doubtful = [int(content) for content in self.node.unanswered]
        if self.elsewhere.doubtful is not None:
            doubtful.append(self.elsewhere.doubtful[0])
        return self.stores_differ or (bool(doubtful) and min(doubtful) < (self.committed or 0))

    def is_due(self, *, counting_held: bool) -> bool:
        """Return whether there is anything to commit; ``counting_held`` as for :meth:`due_offset`."""
        ledger = self.position.ledger
        if self.undecided is not None or self.committed is None:
            return False
        if ledger is not None:
            return ledger.unnoted > 0 or self.must_write or ledger.base != self.committed
        return self.must_write or self.due_offset(counting_held=counting_held) is not None

    @property
    def cost(self) -> int:
        """The cost of a commit: the acknowledgements and pointers to encode."""
        ledger = self.position.ledger
        return 0 if ledger is None else ledger.unnoted + ledger.pointer_count

    def point(self, *, by_key: bool, always: bool = False) -> CommitPoint | None:
        """Return what to write of a partition whose messages are finished in any order; None if nothing is due.

        A message in hand there is never counted. Offset, note and pointers are of one moment.
        """
        ledger = self.position.ledger
        assert ledger is not None
        if not (always or ledger.unnoted or self.must_write or ledger.base != self.committed):
            return None
        point = ledger.point(pointers=self.may_park)
        return replace(point, note=replace(point.note, by_key=by_key))

    def note_ahead(self, offset: int) -> None:
        """Note whether the commit of this offset counted a message that is still in the user's hands."""
        consumed = self.position.consumed
        self.ahead = consumed is None or consumed < offset

    def due_offset(self, *, counting_held: bool, caller_held: range = range(0)) -> int | None:
        """Return the offset to write, None if nothing is new: an unchanged offset is not written again (KAFKA-987).

        ``counting_held`` counts the message in hand as finished. ``caller_held`` counts the messages that a caller had
        in hand at its call, unless the reader has passed them: by now another message may be in hand. An offset that an
        earlier position committed, or somebody else wrote, says nothing of this position: after a seek back a crash
        would skip from the sought place to there.
        """
        position, committed = self.position, self.committed
        held, consumed = position.held, position.consumed
        if consumed is not None and consumed in caller_held:
            return caller_held.stop if caller_held.stop != committed else None
        offset = position.finished(including_held=counting_held)
        if offset is None or offset == committed:
            return None
        if counting_held or not held or committed is None or not self.ahead:
            return offset
        if offset < committed <= max(offset + 1, position.batch_until):
            return None  # the message in hand, or some of the rows, were committed explicitly before
        return offset
