"""Since when a partition with waiting messages has not moved, by one snapshot and by several."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from tests.group_snapshots import NOW, group_snapshot, partition, stat
from zkconsumer.model import TopicPartition
from zkconsumer.operations.group_snapshot import (
    AckNode,
    BrokersGroup,
    BrokersMember,
    GroupSnapshot,
    KafkaOffset,
    NoteSummary,
    OffsetNode,
    OwnerNode,
    Problem,
)
from zkconsumer.operations.stalled_partitions import Progress, after, still_since

T0 = partition("t:0")
MINUTE = 60_000


def seen(
    at: float = 0,
    offset: int = 5,
    end: int = 9,
    *,
    written: float = -60,
    claimed: float = -60,
    came: float | None = -60,
    thread: str = "g_a-0",
    **more: Any,
) -> GroupSnapshot:
    """A group at a minute, with the minutes of the last commit, of the claim and of the next message."""
    made = group_snapshot({"g_a": {"t": 1}}, {"t:0": thread}, {"t:0": offset}, {"t:0": (0, end)})
    node = OffsetNode(offset, replace(stat(), mtime=_ms(written)))
    owner = OwnerNode(thread, replace(stat(200), ctime=_ms(claimed)))
    log = replace(made.logs[T0], message_time=None if came is None else _ms(came))
    return replace(made, **{"taken": _ms(at), "offsets": {T0: node}, "owners": {T0: owner}, "logs": {T0: log}, **more})


def _ms(minute: float) -> int:
    return NOW + int(minute * MINUTE)


def minutes(*snapshots: GroupSnapshot) -> float | None:
    """For how many minutes the partition stands still at the last snapshot."""
    progress: Mapping[TopicPartition, Progress] = {}
    for snapshot in snapshots:
        progress = after(progress, snapshot)
    if T0 not in progress:
        return None
    since = still_since(snapshots[-1], T0, progress[T0])
    return None if since is None else (snapshots[-1].taken - since) / MINUTE


@pytest.mark.parametrize(
    ("snapshot", "expected"),
    [
        pytest.param(seen(written=-15, claimed=-30, came=-20), 15, id="since the last commit"),
        pytest.param(seen(written=-60, claimed=-4, came=-20), 4, id="since the claim"),
        pytest.param(seen(written=-60, claimed=-60, came=-1 / 60), 1 / 60, id="a message after an idle hour"),
        pytest.param(seen(offset=9), None, id="nothing waits"),
        pytest.param(seen(offset=12), None, id="beyond the end"),
        pytest.param(seen(came=None), None, id="no time of the message"),
        pytest.param(seen(came=-60, offsets={}, kafka_offsets={T0: KafkaOffset(5)}), None, id="offset in Kafka"),
    ],
)
def test_what_one_look_tells(snapshot: GroupSnapshot, expected: float | None) -> None:
    assert minutes(snapshot) == (None if expected is None else pytest.approx(expected, abs=0.01))


def test_a_rewritten_offset_is_no_movement() -> None:
    """Scala members before 0.8.2 write the same offset at each interval, and ours at each claim."""
    looks = [seen(at, written=at, came=-60) for at in range(6)]
    assert minutes(*looks) == 5


BLIND = [seen(3, logs={}), seen(4, offsets={}), seen(5, owners={}, problems=(Problem("ZooKeeper z", "away"),))]


@pytest.mark.parametrize(
    ("snapshots", "expected"),
    [
        pytest.param([seen(0), seen(4, offset=6, written=4)], 0, id="moved just now"),
        pytest.param([seen(0), seen(4, offset=6, written=1)], 3, id="moved between"),
        pytest.param([seen(0), seen(4, offset=6, written=4), seen(9, offset=6, written=4)], 5, id="moved once"),
        pytest.param([seen(0), seen(5, thread="g_b-0", claimed=4, written=-60)], 1, id="another owner"),
        # a producer may send a message with an old time; nothing waited a minute ago, so nothing stands still for long
        pytest.param([seen(0, end=5), seen(1, came=-60)], 1, id="an idle look"),
        pytest.param([seen(0, end=5), seen(1, came=-60), seen(6, came=-60)], 6, id="since an idle look"),
        pytest.param([seen(0, written=0), *BLIND, seen(6, written=6)], 6, id="looks that tell nothing"),
        pytest.param([seen(0), seen(3, logs={}, offset=6), seen(6, offset=6, written=6)], 0, id="moved unseen"),
        pytest.param([seen(0), seen(3, owners={})], None, id="released"),
    ],
)
def test_what_several_looks_tell(snapshots: list[GroupSnapshot], expected: float | None) -> None:
    assert minutes(*snapshots) == expected


def test_movement_is_told_by_our_clock() -> None:
    """Each look sees another offset. The clocks of ZooKeeper and of the producers are five minutes behind ours."""
    looks = [seen(at, offset=50 + at, end=90, written=at - 5, came=at - 6) for at in range(4)]
    assert minutes(*looks) == 1
    still = [seen(at, offset=53, end=90, written=-2, came=-3) for at in range(4, 9)]
    assert minutes(*looks, *still) == 6


def test_a_clock_that_is_set_back_hides_no_standstill() -> None:
    """Bug: after a step back by an hour, an owner that had just stopped looked healthy for an hour."""
    assert minutes(seen(0), seen(-60, written=-70), seen(-55, written=-70)) == 5
    blind: dict[str, Any] = {"offsets": {}, "kafka_offsets": {T0: KafkaOffset(5)}, "came": None}
    assert minutes(seen(0, **blind), seen(-60, **blind), seen(-55, **blind)) == 5
    assert minutes(seen(0, end=5), seen(-60, written=-90), seen(-55, written=-90)) == 5


def test_a_changed_note_is_movement() -> None:
    """A balanced member finishes messages beyond an offset that one message holds."""

    def noted(at: float, finished: int) -> GroupSnapshot:
        note = AckNode(NoteSummary(5, 9, finished), replace(stat(), mzxid=10_000))
        return seen(at, written=at, acks={T0: note})

    assert minutes(noted(0, 1), noted(5, 1)) == 5
    assert minutes(noted(0, 1), noted(4, 1), noted(5, 2)) == 0


def test_a_group_of_the_brokers_is_told_by_two_looks() -> None:
    group = BrokersGroup("Stable", members=(BrokersMember("m-1", "app", "/h", assignment=(T0,), topics=("t",)),))
    nodes: dict[str, Any] = {"members": {}, "owners": {}, "offsets": {}}
    looks = [seen(at, **nodes, kafka_offsets={T0: KafkaOffset(5)}, brokers_group=group) for at in (0, 15)]
    assert minutes(*looks) == 15
