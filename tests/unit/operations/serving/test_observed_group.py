"""A group over time: what is kept, and for how long."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.group_snapshots import NOW, group_snapshot, partition
from tests.unit.operations.serving.watched import at, watched
from zkconsumer.model import TopicPartition
from zkconsumer.operations.group_snapshot import GroupSnapshot, KafkaOffset, OffsetNode, Problem
from zkconsumer.operations.serving import observed_group
from zkconsumer.operations.serving.observed_group import ObservedGroup, observed, unread

FIRST = partition("events:0")


def offsets_of(group: ObservedGroup, tp: TopicPartition = FIRST) -> list[int]:
    return [commit.offset for commit in group.windows[tp].commits]


def test_history_is_bounded_and_shares_its_partitions() -> None:
    group = None
    for second in range(10):
        group = observed(group, at(second, 1, 2), points=3)
    assert group is not None
    assert [point.taken for point in group.points] == [NOW + second * 1000 for second in (7, 8, 9)]
    assert len({id(point.partitions) for point in group.points}) == 1


def test_a_commit_is_a_new_transaction_also_of_the_same_offset() -> None:
    assert offsets_of(watched(at(0, 5, 9), at(1, 5, 9), at(2, 7, 9))) == [5, 5, 7]
    same = at(0, 5, 9)
    assert offsets_of(watched(same, replace(same, taken=NOW + 1000))) == [5]


def test_a_commit_from_before_the_limit_is_expired() -> None:
    old = at(0, 5, 9)
    stale = {tp: replace(node, stat=replace(node.stat, mtime=1)) for tp, node in old.offsets.items() if node.stat}
    assert watched(replace(old, offsets=stale)).windows[FIRST].commits == ()


def test_an_offset_that_moves_to_zookeeper_is_a_commit() -> None:
    """Kafka has no transactions of ZooKeeper; their numbers are larger than the counted ones."""
    tp = partition("t:0")
    kafka = group_snapshot(logs={"t:0": (0, 9)}, kafka_offsets={tp: KafkaOffset(3)})
    both = replace(group_snapshot(offsets={"t:0": 4}, logs={"t:0": (0, 9)}), taken=NOW + 1000)
    back = replace(kafka, kafka_offsets={tp: KafkaOffset(5)}, taken=NOW + 2000)
    assert offsets_of(watched(kafka, both, back), tp) == [3, 4, 5]


def test_a_partition_leaves_only_with_a_complete_snapshot() -> None:
    gone = {tp: node for tp, node in at(1, 5, 9).offsets.items() if tp.topic != "old"}
    half = at(1, 5, 9, problems=(Problem("/consumers/g/offsets/old", "NoAuth"),))
    group = watched(at(0, 5, 9), replace(half, offsets=gone))
    assert partition("old:0") in group.lags
    group = observed(group, replace(at(2, 5, 9), offsets=gone))
    assert partition("old:0") not in group.lags
    assert partition("old:0") not in group.windows


def test_changes_are_bounded_by_number_and_by_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    snapshots: list[GroupSnapshot] = []
    for second in range(3 * observed_group.CHANGES):
        owners = {f"events:{number}": f"x-{second}" for number in range(6)}
        made = group_snapshot(owners=owners, logs={"events:0": (0, 1)})
        snapshots.append(replace(made, taken=NOW + second * 1000))
    group = watched(*snapshots)
    assert len(group.changes) == 2 * observed_group.CHANGES
    assert group.changes[-1].taken == snapshots[-1].taken
    assert not group.changes[-1].logs
    monkeypatch.setattr(observed_group, "CHANGED_NODES", 24)
    assert len(watched(*snapshots).changes) == 4


def test_nothing_new_is_no_change() -> None:
    group = watched(at(0, 5, 9), at(1, 6, 9), at(2, 7, 9))
    assert len(group.changes) == 1
    assert not unread(group, "away").complete
    assert unread(group, "away").serial == group.serial + 1


def test_an_unreadable_offset_has_no_lag() -> None:
    made = at(0, 5, 9)
    broken = {**made.offsets, FIRST: OffsetNode(None, None, "no number")}
    group = watched(replace(made, offsets=broken))
    assert FIRST not in group.lags
    assert FIRST not in group.points[-1].known()
