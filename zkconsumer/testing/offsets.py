"""Committed offsets of one group: written, read, and forgotten when their time is over.

Pure; guarded by the group's lock. Times in seconds, on the coordinator's clock. Mirrors what the broker keeps in its
topic of offsets. Kafka 1.1 lets each offset die by its own age; since 2.1 (KIP-211) the offsets of a group live as long
as it has members, and a retention longer.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from zkconsumer.testing.coordinator import Rules, State

Place = tuple[str, int]
"""A topic and the number of a partition."""


class Committed(NamedTuple):
    """A committed offset. ``expires`` only where the commit itself said for how long to keep it."""

    offset: int
    leader_epoch: int
    metadata: str
    at: float
    expires: float | None = None


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

    def due(self, state: State, since: float, managed: bool) -> float | None:
        """When the next offset dies, None while none will.

        Arguments: the group's ``state``, ``since`` when; ``managed`` whether it ever had members.
        """
        ends = [self._end(committed, state, since, managed) for committed in self._kept.values()]
        return min((end for end in ends if end is not None), default=None)

    def expire(self, now: float, state: State, since: float, managed: bool) -> list[Place]:
        """Delete what is too old; arguments as ``due``'s. Returns what was deleted."""
        dead = []
        for place, committed in self._kept.items():
            end = self._end(committed, state, since, managed)
            if end is not None and end <= now:
                dead.append(place)
        return self.forget(dead)

    def _end(self, committed: Committed, state: State, since: float, managed: bool) -> float | None:
        if committed.expires is not None:
            return committed.expires
        own = committed.at + self._rules.retention
        if not self._rules.modern or not managed:
            return own
        return max(since + self._rules.retention, own) if state is State.EMPTY else None
