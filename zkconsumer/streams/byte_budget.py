"""One limit for the bytes that wait in all streams of a member, are in a reader's hands, or on their way from a broker
(``queued.max.bytes``).

Threads: fetchers look and reserve, streams' queues come and go; a lock guards the table of queues and what is reserved.
What waits is counted by the queues themselves and added up when a fetcher looks, once a request, so that no interrupt
can leave a wrong sum behind.

The original bounds each stream by a number of chunks only, so many streams, or large messages, may take any memory.
"""

from __future__ import annotations

from threading import Lock
from typing import Protocol

STREAM_SHARE = 4
"""A stream may have so many times what is still free, and a request may ask for one in so many parts of it: whoever is
there first takes much and still leaves something to the next, and with n that want all they can get each has about as
much.
"""
AMPLE_CHUNK = 4 * 1024 * 1024
AMPLE_PART = 8
"""What may wait in a stream whatever number of chunks it is: so many bytes for each chunk of its capacity, and no more
than one in so many parts of the limit.
"""
KEPT_BACK = 16
"""One in so many parts of the limit is kept for streams whose readers wait with nothing to read."""


class BudgetedQueue(Protocol):
    """What holds bytes: a stream's queue."""

    @property
    def held_bytes(self) -> int:
        """How many, with what its reader has in hand."""


class QueueBudget:
    """The bytes of one member.

    Arguments: ``limit`` in bytes. ``short`` says that somebody was refused since the last time that room was made.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = Lock()
        self._holders: tuple[BudgetedQueue, ...] = ()
        self._reserved = 0
        self.short = False

    def enter(self, holder: BudgetedQueue) -> None:
        """Count what this one holds."""
        with self._lock:
            self._holders = (*self._holders, holder)

    def leave(self, holder: BudgetedQueue) -> None:
        """It holds nothing any more."""
        with self._lock:
            self._holders = tuple(other for other in self._holders if other is not holder)

    @property
    def used(self) -> int:
        """Bytes that are held or on their way."""
        used = self._reserved
        for holder in self._holders:
            used += holder.held_bytes
        return used

    def free(self) -> int:
        """Bytes that may still be asked for; 0 or less: only a stream whose reader waits may be served."""
        free = self._limit - self._limit // KEPT_BACK - self.used
        if free <= 0:
            self.short = True
        return free

    def ample(self, capacity: int) -> int:
        """Bytes that may wait in a stream of so many chunks although it has them."""
        return min(capacity * AMPLE_CHUNK, self._limit // AMPLE_PART)

    def allows(self, held: int, free: int) -> bool:
        """Whether a stream that holds so much may have more, where so much is free."""
        if held < STREAM_SHARE * free:
            return True
        self.short = True
        return False

    def reserve(self, wanted: int) -> int:
        """Bytes that may be asked for in one request, at least 1; they count until :meth:`release`."""
        free = self.free() // STREAM_SHARE
        with self._lock:
            granted = max(1, min(wanted, free))
            self._reserved += granted
        return granted

    def release(self, count: int) -> None:
        """What was reserved has arrived, or will not."""
        with self._lock:
            self._reserved -= count
