"""The values that a group snapshot derives from its parts."""

from __future__ import annotations

import pytest

from tests.group_snapshots import group_snapshot, partition, stat
from zkconsumer.model import TopicPartition
from zkconsumer.operations.group_snapshot import (
    AckNode,
    BrokersGroup,
    BrokersMember,
    KafkaOffset,
    NoteSummary,
)

T0 = TopicPartition("t", 0)


@pytest.mark.parametrize(
    ("offset", "log", "lag"),
    [(3, (0, 10), 7), (10, (0, 10), 0), (12, (0, 10), None), (3, (5, 10), 5), (20, (30, 30), 0)],
    ids=["behind", "at the end", "beyond the end", "below the start", "below an empty log"],
)
def test_the_lag_is_what_can_still_be_consumed(offset: int, log: tuple[int, int], lag: int | None) -> None:
    assert group_snapshot(offsets={"t:0": offset}, logs={"t:0": log}).lag(T0) == lag


def test_an_unknown_offset_or_end_makes_no_lag() -> None:
    assert group_snapshot(logs={"t:0": (0, 5)}).lag(T0) is None
    assert group_snapshot(offsets={"t:0": 1}).lag(T0) is None


@pytest.mark.parametrize(
    ("log", "note", "mzxid", "lag"),
    [
        ((0, 20), NoteSummary(10, 18, 6, 2), 300, 4),
        ((0, 20), NoteSummary(10, 18, 6, 2), 299, 10),
        ((0, 20), NoteSummary(12, 18, 4, 2), 301, 4),
        ((0, 20), NoteSummary(8, 18, 6, 4), 301, 10),
        ((16, 20), NoteSummary(10, 18, 6, 2), 300, 2),
        ((0, 12), NoteSummary(10, 18, 6, 2), 300, 0),
        ((0, 20), None, 300, 10),
    ],
    ids=["counts", "void", "one commit newer", "not of this offset", "partly deleted", "beyond the end", "unreadable"],
)
def test_what_is_finished_beyond_is_no_lag(
    log: tuple[int, int], note: NoteSummary | None, mzxid: int, lag: int
) -> None:
    acks = {T0: AckNode(note, stat(1, mzxid=mzxid))}
    assert group_snapshot(offsets={"t:0": 10}, logs={"t:0": log}, acks=acks).lag(T0) == lag


def test_a_note_in_kafka_counts_with_kafkas_offset() -> None:
    known = {T0: KafkaOffset(10, note=NoteSummary(10, 18, 6, 2))}
    assert group_snapshot(logs={"t:0": (0, 20)}, kafka_offsets=known).lag(T0) == 4
    assert group_snapshot(offsets={"t:0": 10}, logs={"t:0": (0, 20)}, kafka_offsets=known).lag(T0) == 10


def test_zookeepers_offset_counts_before_kafkas() -> None:
    both = group_snapshot(offsets={"t:0": 3}, kafka_offsets={T0: KafkaOffset(9), partition("t:1"): KafkaOffset(4)})
    assert (both.committed(T0), both.committed(partition("t:1")), both.committed(partition("t:2"))) == (3, 4, None)


def test_partitions_are_named_once_and_in_order() -> None:
    brokers = BrokersGroup("Stable", members=(BrokersMember("m", "c", "/h", assignment=(partition("u:1"),)),))
    found = group_snapshot(owners={"t:10": "g_a-0", "t:2": "g_a-0"}, offsets={"t:2": 1}, brokers_group=brokers)
    assert [str(tp) for tp in found.partitions()] == ["t-2", "t-10", "u-1"]


@pytest.mark.parametrize(("state", "there"), [("Stable", True), ("Empty", True), ("Dead", False)])
def test_a_dead_group_is_not_in_kafka(state: str, there: bool) -> None:
    assert group_snapshot(brokers_group=BrokersGroup(state)).in_kafka is there
