"""A cache whose entries have sizes: what others write decides how large they are, so their number says little.

Any thread: each step is one of a dictionary's own. Two threads at once remember less at worst, never anything else.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Generic, TypeVar

T = TypeVar("T")

_ENTRY = 64
"""The size that every entry has at least."""


class SizedCache(Generic[T]):
    """Remembers what was used last, up to a total size. Argument: ``limit`` in the unit of the sizes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._entries: dict[Hashable, tuple[T, int]] = {}
        self._total = 0

    def get(self, key: Hashable, make: Callable[[], T], size: Callable[[T], int]) -> T:
        """The value of ``key``, made where it is not remembered. Raises what ``make`` raises, and remembers nothing."""
        found = self._entries.pop(key, None)
        if found is not None:
            self._entries[key] = found  # at the end: what was used last is kept longest
            return found[0]
        value = make()
        cost = _ENTRY + size(value)
        if cost <= self._limit:
            self._entries[key] = value, cost
            self._total += cost
            if self._total > self._limit:
                self._shrink()
        return value

    def _shrink(self) -> None:
        """Forget what was not used for long, and an eighth more, so that this is seldom done."""
        entries = list(self._entries.items())
        total = sum(cost for _, (_, cost) in entries)
        for key, (_, cost) in entries[:-1]:
            if total <= self._limit - self._limit // 8:
                break
            with suppress(KeyError):
                del self._entries[key]
            total -= cost
        self._total = total
