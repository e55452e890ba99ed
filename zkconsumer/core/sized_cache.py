"""A cache with a limit on the total size of its entries.

A limit on the number of entries would not bound memory, because other members decide the size of an entry. Any thread
may use a cache: each step is one operation of a dictionary. Two threads at once may at worst cache less.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Generic, TypeVar

T = TypeVar("T")

_ENTRY = 64
"""The least size of an entry."""


class SizedCache(Generic[T]):
    """Keeps the entries that were used last. Argument: ``limit`` is the total size, in the unit of the sizes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._entries: dict[Hashable, tuple[T, int]] = {}
        self._total = 0

    def get(self, key: Hashable, make: Callable[[], T], size: Callable[[T], int]) -> T:
        """Return the cached value of ``key``, or that of ``make``. Raises what ``make`` raises, and caches nothing."""
        found = self._entries.pop(key, None)
        if found is not None:
            self._entries[key] = found  # at the end: the entry that was used last stays longest
            return found[0]
        value = make()
        cost = _ENTRY + size(value)
        if cost <= self._limit:
            self._entries[key] = value, cost
            self._total += cost
            if self._total > self._limit:
                self._evict()
        return value

    def _evict(self) -> None:
        """Drop the oldest entries, and an eighth more than needed, so that this happens seldom."""
        entries = list(self._entries.items())
        total = sum(cost for _, (_, cost) in entries)
        for key, (_, cost) in entries[:-1]:
            if total <= self._limit - self._limit // 8:
                break
            with suppress(KeyError):
                del self._entries[key]
            total -= cost
        self._total = total
