"""When a batch waits for ``minOffsetsPerTrigger``, and that it never waits for too long."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zkconsumer.model import TopicPartition
from zkconsumer.spark.offset_ranges import Span, TriggerDelay, advance

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
Ends = dict[TopicPartition, int]
DONE = {A: Span(0, 10), B: Span(0, 20)}
PLACE = {A: 10, B: 20}


def begun(least: int = 5, longest: float = 60.0, now: float = 100.0) -> TriggerDelay:
    """A delay after the first trigger of a run, at the places of ``DONE``."""
    delay = TriggerDelay(least, longest)
    assert not delay.waits(PLACE, PLACE, DONE, now)
    return delay


WAITS = {
    "nothing": ({A: 10, B: 20}, 101.0, True),
    "too few together": ({A: 12, B: 22}, 101.0, True),
    "enough together": ({A: 12, B: 23}, 101.0, False),
    "enough in one partition": ({A: 10, B: 25}, 101.0, False),
    "too few, shortly before the delay": ({A: 11, B: 20}, 159.9, True),
    "too few, after the delay": ({A: 11, B: 20}, 160.0, False),
    "a log that was cut counts nothing": ({A: 5, B: 24}, 101.0, True),
    "and takes nothing away from the others": ({A: 5, B: 25}, 101.0, False),
}


@pytest.mark.parametrize(("ends", "now", "waits"), WAITS.values(), ids=WAITS)
def test_a_batch_waits_for_enough_or_for_the_delay(ends: Ends, now: float, waits: bool) -> None:
    assert begun().waits(PLACE, ends, DONE, now) is waits


def test_the_first_trigger_of_a_run_never_waits() -> None:
    """So a restart prolongs no wait, although nothing of it is stored."""
    assert not TriggerDelay(5, 60.0).waits(PLACE, {A: 11, B: 20}, DONE, 0.0)


def test_the_delay_counts_from_the_last_batch() -> None:
    delay, ends = begun(), {A: 11, B: 20}
    assert delay.waits(PLACE, ends, DONE, 159.0)
    assert not delay.waits(PLACE, ends, DONE, 161.0)
    assert delay.waits({A: 11, B: 20}, {A: 12, B: 20}, {A: Span(10, 11), B: Span(20, 20)}, 220.0)
    assert not delay.waits({A: 11, B: 20}, {A: 12, B: 20}, {A: Span(10, 11), B: Span(20, 20)}, 221.0)


def test_an_idle_delay_that_has_passed_begins_anew() -> None:
    """As in Spark's Kafka source: the first message after a long silence waits for others too."""
    delay = begun()
    assert not delay.waits(PLACE, PLACE, DONE, 200.0)
    assert delay.waits(PLACE, {A: 11, B: 20}, DONE, 201.0)
    assert not delay.waits(PLACE, {A: 11, B: 20}, DONE, 260.0)


def test_a_won_partition_is_read_at_once() -> None:
    """Its messages may have waited with their former owner already."""
    delay = begun()
    assert delay.waits({A: 10}, {A: 11}, DONE, 101.0)  # B is lost
    assert not delay.waits(PLACE, {A: 11, B: 21}, DONE, 102.0)  # and comes back
    assert delay.waits(PLACE, {A: 11, B: 21}, DONE, 103.0)


def test_messages_of_a_lost_partition_count_no_more() -> None:
    delay = begun()
    assert delay.waits(PLACE, {A: 12, B: 22}, DONE, 101.0)
    assert delay.waits({A: 10}, {A: 14}, DONE, 102.0)
    assert not delay.waits({A: 10}, {A: 15}, DONE, 103.0)


def test_a_place_that_the_checkpoint_lacks_does_not_wait() -> None:
    """The next trigger would start at a later end, and what came between would be missed."""
    for done in ({A: Span(0, 10)}, {A: Span(0, 10), B: Span(0, 19)}):
        assert not begun().waits(PLACE, PLACE, done, 101.0)


@given(
    st.integers(1, 50),
    st.floats(0, 100),
    st.lists(st.tuples(st.floats(0, 30), st.integers(0, 20), st.sets(st.sampled_from([A, B]))), max_size=40),
)
def test_no_message_waits_longer_than_the_delay(
    least: int, longest: float, triggers: list[tuple[float, int, set[TopicPartition]]]
) -> None:
    """Messages come and partitions move at random. A large batch does not wait at all."""
    delay, now = TriggerDelay(least, longest), 0.0
    done = {A: Span(0, 0), B: Span(0, 0)}
    ends = {A: 0, B: 0}
    came_at: dict[TopicPartition, list[float]] = {A: [], B: []}
    for seconds, more, owned in triggers:
        now += seconds
        for tp in owned:
            ends[tp] += more
            came_at[tp] += [now] * more
        positions = {tp: done[tp].end for tp in owned}
        unread = [at for tp in owned for at in came_at[tp][done[tp].end :]]
        if delay.waits(positions, ends, done, now):
            assert len(unread) < least
            assert all(now - at < longest for at in unread)
        else:
            done |= advance(positions, ends, None)
