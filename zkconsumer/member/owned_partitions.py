"""The partitions that are ours: where each stands, how it starts, and how it stops being ours without being released.

Called by the group's thread only; others read a copy of the table.

A position belongs to one stay of a partition at one place: whatever interrupts it (a new offset, a seek) makes a new
position, so that nothing that still refers to the old one can be taken for the new.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol

from zkconsumer.core.partition_position import PartitionPosition
from zkconsumer.deadline import Deadline
from zkconsumer.errors import LogTruncatedError, OffsetConflictError
from zkconsumer.member.events import Event, StartsFound, StartsStored
from zkconsumer.member.zookeeper.owner_nodes import Ownership
from zkconsumer.model import ThreadId, TopicPartition
from zkconsumer.zookeeper.fenced_writes import KnownOffset

log = logging.getLogger(__name__)


class Delivery(Protocol):
    """Fetching and streams, as the group's thread sees them."""

    def start(self, positions: Sequence[PartitionPosition]) -> None:
        """Fetch these into their streams."""

    def revoke(self, positions: Sequence[PartitionPosition], drain: Deadline) -> None:
        """Hand out nothing more of these; wait for the messages in the user's hands until the deadline."""

    def replace(self, old: PartitionPosition, new: PartitionPosition) -> None:
        """Hand out nothing more of ``old``; the partition goes on at ``new``, paused where ``old`` is."""

    def wake(self) -> None:
        """A start position is known now."""

    def end(self) -> None:
        """End all streams: their readers wake and finish."""

    def held_by(self, position: PartitionPosition, thread: int) -> bool:
        """Whether that thread reads the stream of this partition."""

    def fail(self, position: PartitionPosition, error: OffsetConflictError | LogTruncatedError) -> None:
        """Raise ``error`` to whoever reads the stream of this partition, until the position ends."""


class Offsets(Protocol):
    """The committer, as the group's thread sees it."""

    @property
    def asks(self) -> bool:
        """Whether starts are to be asked for."""

    @property
    def reads_nodes(self) -> bool:
        """Whether the offset nodes matter."""

    def find_starts(
        self, positions: Sequence[PartitionPosition], found: Callable[[Mapping[PartitionPosition, int | None]], None]
    ) -> Sequence[PartitionPosition]:
        """Have starts looked up; returns those that need none."""

    def track(self, claimed: Sequence[tuple[PartitionPosition, KnownOffset]]) -> None:
        """Partitions were claimed."""

    def succeed(self, old: PartitionPosition, new: PartitionPosition) -> None:
        """The partition goes on at a new position."""

    def store_starts(
        self, starts: Mapping[PartitionPosition, int], done: Callable[[Mapping[PartitionPosition, bool]], None]
    ) -> None:
        """Store resolved start offsets; ``done`` is told of each once whether it is stored, of some before others."""

    def overwrite(self, position: PartitionPosition, known: KnownOffset | None) -> None:
        """Commit over what somebody else wrote, which is ``known``; None: elsewhere than in ZooKeeper."""

    def level(self, positions: Collection[PartitionPosition]) -> None:
        """Write where these begin to every store: one of them says so already."""

    def hurry(self) -> None:
        """Commit what is finished at once, where that is done by itself at all."""

    def surrender(
        self,
        positions: Collection[PartitionPosition],
        *,
        commit: bool,
        count_held: Callable[[PartitionPosition], bool],
        deadline: Deadline,
        meanwhile: Callable[[], None],
        release: bool = False,
    ) -> Mapping[TopicPartition, KnownOffset | None]:
        """The last commit before giving partitions up; ``meanwhile`` is called every now and then. With ``release`` it
        may be their release as well. Returns their offset nodes, None for what is released, nothing where it may be.
        """

    def check(self) -> None:
        """See whether somebody else wrote offsets of ours, which :class:`CommitsRefused` then tells."""

    def forget(self, positions: Collection[PartitionPosition]) -> None:
        """Partitions are lost."""


class Holdings:
    """The table of our positions.

    ``owned`` are they; ``leftover`` are partitions whose owner nodes may still be ours although they are in no
    position, after a request whose answer was lost.
    """

    def __init__(
        self, delivery: Delivery, offsets: Offsets, ownership: Ownership, tell: Callable[[Event], None]
    ) -> None:
        self._delivery = delivery
        self._offsets = offsets
        self._ownership = ownership
        self._tell = tell
        self._unstarted: set[PartitionPosition] = set()  # until start() is called
        self._sought: set[PartitionPosition] = set()  # until the place they were sent to is stored
        self.owned: dict[TopicPartition, PartitionPosition] = {}
        self.leftover: set[TopicPartition] = set()

    def holds(self, position: PartitionPosition) -> bool:
        """Whether this very position is current."""
        return self.owned.get(position.tp) is position

    # ---- coming ----

    def add(self, claimed: Mapping[TopicPartition, tuple[ThreadId, KnownOffset]]) -> list[PartitionPosition]:
        """These were claimed: they are ours now, and not yet fetched."""
        added = [
            (PartitionPosition(tp, thread, self._start_in(known)), known) for tp, (thread, known) in claimed.items()
        ]
        # the committer first: it must know a partition before anything of it can be finished
        self._offsets.track(added)
        for position, _ in added:
            self.owned[position.tp] = position
            self._unstarted.add(position)
            self.leftover.discard(position.tp)
        return [position for position, _ in added]

    def _start_in(self, known: KnownOffset) -> int | None:
        """The start that the offset node tells, None where it tells none or is not the only one to be asked."""
        return None if self._offsets.asks or known.offset is None or known.offset < 0 else known.offset

    def start(self, partitions: Iterable[TopicPartition]) -> None:
        """Fetch what was added, unless it was sent elsewhere meanwhile; what starts where another store than ZooKeeper
        says, once that has answered.
        """
        waiting = [self.owned[tp] for tp in partitions if self.owned.get(tp) in self._unstarted]
        self._unstarted.difference_update(waiting)
        unknown = [position for position in waiting if position.consumed is None]
        ready = [position for position in waiting if position.consumed is not None]
        ready += self._offsets.find_starts(unknown, lambda starts: self._tell(StartsFound(starts)))
        if ready:
            self._delivery.start(ready)

    def starts_found(self, starts: Mapping[PartitionPosition, int | None]) -> None:
        """The store told where partitions start."""
        ours = [position for position in starts if self.holds(position)]
        for position in ours:
            start = starts[position]
            if start is not None:
                position.begin(start)
        if ours:
            self._delivery.start(ours)

    def starts_resolved(self, starts: Mapping[PartitionPosition, int]) -> None:
        """A broker told where partitions begin: store that before anything of them is handed out."""
        self._store({p: offset for p, offset in starts.items() if self.holds(p) and p.consumed is None})

    def _store(self, starts: Mapping[PartitionPosition, int]) -> None:
        def tell(stored: Mapping[PartitionPosition, bool]) -> None:
            refused = frozenset(position for position, done in stored.items() if not done)
            self._tell(StartsStored({position: starts[position] for position in stored}, refused))

        if starts:
            self._offsets.store_starts(starts, tell)

    def starts_stored(
        self, starts: Mapping[PartitionPosition, int], refused: Collection[PartitionPosition]
    ) -> list[PartitionPosition]:
        """Starts are stored: begin there. Returns those that could not be stored, whose offsets must be read again."""
        doubtful, sought = [], []
        for position, offset in starts.items():
            if not self.holds(position) or position.consumed is not None:
                continue  # two fetchers may have asked, where the first lost its connection: it has begun already
            asked_for = position in self._sought
            self._sought.discard(position)
            # where something else was stored meanwhile by ourselves, a place that was asked for is good all the same
            if position in refused and not (asked_for and position.committed is not None):
                doubtful.append(position)
                continue
            position.start_at(offset)
            if asked_for:
                sought.append(position)
        if sought:
            self._delivery.start(sought)
        self._delivery.wake()
        return doubtful

    # ---- going on elsewhere ----

    def seek(self, tp: TopicPartition, offset: int) -> bool:
        """Go on at another offset: what is queued is dropped, and the old place is never committed after this.

        Returns whether the partition is ours.
        """
        old = self.owned.get(tp)
        if old is None or old.revoked:
            return False
        new = PartitionPosition(tp, old.thread)
        new.committed = old.committed
        waits = old in self._unstarted
        self._replace(old, new)
        self._offsets.succeed(old, new)
        if new.committed is not None:
            new.start_at(offset)
            if waits:
                self._unstarted.add(new)
            else:
                self._delivery.start([new])
        else:
            # nothing was ever stored of it: without that its commits could not be fenced
            self._sought.add(new)
            self._store({new: offset})
        return True

    def begin_anew(self, known: Mapping[PartitionPosition, KnownOffset]) -> None:
        """Keep the ownership but take the offset anew from its node, which says ``known``. What had begun goes on at
        what its node says, also where another store says something else: somebody has written it there.
        """
        news = {old: PartitionPosition(old.tp, old.thread, self._start_in(offset)) for old, offset in known.items()}
        for old, new in news.items():
            self._replace(old, new)
            self._unstarted.add(new)
        self._offsets.forget(list(news))
        self._offsets.track([(new, known[old]) for old, new in news.items()])
        told = []
        for old, new in news.items():
            offset = known[old].offset
            if self._offsets.asks and old.consumed is not None and offset is not None and offset >= 0:
                new.begin(offset)
                told.append(new)
        if told:
            self._offsets.level(told)
        self.start([new.tp for new in news.values()])

    def adopt_elsewhere(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Go on at offsets that somebody else wrote outside ZooKeeper, and make its nodes match where they count."""
        for tp, offset in offsets.items():
            self.seek(tp, offset)
        if self._offsets.reads_nodes:
            self._offsets.level([self.owned[tp] for tp in offsets])

    def insist(self, position: PartitionPosition, known: KnownOffset | None) -> None:
        """Go on as before, and let the next commit write over what somebody else wrote."""
        self._offsets.overwrite(position, known)

    def stop_at(
        self, old: PartitionPosition, known: KnownOffset | None, error: OffsetConflictError | LogTruncatedError
    ) -> PartitionPosition:
        """Hand out nothing more of it and have its reader told, until somebody seeks. Returns its new position.

        ``known`` is its offset node, None where somebody wrote elsewhere and the committer has what.
        """
        new = PartitionPosition(old.tp, old.thread)
        self._replace(old, new)
        if known is None:
            new.committed = old.committed
            self._offsets.succeed(old, new)
        else:
            new.committed = known.offset  # None: a seek stores its place first, also where it is the one we were at
            self._offsets.forget([old])
            self._offsets.track([(new, known)])
        self._delivery.fail(new, error)
        return new

    def begin_other_log(self, old: PartitionPosition, known: KnownOffset, offset: int) -> PartitionPosition:
        """Go on at ``offset`` of another log, and store that at once: what is stored (``known``) belongs to the log
        before it, of which nothing more is handed out. Returns its new position.
        """
        new = PartitionPosition(old.tp, old.thread, offset)
        waits = old in self._unstarted
        self._replace(old, new)
        self._offsets.forget([old])
        self._offsets.track([(new, known)])
        new.from_start = True
        self._offsets.level([new])
        if waits:
            self._unstarted.add(new)
        else:
            self._delivery.start([new])
        return new

    # ---- going ----

    def remove(self, partitions: Collection[TopicPartition]) -> None:
        """These are given up; until they are known to be released they are leftover."""
        self.leftover.update(partitions)
        for tp in partitions:
            self._drop(self.owned[tp])

    def lose(self, positions: Sequence[PartitionPosition]) -> None:
        """These are no longer ours: hand out and commit nothing of them. Their owner nodes are leftover until they are
        known not to be ours: one that somebody wrote into stands for as long as our session.
        """
        self.leftover.update(position.tp for position in positions)
        self._delivery.revoke(positions, Deadline(0.0))
        self._offsets.forget(positions)
        for position in positions:
            self._drop(position)

    def _replace(self, old: PartitionPosition, new: PartitionPosition) -> None:
        """The partition goes on at a new position. There is one at each moment, for whoever pauses it or asks for it
        meanwhile.
        """
        self._delivery.replace(old, new)
        self.owned[new.tp] = new
        self._drop(old)

    def _drop(self, position: PartitionPosition) -> None:
        if self.holds(position):
            del self.owned[position.tp]
        self._unstarted.discard(position)
        self._sought.discard(position)
