"""Ranges as tables of small cases, and what must hold for all."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zkconsumer.errors import ConfigException
from zkconsumer.model import OffsetRange, TopicPartition
from zkconsumer.spark.offset_ranges import (
    EARLIEST,
    GROUP,
    LATEST,
    PACKED_OFFSETS,
    LogSpan,
    OffsetChoice,
    Span,
    advance,
    decode_progress,
    encode_progress,
    fair_share,
    is_news,
    named_position,
    out_of_log,
    pieces,
    ranges_of,
    remembered,
    stream_position,
    within,
)

A, B, C = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
OFFSETS = st.integers(0, 2**62)
PARTITIONS = st.builds(TopicPartition, st.text(min_size=1, max_size=5), st.integers(0, 2000))
PROGRESS = st.dictionaries(
    PARTITIONS, st.tuples(OFFSETS, OFFSETS).map(lambda pair: Span(min(pair), max(pair))), max_size=6
)


def r(start: int, end: int, partition: int = 0) -> OffsetRange:
    return OffsetRange("t", partition, start, end)


# ---- the checkpoint


def test_an_end_offset_carries_the_whole_range() -> None:
    progress = {B: Span(5, 5), A: Span(600, 800), C: Span(0, 1)}
    assert encode_progress(progress) == {
        "v": 1,
        "topics": {"t": {"0": {"from": 600, "to": 800}, "1": {"from": 5, "to": 5}}, "u": {"0": {"from": 0, "to": 1}}},
    }
    assert ranges_of(progress) == [r(600, 800), OffsetRange("u", 0, 0, 1)]


@given(PROGRESS)
def test_progress_comes_back_from_a_checkpoint(progress: dict[TopicPartition, Span]) -> None:
    assert decode_progress(json.loads(json.dumps(encode_progress(progress)))) == progress


@pytest.mark.parametrize(
    "offset",
    [
        {"v": 2, "topics": {}},
        {"topics": {}},
        {"t": {"0": 5}},
        [],
        "x",
        7,
        {"v": 1},
        {"v": 1, "topics": []},
        {"v": 1, "topics": {"t": {"x": {"from": 0, "to": 1}}}},
        {"v": 1, "topics": {"t": {"0": {"from": 2, "to": 1}}}},
        {"v": 1, "topics": {"t": {"0": {"from": 0, "to": "1"}}}},
        {"v": 1, "topics": {"t": {"0": {"from": 0}}}},
    ],
)
def test_a_checkpoint_of_something_else_is_refused(offset: object) -> None:
    with pytest.raises(ConfigException, match="checkpointLocation: its offsets cannot be read"):
        decode_progress(offset)


# ---- where to start


@pytest.mark.parametrize(
    ("wanted", "committed", "position"),
    [
        (EARLIEST, None, 10),
        (EARLIEST, 50, 10),
        (LATEST, None, 90),
        (GROUP, 50, 50),
        (GROUP, None, 77),
        (OffsetChoice("given", {A: 33}), 50, 33),
        (OffsetChoice("given", {A: -2}), 50, 10),
        (OffsetChoice("given", {A: -1}), 50, 90),
        (OffsetChoice("timestamp", time=5), 50, 50),
        (OffsetChoice("timestamp", time=5), None, 77),
        (OffsetChoice("timestamp", times={A: 5}), 50, 50),
    ],
)
def test_a_batch_starts_and_ends_where_the_option_says(
    wanted: OffsetChoice, committed: int | None, position: int
) -> None:
    assert named_position(wanted, A, LogSpan(10, 90), committed, 77) == position


BEGUN, LATER = {A: Span(20, 30)}, {B: Span(0, 3)}
SINCE, SINCE_EACH = OffsetChoice("timestamp", time=5), OffsetChoice("timestamp", times={A: 5, B: 6})
READ_ON = {
    "new query, latest": ({}, None, LATEST, None, 90),
    "new query, earliest": ({}, None, EARLIEST, None, 10),
    "new query, the group has no offset": ({}, None, GROUP, None, 90),
    "new query, from a time on": ({}, None, SINCE, 44, 44),
    "new query, from a time on that has not come": ({}, None, SINCE, None, 90),
    "new query in a group with offsets": ({}, 50, EARLIEST, None, 50),
    "new query, from times of partitions on": ({}, None, SINCE_EACH, 44, 44),
    "new query, from times of partitions on that have not come": ({}, None, SINCE_EACH, None, 90),
    "the group's offset does not count": (BEGUN, None, EARLIEST, None, 30),
    "others went on": (BEGUN, 40, EARLIEST, None, 40),
    "the group is behind": (BEGUN, 25, EARLIEST, None, 30),
    "a new partition is read from its beginning": (LATER, None, LATEST, None, 10),
    "a partition that others read before": (LATER, 60, LATEST, None, 60),
    "one that comes later, with a place of its own": (LATER, None, OffsetChoice("given", {A: 40, B: 0}), None, 40),
    "one that comes later, from its beginning": (LATER, None, OffsetChoice("given", {A: -2, B: 0}), None, 10),
    "one that comes later, from its end: it may be new": (LATER, None, OffsetChoice("given", {A: -1, B: 0}), None, 10),
    "one that comes later and is not named": (LATER, None, OffsetChoice("given", {B: 0}), None, 10),
    "one that comes later, from a time on": (LATER, None, SINCE, 50, 50),
    "one that comes later and has nothing of that time": (LATER, None, SINCE, None, 90),
    "one that comes later, with a time of its own": (LATER, None, SINCE_EACH, 44, 44),
    "one that comes later, without one": (LATER, None, OffsetChoice("timestamp", times={B: 6}), None, 10),
}


@pytest.mark.parametrize(("done", "committed", "wanted", "at_time", "position"), READ_ON.values(), ids=READ_ON)
def test_a_stream_reads_on(
    done: dict[TopicPartition, Span], committed: int | None, wanted: OffsetChoice, at_time: int | None, position: int
) -> None:
    assert stream_position(A, done, committed, wanted, LogSpan(10, 90), at_time) == position


def test_the_places_of_partitions_that_others_own_are_remembered() -> None:
    done = {A: Span(0, 30), B: Span(5, 9), TopicPartition("gone", 0): Span(0, 1)}
    batch = {A: Span(30, 40)}
    assert remembered(batch, done, [A, B, TopicPartition("t", 2)]) == {A: Span(30, 40), B: Span(9, 9)}


# ---- how far


@pytest.mark.parametrize(
    ("sizes", "limit", "shares"),
    [
        ([10, 10], 10, [5, 5]),
        ([1, 1000], 100, [1, 99]),
        ([1000, 3, 1000], 101, [49, 3, 49]),
        ([5, 5, 5], 2, [1, 1, 1]),
        ([7], 3, [3]),
        ([7], 100, [7]),
        ([], 3, []),
    ],
)
def test_a_limit_is_shared_evenly_and_starves_nobody(sizes: list[int], limit: int, shares: list[int]) -> None:
    assert fair_share(dict(enumerate(sizes)), limit) == dict(enumerate(shares))


@given(st.lists(st.integers(1, 10**6), max_size=20), st.integers(1, 10**6))
def test_shares_fill_the_limit(sizes: list[int], limit: int) -> None:
    shares = fair_share(dict(enumerate(sizes)), limit)
    assert all(1 <= shares[number] <= size for number, size in enumerate(sizes))
    total = sum(shares.values())
    assert total <= max(limit, len(sizes))
    assert total >= min(limit, sum(sizes)) - len(sizes)


def test_a_batch_goes_to_the_ends_or_to_the_limit() -> None:
    assert advance({A: 5, B: 7}, {A: 10, B: 7}, None) == {A: Span(5, 10), B: Span(7, 7)}
    assert advance({A: 0, B: 0}, {A: 100, B: 2}, 10) == {A: Span(0, 8), B: Span(0, 2)}
    assert advance({A: 5}, {A: 3}, None) == {A: Span(5, 5)}
    assert advance({A: 5}, {}, None) == {A: Span(5, 5)}


@pytest.mark.parametrize(
    ("progress", "done", "news"),
    [
        ({A: Span(5, 5)}, {}, True),
        ({A: Span(5, 5)}, {A: Span(0, 5)}, False),
        ({A: Span(5, 6)}, {A: Span(0, 5)}, True),
        ({A: Span(7, 7)}, {A: Span(0, 5)}, True),
        ({A: Span(5, 5), B: Span(0, 0)}, {A: Span(0, 5)}, True),
        ({A: Span(5, 5)}, {A: Span(0, 5), B: Span(0, 9)}, False),
        ({}, {}, False),
    ],
)
def test_a_batch_needs_messages_or_a_new_position(
    progress: dict[TopicPartition, Span], done: dict[TopicPartition, Span], news: bool
) -> None:
    assert is_news(progress, done) is news


@pytest.mark.parametrize(
    ("start", "end", "problem", "left"),
    [
        (10, 90, None, (10, 90)),
        (20, 20, None, (20, 20)),
        (9, 90, "t-0: offset 9 is gone, the log begins at 10", (10, 90)),
        (2, 5, "t-0: offset 2 is gone, the log begins at 10", (10, 10)),
        (20, 91, "t-0: offset 91 is beyond the log's end 90", (20, 90)),
        (95, 95, "t-0: offset 95 is beyond the log's end 90", (90, 90)),
    ],
)
def test_what_the_log_lacks_is_named(start: int, end: int, problem: str | None, left: tuple[int, int]) -> None:
    assert out_of_log(r(start, end), LogSpan(10, 90)) == problem
    assert within(r(start, end), LogSpan(10, 90)) == r(*left)


# ---- in which pieces

BIG = PACKED_OFFSETS


@pytest.mark.parametrize(
    ("ranges", "least", "most", "tasks"),
    [
        ([], None, None, []),
        ([r(3, 3)], None, None, []),
        ([r(0, 150), r(0, 150, 1), r(0, 150, 2)], None, None, [[r(0, 150), r(0, 150, 1), r(0, 150, 2)]]),
        ([r(0, BIG), r(0, BIG + 1, 1)], None, None, [[r(0, BIG)], [r(0, BIG + 1, 1)]]),
        ([r(0, BIG - 9), r(0, 10, 1), r(0, 5, 2)], None, None, [[r(0, BIG - 9)], [r(0, 10, 1), r(0, 5, 2)]]),
        ([r(0, 10), r(0, 10, 1)], 1, None, [[r(0, 10)], [r(0, 10, 1)]]),
        ([r(0, 10), r(0, 10, 1)], 2, None, [[r(0, 10)], [r(0, 10, 1)]]),
        ([r(0, 10), r(0, 4, 1)], 3, None, [[r(0, 5)], [r(5, 10)], [r(0, 4, 1)]]),
        ([r(0, 9), r(0, 2, 1)], 4, None, [[r(0, 3)], [r(3, 6)], [r(6, 9)], [r(0, 2, 1)]]),
        ([r(7, 9)], 5, None, [[r(7, 8)], [r(8, 9)]]),
        ([r(0, 10), r(0, 10, 1)], None, 10, [[r(0, 10)], [r(0, 10, 1)]]),
        ([r(0, 10), r(0, 10, 1)], None, 20, [[r(0, 10), r(0, 10, 1)]]),
        ([r(0, 11)], None, 10, [[r(0, 5)], [r(5, 11)]]),
        ([r(0, 9), r(0, 4, 1)], None, 3, [[r(0, 3)], [r(3, 6)], [r(6, 9)], [r(0, 2, 1)], [r(2, 4, 1)]]),
        ([r(0, 7), r(0, 1, 1), r(0, 1, 2)], None, 4, [[r(0, 3)], [r(3, 7)], [r(0, 1, 1), r(0, 1, 2)]]),
        ([r(0, 3)], None, 1, [[r(0, 1)], [r(1, 2)], [r(2, 3)]]),
        ([r(0, BIG + 2)], None, 2 * BIG, [[r(0, BIG + 2)]]),
        ([r(0, 30), r(0, 10, 1)], 2, 10, [[r(0, 10)], [r(10, 20)], [r(20, 30)], [r(0, 10, 1)]]),
        ([r(0, 30), r(0, 10, 1)], 5, 20, [[r(0, 7)], [r(7, 15)], [r(15, 22)], [r(22, 30)], [r(0, 10, 1)]]),
        ([], 5, 20, []),
    ],
)
def test_tasks(ranges: list[OffsetRange], least: int | None, most: int | None, tasks: list[list[OffsetRange]]) -> None:
    """First no piece is larger than the limit, then there are as many as the minimum."""
    assert [list(task) for task in pieces(ranges, least, most)] == tasks


@given(
    st.lists(st.integers(0, 40_000), max_size=12), st.none() | st.integers(1, 40), st.none() | st.integers(300, 50_000)
)
def test_tasks_hold_every_offset_once(sizes: list[int], least: int | None, most: int | None) -> None:
    ranges = [r(100, 100 + size, number) for number, size in enumerate(sizes)]
    tasks = pieces(ranges, least, most)
    if most is not None:
        assert all(sum(part.size for part in task) <= most for task in tasks)
        assert len(tasks) >= sum(sizes) / most
    parts = [part for task in tasks for part in task]
    assert sum(part.size for part in parts) == sum(sizes)
    for range_ in ranges:
        mine = [part for part in parts if part.partition == range_.partition]
        edges = [(part.start, part.end) for part in mine]
        assert all(a < b for a, b in edges)
        if mine:
            assert [edges[0][0], *(b for _, b in edges)] == [*(a for a, _ in edges), range_.end]
    if least is not None:
        assert len(tasks) >= min(least, sum(sizes))
    else:
        assert all(sum(part.size for part in task) <= PACKED_OFFSETS for task in tasks if len(task) > 1)
