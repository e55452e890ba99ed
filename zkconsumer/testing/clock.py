"""Time for the fakes: the real one, or one that stands still until a test moves it.

Any thread may call everything here. What a moved clock sets off runs on the thread that moves it, and is done when
``advance`` returns, so a test needs no waiting after it.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from time import monotonic, time
from typing import Protocol

EPOCH = 1_700_000_000.0
"""Where a manual clock's wall time begins, in seconds since 1970."""


class Clock(Protocol):
    """What the fakes ask for the time."""

    @property
    def manual(self) -> bool:
        """Whether time passes only by a test's hand."""

    def now(self) -> float:
        """Seconds, never backwards, from an arbitrary beginning."""

    def wall(self) -> float:
        """Seconds since 1970."""


class SystemClock:
    """The machine's time."""

    manual = False

    def now(self) -> float:
        """Seconds on the monotonic clock."""
        return monotonic()

    def wall(self) -> float:
        """Seconds since 1970."""
        return time()


class ManualClock:
    """A clock that stands still until :meth:`advance`.

    Arguments: ``wall`` is what it shows at first, in seconds since 1970.
    """

    manual = True

    def __init__(self, wall: float = EPOCH) -> None:
        self._lock = Lock()
        self._start = wall
        self._now = 0.0
        self._listeners: list[Callable[[], None]] = []

    def now(self) -> float:
        """Seconds by which it was advanced so far."""
        with self._lock:
            return self._now

    def wall(self) -> float:
        """Seconds since 1970, by this clock."""
        return self._start + self.now()

    def advance(self, seconds: float) -> None:
        """Let time pass. Whatever falls due on the way has happened, in the order of time, when this returns.

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
        """Call it no more; nothing happens for one that is unknown."""
        with self._lock:
            if listener in self._listeners:
                self._listeners.remove(listener)
