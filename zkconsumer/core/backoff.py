"""Pauses between the attempts of something that fails."""

from __future__ import annotations

_DOUBLINGS = 16  # more could overflow a float, and no longest pause is so many times the first


def backoff(failures: int, first: float, longest: float) -> float:
    """Return the seconds to wait after ``failures`` failures in a row (at least 1).

    The pause is ``first``, and doubles with each failure up to ``longest``. It has no jitter, because only the caller
    knows how much is allowed and in which direction.
    """
    return min(longest, first * 2.0 ** min(failures - 1, _DOUBLINGS))
