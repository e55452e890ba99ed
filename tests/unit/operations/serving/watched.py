"""Watched groups for tests: a group with three members, two Scala and one of ours, over a minute."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.group_snapshots import NOW, group_snapshot, partition, stat
from zkconsumer.operations.group_snapshot import GroupSnapshot, OffsetNode, PartitionLog
from zkconsumer.operations.serving.judgement import Details
from zkconsumer.operations.serving.watched_group import WatchedGroup, observed

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
    return replace(snapshot, logs={tp: PartitionLog(problem="no broker answers") for tp in snapshot.logs})


def watched(*snapshots: GroupSnapshot) -> WatchedGroup:
    """The group after these snapshots."""
    found = None
    for snapshot in snapshots:
        found = observed(found, snapshot)
    assert found is not None
    return found


DETAILS = Details(
    explanations={partition("events:5"): "nobody owns events-5; range gives it to kafka9, which joined 60 s ago"},
    findings=[
        {
            "level": "warn",
            "check": "unowned-partition",
            "text": "nobody owns events-5, which kafka9 should own",
            "evidence": "no node /consumers/g/owners/events/5",
            "node": "/consumers/g/owners/events/5",
            "remedy": "restart kafka9",
            "link": "docs/doctor.md#unowned-partition",
        }
    ],
    plans={
        "join": {
            "title": "one more member",
            "text": "2 partitions move, 4 stay",
            "moves": [{"partition": "events:4", "from": SCALA + "-0", "to": "g_new-0"}],
            "idle": [IDLE + "-0"],
        },
        "leave": {"title": "kafka9 leaves", "text": "nothing moves", "moves": [], "idle": []},
    },
)
