"""What a test stages events with: a clock that it moves, and an order of points."""

from __future__ import annotations

import threading

import pytest

from tests.timing import scaled
from zkconsumer.testing import ManualClock, Sequencer


def test_a_manual_clock_stands_still_until_it_is_advanced() -> None:
    clock, seen = ManualClock(wall=1000.0), []
    clock.listen(lambda: seen.append(clock.now()))
    assert (clock.now(), clock.wall()) == (0.0, 1000.0)
    clock.advance(2.5)
    assert (clock.now(), clock.wall(), seen) == (2.5, 1002.5, [2.5])
    with pytest.raises(ValueError, match="does not go back"):
        clock.advance(-1)


def test_points_are_passed_in_the_order_given_whoever_comes_first() -> None:
    order: list[str] = []
    with Sequencer("a", "b", "c", timeout=scaled(10)) as sequencer:

        def late() -> None:
            sequencer.reach("b")
            order.append("b")
            sequencer.reach("c")

        thread = threading.Thread(target=late, name="late")
        thread.start()
        order.append("a")
        sequencer.reach("a")
        sequencer.wait_for("c")
        thread.join(scaled(10))
    assert order == ["a", "b"]
    assert sequencer.reached == ("a", "b", "c")


def test_a_point_that_nobody_reaches_is_named() -> None:
    sequencer = Sequencer("a", "b", timeout=0.01)
    with pytest.raises(TimeoutError, match="'b' waits, but 'a' was not reached"):
        sequencer.reach("b")
    with pytest.raises(AssertionError, match="never reached: a, b"), sequencer:
        pass
    sequencer.reach("a")
    with pytest.raises(ValueError, match="reached before"):
        sequencer.reach("a")
    with pytest.raises(ValueError, match="none of"):
        sequencer.reach("z")
    with pytest.raises(ValueError, match="twice"):
        Sequencer("a", "a")
