"""Committed offsets as a fake coordinator keeps them: when each expires, and the offsets topic that survives a broker.

Times are in seconds on the coordinator's clock. In Kafka 1.1 each offset expires by its own age. Since 2.1 (KIP-211)
the group decides, see ``end_of``. Differs on purpose: an offset expires when its time is over, and not at the broker's
next search for old offsets.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from threading import Lock
from typing import NamedTuple

from zkconsumer.testing.fake_group import FakeGroup
from zkconsumer.testing.group_states import CoordinatorGroupState, CoordinatorRules, FakeGroupMember, FakeGroupView

PartitionId = tuple[str, int]
"""A topic and a partition's number."""


class CommittedOffset(NamedTuple):
    """A committed offset. ``expires`` is None unless the commit itself said how long to keep the offset."""

    offset: int
    leader_epoch: int
    metadata: str
    at: float
    expires: float | None = None


class ExpiryBasis(NamedTuple):
    """The facts about a group that decide when its offsets expire.

    ``since`` is the time at which the group entered its ``state``. ``protocol_type`` is None if it never had members.
    ``subscribed`` are the topics of its members. None means unknown: the members are no consumers, or one subscription
    cannot be decoded.
    """

    state: CoordinatorGroupState
    since: float
    protocol_type: str | None = None
    subscribed: frozenset[str] | None = None


def end_of(rules: CoordinatorRules, group: ExpiryBasis, topic: str, committed: CommittedOffset) -> float | None:
    """Return the time at which an offset expires, None if it does not."""
    by_age = committed.at + rules.offsets_retention if committed.expires is None else committed.expires
    if not rules.modern or group.protocol_type is None:
        return by_age
    if group.state is CoordinatorGroupState.EMPTY:  # all expire together, even one that was committed a moment ago
        return group.since + rules.offsets_retention if committed.expires is None else committed.expires
    if group.state is CoordinatorGroupState.STABLE and group.subscribed is not None and topic not in group.subscribed:
        return by_age
    return None


class CommittedOffsets(dict[PartitionId, CommittedOffset]):
    """The committed offsets of a group, by partition. The last commit counts, even with a smaller offset.

    Pure; the group's lock guards the offsets.
    """

    def __init__(self, rules: CoordinatorRules) -> None:
        super().__init__()
        self._rules = rules

    def forget(self, places: Iterable[PartitionId]) -> list[PartitionId]:
        """Delete offsets. Return the partitions that had one."""
        return [place for place in places if self.pop(place, None) is not None]

    def due(self, group: ExpiryBasis) -> float | None:
        """Return the time at which the next offset expires, None if none will."""
        ends = [end_of(self._rules, group, topic, kept) for (topic, _), kept in self.items()]
        return min((end for end in ends if end is not None), default=None)

    def expire(self, now: float, group: ExpiryBasis) -> list[PartitionId]:
        """Delete the expired offsets. Return their partitions."""
        ends = {place: end_of(self._rules, group, place[0], committed) for place, committed in self.items()}
        return self.forget([place for place, end in ends.items() if end is not None and end <= now])


class StoredGroup(NamedTuple):
    """A group as the offsets topic holds it. ``since`` is the time at which the group entered its state."""

    view: FakeGroupView
    members: tuple[FakeGroupMember, ...]
    since: float


class JournalRecord(NamedTuple):
    """A record of the offsets topic. ``place`` is None for the group itself, ``value`` is None for a tombstone."""

    group_id: str
    place: PartitionId | None
    value: StoredGroup | CommittedOffset | None


class OffsetsTopic:
    """The offsets topic: the records of all groups in memory, in the order of writing. A coordinator loads groups by
    it.

    Any thread may call the topic; a lock guards the list. The values are this package's objects, not the bytes of
    Kafka's internal topic.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._records: list[JournalRecord] = []

    def write_group(self, group: FakeGroup) -> None:
        """Append the present state of a group."""
        copies = tuple(
            replace(member, join_ticket=None, sync_ticket=None, deadline=None) for member in group.members.values()
        )
        self._write(JournalRecord(group.group_id, None, StoredGroup(group.view(), copies, group.since)))

    def write_offset(self, group_id: str, place: PartitionId, committed: CommittedOffset | None) -> None:
        """Append an offset, or None as a tombstone."""
        self._write(JournalRecord(group_id, place, committed))

    def bury(self, group_id: str) -> None:
        """Append a group's tombstone."""
        self._write(JournalRecord(group_id, None, None))

    def forget(self, places: Collection[PartitionId]) -> None:
        """Append tombstones for the offsets of these partitions, also in groups that no coordinator has loaded."""
        for group_id in self.groups():
            for place in sorted(self.last(group_id)[1].keys() & set(places)):
                self.write_offset(group_id, place, None)

    def records(self, group_id: str) -> list[JournalRecord]:
        """Return the records of a group, oldest first."""
        with self._lock:
            return [record for record in self._records if record.group_id == group_id]

    def groups(self) -> list[str]:
        """Return the groups that have records."""
        with self._lock:
            return sorted({record.group_id for record in self._records})

    def last(self, group_id: str) -> tuple[StoredGroup | None, dict[PartitionId, CommittedOffset]]:
        """Return the last state of a group and its last offsets."""
        written: StoredGroup | None = None
        offsets: dict[PartitionId, CommittedOffset] = {}
        for _, place, value in self.records(group_id):
            if place is None:
                written = value if isinstance(value, StoredGroup) else None
            elif isinstance(value, CommittedOffset):
                offsets[place] = value
            else:
                offsets.pop(place, None)
        return written, offsets

    def _write(self, record: JournalRecord) -> None:
        with self._lock:
            self._records.append(record)
