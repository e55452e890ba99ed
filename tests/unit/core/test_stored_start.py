"""The start offset of a partition with several stores."""

from __future__ import annotations

import pytest

from zkconsumer.core.stored_start import MergedStart, merged_start, start_in_node


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


@pytest.mark.parametrize(
    ("offset", "store_elsewhere", "start"),
    [(5, False, 5), (0, False, 0), (None, False, None), (-1, False, None), (5, True, None), (None, True, None)],
)
def test_the_node_decides_if_no_other_store_may(offset: int | None, store_elsewhere: bool, start: int | None) -> None:
    assert start_in_node(offset, store_elsewhere=store_elsewhere) == start
