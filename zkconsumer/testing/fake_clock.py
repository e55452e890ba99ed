"""The clocks of the fakes: the system's time, or a clock that only a test moves.

Any thread may call everything here. Timeouts that become due run on the thread that calls ``advance``. They are done
when ``advance`` returns, so a test need not wait.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from time import monotonic, time
from typing import Protocol

EPOCH = 1_700_000_000.0
"""Where a manual clock's wall time begins, in seconds since 1970."""


class Clock(Protocol):
    """The interface of a clock."""

    def now(self) -> float:
        """Return seconds on a monotonic clock."""

    def wall(self) -> float:
        """Return seconds since 1970."""


class SystemClock:
    """The machine's time."""

    def now(self) -> float:
        """Return seconds on the monotonic clock."""
        return monotonic()

    def wall(self) -> float:
        """Return seconds since 1970."""
        return time()


class ManualClock:
    """A clock that stands still until :meth:`advance`.

    Arguments: ``wall`` is its first wall time, in seconds since 1970.
    """

    def __init__(self, wall: float = EPOCH) -> None:
        self._lock = Lock()
        self._start = wall
        self._now = 0.0
        self._listeners: list[Callable[[], None]] = []

    def now(self) -> float:
        """Return the seconds by which the clock was advanced so far."""
        with self._lock:
            return self._now

    def wall(self) -> float:
        """Return this clock's time in seconds since 1970."""
        return self._start + self.now()

    def advance(self, seconds: float) -> None:
        """Advance the clock and run the timeouts that become due, in the order of time, before returning.

        Raises ValueError for a negative number of seconds.
        """
        if seconds < 0:
            raise ValueError(f"time does not go back: {seconds} s")
        with self._lock:
            self._now += seconds
            listeners = list(self._listeners)
        for listener in listeners:
            listener()

    def listen(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` after each advance, on the advancing thread, until :meth:`forget`."""
        with self._lock:
            self._listeners.append(listener)

    def forget(self, listener: Callable[[], None]) -> None:
        """Stop calling ``listener``. An unknown listener is ignored."""
        with self._lock:
            if listener in self._listeners:
                self._listeners.remove(listener)
