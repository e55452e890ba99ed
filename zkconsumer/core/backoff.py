"""How long to wait before something that failed is tried again."""

from __future__ import annotations

_DOUBLINGS = 16
"""More of them would not fit into a float in the end, and no pause here is so much longer than the first."""


def backoff(failures: int, first: float, longest: float) -> float:
    """The seconds to wait after so many failures in a row, from 1 on: ``first``, then twice as long each time, up to
    ``longest``. Without jitter: how much of it there may be, and whether to either side, only the caller knows.
    """
    return min(longest, first * 2.0 ** min(failures - 1, _DOUBLINGS))
