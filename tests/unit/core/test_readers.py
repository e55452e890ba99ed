"""Which readers have not come back for too long."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from zkconsumer.core.coordinated.readers import Place, ReaderWatch, StreamKey
from zkconsumer.model import TopicPartition

KEY: StreamKey = ("t", 0)


def place(offset: int, *, in_hand: bool = True) -> Place:
    return Place(TopicPartition("t", 1), offset, -1, in_hand)


def test_who_stands_at_one_place_for_the_whole_limit_is_stalled() -> None:
    watch = ReaderWatch(10.0)
    assert not watch.look({KEY: place(5)}, 100.0)
    assert not watch.look({KEY: place(5)}, 109.9)
    assert watch.look({KEY: place(5)}, 110.0)
    assert watch.stalled == {KEY: place(5)}
    assert watch.describe() == (
        "the reader of stream 0 of t, at t-1 offset 5, has not come back for 10 s (max.poll.interval.ms)"
    )
    watch.back(KEY)
    assert not watch.stalled


def test_who_moves_or_asks_is_not() -> None:
    watch = ReaderWatch(10.0)
    watch.look({KEY: place(5)}, 100.0)
    watch.look({KEY: place(6)}, 109.0)
    assert not watch.look({KEY: place(6)}, 111.0)
    watch.look({}, 112.0)  # it asked, or there was nothing to read
    assert not watch.look({KEY: place(6)}, 121.0)
    assert watch.look({KEY: place(6)}, 131.0)


def test_time_in_which_nothing_was_handed_out_does_not_count() -> None:
    watch = ReaderWatch(10.0)
    watch.look({KEY: place(5, in_hand=False)}, 100.0)
    watch.forget()
    assert not watch.look({KEY: place(5, in_hand=False)}, 120.0)


@given(st.lists(st.tuples(st.integers(0, 2), st.floats(0.0, 8.0)), max_size=30))
def test_nobody_is_stalled_before_the_limit_and_everybody_after_it(steps: list[tuple[int, float]]) -> None:
    watch, now, at, since = ReaderWatch(10.0), 0.0, -1, 0.0
    for offset, seconds in steps:
        now += seconds
        if offset != at:
            at, since = offset, now
        assert watch.look({KEY: place(offset)}, now) == (now - since >= 10.0)
