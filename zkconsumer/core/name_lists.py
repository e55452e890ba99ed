"""Lists of names in messages for the user. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def first_of(names: Iterable[Any], most: int = 8) -> str:
    """Return names in order, in words: the first ``most``, and how many more there are. Empty if there are none."""
    listed = [str(name) for name in sorted(names)]
    return ", ".join(listed[:most]) + (f" and {len(listed) - most} more" if len(listed) > most else "")
