"""What a coordinator writes down, so that another one can go on: the topic of offsets, as a list in memory.

Any thread may call; one lock. A record is a key with a value, or with None (a tombstone). Values are this package's own
objects, not the bytes of Kafka's internal topic.
"""

from __future__ import annotations

from dataclasses import replace
from threading import Lock
from typing import NamedTuple

from zkconsumer.testing.committed_offsets import Committed, Place
from zkconsumer.testing.fake_group import Group
from zkconsumer.testing.group_members import GroupView, Member


class Written(NamedTuple):
    """A group as it was written down, with members that can be taken over; ``since`` when it was in its state."""

    view: GroupView
    members: tuple[Member, ...]
    since: float


class Record(NamedTuple):
    """One record. ``place`` is None for the group itself; ``value`` is None for a tombstone."""

    group_id: str
    place: Place | None
    value: Written | Committed | None


class Journal:
    """The records of all groups, in the order of writing."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._records: list[Record] = []

    def write_group(self, group: Group) -> None:
        """Write down a group as it stands."""
        copies = tuple(
            replace(member, join_ticket=None, sync_ticket=None, deadline=None) for member in group.members.values()
        )
        self._write(Record(group.group_id, None, Written(group.view(), copies, group.since)))

    def write_offset(self, group_id: str, place: Place, committed: Committed | None) -> None:
        """Write down an offset, or with None that there is none any more."""
        self._write(Record(group_id, place, committed))

    def bury(self, group_id: str) -> None:
        """Write down that a group is gone."""
        self._write(Record(group_id, None, None))

    def records(self, group_id: str) -> list[Record]:
        """The records of a group, oldest first."""
        with self._lock:
            return [record for record in self._records if record.group_id == group_id]

    def groups(self) -> list[str]:
        """The groups that have left anything."""
        with self._lock:
            return sorted({record.group_id for record in self._records})

    def last(self, group_id: str) -> tuple[Written | None, dict[Place, Committed]]:
        """What counts of a group: itself as it was written last, and its offsets."""
        written: Written | None = None
        offsets: dict[Place, Committed] = {}
        for _, place, value in self.records(group_id):
            if place is None:
                written = value if isinstance(value, Written) else None
            elif isinstance(value, Committed):
                offsets[place] = value
            else:
                offsets.pop(place, None)
        return written, offsets

    def _write(self, record: Record) -> None:
        with self._lock:
            self._records.append(record)
