"""What was consumed, committed and written of the partitions we own.

Part of the committer and its thread's alone: ``offsets.committer`` says when something is written, this says what.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from time import monotonic

from zkconsumer.core.partition_position import PartitionPosition
from zkconsumer.deadline import Deadline
from zkconsumer.errors import OffsetCommitError, RegistryError
from zkconsumer.model import TopicPartition
from zkconsumer.offsets.dual_store import DualStore, Failures
from zkconsumer.offsets.start_offsets import Barred, Starts
from zkconsumer.offsets.start_writer import Stored
from zkconsumer.offsets.store import CommitRefusedError
from zkconsumer.zookeeper.fenced_writes import KnownOffset, Outcome
from zkconsumer.zookeeper.lease import Lease

log = logging.getLogger(__name__)

Refused = Callable[[Mapping[PartitionPosition, Outcome]], None]
"""Told, on the committer's thread, of the partitions whose commit ZooKeeper refused."""
Moved = Callable[[Mapping[PartitionPosition, int]], None]
"""Told, on the committer's thread, of offsets that somebody else wrote to the store outside ZooKeeper."""

_UNSEEN = "whether somebody else wrote it could not be seen"


class Ledger:
    """The partitions that are ours, with what is written of each.

    Arguments: as for the committer. ``positions`` are they; ``starts`` those of them that wait for their start.
    """

    def __init__(
        self,
        store: DualStore,
        lease: Lease,
        *,
        timeout: float,
        count_held: bool,
        refused: Refused,
        retry: float,
        barred: Barred,
        moved: Moved = lambda _: None,
    ) -> None:
        self._store = store
        self._lease = lease
        self._timeout = timeout
        self._count_held = count_held
        self._refused = refused
        self._moved = moved
        self._undecided: dict[TopicPartition, int] = {}
        """What somebody else wrote elsewhere, until the group's thread has decided: nothing is written over it."""
        self._unseen: frozenset[TopicPartition] = frozenset()
        """Partitions of which the last commit of the timer could not see what is stored."""
        self._unlevel: set[TopicPartition] = set()
        self._written: dict[TopicPartition, float] = {}
        self._ahead: set[TopicPartition] = set()
        """Partitions of which a commit of this position counted what is still in the user's hands."""
        self.positions: dict[TopicPartition, PartitionPosition] = {}
        self.starts = Starts(
            store, timeout=timeout, retry=retry, barred=barred, settle=self._settle_starts, unlevel=self._unlevel
        )

    def track(self, claimed: Sequence[tuple[PartitionPosition, KnownOffset]]) -> None:
        """Partitions were claimed: write their progress from now on."""
        for position, known in claimed:
            self.positions[position.tp] = position
            self._written[position.tp] = monotonic()
            self._ahead.discard(position.tp)
            self._undecided.pop(position.tp, None)
            self._store.track(position.tp, known)

    def check(self) -> None:
        """See whether somebody else wrote the offsets of partitions of ours, and tell ``refused``."""
        if not self._lease.valid:
            return
        self.look_elsewhere()
        try:
            moved = self._store.moved(Deadline(self._timeout))
        except RegistryError as e:
            log.info("whether somebody else wrote our offsets could not be seen: %s", e)
            return
        found = {self.positions[tp]: Outcome.OFFSET_MOVED for tp in moved if tp in self.positions}
        if found:
            self._refused(found)

    def look_elsewhere(self, deadline: Deadline | None = None) -> Collection[TopicPartition]:
        """See whether somebody else wrote offsets of ours to a store outside ZooKeeper, and tell ``moved``. Offsets
        that the store has forgotten are written again. Returns the partitions of which that could not be seen.
        """
        known = {tp: p for tp, p in self.positions.items() if p.committed is not None and tp not in self._undecided}
        looked = self._store.looked(known, deadline or Deadline(self._timeout))
        for tp, offset in looked.ours.items():
            self._mark(known[tp], offset)
        for tp, offset in looked.theirs.items():
            known[tp].committed = offset
            self._undecided[tp] = offset
            self._ahead.discard(tp)
        if looked.forgotten:
            forgotten = ", ".join(map(str, sorted(looked.forgotten)))
            log.warning("nothing is stored of %s any more; it is written again", forgotten)
            self.level([known[tp] for tp in looked.forgotten])
        if looked.theirs:
            self._moved({known[tp]: offset for tp, offset in looked.theirs.items()})
        return looked.untold

    def overwrite(self, position: PartitionPosition, known: KnownOffset | None) -> None:
        """Somebody else wrote ``known`` (None: elsewhere than in ZooKeeper), over which the next commit writes."""
        if self.positions.get(position.tp) is position:
            if known is not None:
                self._store.track(position.tp, known)
                position.committed = known.offset
            self._ahead.discard(position.tp)
            self._undecided.pop(position.tp, None)

    def level(self, positions: Collection[PartitionPosition]) -> None:
        """Write where these begin to all stores: one of them says so already, and the larger of what they hold would
        count for the next owner. It is nobody's progress, so it is written whether or not offsets are committed by
        themselves; what cannot be written now is with the next commit.
        """
        ours = [position for position in positions if self.positions.get(position.tp) is position]
        self._unlevel.update(position.tp for position in ours)
        self._write_again({p.tp: p.committed for p in ours if p.committed is not None})

    def succeed(self, old: PartitionPosition, new: PartitionPosition) -> None:
        """A partition goes on at a new position."""
        if self.positions.get(old.tp) is old:
            new.committed = old.committed
            self.positions[old.tp] = new
            self._ahead.discard(old.tp)
            self._undecided.pop(old.tp, None)
            self.starts.forget(old)

    def untrack(self, positions: Collection[PartitionPosition]) -> Mapping[TopicPartition, KnownOffset]:
        """Write nothing more of these. Returns their offset nodes as last seen."""
        known = {}
        for position in positions:
            if self.positions.get(position.tp) is position:
                del self.positions[position.tp]
                self._unlevel.discard(position.tp)
                self._ahead.discard(position.tp)
                self._undecided.pop(position.tp, None)
                self._written.pop(position.tp, None)
                self.starts.forget(position)
                known[position.tp] = self._store.untrack(position.tp)
        return known

    # ---- commits ----

    def surrender(
        self,
        positions: Collection[PartitionPosition],
        commit: bool,
        count_held: Callable[[PartitionPosition], bool],
        deadline: Deadline,
        release: bool,
    ) -> Mapping[TopicPartition, KnownOffset | None]:
        """The last commit (if ``commit``), with the release where that goes together; see the committer's."""
        held = [p for p in positions if self.positions.get(p.tp) is p]
        released: set[TopicPartition] = set()
        # after its deadline nobody waits for us any more, and the same partitions may have been claimed again
        release = release and self._store.releases and not deadline.expired
        unanswered = False
        if commit:
            try:
                if release:
                    self._release(held, count_held, deadline, released)
                else:
                    self.commit(held, count_held, deadline, patient=True)
            except (RegistryError, OffsetCommitError) as e:
                log.warning(
                    "the last commit before giving partitions up failed, so their next owner repeats some: %s", e
                )
                unanswered = release and isinstance(e, RegistryError)
        known = self.untrack(held)
        return {} if unanswered else {tp: None if tp in released else offset for tp, offset in known.items()}

    def _release(
        self,
        positions: Collection[PartitionPosition],
        count_held: Callable[[PartitionPosition], bool],
        deadline: Deadline,
        released: set[TopicPartition],
    ) -> None:
        """The last commit with the release in one request; notes in ``released`` of what that was done."""
        changed = self._progress(positions, count_held)
        if not changed:
            return
        failures, done = self._store.release(changed, [p.tp for p in positions if p.tp not in changed], deadline)
        released |= done
        self._settle(changed, {}, failures)

    def _progress(
        self, positions: Collection[PartitionPosition], count_held: Callable[[PartitionPosition], bool]
    ) -> dict[TopicPartition, int]:
        """Return what is to be written."""
        changed: dict[TopicPartition, int] = {}
        for position in positions:
            if position.tp in self._undecided:
                continue
            consumed, committed = position.consumed, position.committed
            if consumed is not None and committed is not None and consumed >= committed:
                self._ahead.discard(position.tp)  # finished since: an earlier offset is a truncated log's from now on
            counting = self._count_held or count_held(position)
            offset = self._due(position, counting_held=counting, ahead=position.tp in self._ahead)
            if offset is not None:
                changed[position.tp] = offset
            elif position.committed is not None:
                if counting:  # nothing to write, but what is in hand counts from now on
                    self._note_ahead(position, position.committed)
                if position.tp in self._unlevel:
                    changed[position.tp] = position.committed
        return changed

    def commit(
        self,
        positions: Collection[PartitionPosition],
        count_held: Callable[[PartitionPosition], bool],
        deadline: Deadline,
        *,
        patient: bool,
    ) -> None:
        """Write what was finished since. Raises OffsetCommitError, RegistryError.

        Where nobody waits (not ``patient``), it is seen first whether somebody else wrote elsewhere, and what the
        group's thread has not decided yet is no error. Where that cannot be seen the commit waits for the next one.
        """
        changed = self._progress(positions, count_held)
        put_off: dict[TopicPartition, Exception] = {}
        if changed and not patient:
            unseen = self.look_elsewhere(deadline)
            if deadline.expired:
                raise OffsetCommitError("where offsets are kept did not answer in time")
            # once, or a store that tells nothing would stop all commits
            put_off = dict.fromkeys(set(unseen).difference(self._unseen), OffsetCommitError(_UNSEEN))
            self._unseen = frozenset(unseen)
            changed = self._progress(positions, count_held)
        due = {tp: offset for tp, offset in changed.items() if tp not in put_off}
        failures = self._store.commit(due, {}, deadline, patient=patient) if due else {}
        failures = {**failures, **{tp: why for tp, why in put_off.items() if tp in changed}}
        undecided = {p.tp: p.consumed or 0 for p in positions if p.tp in self._undecided} if patient else {}
        self._settle(changed, undecided, {**failures, **self._conflicting(undecided)})

    def commit_given(self, offsets: Mapping[TopicPartition, int], deadline: Deadline) -> None:
        """Write given offsets as they are, of partitions of ours or of nobody. Raises OffsetCommitError."""
        ours = {tp: offset for tp, offset in offsets.items() if tp in self.positions}
        others = {tp: offset for tp, offset in offsets.items() if tp not in ours}
        failures = self._conflicting(ours)
        ours = {tp: offset for tp, offset in ours.items() if tp not in failures}
        failures |= self._store.commit(ours, {}, deadline, patient=True) if ours else {}
        if others:
            try:
                failures |= self._store.commit_unowned(others, deadline)
            except RegistryError as e:  # what is ours was dealt with and must be noted
                failures |= dict.fromkeys(others, e)
        self._settle(offsets, {}, failures)

    def _conflicting(self, wanted: Collection[TopicPartition]) -> dict[TopicPartition, Exception]:
        return {
            tp: OffsetCommitError(f"somebody else wrote offset {self._undecided[tp]}, see offset.conflict")
            for tp in wanted
            if tp in self._undecided
        }

    def rewrite(self, before: float, *, everywhere: bool = True) -> None:
        """Write committed offsets again that were last written before that time. Offsets that somebody else wrote are
        left alone. ``everywhere``: to all stores, not only to one that forgets.
        """
        if not self._lease.valid or not self._unchanged_since(before):
            return
        unseen = self.look_elsewhere()
        due = {tp: offset for tp, offset in self._unchanged_since(before).items() if tp not in unseen}
        self._write_again(due, everywhere=everywhere)

    def _unchanged_since(self, before: float) -> dict[TopicPartition, int]:
        return {
            tp: position.committed
            for tp, position in self.positions.items()
            if position.committed is not None and self._written[tp] <= before and tp not in self._undecided
        }

    def _write_again(self, due: Mapping[TopicPartition, int], *, everywhere: bool = True) -> None:
        if not self._lease.valid:
            return
        changed, unchanged = (due, {}) if everywhere else ({}, due)
        try:
            self._settle({}, due, self._store.commit(changed, unchanged, Deadline(self._timeout), patient=False))
        except (RegistryError, OffsetCommitError) as e:
            log.info("unchanged offsets could not be written again: %s", e)
        except Exception:
            log.exception("writing unchanged offsets again failed unexpectedly")

    def _settle(
        self, changed: Mapping[TopicPartition, int], unchanged: Mapping[TopicPartition, int], failures: Failures
    ) -> None:
        """Note what is written; report and raise what is not."""
        for tp, offset in (*unchanged.items(), *changed.items()):
            if tp not in failures and tp in self.positions:
                self._mark(self.positions[tp], offset)
                if tp in changed:
                    self._note_ahead(self.positions[tp], offset)
        if not failures:
            return
        self._tell_refused(self.positions, failures)
        offsets = {**unchanged, **changed}
        raise OffsetCommitError(
            "not committed: " + ", ".join(f"{tp} at {offsets[tp]} ({failures[tp]})" for tp in sorted(failures))
        ) from failures[min(failures)]

    def _mark(self, position: PartitionPosition, offset: int) -> None:
        position.committed = offset
        self._unlevel.discard(position.tp)
        self._written[position.tp] = monotonic()

    def _note_ahead(self, position: PartitionPosition, offset: int) -> None:
        consumed = position.consumed
        (self._ahead.add if consumed is None or consumed < offset else self._ahead.discard)(position.tp)

    def counted_in_hand(self, position: PartitionPosition) -> int | None:
        """Return the committed offset where a commit of this position counted what is in the user's hands, else None.
        Any thread.
        """
        counted = position.tp in self._ahead and self.positions.get(position.tp) is position
        return position.committed if counted else None

    def store_starts(self, starts: Mapping[PartitionPosition, int], done: Stored) -> None:
        """Store starts that were resolved; ``done`` is told of each whether it is stored."""
        ours = {position: start for position, start in starts.items() if self.positions.get(position.tp) is position}
        if len(ours) < len(starts):
            done({position: False for position in starts if position not in ours})
        self.starts.store(ours, done, len(self.positions))

    def _settle_starts(self, wanted: Mapping[PartitionPosition, int], failures: Failures) -> None:
        for position, offset in wanted.items():
            if position.tp not in failures:
                self._mark(position, offset)
        self._tell_refused({position.tp: position for position in wanted}, failures)

    def _tell_refused(self, positions: Mapping[TopicPartition, PartitionPosition], failures: Failures) -> None:
        refused = {
            positions[tp]: failure.outcome
            for tp, failure in failures.items()
            if isinstance(failure, CommitRefusedError) and tp in positions
        }
        if refused:
            self._refused(refused)

    @staticmethod
    def _due(position: PartitionPosition, *, counting_held: bool, ahead: bool) -> int | None:
        """Return the offset to write, None where nothing is new (unchanged offsets are not rewritten: KAFKA-987).

        ``ahead`` says that a commit of this position counted what is in hand. What an earlier position committed, or
        somebody else wrote, says nothing of it: after a seek back a crash would skip from the sought place to there.
        """
        held, committed = position.held, position.committed
        offset = position.finished(including_held=counting_held)
        if offset is None or offset == committed:
            return None
        if counting_held or not held or committed is None or not ahead:
            return offset
        if offset < committed <= max(offset + 1, position.batch_until):
            return None  # the message in hand, or some of the rows, were committed explicitly before
        return offset
