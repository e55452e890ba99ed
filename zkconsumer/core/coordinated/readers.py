"""Readers that do not come back: ``max.poll.interval.ms``, for streams. Pure.

Owned by the group's thread. A stream tells its place as long as there is something to read, or a message in hand, and
its reader does something else; one that stands there for the whole interval is stalled. Looking now and then costs the
hand-out path nothing, and is late by one look at the most.

Differs from the Java consumer on purpose: there a consumer without anything to read must poll as well; here only who
has something to read must come back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from zkconsumer.model import TopicPartition

StreamKey = tuple[str, int]
"""A stream, by its topic and number."""


class Place(NamedTuple):
    """Where a stream stands: at this offset of this partition; ``until`` tells rows in a reader's hands apart.

    ``in_hand``: its reader took it and has not come back, else nobody has taken it yet.
    """

    partition: TopicPartition
    offset: int | None
    until: int
    in_hand: bool


class ReaderWatch:
    """Which streams stand still. Argument: ``limit`` in seconds; all times are of one clock that does not go back."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._since: dict[StreamKey, tuple[Place, float]] = {}
        self.stalled: dict[StreamKey, Place] = {}
        """The streams whose readers are waited for."""

    @property
    def every(self) -> float:
        """Seconds between two looks."""
        return min(max(self._limit / 20, 0.05), 5.0)

    def look(self, unread: Mapping[StreamKey, Place], now: float) -> bool:
        """Note where streams stand; returns whether any has stood there for the whole limit, which is stalled then."""
        self._since = {
            key: seen if (seen := self._since.get(key)) is not None and seen[0] == place else (place, now)
            for key, place in unread.items()
        }
        self.stalled = {key: place for key, (place, since) in self._since.items() if now - since >= self._limit}
        return bool(self.stalled)

    def forget(self) -> None:
        """Nobody could come back meanwhile: count from now on."""
        self._since.clear()

    def back(self, key: StreamKey) -> None:
        """The reader of a stalled stream is back."""
        self.stalled.pop(key, None)

    def describe(self) -> str:
        """The stalled streams in words for the user."""
        told = [
            f"the reader of stream {number}{f' of {topic}' * bool(topic)}, at {place.partition} offset {place.offset},"
            for (topic, number), place in sorted(self.stalled.items())
        ]
        return f"{' and '.join(told)} has not come back for {self._limit:g} s (max.poll.interval.ms)"
