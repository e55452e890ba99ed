"""The clock of the hand-out. Compiled modules read it by ``clock.pxd``, without a call of Python."""

from __future__ import annotations

from time import monotonic

__all__ = ["monotonic", "time_before"]


def time_before(until: float) -> float:
    """Return a time to compare with ``until``, in seconds: that of :func:`time.monotonic`.

    The compiled copy may return one that is some milliseconds old, if ``until`` is more than a second away.
    """
    return monotonic()
