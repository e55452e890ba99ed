"""Tracks the committed offsets of owned partitions, and the conflicts that prevent a commit.

Part of the committer; only its thread comes here. ``committer`` says when something is written, this says what.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from time import monotonic, time

from zkconsumer.errors import OffsetCommitError, RegistryError
from zkconsumer.model import TopicPartition
from zkconsumer.offsets.commit_schedule import CommitSettings, GivenOffset, Slices, is_moving
from zkconsumer.offsets.member_store import MemberStore
from zkconsumer.offsets.start_lookup import Barred, StartOffsets, Stored
from zkconsumer.offsets.store import NO_FAILURES, NO_POINTS, CommitRefusedError, Failures, Points
from zkconsumer.ownership.balanced_ledger import CommitPoint
from zkconsumer.ownership.partition_position import Held, PartitionPosition
from zkconsumer.ownership.stored_offset import StoredOffset
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.zookeeper.lease import Lease
from zkconsumer.zookeeper.ownership_transactions import KnownOffset, Outcome

log = logging.getLogger(__name__)

Refused = Callable[[Mapping[PartitionPosition, Outcome]], None]
"""Told, on the committer's thread, of the partitions whose commit ZooKeeper refused."""
Moved = Callable[[Mapping[PartitionPosition, int]], None]
"""Told, on the committer's thread, of offsets that somebody else wrote to the store outside ZooKeeper."""

_UNSEEN = "whether somebody else wrote it could not be seen"


class CommitTracker:
    """The owned partitions, each with its last commit.

    Arguments: as for the committer. ``starts`` are the partitions that wait for their start.
    """

    def __init__(
        self,
        store: MemberStore,
        lease: Lease,
        settings: CommitSettings,
        *,
        refused: Refused,
        moved: Moved,
        barred: Barred,
    ) -> None:
        self._store = store
        self._lease = lease
        self._settings = settings
        self._refused = refused
        self._moved = moved
        self._tracked = store.tracked
        self.last_commit: float | None = None
        """When an offset was last written (seconds since 1970); None if none was. Any thread."""
        self._slices = Slices()
        self._unseen: frozenset[TopicPartition] = frozenset()
        """Partitions whose stored offsets the last automatic commit could not read."""
        self.starts = StartOffsets(
            store,
            timeout=settings.timeout,
            retry=settings.retry,
            barred=barred,
            settle=self._settle_starts,
            stores_differ=self._note_stores_differ,
            by_key=settings.by_key,
        )

    def __len__(self) -> int:
        return len(self._tracked)

    def _find(self, position: PartitionPosition) -> StoredOffset | None:
        """Return the tracked data of this position, if the member still owns it."""
        found = self._tracked.get(position.tp)
        return found if found is not None and found.position is position else None

    def _ours(self, positions: Collection[PartitionPosition]) -> list[StoredOffset]:
        return [found for position in positions if (found := self._find(position)) is not None]

    def track(self, claimed: Sequence[tuple[PartitionPosition, KnownOffset]]) -> None:
        """Start to track these claimed partitions, so that commits write their progress."""
        for position, known in claimed:
            could = position.stored.may_park
            position.stored.position, position.stored.written = position, monotonic()
            self._store.track(position.tp, position.stored, known)
            self._note_parking(position, could)

    def untrack(self, positions: Collection[PartitionPosition]) -> Mapping[TopicPartition, KnownOffset]:
        """Stop tracking these positions. Returns their offset nodes as last seen."""
        known = {}
        for found in self._ours(positions):
            tp = found.position.tp
            self.starts.forget(found.position)
            known[tp] = self._store.untrack(tp)
        return known

    def succeed(self, old: PartitionPosition, new: PartitionPosition) -> None:
        """Track the new position of a partition instead of the old one."""
        found = self._find(old)
        if found is not None:
            found.position, found.ahead, found.undecided = new, False, None
            self.starts.forget(old)
            # as stored: pointers of the old position that were not stored yet are of messages that are read again
            if new.ledger is not None:
                new.ledger.pointers_read(found.pointers)

    # ---- messages that are finished in any order ----

    def unnoted(self) -> tuple[int, bool]:
        """Return the number of acknowledgements that are not written, and whether there is anything to write."""
        count, dirty = 0, False
        for found in self._tracked.values():
            ledger, committed = found.position.ledger, found.committed
            if ledger is not None and committed is not None:
                count += ledger.unnoted
                dirty = dirty or ledger.unnoted > 0 or ledger.base != committed
        return count, dirty

    def look_at_pointers(self) -> None:
        """Tell the ledgers what somebody else wrote to their pointers, for instance a replay of dead letters."""
        ledgers = {tp: found for tp, found in self._tracked.items() if found.position.ledger is not None}
        could = {tp: found.may_park for tp, found in ledgers.items()}
        if not ledgers or not self._lease.valid:
            return
        try:
            changed = self._store.look_at_pointers(ledgers, Deadline(self._settings.timeout))
        except RegistryError as e:
            log.info("whether somebody else wrote pointers could not be seen: %s", e)
            return
        for tp, found in ledgers.items():
            self._note_parking(found.position, could[tp])
            ledger = found.position.ledger
            if ledger is not None and tp in changed:
                ledger.pointers_read(changed[tp])
            if ledger is not None and found.notes is not None and found.notes.restoring:
                ledger.touch()

    @staticmethod
    def _note_parking(position: PartitionPosition, could: bool) -> None:
        if position.stored.may_park and not could and position.ledger is not None:
            position.ledger.touch()  # some messages may wait for their pointers

    # ---- what somebody else wrote ----

    def check(self) -> None:
        """Check whether another client wrote our offsets in any store; call ``refused`` or ``moved`` if so."""
        if not self._lease.valid:
            return
        self.look_elsewhere()
        try:
            moved = self._store.moved(Deadline(self._settings.timeout))
        except RegistryError as e:
            log.info("whether somebody else wrote our offsets could not be seen: %s", e)
            return
        self._tell_refused(dict.fromkeys(moved, CommitRefusedError(Outcome.OFFSET_MOVED)))

    def look_elsewhere(self, deadline: Deadline | None = None) -> Collection[TopicPartition]:
        """Check whether another client wrote our offsets outside ZooKeeper; call ``moved`` if so.

        Offsets that the store has lost are written again. Returns the partitions that the store did not answer for.
        """
        known = {
            tp: found for tp, found in self._tracked.items() if found.committed is not None and found.undecided is None
        }
        differences = self._store.compare(known, deadline or Deadline(self._settings.timeout))
        for tp, offset in differences.ours.items():
            self._mark(known[tp], offset)
            known[tp].stores_differ = self._store.in_zookeeper  # the commit ended before its write of the node
        for tp, offset in differences.theirs.items():
            known[tp].committed = known[tp].undecided = offset
            known[tp].ahead = False
        if differences.forgotten:
            forgotten = ", ".join(map(str, sorted(differences.forgotten)))
            log.warning("nothing is stored of %s any more; it is written again", forgotten)
            self.write_starts([known[tp].position for tp in differences.forgotten])
        if differences.theirs:
            self._moved({known[tp].position: offset for tp, offset in differences.theirs.items()})
        return differences.untold

    def overwrite(self, position: PartitionPosition, known: KnownOffset | None) -> None:
        """Let the next commit overwrite ``known``, which another client wrote (None: outside ZooKeeper)."""
        found = self._find(position)
        if found is not None:
            if known is not None:
                self._store.see(found, known)
                found.committed = known.offset
                if position.ledger is not None:
                    position.ledger.pointers_read(found.pointers)
                    position.ledger.touch()  # its note is void
            found.ahead, found.undecided = False, None

    def write_starts(self, positions: Collection[PartitionPosition]) -> None:
        """Write the start offsets of these to all stores.

        One store has them already. The next owner would start at the larger offset of the two stores. A start is
        nobody's progress, so it is written whether or not the timer commits. If that fails, the next commit writes it.
        """
        ours = self._ours(positions)
        for found in ours:
            found.stores_differ = True
        committed = {found.position.tp: found.committed for found in ours}
        self._write_again({tp: offset for tp, offset in committed.items() if offset is not None})

    def _note_stores_differ(self, tp: TopicPartition) -> None:
        if tp in self._tracked:
            self._tracked[tp].stores_differ = True

    # ---- commits ----

    def commit(self, held: Held, deadline: Deadline, *, patient: bool) -> None:
        """Write the offsets of messages finished since the last commit. Raises OffsetCommitError, RegistryError.

        Arguments: the messages that the caller ``held`` at its call count as finished.
        The timer's commit (not ``patient``) first looks whether somebody else wrote elsewhere. A conflict that the
        group's thread has not decided yet is no error for it. If the look fails, the partition waits for the next one.
        """
        moving = {tp: found for tp, found in self._tracked.items() if is_moving(found)}
        ours = [found for tp, found in self._tracked.items() if tp not in moving]
        put_off = {} if patient else self._look_before(ours, deadline)

        def write(some: list[StoredOffset]) -> None:
            limit = deadline if patient else Deadline(self._settings.timeout)  # a slow slice costs the next no time
            self._commit(some, held, limit, patient=patient, put_off=put_off)

        self._slices.commit_each(ours, deadline, write, whole=patient)
        late = [str(tp) for tp, one in moving.items() if patient and one.is_due(counting_held=one.position in held)]
        if late:
            raise OffsetCommitError(f"not committed: {', '.join(sorted(late))} (a seek is under way)")

    def _look_before(self, ours: Collection[StoredOffset], deadline: Deadline) -> Failures:
        """Look whether somebody else wrote elsewhere, if anything is due. Returns the partitions that have to wait."""
        if not any(found.is_due(counting_held=self._settings.count_held) for found in ours):
            return {}
        unseen = self.look_elsewhere(deadline)
        if deadline.expired:
            raise OffsetCommitError("where offsets are kept did not answer in time")
        # once, or a store that tells nothing would stop all commits
        put_off = dict.fromkeys(set(unseen).difference(self._unseen), OffsetCommitError(_UNSEEN))
        self._unseen = frozenset(unseen)
        return put_off

    def _commit(
        self, ours: Collection[StoredOffset], held: Held, deadline: Deadline, *, patient: bool, put_off: Failures
    ) -> None:
        changed, points = self._progress(ours, held)
        due = {tp: offset for tp, offset in changed.items() if tp not in put_off}
        failures = self._store.commit(due, {}, deadline, patient=patient, points=points) if due else {}
        failures = {**failures, **{tp: why for tp, why in put_off.items() if tp in changed}}
        undecided = (
            {f.position.tp: f.position.consumed or 0 for f in ours if f.undecided is not None} if patient else {}
        )
        self._settle(changed, undecided, {**failures, **self._conflicting(undecided)}, points)

    def commit_given(self, given: Mapping[TopicPartition, GivenOffset], deadline: Deadline) -> None:
        """Write given offsets, for owned partitions or those without an owner. Raises OffsetCommitError.

        A partition whose ownership, or position, is not that of the call is refused. An offset that another commit has
        passed since the call is not written.
        """
        offsets = {tp: one.offset for tp, one in given.items()}
        failures: dict[TopicPartition, Exception] = {
            tp: OffsetCommitError(why) for tp, one in given.items() if (why := one.refusal(self._tracked.get(tp)))
        }
        failures |= self._conflicting([tp for tp in given if tp not in failures])
        left = {tp: one for tp, one in given.items() if tp not in failures}
        others = {tp: one.offset for tp, one in left.items() if one.position is None}
        ours = {
            tp: one.offset
            for tp, one in left.items()
            if one.position is not None and not one.overtaken_by(one.position.stored.committed)
        }
        failures |= self._store.commit(ours, {}, deadline, patient=True) if ours else {}
        if others:
            try:
                failures |= self._store.commit_unowned(others, deadline)
            except RegistryError as e:  # what is ours was dealt with and must be noted
                failures |= dict.fromkeys(others, e)
        self._settle({tp: offsets[tp] for tp in given if tp in ours or tp in others or tp in failures}, {}, failures)

    def prepare_seek(self, positions: Collection[PartitionPosition], deadline: Deadline) -> None:
        """Commit nothing of these positions until they are replaced, or until the deadline.

        No earlier commit lands afterwards: the store is asked about each commit with an unknown outcome. Raises
        OffsetCommitError if the store does not tell.
        """
        ours = self._ours(positions)
        try:
            doubtful = self._store.settle_unanswered([found.position.tp for found in ours], deadline)
        except Exception as e:
            raise OffsetCommitError(f"whether a commit before landed is not known: {e}") from e
        for found in ours:
            found.seeks.append(deadline)
            # not what is noted as committed may have landed: the place of the seek is written, whatever it is
            found.stores_differ = found.stores_differ or found.position.tp in doubtful

    def commit_last(
        self, positions: Collection[PartitionPosition], *, commit: bool, held: Held, deadline: Deadline, release: bool
    ) -> Mapping[TopicPartition, KnownOffset | None]:
        """Do the last commit (if ``commit``), and with ``release`` the release too; see the committer."""
        ours = self._ours(positions)
        released: set[TopicPartition] = set()
        # after its deadline nobody waits for us any more, and the same partitions may have been claimed again
        release = release and self._store.releases and not deadline.expired
        unanswered = False
        if commit:
            try:
                self._slices.commit_each(
                    ours,
                    deadline,
                    lambda some: (
                        self._release(some, held, deadline, released)
                        if release
                        else self._commit(some, held, deadline, patient=True, put_off=NO_FAILURES)
                    ),
                )
            except (RegistryError, OffsetCommitError) as e:
                log.warning(
                    "the last commit before giving partitions up failed, so their next owner repeats some: %s", e
                )
                unanswered = release and isinstance(e, RegistryError)
        known = self.untrack([found.position for found in ours])
        return {} if unanswered else {tp: None if tp in released else offset for tp, offset in known.items()}

    def _release(
        self, ours: Collection[StoredOffset], held: Held, deadline: Deadline, released: set[TopicPartition]
    ) -> None:
        """Do the last commit and the release in one request; add the released partitions to ``released``."""
        changed, points = self._progress(ours, held)
        if not changed:
            return
        unchanged = [found.position.tp for found in ours if found.position.tp not in changed]
        failures, done = self._store.release(changed, unchanged, deadline, points)
        released |= done
        self._settle(changed, {}, failures, points)

    def _progress(self, ours: Collection[StoredOffset], held: Held) -> tuple[dict[TopicPartition, int], Points]:
        """Return the offsets to write, and what goes with them."""
        changed: dict[TopicPartition, int] = {}
        points: dict[TopicPartition, CommitPoint] = {}
        for found in ours:
            if found.undecided is not None:
                continue
            position = found.position
            if position.ledger is not None and found.committed is not None:
                point = self._point(found)
                if point is not None:
                    points[position.tp], changed[position.tp] = point, point.offset
                continue
            consumed, committed = position.consumed, found.committed
            if consumed is not None and committed is not None and consumed >= committed:
                found.ahead = False  # finished since: an earlier offset is a truncated log's from now on
            caller_held = held.get(position, range(0))
            counting = self._settings.count_held
            offset = found.due_offset(counting_held=counting, caller_held=caller_held)
            if offset is not None:
                changed[position.tp] = offset
            elif committed is not None:
                if counting or consumed in caller_held:  # nothing to write, but what is in hand counts from now on
                    found.note_ahead(committed)
                if found.must_write:
                    changed[position.tp] = committed
        return changed, points

    def _point(self, found: StoredOffset, *, always: bool = False) -> CommitPoint | None:
        return found.point(by_key=self._settings.by_key(), always=always)

    def _conflicting(self, wanted: Collection[TopicPartition]) -> dict[TopicPartition, Exception]:
        undecided = {tp: self._tracked[tp].undecided for tp in wanted if tp in self._tracked}
        return {
            tp: OffsetCommitError(f"somebody else wrote offset {offset}, see offset.conflict")
            for tp, offset in undecided.items()
            if offset is not None
        }

    def rewrite(self, before: float, *, everywhere: bool = True) -> None:
        """Write committed offsets again that were last written before that time (monotonic seconds).

        Offsets that somebody else wrote are left alone. ``everywhere`` writes to all stores, not only to one that
        forgets.
        """
        if not self._lease.valid or not self._unchanged_since(before):
            return
        unseen = self.look_elsewhere()
        due = {tp: offset for tp, offset in self._unchanged_since(before).items() if tp not in unseen}
        self._write_again(due, everywhere=everywhere)

    def _unchanged_since(self, before: float) -> dict[TopicPartition, int]:
        return {
            tp: found.committed
            for tp, found in self._tracked.items()
            if found.committed is not None and found.written <= before and found.undecided is None
        }

    def _write_again(self, due: Mapping[TopicPartition, int], *, everywhere: bool = True) -> None:
        if not self._lease.valid:
            return
        due = {tp: offset for tp, offset in due.items() if not is_moving(self._tracked[tp])}
        points = self._points_again(due)
        due = {**due, **{tp: point.offset for tp, point in points.items()}}
        changed, unchanged = (due, {}) if everywhere else ({}, due)
        deadline = Deadline(self._settings.timeout)
        try:
            failures = self._store.commit(changed, unchanged, deadline, patient=False, points=points)
            self._settle({}, due, failures, points if everywhere else NO_POINTS)
        except (RegistryError, OffsetCommitError) as e:
            log.info("unchanged offsets could not be written again: %s", e)
        except Exception:
            log.exception("writing unchanged offsets again failed unexpectedly")

    def _points_again(self, due: Collection[TopicPartition]) -> Points:
        """Return what goes with offsets that are written again: an offset alone would make its note void."""
        points = {}
        for found in [self._tracked[tp] for tp in due]:
            ledger = found.position.ledger
            point = None if ledger is None else self._point(found, always=True)
            if point is not None:
                points[found.position.tp] = point
        return points

    # ---- what became of them ----

    def _settle(
        self,
        changed: Mapping[TopicPartition, int],
        unchanged: Mapping[TopicPartition, int],
        failures: Failures,
        points: Points = NO_POINTS,
    ) -> None:
        """Note the written offsets; report and raise the failures."""
        offsets = {**unchanged, **changed}
        for tp, offset in offsets.items():
            found = self._tracked.get(tp)
            halfway = tp in failures and self._store.only_in_zookeeper(tp, offset, failures[tp])
            if found is not None and (tp not in failures or halfway):
                self._mark(found, offset, points.get(tp))
                found.stores_differ = halfway
                if tp in changed and tp not in points:
                    found.note_ahead(offset)
        if not failures:
            return
        self._tell_refused(failures)
        raise OffsetCommitError(
            "not committed: " + ", ".join(f"{tp} at {offsets[tp]} ({failures[tp]})" for tp in sorted(failures))
        ) from failures[min(failures)]

    def _mark(self, found: StoredOffset, offset: int, point: CommitPoint | None = None) -> None:
        position = found.position
        if point is not None and position.ledger is not None and not position.ledger.stored(point):
            # the reader jumped to another offset meanwhile: the new ledger does not know what was stored
            position.ledger.pointers_read(found.pointers)
        found.committed = offset
        found.stores_differ = False
        found.written = monotonic()
        self.last_commit = time()

    def counted_in_hand(self, position: PartitionPosition) -> int | None:
        """Return the committed offset if it counts the message in the user's hands as finished, else None.

        Any thread.
        """
        found = self._find(position)
        return found.committed if found is not None and found.ahead else None

    def store_starts(self, starts: Mapping[PartitionPosition, int], done: Stored) -> None:
        """Store resolved starts; ``done`` is told of each whether it is stored."""
        ours = {position: start for position, start in starts.items() if self._find(position) is not None}
        if len(ours) < len(starts):
            done({position: False for position in starts if position not in ours})
        self.starts.store(ours, done, len(self))

    def _settle_starts(self, wanted: Mapping[PartitionPosition, int], failures: Failures) -> None:
        for position, offset in wanted.items():
            found = self._tracked.get(position.tp)
            if position.tp not in failures and found is not None:
                self._mark(found, offset)
        self._tell_refused(failures)

    def _tell_refused(self, failures: Failures) -> None:
        refused = {
            self._tracked[tp].position: failure.outcome
            for tp, failure in failures.items()
            if isinstance(failure, CommitRefusedError) and tp in self._tracked
        }
        if refused:
            self._refused(refused)
