"""Offsets in ZooKeeper: ``/consumers/<group>/offsets/<topic>/<partition>``, decimal text of the next offset to consume.

Owned by one thread (the committer's). Every write is fenced (see ``registry.fenced``): it names the version of the
offset node as we last saw it and is refused once somebody else owns the partition or wrote its offset. The original
writes unconditionally, so a member that was paused overwrites its successor's progress; it also remembers the last
value it wrote without ever looking again, so that a value set back by a tool is silently kept (section "ZooKeeper
write rule" of its behaviour).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from zkconsumer.deadline import Deadline
from zkconsumer.model import TopicPartition
from zkconsumer.registry import fenced
from zkconsumer.registry.fenced import ABSENT, Commit, KnownOffset, Outcome
from zkconsumer.registry.session import Session


class ZooKeeperOffsets:
    """The offset nodes of the partitions we own."""

    def __init__(self, session: Session, group: str) -> None:
        self._session = session
        self._group = group
        self._known: dict[TopicPartition, KnownOffset] = {}

    def track(self, partition: TopicPartition, known: KnownOffset) -> None:
        """The partition was claimed; ``known`` is its offset node as of the claim."""
        self._known[partition] = known

    def untrack(self, partition: TopicPartition) -> KnownOffset:
        """The partition is given up or lost; returns its offset node as last seen."""
        return self._known.pop(partition, ABSENT)

    def commit(self, offsets: Mapping[TopicPartition, int], deadline: Deadline) -> Mapping[TopicPartition, Outcome]:
        """Write offsets of tracked partitions, in one transaction; returns what became of each."""
        commits: Sequence[Commit] = [
            Commit(partition, offset, self._known.get(partition, ABSENT)) for partition, offset in offsets.items()
        ]
        outcomes = fenced.commit(self._session, self._group, commits, deadline)
        for partition, outcome in outcomes.items():
            if outcome is Outcome.DONE and partition in self._known:
                version = self._known[partition].version
                self._known[partition] = KnownOffset(offsets[partition], 0 if version is None else version + 1)
        return outcomes
