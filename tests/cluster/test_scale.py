"""The measurement of ``scripts/scale --real`` at a small size: real processes do not touch partitions that stay."""

from __future__ import annotations

from scripts.measurements.scale.real import OURS, measure

PARTITIONS = 48


def test_partitions_that_stay_keep_their_owner_nodes() -> None:
    """Partitions that stay keep their owner nodes through joins, a leave and a kill."""
    measured = measure(1, PARTITIONS, sides=(OURS,), session_s=2.0)
    (turn,) = measured["turns"]
    steps = turn["steps"]
    assert list(steps) == ["join 1", "join 2", "join 3", "join 4", "leave", "kill"]
    # by range: 48; 24 of two; 8 + 8 and 16 of three; 12 + 8 + 4 of four
    assert {name: step["stayed"] for name, step in steps.items()} == {
        "join 1": 0,
        "join 2": 24,
        "join 3": 16 + 8,
        "join 4": 12 + 8 + 4,
        "leave": 12 + 8 + 12,
        "kill": 16 + 16,
    }
    for name, step in steps.items():
        assert step["kept_nodes"] == step["stayed"], name
        assert step["flowing"] > 0, name
