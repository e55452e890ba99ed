"""Text for people: moments, durations, and foreign text that a terminal shows and does not obey. Pure; any thread."""

from __future__ import annotations

import base64
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


def printable(text: str) -> str:
    r"""Return text that a terminal shows and does not obey: control characters and the like become ``\x1b``."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode("ascii") for one in text)


def data_field(name: str, data: bytes | None, as_base64: bool = False) -> dict[str, str | None]:
    """Return a JSON field: as text if it is UTF-8, else as base64 under another name."""
    if data is None:
        return {name: None}
    if not as_base64:
        try:
            return {name: bytes(data).decode()}
        except UnicodeDecodeError:
            pass
    return {f"{name}_base64": base64.b64encode(data).decode("ascii")}
