"""Readers that do not come back: ``max.poll.interval.ms``, for streams. Pure.

Owned by the group's thread. A stream tells its place while its reader does something else: how often it was asked, and
the message in hand. One that stands there for the whole interval is stalled. Only time with something to read, or with
a message in hand, counts; the rest is left out, and what was counted before it stays, over however many generations.
Looking now and then costs the hand-out path nothing, and is late by one look at the most.

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

    ``in_hand``: its reader took it and has not come back, else nobody has taken it yet. ``asks`` is how often the
    stream was asked so far; ``to_read`` whether it waits for its reader, who has nothing to come back for otherwise.
    """

    partition: TopicPartition | None
    offset: int | None
    until: int
    in_hand: bool
    asks: int = 0
    to_read: bool = True

    def left(self, now: Place) -> bool:
        """Whether its reader has come back since, where the stream stands at ``now``. What nobody has taken changes by
        itself, whenever partitions come and go.
        """
        return self._reader_at != now._reader_at

    @property
    def _reader_at(self) -> tuple[object, ...]:
        return (self.asks, *(self[:3] if self.in_hand else ()))


class _Count(NamedTuple):
    """``since`` counts, up to ``at``, the time of the last look."""

    place: Place
    since: float
    at: float


class PollWatchdog:
    """Which streams stand still. Argument: ``limit`` in seconds; all times are of one clock that does not go back."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._counts: dict[StreamKey, _Count] = {}
        self._held_since: float | None = None
        self._left_out = 0.0
        self.stalled: dict[StreamKey, Place] = {}
        """The streams whose readers are waited for."""

    @property
    def every(self) -> float:
        """Seconds between two looks."""
        return min(max(self._limit / 20, 0.05), 5.0)

    def look(self, places: Mapping[StreamKey, Place], now: float) -> bool:
        """Note where streams stand; returns whether any has stood there for the whole limit, which is stalled then."""
        now -= self._left_out
        self._counts = {key: self._counted(self._counts.get(key), place, now) for key, place in places.items()}
        self.stalled = {
            key: place
            for key, (place, since, _) in self._counts.items()
            if place.to_read and now - since >= self._limit
        }
        return bool(self.stalled)

    @staticmethod
    def _counted(seen: _Count | None, place: Place, now: float) -> _Count:
        if seen is None or seen.place.left(place):
            return _Count(place, now, now)
        if seen.place.to_read and place.to_read:
            return _Count(place, seen.since, now)
        return _Count(place, seen.since + now - seen.at, now)  # nobody had to come back meanwhile

    def hold(self, now: float) -> None:
        """Nothing is handed out: leave out what passes from now on."""
        if self._held_since is None:
            self._held_since = now

    def go_on(self, now: float) -> None:
        """Things are handed out (again)."""
        if self._held_since is not None:
            self._left_out += now - self._held_since
            self._held_since = None

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
