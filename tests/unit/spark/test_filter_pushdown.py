"""The ranges that filters leave, and the filters that Spark must look at itself."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

import pytest
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from zkconsumer.model import OffsetRange, TopicPartition
from zkconsumer.spark.filter_pushdown import Bounds

P, AT, T = ("partition",), ("offset",), ("timestamp",)
RANGES = [OffsetRange("t", number, 10, 20) for number in range(4)]


def left(*filters: Any, since: dict[int, int] | None = None) -> tuple[list[tuple[int, int, int]], list[Any]]:
    """Return (partition, start, end) of the rest, and the filters for Spark."""
    bounds = Bounds()
    unmet = bounds.take(filters)
    found = bounds.narrow(RANGES, {TopicPartition("t", number): offset for number, offset in (since or {}).items()})
    return [(range_.partition, range_.start, range_.end) for range_ in found], unmet


ALL = [(number, 10, 20) for number in range(4)]


@pytest.mark.parametrize(
    ("filters", "wanted"),
    [
        ([], ALL),
        ([IsNotNull(P), IsNotNull(AT)], ALL),
        ([EqualTo(P, 2)], ALL[2:3]),
        ([In(P, (0, 3, 9))], [ALL[0], ALL[3]]),
        ([GreaterThan(P, 1), LessThanOrEqual(P, 2)], ALL[2:3]),
        ([GreaterThanOrEqual(P, 1), LessThan(P, 2)], ALL[1:2]),
        ([EqualTo(P, 2), EqualTo(P, 3)], []),
        ([EqualTo(P, 0), EqualTo(AT, 15)], [(0, 15, 16)]),
        ([EqualTo(P, 0), EqualTo(AT, 20)], []),
        ([EqualTo(P, 0), GreaterThan(AT, 15), LessThan(AT, 18)], [(0, 16, 18)]),
        ([EqualTo(P, 0), GreaterThanOrEqual(AT, 15), LessThanOrEqual(AT, 18)], [(0, 15, 19)]),
        ([EqualTo(P, 0), GreaterThan(AT, -5), LessThan(AT, 2**62)], ALL[:1]),
    ],
)
def test_conditions_on_partition_and_offset_are_met(filters: list[Any], wanted: list[tuple[int, int, int]]) -> None:
    assert left(*filters) == (wanted, [])


@pytest.mark.parametrize(
    "unmet",
    [
        Not(EqualTo(P, 1)),
        EqualNullSafe(P, 1),
        IsNull(AT),
        EqualTo(("value",), b"x"),
        EqualTo(("partition", "x"), 1),
        In(P, (1, None)),
        EqualTo(P, True),
        In(AT, ()),
        LessThan(T, datetime(2026, 1, 1, tzinfo=UTC)),
        GreaterThan(T, "2026"),
    ],
)
def test_everything_else_is_left_to_spark_and_narrows_nothing(unmet: Any) -> None:
    assert left(unmet) == (ALL, [unmet])


def test_a_list_of_offsets_narrows_and_is_looked_at_again() -> None:
    one = In(AT, (17, 12))
    assert left(EqualTo(P, 1), one) == ([(1, 12, 18)], [one])


def test_a_time_says_where_to_begin_and_is_looked_at_again() -> None:
    bounds = Bounds()
    earlier = GreaterThan(T, datetime(2023, 11, 14, 22, 13, 20, 1500, tzinfo=UTC))
    later = EqualTo(T, datetime(2023, 11, 14, 22, 13, 21, tzinfo=UTC))
    assert bounds.take([later, earlier]) == [later, earlier]
    assert bounds.since == 1_700_000_001_000
    assert Bounds().take([earlier]) == [earlier]
    assert left(earlier, since={0: 15, 1: 5, 2: 99})[0] == [(0, 15, 20), (1, 10, 20), (3, 10, 20)]
    only = Bounds()
    only.take([earlier])
    assert only.since == 1_700_000_000_001


class NewYork(tzinfo):
    """Five hours behind, four in July."""

    def utcoffset(self, when: datetime | None) -> timedelta:
        return timedelta(hours=-4 if when is not None and when.month == 7 else -5)

    def dst(self, when: datetime | None) -> timedelta:
        return self.utcoffset(when) + timedelta(hours=5)

    def tzname(self, when: datetime | None) -> str:
        return "New York"


@pytest.mark.parametrize(("month", "since"), [(1, 1_672_549_200_000), (7, 1_688_184_000_000)])
def test_a_time_of_any_zone_is_met(month: int, since: int) -> None:
    bounds = Bounds()
    bounds.take([GreaterThan(T, datetime(2023, month, 1, tzinfo=NewYork()))])
    assert bounds.since == since
