"""Moments and durations in words. Pure; any thread."""

from __future__ import annotations

from datetime import UTC, datetime

_UNITS = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))


def moment(milliseconds: int) -> str:
    """Return a moment, given in milliseconds since 1970, as ``2024-05-01 12:00:00 UTC``."""
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, OSError, ValueError):
        return f"{milliseconds} ms since 1970"  # from a node or a message: any number


def duration(milliseconds: float) -> str:
    """Return a duration with its two largest units: ``3 min 4 s``, ``2 d 5 h``, ``0.25 s``."""
    seconds = milliseconds / 1000
    if seconds < 10:
        return f"{seconds:.3g} s"
    left = round(seconds)
    parts: list[str] = []
    for unit, size in _UNITS:
        number, left = divmod(left, size)
        if number or parts:
            parts.append(f"{number} {unit}")
    return " ".join(part for part in parts[:2] if not part.startswith("0 "))


def ago(then: int, now: int) -> str:
    """Return how long before ``now`` a moment was, both in milliseconds since 1970. Clocks of machines may differ."""
    return f"{duration(now - then)} ago" if now >= then else f"{duration(then - now)} ahead of our clock"
