"""The watchdog of stalled readers: ``max.poll.interval.ms`` for streams. Pure.

Owned by the group thread, which looks at the place of every stream at regular times. A place says how often the stream
was asked, and which message its reader has in hand. A reader that stays at one place for the whole interval is stalled.
These looks cost the hand-out path nothing. The watchdog finds a stall at most one look late.

Time counts only while the reader has a message in hand or could get one. A pause in counting, or a new generation, does
not reset the time that was counted before.

Differs from the Java consumer on purpose: there a consumer must poll even if there is nothing to read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from zkconsumer.model import TopicPartition

StreamKey = tuple[str, int]
"""The topic and number of a stream."""


class Place(NamedTuple):
    """The place of a stream: the offset of its next message, or of the message in its reader's hands.

    ``until`` tells successive rows in a reader's hands apart. ``in_hand`` is true if the reader has taken the message
    and has not come back. ``asks`` counts the calls for a message. ``to_read`` is false if the stream has nothing to
    read, so that its reader need not come back.
    """

    partition: TopicPartition | None
    offset: int | None
    until: int
    in_hand: bool
    asks: int = 0
    to_read: bool = True

    def left(self, now: Place) -> bool:
        """Return whether the reader has come back between this place and ``now``.

        The offset of a message that no reader has taken says nothing: it changes with the owned partitions.
        """
        return self._reader_at != now._reader_at

    @property
    def _reader_at(self) -> tuple[object, ...]:
        return (self.asks, *(self[:3] if self.in_hand else ()))


class _Count(NamedTuple):
    """The time spent at a place: from ``since`` to ``at``, the time of the last look."""

    place: Place
    since: float
    at: float


class PollWatchdog:
    """Finds stalled readers.

    Arguments: ``limit`` in seconds. All times are seconds of one monotonic clock.
    """

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._counts: dict[StreamKey, _Count] = {}
        self._held_since: float | None = None
        self._left_out = 0.0
        self.stalled: dict[StreamKey, Place] = {}
        """The streams with stalled readers, each with its place."""

    @property
    def every(self) -> float:
        """The time between two looks, in seconds."""
        return min(max(self._limit / 20, 0.05), 5.0)

    def look(self, places: Mapping[StreamKey, Place], now: float) -> bool:
        """Take in the places of all streams. Return whether any reader is stalled."""
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
        return _Count(place, seen.since + now - seen.at, now)  # the reader had nothing to come back for

    def hold(self, now: float) -> None:
        """Stop counting poll time: the streams hand out no messages."""
        if self._held_since is None:
            self._held_since = now

    def go_on(self, now: float) -> None:
        """Continue to count poll time, because the streams hand out messages again."""
        if self._held_since is not None:
            self._left_out += now - self._held_since
            self._held_since = None

    def back(self, key: StreamKey) -> None:
        """Forget the stall of a stream whose reader has come back."""
        self.stalled.pop(key, None)

    def describe(self) -> str:
        """Return the stalled streams in words for the user."""
        told = [
            f"the reader of stream {number}{f' of {topic}' * bool(topic)}, at {place.partition} offset {place.offset},"
            for (topic, number), place in sorted(self.stalled.items())
        ]
        return f"{' and '.join(told)} has not come back for {self._limit:g} s (max.poll.interval.ms)"
