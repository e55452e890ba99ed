"""A group over time: a fold over its snapshots that keeps what the pages, metrics and rules need. Pure; any thread.

``observed`` takes the next snapshot in, ``unread`` notes that there is none. A value that could not be read this time
keeps its last reading and the time of that reading. All histories are bounded.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from zkconsumer.model import TopicPartition
from zkconsumer.operations.group_snapshot import GroupSnapshot, LogState, age_at_offset
from zkconsumer.operations.serving.burrow_rules import EXPIRE_GROUP, NO_COMMIT, CommitWindow, ObservedCommit
from zkconsumer.operations.stalled_partitions import Progress, after

V = TypeVar("V")

CHANGES = 32
"""The most states of members, owners and topics that are kept for the timeline."""
CHANGED_NODES = 100_000
"""The most members and owners that these states have together. Two of them are always kept."""

_UNKNOWN = -1
"""An unknown lag inside :class:`LagPoint`. It never leaves that class."""
_SHORT = (1 << 31) - 1
"""The largest lag that takes four bytes. A point with a larger one takes eight for each of its lags."""


@dataclass(frozen=True, slots=True)
class KnownLag:
    """The last reading of a partition's lag.

    ``lag`` is in messages. ``seconds`` is the age of the message at the committed offset, None if that is unknown.
    ``taken`` is the time of the reading, in milliseconds since 1970.
    """

    lag: int
    seconds: float | None
    taken: int


@dataclass(frozen=True, slots=True)
class KnownLog:
    """The last reading of a partition's log, and its time in milliseconds since 1970."""

    log: LogState
    taken: int


@dataclass(frozen=True, slots=True)
class LagPoint:
    """The lags of a group's partitions at one moment. Consecutive points share one tuple of partitions."""

    taken: int
    partitions: tuple[TopicPartition, ...]
    lags: array[int]

    def known(self) -> dict[TopicPartition, int]:
        """Return the lag of each partition whose lag was known."""
        return {tp: lag for tp, lag in zip(self.partitions, self.lags, strict=True) if lag != _UNKNOWN}


@dataclass(frozen=True, slots=True)
class ObservedGroup:
    """A group with its latest snapshot, the last known values and a bounded history.

    ``serial`` counts the readings, failed ones included. ``failure`` says why the latest reading failed, and is empty
    if it did not. ``zookeeper_taken`` is the time of the nodes in ``snapshot``, in milliseconds since 1970. It is
    older than the snapshot while only the brokers answer. ``changes`` are the snapshots in which members, owners or
    topics differ from the one before, and the last ones before each such change. They have no logs and no offsets.
    ``progress`` tells of each owned partition since when its offset has not moved.
    """

    snapshot: GroupSnapshot
    serial: int = 1
    failure: str = ""
    zookeeper_taken: int = 0
    lags: Mapping[TopicPartition, KnownLag] = field(default_factory=dict)
    logs: Mapping[TopicPartition, KnownLog] = field(default_factory=dict)
    windows: Mapping[TopicPartition, CommitWindow] = field(default_factory=dict)
    points: tuple[LagPoint, ...] = ()
    changes: tuple[GroupSnapshot, ...] = ()
    progress: Mapping[TopicPartition, Progress] = field(default_factory=dict)

    @property
    def group(self) -> str:
        """The name of the group."""
        return self.snapshot.group

    @property
    def judged(self) -> GroupSnapshot:
        """The snapshot as of the time at which its nodes were read. Later, nobody knows whether they changed."""
        older = 0 < self.zookeeper_taken < self.snapshot.taken
        return replace(self.snapshot, taken=self.zookeeper_taken) if older else self.snapshot

    @property
    def complete(self) -> bool:
        """Whether the latest reading succeeded, and nothing of it is missing."""
        return not self.failure and not self.snapshot.problems


def observed(before: ObservedGroup | None, snapshot: GroupSnapshot, points: int = 360) -> ObservedGroup:
    """Return the group after one more snapshot.

    Arguments: ``before`` is None for the first snapshot; ``points`` is the most points of history to keep.
    """
    if before is not None and before.snapshot.taken == snapshot.taken and not before.failure:
        return before  # a file that has not changed
    if before is None:
        before = ObservedGroup(replace(snapshot, members={}, owners={}, brokers_group=None), serial=0)
    shown = _with_zookeeper(before, snapshot)
    partitions = snapshot.partitions()
    read = {tp: snapshot.lag(tp) for tp in partitions}
    lags = {**_kept(before.lags, snapshot, partitions), **_read_lags(snapshot, read)}
    for tp in [tp for tp in lags if _beyond(snapshot, tp)]:
        del lags[tp]  # the offset and the log were read, and have no lag: the old one is not true any more
    logs = {tp: KnownLog(log, snapshot.taken) for tp, log in snapshot.logs.items() if log.end is not None}
    return ObservedGroup(
        shown,
        serial=before.serial + 1,
        zookeeper_taken=snapshot.taken if shown is snapshot else before.zookeeper_taken,
        lags=lags,
        logs={**_kept(before.logs, snapshot, tuple(snapshot.logs)), **logs},
        windows=_windows(before.windows, snapshot, partitions),
        points=(*before.points, _point(before, snapshot, read))[-max(1, points) :],
        changes=_changes(before, shown),
        progress=after(before.progress, shown) if shown is snapshot else before.progress,
    )


def _with_zookeeper(before: ObservedGroup, snapshot: GroupSnapshot) -> GroupSnapshot:
    """Return the snapshot, with the nodes of the one before if ZooKeeper did not answer.

    Otherwise a group whose ZooKeeper is away would look like one that all members have left.
    """
    old = before.snapshot
    if snapshot.in_zookeeper or not snapshot.problems or not old.in_zookeeper or not before.serial:
        return snapshot
    return replace(
        snapshot,
        zxid=old.zxid,
        group_node=old.group_node,
        ids_node=old.ids_node,
        members=old.members,
        owners=old.owners,
        offsets=old.offsets,
        other_nodes=old.other_nodes,
        acks=old.acks,
        pointers=old.pointers,
        loans=old.loans,
    )


def depends_on(watched: ObservedGroup) -> object:
    """Return what the group's judgement is made of, beside the time and ZooKeeper's statistics of its servers."""
    one = watched.snapshot
    return (
        *(one.members, one.owners, one.offsets, one.logs, one.topics, one.brokers_group, one.kafka_offsets),
        *(one.problems, one.acks, one.pointers, one.loans, one.plan, one.acls, one.other_nodes, one.brokers),
        *(one.group_node, one.ids_node, watched.changes, watched.failure, watched.zookeeper_taken < one.taken),
    )


def unread(before: ObservedGroup, why: str) -> ObservedGroup:
    """Return the group after a reading that failed as a whole. All values stay as they were."""
    return replace(before, serial=before.serial + 1, failure=why or "unknown")


def _kept(
    old: Mapping[TopicPartition, V], snapshot: GroupSnapshot, partitions: tuple[TopicPartition, ...]
) -> dict[TopicPartition, V]:
    """Return the old readings that stay. A partition that is gone leaves them once a snapshot is complete."""
    if snapshot.problems:
        return dict(old)
    return {tp: old[tp] for tp in partitions if tp in old}


def _beyond(snapshot: GroupSnapshot, tp: TopicPartition) -> bool:
    """Whether the committed offset of a partition lies beyond the end of its log."""
    offset, log = snapshot.committed(tp), snapshot.logs.get(tp)
    return offset is not None and log is not None and log.end is not None and offset > log.end


def _read_lags(snapshot: GroupSnapshot, lags: Mapping[TopicPartition, int | None]) -> dict[TopicPartition, KnownLag]:
    found = {}
    for tp, lag in lags.items():
        if lag is not None:
            late = age_at_offset(lag, snapshot.logs.get(tp), snapshot.taken)
            found[tp] = KnownLag(lag, None if late is None else late / 1000, snapshot.taken)
    return found


def _point(before: ObservedGroup, snapshot: GroupSnapshot, lags: Mapping[TopicPartition, int | None]) -> LagPoint:
    partitions = tuple(lags)
    if before.points and before.points[-1].partitions == partitions:
        partitions = before.points[-1].partitions  # one tuple for all points, not one each
    known = [_UNKNOWN if lag is None else lag for lag in lags.values()]
    return LagPoint(snapshot.taken, partitions, array("i" if max(known, default=0) <= _SHORT else "q", known))


def _windows(
    old: Mapping[TopicPartition, CommitWindow], snapshot: GroupSnapshot, partitions: tuple[TopicPartition, ...]
) -> dict[TopicPartition, CommitWindow]:
    found = _kept(old, snapshot, partitions)
    for tp in partitions:
        window = found.get(tp, NO_COMMIT)
        log = snapshot.logs.get(tp)
        if log is not None and log.end is not None:
            window = window.with_end(log.end, snapshot.taken)
        commit = _commit(snapshot, tp, window)
        found[tp] = window if commit is None else window.with_commit(commit)
    return found


def _commit(snapshot: GroupSnapshot, tp: TopicPartition, window: CommitWindow) -> ObservedCommit | None:
    """Return the latest commit of a partition, None if there is none or it has expired.

    Kafka does not say when an offset was committed. A changed offset there counts as committed when it is first seen,
    and a repeated commit of the same offset is not seen at all.
    """
    offset = snapshot.committed(tp)
    if offset is None:
        return None
    node, seen = snapshot.offsets.get(tp), snapshot.taken // 1000 * 1000
    log = snapshot.logs.get(tp)
    lag = None if log is None or log.end is None else max(0, log.end - offset)
    if node is not None and node.offset is not None and node.stat is not None:
        expired = node.stat.mtime < snapshot.taken - EXPIRE_GROUP * 1000
        return None if expired else ObservedCommit(offset, node.stat.mtime, seen, lag, node.stat.mzxid)
    last = window.last
    if last is not None and last.offset == offset:
        return None
    return ObservedCommit(offset, snapshot.taken, seen, lag, 1 if last is None else last.order + 1)


def _changes(before: ObservedGroup, snapshot: GroupSnapshot) -> tuple[GroupSnapshot, ...]:
    if before.changes and _membership(before.changes[-1]) == _membership(snapshot):
        return before.changes
    last: tuple[GroupSnapshot, ...] = ()
    if before.changes and before.judged.taken > before.changes[-1].taken:
        last = (_light(before.judged),)  # the last snapshot without the change dates the change to one interval
    nodes = len(snapshot.members) + len(snapshot.owners)
    most = max(2, min(2 * CHANGES, CHANGED_NODES // max(1, nodes)))
    return (*before.changes, *last, _light(snapshot))[-most:]


def _light(snapshot: GroupSnapshot) -> GroupSnapshot:
    """Return the snapshot without all that the timeline does not need."""
    return replace(
        snapshot, offsets={}, kafka_offsets=None, logs={}, acls={}, servers=(), acks={}, pointers={}, loans={}
    )


def _membership(snapshot: GroupSnapshot) -> object:
    return snapshot.members, snapshot.owners, snapshot.topics, snapshot.brokers_group
