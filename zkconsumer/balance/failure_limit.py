"""When a partition stops because nearly everything fails. No I/O, and no wait but for its lock.

A bad deployment must not make a dead letter of every message. Source: the limits of arroyo's dead-letter queue.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from zkconsumer.runtime.interruptible_wait import InterruptibleLock

_RUNS = 1000
"""Runs of equal outcomes that are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureLimit:
    """A partition stops when ``consecutive`` attempts failed in a row, or ``ratio`` of the last ``window`` did.

    Raises: ValueError for a value that cannot be used.
    """

    consecutive: int = 100
    ratio: float = 0.9
    window: int = 200

    def __post_init__(self) -> None:
        for name in ("consecutive", "window"):
            number = getattr(self, name)
            if isinstance(number, bool) or not isinstance(number, int) or number < 1:
                raise ValueError(f"FailureLimit({name}=) takes a number of at least 1, not {number!r}")
        ratio = self.ratio
        if isinstance(ratio, bool) or not isinstance(ratio, int | float) or not 0 < ratio <= 1:
            raise ValueError(f"FailureLimit(ratio=) takes a number above 0 and at most 1, not {ratio!r}")


class FailureCount:
    """The last outcomes of one partition. The runs of successes and failures are kept, not each outcome.

    ``retry_at`` is the time at which a partition at its limit is tried again (monotonic seconds), 0 if it is not there.

    Any thread: several workers settle messages of one partition at a time.
    """

    def __init__(self) -> None:
        self._lock = InterruptibleLock()
        self._runs: deque[tuple[bool, int]] = deque(maxlen=_RUNS)
        self._tripped = self._told = False
        self.retry_at = 0.0

    def succeeded(self, count: int) -> None:
        """Note attempts that did not fail."""
        with self._lock:
            if self._tripped:
                self._tripped = self._told = False
                self._runs.clear()
            self._add(True, count)

    def failed(self) -> None:
        """Note an attempt that failed."""
        with self._lock:
            self._add(False, 1)

    def _add(self, good: bool, count: int) -> None:
        runs = self._runs
        if runs and runs[-1][0] is good:
            runs[-1] = (good, runs[-1][1] + count)
        else:
            runs.append((good, count))

    def tell(self) -> bool:
        """Return whether nobody has told yet that the limit is reached: once, until an attempt succeeds."""
        with self._lock:
            first, self._told = not self._told, True
            return first

    def reached(self, limit: FailureLimit) -> str:
        """Return why the limit is reached, empty if it is not. Once reached, it is so until an attempt succeeds."""
        with self._lock:
            why = self._reached(limit)
            self._tripped = self._tripped or bool(why)
            return why or ("everything has failed since" if self._tripped else "")

    def _reached(self, limit: FailureLimit) -> str:
        runs = self._runs
        if not runs or runs[-1][0]:
            return ""
        if runs[-1][1] >= limit.consecutive:
            return f"{runs[-1][1]} attempts failed in a row"
        counted = failed = 0
        for good, count in reversed(runs):
            taken = min(count, limit.window - counted)
            counted += taken
            failed += 0 if good else taken
            if counted >= limit.window:
                break
        if counted >= limit.window and failed >= limit.ratio * limit.window:
            return f"{failed} of the last {counted} attempts failed"
        return ""
