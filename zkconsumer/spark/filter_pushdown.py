"""Filter pushdown: Spark's filters narrow the ranges of a batch, so that excluded messages are not even fetched. Pure.

Conditions on ``partition`` and ``offset`` are met exactly. A condition on ``timestamp`` only says where to begin. Times
need not rise along a partition, so Spark looks at them once more, and a latest time saves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from zkconsumer.model import OffsetRange, TopicPartition

ENDLESS: Final = 2**63


@dataclass
class Bounds:
    """The bounds that filters set: partitions that all of ``numbers`` accept, and offsets in [``first``, ``end``).

    ``since`` leaves out messages before the first one that is not older than this time (ms since 1970).
    """

    numbers: list[Callable[[int], bool]] = field(default_factory=list)
    first: int = 0
    end: int = ENDLESS
    since: int | None = None

    def take(self, filters: Iterable[Filter]) -> list[Filter]:
        """Add conditions. Returns those that Spark must check itself."""
        return [one for one in filters if not self._take(one)]

    def narrow(self, ranges: Iterable[OffsetRange], since: Mapping[TopicPartition, int]) -> list[OffsetRange]:
        """Return the rest of the ranges; ``since`` maps partitions to the offset of the time, if they have one."""
        left = []
        for range_ in ranges:
            start = max(range_.start, self.first, since.get(TopicPartition(range_.topic, range_.partition), 0))
            end = min(range_.end, self.end)
            if start < end and all(accepts(range_.partition) for accepts in self.numbers):
                left.append(range_._replace(start=start, end=end))
        return left

    def _take(self, one: Filter) -> bool:
        column = getattr(one, "attribute", ())
        if column == ("partition",):
            return self._take_partition(one)
        if column == ("offset",):
            return self._take_offset(one)
        if column == ("timestamp",) and isinstance(one, EqualTo | GreaterThan | GreaterThanOrEqual):
            self._take_time(one.value)
        return False

    def _take_partition(self, one: Filter) -> bool:
        if isinstance(one, IsNotNull):
            return True
        accepts = _accepts(one)
        if accepts is None:
            return False
        self.numbers.append(accepts)
        return True

    def _take_offset(self, one: Filter) -> bool:
        if isinstance(one, IsNotNull):
            return True
        if isinstance(one, In):
            if not all(map(_is_int, one.value)) or not one.value:
                return False
            self._within(min(one.value), max(one.value) + 1)
            return False  # there may be others between them
        if not isinstance(one, EqualTo | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual):
            return False
        if not _is_int(one.value):
            return False
        beyond = one.value + 1
        match one:
            case EqualTo():
                self._within(one.value, beyond)
            case GreaterThan():
                self._within(beyond, ENDLESS)
            case GreaterThanOrEqual():
                self._within(one.value, ENDLESS)
            case LessThan():
                self._within(0, one.value)
            case LessThanOrEqual():
                self._within(0, beyond)
        return True

    def _within(self, first: int, end: int) -> None:
        self.first, self.end = max(self.first, first), min(self.end, end)

    def _take_time(self, value: object) -> None:
        if not isinstance(value, datetime) or value.tzinfo is None:
            return
        # since 1970 in UTC: in a zone of its own the difference would leave out summer time
        ms = (value - datetime.fromtimestamp(0, UTC)) // timedelta(milliseconds=1)
        if ms >= 0:
            self.since = ms if self.since is None else max(self.since, ms)


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _accepts(one: Filter) -> Callable[[int], bool] | None:
    """Return the test of a condition on a whole number; None for a condition that is not understood."""
    if isinstance(one, In):
        values: frozenset[Any] = frozenset(one.value)
        return values.__contains__ if all(map(_is_int, values)) else None
    if not isinstance(one, EqualTo | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual):
        return None
    limit = one.value
    if not _is_int(limit):
        return None
    tests: dict[type, Callable[[int], bool]] = {
        EqualTo: lambda number: number == limit,
        GreaterThan: lambda number: number > limit,
        GreaterThanOrEqual: lambda number: number >= limit,
        LessThan: lambda number: number < limit,
        LessThanOrEqual: lambda number: number <= limit,
    }
    return tests[type(one)]
