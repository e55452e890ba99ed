"""The partitions that this member owns: their positions, starts, seeks and ends.

The coordinator decides which partitions are claimed and lost. Owner nodes, sessions and generations are its concern.

Called by the group thread only. Other threads read a copy of :attr:`OwnedPartitions.positions`.

A position belongs to one ownership of a partition and to one place in the log. Each new place (a seek, another offset)
makes a new position. So nothing that still refers to the old position can be taken for the new one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from zkconsumer.core.stored_start import start_in_node
from zkconsumer.errors import LogTruncatedError, OffsetConflictError
from zkconsumer.member.events import Event, SeekRequested, StartsFound, StartsStored
from zkconsumer.member.interfaces import Commits, Delivery, Source
from zkconsumer.model import ThreadId, TopicPartition
from zkconsumer.ownership.partition_position import PartitionPosition
from zkconsumer.zookeeper.ownership_transactions import KnownOffset


class PartitionStarts:
    """The starts of owned positions: their offsets become known, and fetching begins.

    Arguments: ``tell`` puts an event on the member's queue; any thread may call it. ``positions`` are the owned ones,
    whatever they are at the time.
    """

    def __init__(
        self,
        source: Source,
        delivery: Delivery,
        commits: Commits,
        tell: Callable[[Event], None],
        positions: Mapping[TopicPartition, PartitionPosition],
    ) -> None:
        self._source = source
        self._delivery = delivery
        self._commits = commits
        self._tell = tell
        self._positions = positions
        self._unstarted: set[PartitionPosition] = set()  # until start() is called
        self._sought: set[PartitionPosition] = set()  # until the place of their seek is stored

    def _holds(self, position: PartitionPosition) -> bool:
        return self._positions.get(position.tp) is position

    def expect(self, position: PartitionPosition) -> None:
        """Let this position begin with the next :meth:`start` of its partition."""
        self._unstarted.add(position)

    def waits(self, position: PartitionPosition) -> bool:
        """Return whether this position waits for :meth:`start`."""
        return position in self._unstarted

    def forget(self, position: PartitionPosition) -> None:
        """Forget a position that has ended or was replaced."""
        self._unstarted.discard(position)
        self._sought.discard(position)

    def start(self, partitions: Iterable[TopicPartition]) -> None:
        """Fetch added partitions, unless a seek moved them. A partition that waits for another store starts later."""
        waiting = [self._positions[tp] for tp in partitions if self._positions.get(tp) in self._unstarted]
        self._unstarted.difference_update(waiting)
        unknown = [position for position in waiting if position.consumed is None]
        ready = [position for position in waiting if position.consumed is not None]
        ready += self._commits.find_starts(unknown, lambda starts: self._tell(StartsFound(starts)))
        self.flow(ready)

    def flow(self, positions: Sequence[PartitionPosition]) -> None:
        """Fetch these positions, and hand their messages out."""
        if positions:
            self._source.start(self._delivery.accept(positions))

    def found(self, starts: Mapping[PartitionPosition, int | None]) -> None:
        """Start partitions at the offsets read from the store. A partition with None has no stored offset."""
        ours = [position for position in starts if self._holds(position)]
        for position in ours:
            start = starts[position]
            if start is not None:
                position.begin(start)
        self.flow(ours)

    def resolved(self, starts: Mapping[PartitionPosition, int]) -> None:
        """Store the start offsets that a broker returned, before the first message is handed out."""
        self._store({p: offset for p, offset in starts.items() if self._holds(p) and p.consumed is None})

    def _store(self, starts: Mapping[PartitionPosition, int]) -> None:
        def tell(stored: Mapping[PartitionPosition, bool]) -> None:
            refused = frozenset(position for position, done in stored.items() if not done)
            self._tell(StartsStored({position: starts[position] for position in stored}, refused))

        if starts:
            self._commits.store_starts(starts, tell)

    def stored(
        self, starts: Mapping[PartitionPosition, int], refused: Collection[PartitionPosition]
    ) -> list[PartitionPosition]:
        """Start positions at stored offsets. Returns the refused positions, whose offsets must be read again."""
        doubtful, sought = [], []
        for position, offset in starts.items():
            if not self._holds(position) or position.consumed is not None:
                continue  # two fetchers may have asked, if the first lost its connection: it has begun already
            asked_for = position in self._sought
            self._sought.discard(position)
            # if we stored something else ourselves meanwhile, the place of a seek is good all the same
            if position in refused and not (asked_for and position.stored.committed is not None):
                doubtful.append(position)
                continue
            position.start_at(offset)
            if asked_for:
                sought.append(position)
        self.flow(sought)
        self._source.wake()
        return doubtful

    def begin_at_committed(self, positions: Iterable[PartitionPosition]) -> None:
        """Start positions at the offsets that the user has committed meanwhile."""
        for position in positions:
            if position.stored.committed is not None:
                position.begin(position.stored.committed)
        self._source.wake()

    def store_first(self, position: PartitionPosition, offset: int) -> None:
        """Store the place of a seek before the partition goes on there, because nothing was ever stored of it.

        Without a stored offset its commits could not be fenced.
        """
        self._sought.add(position)
        self._store({position: offset})


class OwnedPartitions:
    """The positions of the owned partitions. It passes each change on to the fetchers, the streams and the committer.

    Arguments: ``tell`` puts an event on the member's queue; any thread may call it.
    """

    def __init__(self, source: Source, delivery: Delivery, commits: Commits, tell: Callable[[Event], None]) -> None:
        self._source = source
        self.delivery = delivery
        self.commits = commits
        self.positions: dict[TopicPartition, PartitionPosition] = {}
        self.starts = PartitionStarts(source, delivery, commits, tell, self.positions)
        self.left: Sequence[PartitionPosition] = ()
        """The positions that were owned when the member left; empty before that."""

    def holds(self, position: PartitionPosition) -> bool:
        """Return whether this position is the current position of its partition."""
        return self.positions.get(position.tp) is position

    # ---- claimed ----

    def add(self, claimed: Mapping[TopicPartition, tuple[ThreadId, KnownOffset]]) -> None:
        """Add claimed partitions. :meth:`PartitionStarts.start` begins to fetch them."""
        added = [(self._position(tp, thread, known), known) for tp, (thread, known) in claimed.items()]
        # the committer first: it must know a partition before a message of it can be finished
        self.commits.track(added)
        for position, _ in added:
            self.positions[position.tp] = position
            self.starts.expect(position)

    def _position(self, tp: TopicPartition, thread: ThreadId, known: KnownOffset) -> PartitionPosition:
        """Return a position that begins as the nodes say."""
        position = PartitionPosition(tp, thread, start_in_node(known.offset, store_elsewhere=self.commits.asks))
        if known.acks is not None:
            _take_pointers(position, known)
            position.ledger_start.note = None if position.consumed is None else known.acks.note
        return position

    # ---- going on elsewhere ----

    def seek(self, tp: TopicPartition, offset: int) -> bool:
        """Continue at another offset. Queued messages are dropped, and the old offset is never committed after this.

        Returns whether the partition is ours.
        """
        old = self.positions.get(tp)
        if old is None or old.revoked:
            return False
        new = PartitionPosition(tp, old.thread, stored=old.stored)
        waits = self.starts.waits(old)
        self._replace(old, new)
        self.commits.succeed(old, new)
        if new.stored.committed is not None:
            new.start_at(offset)
            self._go_on(new, waits)
        else:
            self.starts.store_first(new, offset)
        return True

    def answer_seek(self, request: SeekRequested) -> None:
        """Perform a seek, unless its caller has gone. Its answer: the positions that did not move, or the error."""
        if not request.done.begin():
            request.done.set_exception(TimeoutError())
            return
        try:
            left = frozenset(
                position
                for position, offset in request.offsets.items()
                if not self.holds(position) or not self.seek(position.tp, offset)
            )
        except Exception as e:  # noqa: BLE001 (the thread that waits for the answer raises it)
            request.done.set_exception(e)
        else:
            request.done.set_result(left)

    def _go_on(self, position: PartitionPosition, waits: bool) -> None:
        if waits:
            self.starts.expect(position)
        else:
            self.starts.flow([position])

    def begin_anew(self, known: Mapping[PartitionPosition, KnownOffset]) -> None:
        """Restart owned partitions at the offsets in ``known``, which were just read from the offset nodes.

        A partition that has started continues at its node's offset, even if another store has a different one, because
        somebody wrote the node.
        """
        news = {old: self._position(old.tp, old.thread, offset) for old, offset in known.items()}
        for old, new in news.items():
            self._replace(old, new)
            self.starts.expect(new)
        self.commits.forget(list(news))
        self.commits.track([(new, known[old]) for old, new in news.items()])
        for old, new in news.items():
            offset = known[old].offset
            if self.commits.asks and old.consumed is not None and offset is not None and offset >= 0:
                new.begin(offset)
        followed = [new for new in news.values() if new.stored.committed is not None]
        if followed:
            # to all stores; the node's new version tells the writing process that this member goes on from there
            self.commits.write_starts(followed)
        self.starts.start([new.tp for new in news.values()])

    def stop_at(
        self, old: PartitionPosition, known: KnownOffset | None, error: OffsetConflictError | LogTruncatedError
    ) -> PartitionPosition:
        """Stop the hand-out, and raise ``error`` to the reader until a seek. Returns the new position.

        ``known`` is its offset node. None: the conflict is outside ZooKeeper, and the committer knows the offset.
        """
        new = PartitionPosition(old.tp, old.thread, stored=old.stored if known is None else None)
        self._replace(old, new)
        if known is None:
            self.commits.succeed(old, new)
        else:
            new.stored.committed = (
                known.offset
            )  # None: a seek stores its place first, even if it is the place we were at
            _take_pointers(new, known)
            self.commits.forget([old])
            self.commits.track([(new, known)])
        self.delivery.fail(new, error)
        return new

    def begin_other_log(self, old: PartitionPosition, known: KnownOffset, offset: int) -> PartitionPosition:
        """Continue at ``offset`` of another log. Store it at once, because ``known`` belongs to the earlier log.

        Nothing more of the log before it is handed out. Returns the new position.
        """
        new = PartitionPosition(old.tp, old.thread, offset)
        _take_pointers(new, known)
        waits = self.starts.waits(old)
        self._replace(old, new)
        self.commits.begin_other_log(old, new, known)
        new.from_start = True
        self.commits.write_starts([new])
        self._go_on(new, waits)
        return new

    # ---- given up or lost ----

    def revoke(self, positions: Sequence[PartitionPosition]) -> None:
        """Stop the hand-out of these positions; return at once."""
        self.delivery.revoke(positions)
        self._source.forget()

    def remove(self, positions: Collection[PartitionPosition]) -> None:
        """Remove these positions; their last commit follows."""
        for position in positions:
            if self.holds(position):
                del self.positions[position.tp]
            self.starts.forget(position)

    def _replace(self, old: PartitionPosition, new: PartitionPosition) -> None:
        """Replace a position. A look-up of another thread meanwhile finds the old position or the new position."""
        self.delivery.replace(old, new)
        self._source.forget()
        self.positions[new.tp] = new
        self.remove([old])


def _take_pointers(position: PartitionPosition, known: KnownOffset) -> None:
    """Have the ledger of a position begin with the pointers that were read.

    Messages may be parked at once. Otherwise one that fails before the committer tracks the position would be held,
    with the committed offset, for all of its delay.
    """
    acks = known.acks
    if acks is not None:
        position.stored.notes = acks.stored()
