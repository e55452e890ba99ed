"""The start offset of a partition with several stores."""

from __future__ import annotations

import pytest

from zkconsumer.offsets.dual_store import MergedStart, merged_start


@pytest.mark.parametrize(
    ("stored", "start", "stores_agree"),
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
        # a move: the new store holds no offset yet
        ([None, 7], 7, False),
        ([7, None], 7, False),
        ([0, None], 0, False),
        ([-1, 0], 0, False),
        ([-1, 7], 7, False),
    ],
)
def test_the_largest_stored_offset_is_the_start(
    stored: list[int | None], start: int | None, stores_agree: bool
) -> None:
    assert merged_start(stored) == MergedStart(start, stores_agree)
