"""Watched groups for tests: a group with three members, two Scala and one of ours, over a minute."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.group_snapshots import NOW, group_snapshot, stat
from zkconsumer.operations.group_snapshot import BrokerNode, GroupSnapshot, LogState, OffsetNode
from zkconsumer.operations.serving.observed_group import ObservedGroup, observed

OURS, SCALA, IDLE = (
    "g_app1-1699999000000-0a1b2c3d",
    "g_kafka7-1699998000000-11aa22bb",
    "g_kafka9-1699999900000-99ffee00",
)
OWNERS = {f"events:{number}": (OURS, SCALA, IDLE)[number // 2] + "-0" for number in range(5)}


def at(second: int, offset: int, end: int, **more: Any) -> GroupSnapshot:
    """The group ``second`` seconds after its first snapshot: each partition has this offset and log end."""
    now = NOW + second * 1000
    made = group_snapshot(
        members={OURS: {"events": 1}, SCALA: {"events": 1}, IDLE: {"events": 1}},
        owners=OWNERS,
        offsets={f"events:{number}": offset for number in range(6)} | {"old:0": 5},
        logs={f"events:{number}": (0, end) for number in range(6)} | {"old:0": (0, 9)},
        extra={OURS: {"zkconsumer": "1.0", "host": "app1"}},
        brokers={0: BrokerNode("kafka0", 9092, protocols=("PLAINTEXT",))},
    )
    logs = {tp: replace(log, message_time=now - 2500) if tp.topic == "events" else log for tp, log in made.logs.items()}
    offsets = {
        tp: OffsetNode(node.offset, replace(stat(150), mzxid=1000 + second, mtime=now - 1000))
        if tp.topic == "events"
        else node
        for tp, node in made.offsets.items()
    }
    return replace(made, taken=now, logs=logs, offsets=offsets, **more)


def without_logs(snapshot: GroupSnapshot) -> GroupSnapshot:
    """The same snapshot without anything that brokers say."""
    return replace(snapshot, logs={tp: LogState(problem="no broker answers") for tp in snapshot.logs})


def watched(*snapshots: GroupSnapshot) -> ObservedGroup:
    """The group after these snapshots."""
    found = None
    for snapshot in snapshots:
        found = observed(found, snapshot)
    assert found is not None
    return found
