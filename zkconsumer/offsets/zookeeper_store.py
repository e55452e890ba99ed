"""Offsets in ZooKeeper: ``/consumers/<group>/offsets/<topic>/<partition>``, decimal text of the next offset to consume.

Owned by one thread (the committer's). Every write is fenced (see ``zookeeper.ownership_transactions``): it names the
version of the offset node as we last saw it. ZooKeeper refuses it after somebody else claimed the partition or wrote
its offset.

The original writes unconditionally, so a paused member overwrites the progress of its successor. It also remembers the
last value it wrote and never looks again. So it does not write that value over an offset that a tool has set back.

A commit of a :class:`CommitPoint` writes offset, note and pointers in one transaction. The point names *changes* of
pointers, which are applied to the pointers as last read or written. So a pointer that somebody else added is not
overwritten: the node then has another version, and is read again. A node of pointers that was deleted while we own the
partition is made again. Otherwise its messages would be lost. A tool that drops pointers writes the node without them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from zkconsumer.core.finished_note import encode_note
from zkconsumer.core.message_pointers import Pointer, encode_pointers
from zkconsumer.errors import OffsetCommitError, RegistryError
from zkconsumer.model import TopicPartition
from zkconsumer.offsets.store import NO_POINTS, Failures, Points, ReadPointers, refusals
from zkconsumer.ownership.balanced_ledger import CommitPoint, applied
from zkconsumer.ownership.stored_offset import SeenNode, StoredNotes, StoredOffset
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.zookeeper import node_codecs, ownership_transactions, paths
from zkconsumer.zookeeper.node_values import FORBIDDEN
from zkconsumer.zookeeper.note_nodes import NO_ACKS, NOTE_BYTES, AckWrite, known_pointers
from zkconsumer.zookeeper.ownership_transactions import ABSENT, Change, Commit, KnownOffset, Outcome
from zkconsumer.zookeeper.session import Session

log = logging.getLogger(__name__)

_ROUNDS = 5
_REPAIRED = (Outcome.OFFSET_MOVED, Outcome.NOTE_FAILED, Outcome.POINTERS_MOVED)
"""Outcomes after which another look at the nodes may help."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """The writes of a transaction beside an offset, and the pointers that are stored then."""

    write: AckWrite = NO_ACKS
    pointers: Mapping[int, Pointer] | None = None


class NoteStore:
    """The nodes of notes and pointers of one group's partitions that are ours.

    Arguments: ``tracked`` are these partitions. The contents of nodes are kept in their ``notes``.
    """

    def __init__(self, session: Session, group: str, tracked: Mapping[TopicPartition, StoredOffset]) -> None:
        self._session = session
        self._group = group
        self._tracked = tracked
        self._directories: set[str] = set()
        """Directories of nodes that were made, if we may make them."""

    def _notes(self, partition: TopicPartition) -> StoredNotes | None:
        """Return what is known of the nodes, None if they were not read."""
        stored = self._tracked.get(partition)
        return None if stored is None else stored.notes

    def _read_notes(self, partition: TopicPartition) -> StoredNotes:
        """Return what is known of nodes that were read, or are read now for the first time."""
        stored = self._tracked[partition]
        if stored.notes is None:
            stored.notes = StoredNotes(has_note=True)
        return stored.notes

    def is_due(self, partition: TopicPartition, point: CommitPoint) -> bool:
        """Return whether pointers are to be written."""
        return self.prepare(partition, point, note=False).pointers is not None

    def prepare(self, partition: TopicPartition, point: CommitPoint | None, *, note: bool = True) -> Prepared:
        """Return what to write with an offset. ``note`` False: only pointers."""
        stored = self._notes(partition)
        if stored is None:
            return Prepared()
        data, pointers, changes = b"", None, {} if point is None else point.changes
        if point is not None and note and stored.keeps_notes and not point.note.empty:
            data = encode_note(point.note, NOTE_BYTES)
        if not stored.trouble and (changes or stored.restoring):
            pointers = applied(stored.pointers, changes)
            if pointers == stored.pointers and not stored.restoring:
                pointers = None
        content = None
        if pointers is not None:
            if stored.encoded is None or stored.encoded[0] != pointers:
                stored.encoded = pointers, encode_pointers(pointers.values())
            content = stored.encoded[1]
        return Prepared(AckWrite(data or None, stored.has_note, content, stored.version), pointers)

    def make_directories(self, partitions: Collection[TopicPartition], deadline: Deadline) -> None:
        """Make the directories of the nodes that these partitions may need. Raises RegistryError.

        Without a directory the whole transaction fails, and is sent again without one partition after the other.
        """
        nodes = {path(self._group, tp) for tp in partitions if self._notes(tp) for path in (paths.ack, paths.pointers)}
        missing = {path: parent for path in nodes if (parent := path.rpartition("/")[0]) not in self._directories}
        if missing:
            self._make_parents(missing, deadline)
            self._directories.update(missing.values())

    def wrote(self, partition: TopicPartition, prepared: Prepared) -> None:
        """Note what was written."""
        stored = self._notes(partition)
        if stored is None:
            return
        if prepared.write.note is not None:
            stored.has_note = True
        if prepared.pointers is not None:
            stored.pointers, stored.restoring, stored.encoded = prepared.pointers, False, None
            stored.version = 0 if prepared.write.version is None else prepared.write.version + 1

    def repair(self, outcomes: Mapping[TopicPartition, Outcome], deadline: Deadline) -> list[TopicPartition]:
        """Look at nodes that could not be written, and make their parents. Returns the partitions to try again.

        A note that cannot be written even so is left out: without it messages may be repeated. A partition whose
        pointers cannot be understood is not tried again. Raises RegistryError.
        """
        notes = [tp for tp, outcome in outcomes.items() if outcome is Outcome.NOTE_FAILED]
        moved = [tp for tp, outcome in outcomes.items() if outcome is Outcome.POINTERS_MOVED]
        if not notes and not moved:
            return []
        self._look_for_notes(notes, deadline)
        return [*notes, *self._read_moved(moved, deadline)]

    def despair(self, outcomes: Mapping[TopicPartition, Outcome]) -> None:
        """Write no more notes and pointers of partitions that were repaired in vain."""
        for tp, outcome in outcomes.items():
            if outcome is Outcome.NOTE_FAILED:
                self._refuse_note(tp)
            elif outcome is Outcome.POINTERS_MOVED and not self._read_notes(tp).trouble:
                path = paths.pointers(self._group, tp)
                self._read_notes(tp).trouble = f"{path}: it cannot be written; check the node's ACL"

    def _refuse_note(self, tp: TopicPartition) -> None:
        path = paths.ack(self._group, tp)
        log.error("%s: ZooKeeper refuses notes of finished messages; check the ACL. Some will be repeated", path)
        self._read_notes(tp).keeps_notes = False

    def _look_for_notes(self, partitions: Collection[TopicPartition], deadline: Deadline) -> None:
        if not partitions:
            return
        wanted = {tp: paths.ack(self._group, tp) for tp in partitions}
        refused = self._make_parents(wanted.values(), deadline)
        nodes = self._session.stat(list(wanted.values()), deadline)
        for (tp, path), node in zip(wanted.items(), nodes, strict=True):
            stored, exists = self._read_notes(tp), node is not None
            if path in refused or node is FORBIDDEN or (exists and stored.has_note):
                self._refuse_note(tp)
            stored.has_note = exists

    def _read_moved(self, moved: Collection[TopicPartition], deadline: Deadline) -> list[TopicPartition]:
        if not moved:
            return []
        refused = self._make_parents([paths.pointers(self._group, tp) for tp in moved], deadline)
        before = {tp: self._read_notes(tp).version for tp in moved}
        self.read(moved, deadline)
        for tp in moved:
            self._read_notes(tp).met = True
            stored, path = self._read_notes(tp), paths.pointers(self._group, tp)
            denied = stored.version is not None and stored.version == before[tp]
            if not stored.trouble and (path in refused or denied):
                stored.trouble = f"{path}: ZooKeeper refuses pointers to parked messages; check the node's ACL"
        return [tp for tp in moved if not self._read_notes(tp).trouble]

    def _make_parents(self, nodes: Iterable[str], deadline: Deadline) -> frozenset[str]:
        """Make the directories of these nodes. Returns the nodes whose directory we may not make."""
        parents = {path: path.rpartition("/")[0] for path in nodes}
        refused = self._session.ensure_each(sorted(set(parents.values())), deadline)
        return frozenset(path for path, parent in parents.items() if parent in refused)

    def read(self, partitions: Collection[TopicPartition], deadline: Deadline) -> None:
        """Read the pointers of these partitions again. Raises RegistryError."""
        wanted = {tp: paths.pointers(self._group, tp) for tp in partitions}
        nodes = self._session.read(list(wanted.values()), deadline)
        for (tp, path), node in zip(wanted.items(), nodes, strict=True):
            stored = self._read_notes(tp)
            if node is None and (stored.pointers or stored.version is not None) and not stored.trouble:
                if stored.pointers and not stored.restoring:
                    log.error("%s was deleted; its %d pointers are written again", path, len(stored.pointers))
                stored.restoring, stored.version = bool(stored.pointers), None
                continue
            pointers, stored.version, trouble = known_pointers(path, node)
            if trouble and trouble != stored.trouble:
                log.error("%s parks no messages and keeps no dead letters: %s", tp, trouble)
            stored.trouble, stored.restoring = trouble, False
            if not trouble:
                stored.pointers = pointers

    def look(self, partitions: Sequence[TopicPartition], deadline: Deadline) -> ReadPointers:
        """Read pointers that somebody else wrote meanwhile. Returns those. Raises RegistryError."""
        known = {tp: notes for tp in partitions if (notes := self._notes(tp)) is not None}
        nodes = self._session.stat([paths.pointers(self._group, tp) for tp in known], deadline) if known else []
        moved = [tp for tp in partitions if tp not in known]
        for (tp, notes), node in zip(known.items(), nodes, strict=True):
            version = None if node is None else node.version
            if version != notes.version:
                moved.append(tp)
        if moved:
            self.read(moved, deadline)
        told = {*moved, *(tp for tp, notes in known.items() if notes.met)}
        found = {tp: self._read_notes(tp) for tp in told}
        for notes in found.values():
            notes.met = False
        return {tp: notes.pointers for tp, notes in found.items() if not notes.trouble}


class ZooKeeperOffsets:
    """The offset nodes of one group (an ``OffsetStore``).

    Arguments: ``written`` is told the number of offsets that each commit wrote. ``tracked`` are the partitions that are
    ours; what their nodes hold is kept there.
    """

    def __init__(self, session: Session, group: str, written: Callable[[int], None] = lambda _: None) -> None:
        self._session = session
        self._written = written
        self._group = group
        self.tracked: dict[TopicPartition, StoredOffset] = {}
        self.notes = NoteStore(session, group, self.tracked)
        """What is stored beyond the offsets, for partitions whose messages are finished in any order."""

    def claimed(self, partition: TopicPartition) -> None:
        """Note that a tracked partition was claimed in the present session."""
        self.tracked[partition].node.session = self._session.session_id

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
        """Write offsets: tracked partitions in one transaction, and the others, which must have no owner, in another.

        Arguments: ``points`` tell of tracked partitions what is written in the same transaction.
        Returns the refused partitions. Raises RegistryError if the outcome is unknown.
        """
        deadline = Deadline(timeout)
        ours = {tp: offset for tp, offset in offsets.items() if tp in self.tracked}
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
        wanted = {tp: point for tp, point in points.items() if tp in self.tracked and self.notes.is_due(tp, point)}
        if not wanted:
            return {}
        # offset nodes mean nothing here, and any tool may write them: the owner node alone is the fence
        return self._refusals(self._commit_owned(dict.fromkeys(wanted), deadline, wanted, by_owner=True))

    def release(
        self,
        offsets: Mapping[TopicPartition, int],
        unchanged: Collection[TopicPartition],
        deadline: Deadline,
        points: Points = NO_POINTS,
    ) -> tuple[Failures, frozenset[TopicPartition]]:
        """Do the last commit of tracked partitions and release them, atomically for each partition.

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
        seen = {tp: one.node for tp, one in self.tracked.items() if not one.node.unanswered}
        known = {tp: node.version for tp, node in seen.items() if node.version is not None}
        nodes = self._session.stat([paths.offset(self._group, tp) for tp in known], deadline)
        return [
            tp
            for (tp, version), node in zip(known.items(), nodes, strict=True)
            if node is None or node.version != version
        ]

    def not_ours(self, partitions: Collection[TopicPartition], deadline: Deadline) -> Failures:
        """Return the partitions whose owner node our session did not create, looked up now. Raises RegistryError."""
        ours, owners = self._session.require_id(), self._owners(partitions, deadline)
        return refusals({tp: Outcome.DONE if owner == ours else Outcome.NOT_OURS for tp, owner in owners.items()})

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

    def with_owner(self, partitions: Collection[TopicPartition], deadline: Deadline) -> Failures:
        """Return the partitions that have an owner node now. Raises RegistryError."""
        owners = self._owners(partitions, deadline)
        return refusals({tp: Outcome.DONE if owner is None else Outcome.OWNED for tp, owner in owners.items()})

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
                failures[tp] = OffsetCommitError(self.tracked[tp].parking_trouble or outcome.value)
            elif outcome is Outcome.UNANSWERED:
                failures[tp] = OffsetCommitError(outcome.value)
        return failures

    def _commit_owned(
        self,
        offsets: Mapping[TopicPartition, int | None],
        deadline: Deadline,
        points: Points,
        *,
        release: bool = False,
        by_owner: bool = False,
    ) -> dict[TopicPartition, Outcome]:
        """Write offsets (None: none), and with ``release`` delete the owner nodes as well.

        ``by_owner``: the offset nodes may be as they like.
        """

        def write(wanted: Mapping[TopicPartition, int | None]) -> dict[TopicPartition, Outcome]:
            return self._write_owned(wanted, points, deadline, release=release, by_owner=by_owner)

        outcomes = write(offsets)
        try:
            self._repair(outcomes, offsets, write, deadline)
        except RegistryError:
            if release or Outcome.DONE not in outcomes.values():
                raise
            # a success counts, although the repair of the others was not answered
            unrepaired = [tp for tp, outcome in outcomes.items() if outcome in _REPAIRED]
            outcomes |= dict.fromkeys(unrepaired, Outcome.UNANSWERED)
        for tp, outcome in outcomes.items():
            if outcome is not Outcome.UNANSWERED and (release or offsets[tp] is not None):
                self.tracked[tp].node.unanswered.clear()
        return outcomes

    def _repair(
        self,
        outcomes: dict[TopicPartition, Outcome],
        offsets: Mapping[TopicPartition, int | None],
        write: Callable[[Mapping[TopicPartition, int | None]], dict[TopicPartition, Outcome]],
        deadline: Deadline,
    ) -> None:
        """Try partitions again whose nodes were not as we last saw them. Raises RegistryError."""
        for last in (*(_ROUNDS - 1) * (False,), True):
            moved = [tp for tp, outcome in outcomes.items() if outcome is Outcome.OFFSET_MOVED]
            # perhaps we moved it ourselves, by a commit that was done and whose answer was lost with the connection
            again = self._moved_by_us(moved, deadline)
            if last:
                self.notes.despair(outcomes)
            else:
                again += self.notes.repair(outcomes, deadline)
            if last or not again:
                break
            outcomes.update(write({tp: offsets[tp] for tp in again}))

    def _session_ended(self, tp: TopicPartition) -> bool:
        """Return whether the session of the claim has ended, and the owner node with it; False if one is unknown."""
        now, then = self._session.session_id, self.tracked[tp].node.session
        return bool(now and then) and now != then

    def _write_owned(
        self,
        offsets: Mapping[TopicPartition, int | None],
        points: Points,
        deadline: Deadline,
        *,
        release: bool,
        by_owner: bool,
    ) -> dict[TopicPartition, Outcome]:
        lost = {tp: Outcome.NOT_OURS for tp in offsets if self._session_ended(tp)}
        offsets = {tp: offset for tp, offset in offsets.items() if tp not in lost}
        prepared = {
            tp: self.notes.prepare(tp, points.get(tp), note=offset is not None) for tp, offset in offsets.items()
        }
        commits: Sequence[Commit] = [
            Commit(tp, offset, ABSENT if by_owner else seen_node(self.tracked[tp]), prepared[tp].write)
            for tp, offset in offsets.items()
        ]
        written = {tp: offset for tp, offset in offsets.items() if offset is not None}
        self.notes.make_directories(points, deadline)
        try:
            perform = ownership_transactions.release if release else ownership_transactions.commit
            outcomes = perform(self._session, self._group, commits, deadline)
        except RegistryError:
            for tp, offset in written.items():
                self.tracked[tp].node.unanswered.add(node_codecs.encode_offset(offset))
            raise
        for tp in offsets:
            if outcomes[tp] is Outcome.DONE:
                self.notes.wrote(tp, prepared[tp])
        for tp, offset in written.items():
            node = self.tracked[tp].node
            if outcomes[tp] is Outcome.DONE:
                node.offset, node.version = offset, _next_version(node)
            elif outcomes[tp] is Outcome.UNANSWERED:
                node.unanswered.add(node_codecs.encode_offset(offset))
        return {**outcomes, **lost}

    def _moved_by_us(self, partitions: Collection[TopicPartition], deadline: Deadline) -> list[TopicPartition]:
        """Return the partitions whose offset nodes hold our last try, written by the one write that could succeed.

        Their nodes are known as read then. Raises RegistryError.
        """
        doubtful = {tp: known for tp in partitions if (known := self.tracked[tp].node).unanswered}
        if not doubtful:
            return []
        found = []
        nodes = self._session.read([paths.offset(self._group, tp) for tp in doubtful], deadline)
        for (tp, known), node in zip(doubtful.items(), nodes, strict=True):
            ours = node is not None and node.version == _next_version(known)
            if node is not None and ours and node.data in known.unanswered:
                known.offset, known.version = int(node.data), node.version
                found.append(tp)
        return found

    def settle_unanswered(self, partitions: Collection[TopicPartition], deadline: Deadline) -> set[TopicPartition]:
        """Find out the outcome of commits of tracked partitions whose answer did not come. Raises RegistryError.

        Returns these partitions.

        ZooKeeper serves a session's requests in order, so a read is answered after those commits.
        """
        ours = [tp for tp in partitions if tp in self.tracked]
        self._moved_by_us(ours, deadline)
        return {tp for tp in ours if self.tracked[tp].node.unanswered}

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
            outcomes |= ownership_transactions.write_unowned(self._session, self._group, changes, deadline)
            left = [tp for tp in left if outcomes[tp] in (Outcome.OFFSET_MOVED, Outcome.NO_PARENT)]
        return outcomes


def see_node(stored: StoredOffset, known: KnownOffset) -> None:
    """Keep the offset node as it was read, and note and pointers if they were read too. The claim stays the same."""
    stored.node = SeenNode(known.offset, known.version, session=stored.node.session)
    if known.acks is not None:
        stored.notes = known.acks.stored()


def seen_node(stored: StoredOffset) -> KnownOffset:
    """Return the offset node as last seen."""
    return KnownOffset(stored.node.offset, stored.node.version)


def _next_version(known: SeenNode) -> int:
    return 0 if known.version is None else known.version + 1
