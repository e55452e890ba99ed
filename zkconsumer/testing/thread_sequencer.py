"""A sequence of named points for threads. A test runs a race in either order, without waiting for a race.

Any thread may call everything. There is one lock, and every wait has a limit.
"""

from __future__ import annotations

from threading import Condition
from types import TracebackType
from typing import Self

from zkconsumer.runtime.deadline import Deadline

DEFAULT_TIMEOUT = 10.0


class Sequencer:
    """A sequence of points. ``reach(point)`` blocks until all earlier points are reached.

    As a context manager it checks at the end that all points were reached. Arguments: the ``points`` in their order;
    ``timeout`` is the limit of one wait in seconds.
    """

    def __init__(self, *points: str, timeout: float = DEFAULT_TIMEOUT) -> None:
        if len(set(points)) != len(points):
            raise ValueError(f"a point is named twice: {', '.join(points)}")
        self.timeout = timeout
        self._points = points
        self._next = 0
        self._changed = Condition()

    @property
    def reached(self) -> tuple[str, ...]:
        """The points that are reached so far, in order."""
        with self._changed:
            return self._points[: self._next]

    def reach(self, point: str) -> None:
        """Wait for the turn of ``point``, and mark it as reached.

        Raises TimeoutError with the missing point's name, ValueError for an unknown point or one reached before.
        """
        place = self._place(point)
        with self._changed:
            if place < self._next:
                raise ValueError(f"{point!r} was reached before")
            self._wait(place, f"{point!r} waits")
            self._next = place + 1
            self._changed.notify_all()

    def wait_for(self, point: str) -> None:
        """Wait until another thread has reached ``point``. Raises the same errors as ``reach``."""
        place = self._place(point)
        with self._changed:
            self._wait(place + 1, f"a thread waits for {point!r}")

    def _place(self, point: str) -> int:
        try:
            return self._points.index(point)
        except ValueError:
            raise ValueError(f"{point!r} is none of {', '.join(self._points)}") from None

    def _wait(self, turn: int, who: str) -> None:
        deadline = Deadline(self.timeout)
        while self._next < turn:
            if deadline.expired:
                raise TimeoutError(f"{who}, but {self._points[self._next]!r} was not reached in {self.timeout:g} s")
            self._changed.wait(deadline.bounded(self.timeout))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if kind is None:
            missing = self._points[len(self.reached) :]
            if missing:
                raise AssertionError(f"never reached: {', '.join(missing)}")
