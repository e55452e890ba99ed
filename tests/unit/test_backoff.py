"""The growth of pauses between attempts."""

from __future__ import annotations

import pytest

from zkconsumer.runtime.deadline import backoff


@pytest.mark.parametrize(
    ("failures", "pause"), [(1, 0.5), (2, 1.0), (3, 2.0), (6, 16.0), (7, 30.0), (8, 30.0), (1_000_000, 30.0)]
)
def test_each_pause_is_twice_the_one_before_up_to_the_longest(failures: int, pause: float) -> None:
    assert backoff(failures, 0.5, 30.0) == pause


def test_the_first_is_never_longer_than_the_longest() -> None:
    assert backoff(1, 5.0, 1.0) == 1.0
