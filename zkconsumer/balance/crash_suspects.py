"""The messages that were in hand when a worker died, one of which may have killed it. Pure.

Threads: all that run workers; the lock that the maker gives guards everything.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager

MOST_SUSPECTS = 10_000
"""Messages that are remembered; beyond that the oldest are forgotten, and may be given in a whole batch again."""

Place = tuple[str, int, int]
"""Topic, partition and offset of a message."""


class CrashSuspects:
    """For each suspect the number of messages that it may be handled with: half of those in the crash, down to one."""

    def __init__(self, lock: AbstractContextManager[object]) -> None:
        self._lock = lock
        self._most: dict[Place, int] = {}

    def crashed(self, places: Sequence[Place]) -> None:
        """Note the messages that were in a worker's hands together when it died."""
        with self._lock:
            for place in places:
                self._most.pop(place, None)
                self._most[place] = max(1, len(places) // 2)
            while len(self._most) > MOST_SUSPECTS:
                del self._most[next(iter(self._most))]

    def cleared(self, places: Iterable[Place]) -> None:
        """Forget messages whose handler has returned or raised."""
        if self._most:  # a look without the lock: a message that was in hand is not added meanwhile
            with self._lock:
                for place in places:
                    self._most.pop(place, None)

    def fitting(self, places: Sequence[Place]) -> int:
        """Return how many of these messages, from the first on, may be handled together, at least one."""
        if not self._most:
            return len(places)
        with self._lock:
            most = len(places)
            for count, place in enumerate(places):
                limit = min(most, self._most.get(place, most))
                if count >= limit:
                    return max(1, count)
                most = limit
            return min(most, len(places))
