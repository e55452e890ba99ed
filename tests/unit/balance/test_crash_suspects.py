"""Which messages are given together after a worker died with them."""

from __future__ import annotations

from contextlib import nullcontext

from zkconsumer.balance.worker_trip import MOST_SUSPECTS, CrashSuspects, Place


def places(*offsets: int) -> list[Place]:
    """Places in one partition."""
    return [("t", 0, offset) for offset in offsets]


def test_a_crashed_group_is_halved_down_to_one() -> None:
    suspects = CrashSuspects(nullcontext())
    group = places(*range(8))
    sizes = []
    for _ in range(5):
        group = group[: suspects.fitting(group)]
        sizes.append(len(group))
        suspects.crashed(group)
    assert sizes == [8, 4, 2, 1, 1]


def test_a_suspect_among_others_limits_their_number() -> None:
    suspects = CrashSuspects(nullcontext())
    suspects.crashed(places(3, 4, 5, 6))
    assert suspects.fitting(places(0, 1, 2)) == 3
    assert suspects.fitting(places(0, 1, 2, 3)) == 3  # it begins the next group
    assert suspects.fitting(places(3, 0, 1)) == 2
    assert suspects.fitting(places(0, 3, 1)) == 2
    assert suspects.fitting([]) == 0
    suspects.cleared(places(3, 4, 5, 6))
    assert suspects.fitting(places(3, 4, 5, 6)) == 4


def test_suspects_are_bounded() -> None:
    suspects = CrashSuspects(nullcontext())
    suspects.crashed(places(*range(MOST_SUSPECTS + 2)))
    suspects.crashed(places(0))
    assert suspects.fitting(places(1, 2, 0)) == 2
