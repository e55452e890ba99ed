"""Burrow's rules over windows of commits: the published tables of its evaluator, and the order of the rules."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.group_snapshots import NOW
from zkconsumer.operations.serving.burrow_rules import (
    BurrowStatus,
    CommitWindow,
    LogEnd,
    ObservedCommit,
    status_of,
    status_of_group,
)


def window(commits: list[tuple[int, int, int | None]], ends: list[int]) -> CommitWindow:
    """A window from (offset, seconds before now, lag) and the ends of the log."""
    made = [
        ObservedCommit(offset, NOW - age * 1000, NOW - age * 1000, lag, number)
        for number, (offset, age, lag) in enumerate(commits)
    ]
    return CommitWindow(tuple(made), tuple(LogEnd(end, NOW) for end in ends))


STEADY = [60, 50, 40, 30, 20, 10]
"""Ages of six commits, so that the window lasts 50 s and the last commit is 10 s old."""


def steady(offsets: list[int], lags: list[int | None]) -> list[tuple[int, int, int | None]]:
    """Commits of these offsets and lags at the steady ages."""
    return list(zip(offsets, STEADY, lags, strict=True))


@pytest.mark.parametrize(
    ("commits", "ends", "wanted"),
    [
        pytest.param([], [500], BurrowStatus.OK, id="no commit"),
        pytest.param(steady([1, 2, 3, 4, 5, 6], [1, 1, 1, 1, 1, 1]), [6], BurrowStatus.OK, id="no lag now"),
        pytest.param(steady([1, 2, 3, 4, 5, 6], [9, 9, 9, 9, 9, 9]), [], BurrowStatus.OK, id="no log end"),
        pytest.param([(5, 300, 5), (6, 250, 5)], [50], BurrowStatus.STOP, id="silent for longer than the window"),
        pytest.param([(5, 300, 5), (6, 150, 5)], [50], BurrowStatus.WARN, id="silent for just as long"),
        pytest.param([(5, 300, 5), (6, 250, 5)], [6, 50], BurrowStatus.WARN, id="silent, but caught up lately"),
        pytest.param([(5, 20, 45)], [50], BurrowStatus.STOP, id="one commit, which no second follows"),
        pytest.param([(5, 300, 0), (6, 250, 0)], [50], BurrowStatus.STOP, id="stopped counts also after no lag"),
        pytest.param(steady([5, 6, 3, 4, 4, 5], [0, 0, 9, 9, 9, 9]), [50], BurrowStatus.REWIND, id="behind itself"),
        pytest.param(
            steady([5, 6, 3, 4, 6, 7], [9, 9, 9, 9, 9, 9]), [50], BurrowStatus.WARN, id="rewound and recovered"
        ),
        pytest.param(
            steady([5, 6, 5, 6, 4, 5], [9, 8, 9, 8, 9, 8]), [50], BurrowStatus.OK, id="only the first rewind counts"
        ),
        pytest.param(
            steady([5, 5, 5, 5, 5, 5], [1, 2, 3, 4, 5, 6]), [50], BurrowStatus.STALL, id="one offset for ever"
        ),
        pytest.param(steady([5, 5, 5, 5, 5, 5], [0, 2, 3, 4, 5, 6]), [50], BurrowStatus.OK, id="no lag once"),
        pytest.param(steady([1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6]), [50], BurrowStatus.WARN, id="slower than the log"),
        pytest.param(
            steady([1, 2, 3, 4, 5, 6], [5, 5, 5, 5, 5, 5]), [50], BurrowStatus.WARN, id="lag that never falls"
        ),
        pytest.param(steady([1, 2, 3, 4, 5, 6], [5, 6, 5, 6, 7, 8]), [50], BurrowStatus.OK, id="lag that fell once"),
        pytest.param(
            steady([1, 2, 3, 4, 5, 6], [9, None, 8, 9, 9, 9]), [50], BurrowStatus.OK, id="unknown lags are skipped"
        ),
        pytest.param(steady([1, 2, 3, 4, 5, 6], [None] * 6), [50], BurrowStatus.WARN, id="no lag known"),
    ],
)
def test_status(commits: list[tuple[int, int, int | None]], ends: list[int], wanted: BurrowStatus) -> None:
    assert status_of(window(commits, ends), NOW) is wanted


@pytest.mark.parametrize(
    ("statuses", "wanted"),
    [
        ([], BurrowStatus.OK),
        ([BurrowStatus.OK, BurrowStatus.WARN], BurrowStatus.WARN),
        ([BurrowStatus.OK, BurrowStatus.STOP], BurrowStatus.ERR),
        ([BurrowStatus.REWIND, BurrowStatus.WARN], BurrowStatus.ERR),
    ],
)
def test_group_is_as_bad_as_its_worst_partition(statuses: list[BurrowStatus], wanted: BurrowStatus) -> None:
    assert status_of_group(statuses) is wanted


def test_a_commit_counts_once_however_often_it_is_read() -> None:
    commit = ObservedCommit(5, NOW, NOW, 0, order=7)
    once = CommitWindow().with_commit(commit)
    assert once.with_commit(commit) is once
    assert len(once.with_commit(ObservedCommit(5, NOW + 1, NOW + 1, 0, order=8)).commits) == 2


@given(st.lists(st.integers(1, 90), max_size=60))
def test_log_ends_cover_minutes_however_often_they_are_read(pauses: list[int]) -> None:
    made, now = CommitWindow(), NOW
    for number, pause in enumerate(pauses):
        now += pause * 1000
        made = made.with_end(number, now)
    kept = [known.time for known in made.ends]
    assert len(kept) <= 10
    assert all(later - earlier >= 30_000 for earlier, later in pairwise(kept[:-1]))
    assert not pauses or made.ends[-1].end == len(pauses) - 1


@pytest.mark.parametrize("huge", [2**64, -(2**64)])
def test_numbers_beyond_64_bits_are_taken_for_the_nearest(huge: int) -> None:
    """A file of snapshots, or an offset node of anybody, may hold them."""
    made = CommitWindow([ObservedCommit(huge, huge, huge, huge, huge)], [LogEnd(huge, huge)]).with_end(huge, huge)
    assert made.commits[0].offset in (2**63 - 1, 1 - 2**63)
    assert status_of(made, NOW) is BurrowStatus.OK
