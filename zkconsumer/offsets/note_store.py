"""The data in ZooKeeper of owned partitions beyond their offsets: notes of finished messages, and pointers.

Part of ``zookeeper_store``, and owned by its thread. A commit of a :class:`CommitPoint` writes offset, note and
pointers in one transaction. The point names *changes* of pointers, which are applied to the pointers as last read or
written. So a pointer that somebody else added is not overwritten: the node then has another version, and is read again.

A node of pointers that was deleted while we own the partition is made again. Otherwise its messages would be lost. A
tool that drops pointers writes the node without them.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from zkconsumer.core.finished_note import encode_note
from zkconsumer.core.message_pointers import Pointer, encode_pointers
from zkconsumer.model import TopicPartition
from zkconsumer.ownership.message_ledger import CommitPoint, applied
from zkconsumer.ownership.stored_offset import StoredNotes, StoredOffset
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.zookeeper import paths
from zkconsumer.zookeeper.fenced_writes import Outcome
from zkconsumer.zookeeper.node_values import FORBIDDEN
from zkconsumer.zookeeper.note_nodes import NO_ACKS, NOTE_BYTES, AckWrite, known_pointers
from zkconsumer.zookeeper.session import Session

log = logging.getLogger(__name__)

Points = Mapping[TopicPartition, CommitPoint]
"""What is written with the offsets of partitions whose messages are finished in any order."""
NO_POINTS: Points = {}
ReadPointers = Mapping[TopicPartition, Mapping[int, Pointer]]
"""Pointers of partitions as read."""


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

    # ---- writing

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

    # ---- reading again

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
