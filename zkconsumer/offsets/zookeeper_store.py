"""Offsets in ZooKeeper: ``/consumers/<group>/offsets/<topic>/<partition>``, decimal text of the next offset to consume.

Owned by one thread (the committer's). Every write is fenced (see ``zookeeper.fenced_writes``): it names the version
of the offset node as we last saw it and is refused once somebody else owns the partition or wrote its offset. The
original writes unconditionally, so a member that was paused overwrites its successor's progress; it also remembers
the last value it wrote without ever looking again, so that a value set back by a tool is silently kept (section
"ZooKeeper write rule" of its behaviour).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from zkconsumer.deadline import Deadline
from zkconsumer.errors import RegistryError
from zkconsumer.model import TopicPartition
from zkconsumer.offsets.store import refusals
from zkconsumer.zookeeper import fenced_writes, node_codecs, paths
from zkconsumer.zookeeper.fenced_writes import ABSENT, ClaimSessions, Commit, KnownOffset, Outcome
from zkconsumer.zookeeper.session import Session

_ROUNDS = 5


class ZooKeeperOffsets:
    """The offset nodes of one group (an ``OffsetStore``). Partitions that are tracked are ours.

    Arguments: ``written`` is told how many offsets each commit wrote.
    """

    def __init__(self, session: Session, group: str, written: Callable[[int], None] = lambda _: None) -> None:
        self._session = session
        self._written = written
        self._group = group
        self._known: dict[TopicPartition, KnownOffset] = {}
        self._unanswered: dict[TopicPartition, set[bytes]] = {}
        self._claims = ClaimSessions(session)

    def track(self, partition: TopicPartition, known: KnownOffset) -> None:
        """The partition was claimed; ``known`` is its offset node as of the claim. For one that is tracked already: as
        somebody else has written it since, which makes no new claim of the old one.
        """
        self._known[partition] = known
        self._claims.claimed(partition)
        self._unanswered.pop(partition, None)

    def untrack(self, partition: TopicPartition) -> KnownOffset:
        """The partition is given up or lost; returns its offset node as last seen."""
        self._unanswered.pop(partition, None)
        self._claims.forget(partition)
        return self._known.pop(partition, ABSENT)

    def known(self, partition: TopicPartition) -> int | None:
        """The offset in a tracked partition's node as last seen; None where there is no node."""
        return self._known.get(partition, ABSENT).offset

    def fetch(self, partitions: Collection[TopicPartition], timeout: float) -> Mapping[TopicPartition, int]:
        """Read offset nodes. Raises RegistryError; MalformedNodeError for one that cannot be read."""
        wanted = list(partitions)
        nodes = self._session.read([paths.offset(self._group, tp) for tp in wanted], Deadline(timeout))
        return {
            tp: node_codecs.decode_offset(node.data, paths.offset(self._group, tp))
            for tp, node in zip(wanted, nodes, strict=True)
            if node is not None
        }

    def commit(self, offsets: Mapping[TopicPartition, int], timeout: float) -> Mapping[TopicPartition, Exception]:
        """Write offsets, in one transaction those of tracked partitions and in one the others, which must have no
        owner. Returns what was refused. Raises RegistryError where nothing is known of the outcome.
        """
        deadline = Deadline(timeout)
        ours = {tp: offset for tp, offset in offsets.items() if tp in self._known}
        outcomes = self._commit_owned(ours, deadline)
        outcomes |= self._commit_unowned({tp: o for tp, o in offsets.items() if tp not in ours}, deadline)
        done = sum(outcome is Outcome.DONE for outcome in outcomes.values())
        if done:
            self._written(done)
        return refusals(outcomes)

    def release(
        self, offsets: Mapping[TopicPartition, int], unchanged: Collection[TopicPartition], deadline: Deadline
    ) -> tuple[Mapping[TopicPartition, Exception], frozenset[TopicPartition]]:
        """The last commit of tracked partitions and the end of our ownership, of each together or not at all.

        Returns the commits that were refused, and the partitions that are released; the others' owner nodes, also those
        of ``unchanged`` ones, may still stand. Raises RegistryError where nothing is known of the outcome.
        """
        wanted = {**dict.fromkeys(unchanged), **offsets}
        outcomes = self._commit_owned(wanted, deadline, release=True)
        released = frozenset(tp for tp, outcome in outcomes.items() if outcome is Outcome.DONE)
        written = len(released & offsets.keys())
        if written:
            self._written(written)
        return refusals({tp: outcomes[tp] for tp in offsets}), released

    def close(self) -> None:
        """Nothing: the session is its maker's."""

    def moved(self, deadline: Deadline) -> Collection[TopicPartition]:
        """Tracked partitions whose offset nodes are not as we last saw or wrote them. Raises RegistryError."""
        tracked = [tp for tp, known in self._known.items() if tp not in self._unanswered and known.version is not None]
        nodes = self._session.stat([paths.offset(self._group, tp) for tp in tracked], deadline)
        return [
            tp
            for tp, node in zip(tracked, nodes, strict=True)
            if node is None or node.version != self._known[tp].version
        ]

    def not_ours(
        self, partitions: Collection[TopicPartition], deadline: Deadline
    ) -> Mapping[TopicPartition, Exception]:
        """Those whose owner node our session did not make, looked up now: the fence of offsets that are kept
        elsewhere. Raises RegistryError.
        """
        ours = self._session.session_id
        return refusals(
            {
                tp: Outcome.DONE if owner == ours else Outcome.NOT_OURS
                for tp, owner in self._owners(partitions, deadline).items()
            }
        )

    def owned(self, partitions: Collection[TopicPartition], deadline: Deadline) -> Mapping[TopicPartition, Exception]:
        """Those that anybody owns now. Raises RegistryError."""
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

    def _commit_owned(
        self, offsets: Mapping[TopicPartition, int | None], deadline: Deadline, *, release: bool = False
    ) -> dict[TopicPartition, Outcome]:
        """Write offsets (None: none), and with ``release`` delete the owner nodes as well."""
        outcomes = self._write_owned(offsets, deadline, release)
        moved = [tp for tp, outcome in outcomes.items() if outcome is Outcome.OFFSET_MOVED]
        # "moved" by ourselves, perhaps: by a commit that was done, and whose answer the connection took with it
        again = self._moved_by_us(moved, deadline)
        if again:
            outcomes |= self._write_owned({tp: offsets[tp] for tp in again}, deadline, release)
        for tp in outcomes:
            self._unanswered.pop(tp, None)
        return outcomes

    def _write_owned(
        self, offsets: Mapping[TopicPartition, int | None], deadline: Deadline, release: bool
    ) -> dict[TopicPartition, Outcome]:
        lost = {tp: Outcome.NOT_OURS for tp in offsets if self._claims.ended(tp)}
        offsets = {tp: offset for tp, offset in offsets.items() if tp not in lost}
        commits: Sequence[Commit] = [Commit(tp, offset, self._known[tp]) for tp, offset in offsets.items()]
        written = {tp: offset for tp, offset in offsets.items() if offset is not None}
        try:
            perform = fenced_writes.release if release else fenced_writes.commit
            outcomes = perform(self._session, self._group, commits, deadline)
        except RegistryError:
            for tp, offset in written.items():
                self._unanswered.setdefault(tp, set()).add(node_codecs.encode_offset(offset))
            raise
        for tp, offset in written.items():
            if outcomes[tp] is Outcome.DONE:
                self._known[tp] = KnownOffset(offset, _next_version(self._known[tp]))
        return {**outcomes, **lost}

    def _moved_by_us(self, partitions: Collection[TopicPartition], deadline: Deadline) -> list[TopicPartition]:
        """Those in whose offset nodes stands what we tried to write last, by the one write that could succeed; they are
        known as they stand then. Raises RegistryError.
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

    def _commit_unowned(
        self, offsets: Mapping[TopicPartition, int], deadline: Deadline
    ) -> dict[TopicPartition, Outcome]:
        outcomes: dict[TopicPartition, Outcome] = {}
        left = list(offsets)
        topics = {tp.topic for tp in left}
        parents = [paths.owner_topic(self._group, t) for t in topics] + [
            paths.offset_topic(self._group, t) for t in topics
        ]
        for _ in range(_ROUNDS):
            if not left:
                break
            self._session.ensure(sorted(parents), deadline)
            nodes = self._session.stat([paths.offset(self._group, tp) for tp in left], deadline)
            commits = [
                Commit(tp, offsets[tp], ABSENT if node is None else KnownOffset(None, node.version))
                for tp, node in zip(left, nodes, strict=True)
            ]
            outcomes |= fenced_writes.commit_unowned(self._session, self._group, commits, deadline)
            left = [tp for tp in left if outcomes[tp] in (Outcome.OFFSET_MOVED, Outcome.NO_PARENT)]
        return outcomes


def _next_version(known: KnownOffset) -> int:
    return 0 if known.version is None else known.version + 1
