"""The start offset out of what each store holds."""

from __future__ import annotations

import pytest

from zkconsumer.core.merged_start import Start, merged_start


@pytest.mark.parametrize(
    ("stored", "start", "level"),
    [
        # one store
        ([None], None, True),
        ([-1], None, True),
        ([0], 0, True),
        ([7], 7, True),
        # two: the maximum
        ([None, None], None, True),
        ([-1, None], None, True),  # the original writes -1 for "none"
        ([7, 7], 7, True),
        ([7, 9], 9, False),
        ([9, 7], 9, False),
        # moving from one to the other: the new store holds nothing yet
        ([None, 7], 7, False),
        ([7, None], 7, False),
        ([0, None], 0, False),
        ([-1, 0], 0, False),
        ([-1, 7], 7, False),
    ],
)
def test_the_start_is_the_maximum_and_stores_that_lag_are_told_of_it(
    stored: list[int | None], start: int | None, level: bool
) -> None:
    assert merged_start(stored) == Start(start, level)
