"""A point in time after which an operation gives up, and the pauses between its attempts. Seconds as float.

Any thread may use a deadline, which is on the monotonic clock. It moves once at most: :meth:`expire` ends it early.
"""

from __future__ import annotations

from time import monotonic


class Deadline:
    """The end of a wait that several steps share, so that ten steps of one second do not become ten seconds.

    Arguments: ``seconds`` from now, or None for no end (only where the user asked to block for ever).
    """

    __slots__ = ("at",)

    def __init__(self, seconds: float | None) -> None:
        self.at: float | None = None if seconds is None else monotonic() + seconds

    def remaining(self) -> float | None:
        """Return the seconds left, never negative; None without an end."""
        return None if self.at is None else max(0.0, self.at - monotonic())

    def earlier(self, seconds: float) -> Deadline:
        """Return the deadline ``seconds`` before this deadline, which leaves time to later steps."""
        found = Deadline(None)
        found.at = None if self.at is None else self.at - seconds
        return found

    def expire(self) -> None:
        """End the time now, because nobody waits for the result any more.

        A single write, so that an interrupt comes before or after.
        """
        self.at = 0.0

    @property
    def expired(self) -> bool:
        """Whether the deadline has passed."""
        return self.at is not None and monotonic() >= self.at

    def bounded(self, seconds: float) -> float:
        """Return the seconds that a single step may take: ``seconds``, or less if less remains."""
        if self.at is None:
            return seconds
        left = self.at - monotonic()  # no other call: every read of a socket asks
        return seconds if seconds < left else left if left > 0.0 else 0.0


_DOUBLINGS = 16  # more could overflow a float, and no longest pause is so many times the first


def backoff(failures: int, first: float, longest: float) -> float:
    """Return the seconds to wait after ``failures`` failures in a row (at least 1).

    The pause is ``first``, and doubles with each failure up to ``longest``. It has no jitter, because only the caller
    knows how much is allowed and in which direction.
    """
    return min(longest, first * 2.0 ** min(failures - 1, _DOUBLINGS))
