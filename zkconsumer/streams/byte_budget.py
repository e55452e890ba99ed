"""Limits the bytes that a member holds for the application (``queued.max.bytes``).

These are the bytes that wait in all streams, are in a reader's hands, or are on their way from a broker.

Threads: fetchers look and reserve; the queues of streams come and go. A lock guards the table of queues and the
reserved bytes. The queues count their own bytes, and a fetcher adds these up once a request. So no interrupt can leave
a wrong sum behind.

The original bounds each stream by a number of chunks only, so many streams, or large messages, may take any memory.
"""

from __future__ import annotations

from typing import Protocol

from zkconsumer.runtime.interruptible_wait import InterruptibleLock

STREAM_SHARE = 4
"""One stream may hold at most ``STREAM_SHARE`` times the free bytes. One request may ask for at most 1/``STREAM_SHARE``
of them. So the first stream takes much and still leaves bytes to the next, and greedy streams get about the same.
"""
AMPLE_CHUNK = 4 * 1024 * 1024
AMPLE_PART = 8
"""Bytes that may wait in a stream whatever number of chunks they are: ``AMPLE_CHUNK`` for each chunk of its capacity,
but at most 1/``AMPLE_PART`` of the limit.
"""
KEPT_BACK = 16
"""1/``KEPT_BACK`` of the limit is kept for streams whose readers wait with nothing to read."""


class BudgetedQueue(Protocol):
    """A stream's queue, as the budget counts it."""

    @property
    def held_bytes(self) -> int:
        """Bytes in the queue, and those that its reader has in hand."""


class QueueBudget:
    """The bytes of one member.

    Arguments: ``limit`` in bytes. ``short`` says that a queue or fetcher was refused since bytes were last freed.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._usable = limit - limit // KEPT_BACK
        self._lock = InterruptibleLock()
        self._holders: tuple[BudgetedQueue, ...] = ()
        self._reserved = 0
        self.short = False

    def enter(self, holder: BudgetedQueue) -> None:
        """Count the bytes of this queue."""
        with self._lock:
            self._holders = (*self._holders, holder)

    def leave(self, holder: BudgetedQueue) -> None:
        """Count this queue no more."""
        with self._lock:
            self._holders = tuple(other for other in self._holders if other is not holder)

    @property
    def used(self) -> int:
        """The bytes that are held or on their way."""
        used = self._reserved
        for holder in self._holders:
            used += holder.held_bytes
        return used

    def free(self) -> int:
        """Return the bytes that requests may still ask for; at 0 or less only streams with a waiting reader may."""
        free = self._usable - self._reserved
        for holder in self._holders:
            free -= holder.held_bytes
        if free <= 0:
            self.short = True
        return free

    def ample(self, capacity: int) -> int:
        """Return the bytes that may wait in a stream of that capacity beyond its number of chunks."""
        return min(capacity * AMPLE_CHUNK, self._limit // AMPLE_PART)

    def allows(self, held: int, free: int) -> bool:
        """Return whether a stream that holds ``held`` bytes may have more while ``free`` bytes are free."""
        if held < STREAM_SHARE * free:
            return True
        self.short = True
        return False

    def reserve(self, wanted: int) -> int:
        """Return the bytes that one request may ask for, at least 1; they count until :meth:`release`."""
        granted = self.free() // STREAM_SHARE
        if granted > wanted:
            granted = wanted
        elif granted < 1:
            granted = 1
        with self._lock:
            self._reserved += granted
        return granted

    def release(self, count: int) -> None:
        """Count these reserved bytes no more: they have arrived, or will not come."""
        with self._lock:
            self._reserved -= count
