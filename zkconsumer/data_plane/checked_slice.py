"""Copies parts of bytes, with both ends checked. Compiled modules use the same functions of the ``.pxd`` instead."""

from __future__ import annotations

from typing import Any


def part(data: memoryview, begin: int, end: int) -> bytes:
    """Return a part of ``data``. Raises: IndexError if it is not within the data."""
    if not 0 <= begin <= end <= len(data):
        raise IndexError("bytes beyond the end of the data")
    return bytes(data[begin:end])


def copy_part(target: memoryview, at: int, data: Any, size: int, begin: int, end: int) -> int:
    """Copy a part of ``data``, which has ``size`` bytes, into ``target``, from ``at`` on.

    Raises: IndexError if one of them is too short.
    """
    if not 0 <= begin <= end <= size or at < 0 or end - begin > len(target) - at:
        raise IndexError("bytes beyond the end of the data")
    target[at : at + end - begin] = data[begin:end]
    return 0
