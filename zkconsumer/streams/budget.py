"""One limit for the bytes that wait in all streams of a member (``queued.max.bytes``). Any thread; a lock guards it.

The original bounds each stream by a number of chunks only, so many streams, or large messages, may take any memory.
"""

from __future__ import annotations

from threading import Lock


class QueueBudget:
    """Counts what is queued in all streams.

    Arguments: ``limit`` in bytes.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = Lock()
        self.used = 0

    def has_room(self) -> bool:
        """Whether less than the limit is queued."""
        return self.used < self._limit

    def add(self, count: int) -> bool:
        """Bytes were queued (or, below 0, taken away); returns whether by this there is room again."""
        with self._lock:
            before = self.used
            self.used += count
            return before >= self._limit > self.used
