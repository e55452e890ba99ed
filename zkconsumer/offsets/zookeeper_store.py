"""Offsets in ZooKeeper: ``/consumers/<group>/offsets/<topic>/<partition>``, decimal text of the next offset to consume.

Owned by one thread (the committer's). Every write is fenced (see ``zookeeper.fenced_writes``): it names the version of
the offset node as we last saw it. ZooKeeper refuses it after somebody else claimed the partition or wrote its offset.

The original writes unconditionally, so a paused member overwrites the progress of its successor. It also remembers the
last value it wrote and never looks again. So it does not write that value over an offset that a tool has set back.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from zkconsumer.core.finished_note import FinishedNote
from zkconsumer.core.message_pointers import Pointer
from zkconsumer.errors import OffsetCommitError, RegistryError
from zkconsumer.model import TopicPartition
from zkconsumer.offsets.note_store import NO_POINTS, NoteStore, Points, ReadPointers
from zkconsumer.offsets.store import Failures, refusals
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.zookeeper import fenced_writes, node_codecs, paths
from zkconsumer.zookeeper.fenced_writes import ABSENT, Change, ClaimSessions, Commit, KnownOffset, Outcome
from zkconsumer.zookeeper.session import Session

_ROUNDS = 5
_REPAIRED = (Outcome.OFFSET_MOVED, Outcome.NOTE_FAILED, Outcome.POINTERS_MOVED)
"""Outcomes after which another look at the nodes may help."""


class ZooKeeperOffsets:
    """The offset nodes of one group (an ``OffsetStore`` and a ``Fence``). Tracked partitions are ours.

    Arguments: ``written`` is told the number of offsets that each commit wrote.
    """

    def __init__(self, session: Session, group: str, written: Callable[[int], None] = lambda _: None) -> None:
        self._session = session
        self._written = written
        self._group = group
        self._known: dict[TopicPartition, KnownOffset] = {}
        self._unanswered: dict[TopicPartition, set[bytes]] = {}
        self._claims = ClaimSessions(session)
        self.acks = NoteStore(session, group)
        """What is stored beyond the offsets, for partitions whose messages are finished in any order."""

    def track(self, partition: TopicPartition, known: KnownOffset) -> None:
        """Note a claimed partition, with its offset node as of the claim.

        For a partition that is tracked already, ``known`` is the node as somebody else has written it since. The claim
        stays the old one.
        """
        self._known[partition] = known
        self._claims.claimed(partition)
        self._unanswered.pop(partition, None)
        self.acks.track(partition, known.acks)

    def untrack(self, partition: TopicPartition) -> KnownOffset:
        """Forget a released or lost partition; return its offset node as last seen."""
        self._unanswered.pop(partition, None)
        self._claims.forget(partition)
        self.acks.forget(partition)
        return self._known.pop(partition, ABSENT)

    def known(self, partition: TopicPartition) -> int | None:
        """Return the offset in a tracked partition's node as last seen; None if there is no node."""
        return self._known.get(partition, ABSENT).offset

    def parking_trouble(self, partition: TopicPartition) -> str:
        """Return why no pointers to messages of a tracked partition can be stored, in words; empty if they can."""
        return self.acks.trouble(partition)

    def fetch(self, partitions: Collection[TopicPartition], timeout: float) -> Mapping[TopicPartition, int]:
        """Read offset nodes. Raises RegistryError; MalformedNodeError if a node holds no offset."""
        wanted = list(partitions)
        nodes = self._session.read([paths.offset(self._group, tp) for tp in wanted], Deadline(timeout))
        return {
            tp: node_codecs.decode_offset(node.data, paths.offset(self._group, tp))
            for tp, node in zip(wanted, nodes, strict=True)
            if node is not None
        }

    def commit(self, offsets: Mapping[TopicPartition, int], timeout: float, points: Points = NO_POINTS) -> Failures:
        """Write offsets: in one transaction those of tracked partitions, in one the others, which must have no owner.

        Arguments: ``points`` tell of tracked partitions what is written in the same transaction.
        Returns the refused partitions. Raises RegistryError if the outcome is unknown.
        """
        deadline = Deadline(timeout)
        ours = {tp: offset for tp, offset in offsets.items() if tp in self._known}
        outcomes = self._commit_owned(ours, deadline, points)
        outcomes |= self._commit_unowned({tp: o for tp, o in offsets.items() if tp not in ours}, deadline)
        done = sum(outcome is Outcome.DONE for outcome in outcomes.values())
        if done:
            self._written(done)
        return self._refusals(outcomes)

    def write_pointers(self, points: Points, deadline: Deadline) -> Failures:
        """Write the pointers of tracked partitions whose offsets are kept elsewhere, if their owner nodes are ours.

        Returns the refused partitions. Raises RegistryError if the outcome is unknown.
        """
        wanted = {tp: point for tp, point in points.items() if self.acks.is_due(tp, point) and tp in self._known}
        if not wanted:
            return {}
        known = self._known
        try:
            # offset nodes mean nothing here, and any tool may write them: the owner node alone is the fence
            self._known = {**known, **dict.fromkeys(wanted, ABSENT)}
            return self._refusals(self._commit_owned(dict.fromkeys(wanted), deadline, wanted))
        finally:
            self._known = known

    def look_at_pointers(self, partitions: Collection[TopicPartition], deadline: Deadline) -> ReadPointers:
        """Return the pointers of tracked partitions that somebody else wrote since. Raises RegistryError."""
        return self.acks.look([tp for tp in partitions if tp in self._known], deadline)

    def restoring(self, partition: TopicPartition) -> bool:
        """Return whether the node of pointers was deleted, so that the next commit has to make it again."""
        return self.acks.restoring(partition)

    def pointers(self, partition: TopicPartition) -> Mapping[int, Pointer]:
        """Return the pointers of a tracked partition as last read or written."""
        return self.acks.pointers(partition)

    def start_note(self, partition: TopicPartition, start: int | None) -> FinishedNote | None:
        """Return the note that was read with the offset of a claimed partition, if it begins there."""
        return self.acks.start_note(partition, start)

    def release(
        self,
        offsets: Mapping[TopicPartition, int],
        unchanged: Collection[TopicPartition],
        deadline: Deadline,
        points: Points = NO_POINTS,
    ) -> tuple[Failures, frozenset[TopicPartition]]:
        """Do the last commit of tracked partitions and release them, of each both or neither.

        Returns the refused commits, and the released partitions. The owner nodes of all others, also of ``unchanged``
        ones, may still exist. Raises RegistryError if the outcome is unknown.
        """
        wanted = {**dict.fromkeys(unchanged), **offsets}
        outcomes = self._commit_owned(wanted, deadline, points, release=True)
        released = frozenset(tp for tp, outcome in outcomes.items() if outcome is Outcome.DONE)
        written = len(released & offsets.keys())
        if written:
            self._written(written)
        return self._refusals({tp: outcomes[tp] for tp in offsets}), released

    def close(self) -> None:
        """Do nothing: the session belongs to its maker."""

    def moved(self, deadline: Deadline) -> Collection[TopicPartition]:
        """Return tracked partitions whose offset nodes are not as we last saw or wrote them. Raises RegistryError."""
        tracked = [tp for tp, known in self._known.items() if tp not in self._unanswered and known.version is not None]
        nodes = self._session.stat([paths.offset(self._group, tp) for tp in tracked], deadline)
        return [
            tp
            for tp, node in zip(tracked, nodes, strict=True)
            if node is None or node.version != self._known[tp].version
        ]

    def not_ours(self, partitions: Collection[TopicPartition], deadline: Deadline) -> Failures:
        """Return the partitions whose owner node our session did not create, looked up now. Raises RegistryError."""
        ours = self._session.require_id()
        return refusals(
            {
                tp: Outcome.DONE if owner == ours else Outcome.NOT_OURS
                for tp, owner in self._owners(partitions, deadline).items()
            }
        )

    def epochs(self, partitions: Collection[TopicPartition], deadline: Deadline) -> dict[TopicPartition, int]:
        """Return the transaction of ZooKeeper that made each owner node of ours. A later claim has a higher number.

        Raises RegistryError, also if one of these nodes is not ours now.
        """
        wanted, ours = list(partitions), self._session.require_id()
        nodes = self._session.stat([paths.owner(self._group, tp) for tp in wanted], deadline)
        found = {
            tp: node.czxid for tp, node in zip(wanted, nodes, strict=True) if node and node.ephemeral_owner == ours
        }
        if len(found) < len(wanted):
            raise RegistryError(f"{min(set(wanted) - found.keys())}: its owner node is not ours now")
        return found

    def owned(self, partitions: Collection[TopicPartition], deadline: Deadline) -> Failures:
        """Return the partitions that have an owner node now. Raises RegistryError."""
        return refusals(
            {
                tp: Outcome.DONE if owner is None else Outcome.OWNED
                for tp, owner in self._owners(partitions, deadline).items()
            }
        )

    def _owners(self, partitions: Collection[TopicPartition], deadline: Deadline) -> dict[TopicPartition, int | None]:
        wanted = list(partitions)
        if not wanted:
            return {}
        nodes = self._session.stat([paths.owner(self._group, tp) for tp in wanted], deadline)
        return {tp: None if n is None else n.ephemeral_owner for tp, n in zip(wanted, nodes, strict=True)}

    def _refusals(self, outcomes: Mapping[TopicPartition, Outcome]) -> Failures:
        """Return what was not written. Pointers that cannot be written are no sign that the partition is not ours."""
        failures = refusals(outcomes)
        for tp, outcome in outcomes.items():
            if outcome in (Outcome.POINTERS_MOVED, Outcome.NOTE_FAILED):
                failures[tp] = OffsetCommitError(self.acks.trouble(tp) or outcome.value)
            elif outcome is Outcome.UNANSWERED:
                failures[tp] = OffsetCommitError(outcome.value)
        return failures

    def _commit_owned(
        self, offsets: Mapping[TopicPartition, int | None], deadline: Deadline, points: Points, *, release: bool = False
    ) -> dict[TopicPartition, Outcome]:
        """Write offsets (None: none), and with ``release`` delete the owner nodes as well."""
        outcomes = self._write_owned(offsets, points, deadline, release)
        try:
            self._repair(outcomes, offsets, points, deadline, release)
        except RegistryError:
            if release or Outcome.DONE not in outcomes.values():
                raise
            # a success counts, although the repair of the others was not answered
            unrepaired = [tp for tp, outcome in outcomes.items() if outcome in _REPAIRED]
            outcomes |= dict.fromkeys(unrepaired, Outcome.UNANSWERED)
        for tp, outcome in outcomes.items():
            if outcome is not Outcome.UNANSWERED and (release or offsets[tp] is not None):
                self._unanswered.pop(tp, None)
        return outcomes

    def _repair(
        self,
        outcomes: dict[TopicPartition, Outcome],
        offsets: Mapping[TopicPartition, int | None],
        points: Points,
        deadline: Deadline,
        release: bool,
    ) -> None:
        """Try partitions again whose nodes were not as we last saw them. Raises RegistryError."""
        for last in (*(_ROUNDS - 1) * (False,), True):
            moved = [tp for tp, outcome in outcomes.items() if outcome is Outcome.OFFSET_MOVED]
            # perhaps we moved it ourselves, by a commit that was done and whose answer was lost with the connection
            again = self._moved_by_us(moved, deadline)
            if last:
                self.acks.despair(outcomes)
            else:
                again += self.acks.repair(outcomes, deadline)
            if last or not again:
                break
            outcomes.update(self._write_owned({tp: offsets[tp] for tp in again}, points, deadline, release))

    def _write_owned(
        self, offsets: Mapping[TopicPartition, int | None], points: Points, deadline: Deadline, release: bool
    ) -> dict[TopicPartition, Outcome]:
        lost = {tp: Outcome.NOT_OURS for tp in offsets if self._claims.ended(tp)}
        offsets = {tp: offset for tp, offset in offsets.items() if tp not in lost}
        prepared = {
            tp: self.acks.prepare(tp, points.get(tp), note=offset is not None) for tp, offset in offsets.items()
        }
        commits: Sequence[Commit] = [
            Commit(tp, offset, self._known[tp], prepared[tp].write) for tp, offset in offsets.items()
        ]
        written = {tp: offset for tp, offset in offsets.items() if offset is not None}
        self.acks.make_directories(points, deadline)
        try:
            perform = fenced_writes.release if release else fenced_writes.commit
            outcomes = perform(self._session, self._group, commits, deadline)
        except RegistryError:
            for tp, offset in written.items():
                self._unanswered.setdefault(tp, set()).add(node_codecs.encode_offset(offset))
            raise
        for tp in offsets:
            if outcomes[tp] is Outcome.DONE:
                self.acks.wrote(tp, prepared[tp])
        for tp, offset in written.items():
            if outcomes[tp] is Outcome.DONE:
                self._known[tp] = KnownOffset(offset, _next_version(self._known[tp]))
            elif outcomes[tp] is Outcome.UNANSWERED:
                self._unanswered.setdefault(tp, set()).add(node_codecs.encode_offset(offset))
        return {**outcomes, **lost}

    def _moved_by_us(self, partitions: Collection[TopicPartition], deadline: Deadline) -> list[TopicPartition]:
        """Return the partitions whose offset nodes hold our last try, written by the one write that could succeed.

        Their nodes are known as read then. Raises RegistryError.
        """
        doubtful = [tp for tp in partitions if tp in self._unanswered]
        if not doubtful:
            return []
        found = []
        nodes = self._session.read([paths.offset(self._group, tp) for tp in doubtful], deadline)
        for tp, node in zip(doubtful, nodes, strict=True):
            ours = node is not None and node.version == _next_version(self._known[tp])
            if node is not None and ours and node.data in self._unanswered[tp]:
                self._known[tp] = KnownOffset(int(node.data), node.version)
                found.append(tp)
        return found

    def settle_unanswered(self, partitions: Collection[TopicPartition], deadline: Deadline) -> set[TopicPartition]:
        """Find out the outcome of commits of tracked partitions whose answer did not come. Raises RegistryError.

        Returns these partitions.

        The session's requests are served in order: what this reads is answered after them.
        """
        self._moved_by_us(partitions, deadline)
        return self._unanswered.keys() & set(partitions)

    def _commit_unowned(
        self, offsets: Mapping[TopicPartition, int], deadline: Deadline
    ) -> dict[TopicPartition, Outcome]:
        outcomes: dict[TopicPartition, Outcome] = {}
        left = list(offsets)
        for _ in range(_ROUNDS):
            if not left:
                break
            nodes = self._session.stat([paths.offset(self._group, tp) for tp in left], deadline)
            changes = [
                Change(tp, node_codecs.encode_offset(offsets[tp]), None if node is None else node.version)
                for tp, node in zip(left, nodes, strict=True)
            ]
            outcomes |= fenced_writes.write_unowned(self._session, self._group, changes, deadline)
            left = [tp for tp in left if outcomes[tp] in (Outcome.OFFSET_MOVED, Outcome.NO_PARENT)]
        return outcomes


def _next_version(known: KnownOffset) -> int:
    return 0 if known.version is None else known.version + 1
