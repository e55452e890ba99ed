"""Committed offsets of one group: written, read, and forgotten when their time is over.

Pure; guarded by the group's lock. Times in seconds, on the coordinator's clock. Mirrors what the broker keeps in its
topic of offsets. Kafka 1.1 lets each offset die by its own age; since 2.1 (KIP-211) it depends on the group, see
``end_of``. Differs on purpose: an offset dies when its time is over, not when the broker next looks for old ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from zkconsumer.testing.group_states import Rules, State

Place = tuple[str, int]
"""A topic and the number of a partition."""


class Committed(NamedTuple):
    """A committed offset. ``expires`` only where the commit itself said for how long to keep it."""

    offset: int
    leader_epoch: int
    metadata: str
    at: float
    expires: float | None = None


class Standing(NamedTuple):
    """What of a group decides how long its offsets live.

    ``since`` when it is in its ``state``; ``protocol_type`` is None where it never had members; ``subscribed`` are the
    topics that its members subscribe to, None where that is unknown: they are no consumers, or cannot be understood.
    """

    state: State
    since: float
    protocol_type: str | None = None
    subscribed: frozenset[str] | None = None


def end_of(rules: Rules, group: Standing, topic: str, committed: Committed) -> float | None:
    """When an offset dies, None while it does not."""
    by_age = committed.at + rules.retention if committed.expires is None else committed.expires
    if not rules.modern or group.protocol_type is None:
        return by_age
    if group.state is State.EMPTY:  # all together, also what was committed a moment ago
        return group.since + rules.retention if committed.expires is None else committed.expires
    if group.state is State.STABLE and group.subscribed is not None and topic not in group.subscribed:
        return by_age
    return None


class Offsets:
    """The offsets of a group, by place."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._kept: dict[Place, Committed] = {}

    def commit(self, place: Place, committed: Committed) -> None:
        """Keep an offset; the last one counts, also if it is smaller."""
        self._kept[place] = committed

    def get(self, place: Place) -> Committed | None:
        """What was committed last, None where nothing is (any more)."""
        return self._kept.get(place)

    def places(self) -> list[Place]:
        """Where there are offsets."""
        return sorted(self._kept)

    def forget(self, places: Iterable[Place]) -> list[Place]:
        """Delete offsets. Returns those that there were."""
        return [place for place in places if self._kept.pop(place, None) is not None]

    def due(self, group: Standing) -> float | None:
        """When the next offset dies, None while none will."""
        ends = [end_of(self._rules, group, topic, kept) for (topic, _), kept in self._kept.items()]
        return min((end for end in ends if end is not None), default=None)

    def expire(self, now: float, group: Standing) -> list[Place]:
        """Delete what is too old. Returns what was deleted."""
        dead = []
        for place, committed in self._kept.items():
            end = end_of(self._rules, group, place[0], committed)
            if end is not None and end <= now:
                dead.append(place)
        return self.forget(dead)
