"""Which readers have not come back for too long."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from zkconsumer.core.poll_watchdog import Place, PollWatchdog, StreamKey
from zkconsumer.model import TopicPartition

KEY: StreamKey = ("t", 0)


def place(offset: int, *, in_hand: bool = True, asks: int = 0, to_read: bool = True) -> Place:
    return Place(TopicPartition("t", 1), offset, -1, in_hand, asks, to_read)


def test_who_stands_at_one_place_for_the_whole_limit_is_stalled() -> None:
    watch = PollWatchdog(10.0)
    assert not watch.look({KEY: place(5)}, 100.0)
    assert not watch.look({KEY: place(5)}, 109.9)
    assert watch.look({KEY: place(5)}, 110.0)
    assert watch.stalled == {KEY: place(5)}
    assert watch.describe() == (
        "the reader of stream 0 of t, at t-1 offset 5, has not come back for 10 s (max.poll.interval.ms)"
    )
    watch.back(KEY)
    assert not watch.stalled


def test_nobody_has_to_come_back_for_nothing() -> None:
    watch = PollWatchdog(10.0)
    watch.look({KEY: place(5)}, 100.0)
    assert not watch.look({KEY: place(5)}, 106.0)
    assert not watch.look({KEY: place(5, to_read=False)}, 120.0)
    assert not watch.look({KEY: place(5, to_read=False)}, 140.0)
    assert not watch.look({KEY: place(5)}, 150.0)
    assert not watch.look({KEY: place(5)}, 153.9)
    assert watch.look({KEY: place(5)}, 154.0)


def test_a_new_offset_alone_is_no_sign_of_the_reader() -> None:
    """The offset of a message that no reader has taken changes with each generation."""
    watch = PollWatchdog(10.0)
    watch.look({KEY: place(5, in_hand=False)}, 100.0)
    watch.look({KEY: place(3, in_hand=False)}, 105.0)
    assert watch.look({KEY: place(8, in_hand=False)}, 110.0)
    assert not watch.look({KEY: place(8, in_hand=False, asks=1)}, 111.0)


@given(st.lists(st.tuples(st.sampled_from(["hold", "go on"]), st.floats(0.0, 3.0)), max_size=30))
def test_however_often_it_is_held_only_the_rest_counts(steps: list[tuple[str, float]]) -> None:
    watch, now, counted, held = PollWatchdog(10.0), 0.0, 0.0, False
    watch.look({KEY: place(5)}, now)
    for step, seconds in steps:
        held = step == "hold"
        (watch.hold if held else watch.go_on)(now)
        now += seconds
        counted += 0.0 if held else seconds
        if not held and abs(counted - 10.0) > 1e-6:
            assert watch.look({KEY: place(5)}, now) == (counted > 10.0)


@given(st.lists(st.tuples(st.integers(0, 2), st.floats(0.0, 8.0)), max_size=30))
def test_a_reader_is_stalled_at_the_limit_and_not_before(steps: list[tuple[int, float]]) -> None:
    watch, now, at, since = PollWatchdog(10.0), 0.0, -1, 0.0
    for offset, seconds in steps:
        now += seconds
        if offset != at:
            at, since = offset, now
        assert watch.look({KEY: place(offset)}, now) == (now - since >= 10.0)
