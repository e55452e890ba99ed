"""Group snapshots for tables of tests, from a few literals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from zkconsumer.core.registration import STATIC, Registration
from zkconsumer.model import ConsumerId, TopicPartition
from zkconsumer.operations.group_snapshot import (
    BrokersGroup,
    GroupSnapshot,
    LogState,
    MemberNode,
    NodeStat,
    OffsetNode,
    OwnerNode,
    TopicNode,
)

NOW = 1_700_000_000_000
"""When the snapshots of the tests were taken, in milliseconds since 1970."""


def partition(text: str) -> TopicPartition:
    """``"t:0"`` as a partition."""
    topic, _, number = text.rpartition(":")
    return TopicPartition(topic, int(number))


def stat(zxid: int = 1, age: float = 60.0, **more: Any) -> NodeStat:
    """A node that was created ``age`` seconds before the snapshot and not written since."""
    then = NOW - int(age * 1000)
    return NodeStat(**{"czxid": zxid, "mzxid": zxid, "ctime": then, "mtime": then, **more})


def group_snapshot(
    members: Mapping[str, Mapping[str, int]] = {},
    owners: Mapping[str, str] = {},
    offsets: Mapping[str, int] = {},
    logs: Mapping[str, tuple[int, int]] = {},
    extra: Mapping[str, Mapping[str, object]] = {},
    **more: Any,
) -> GroupSnapshot:
    """A ZooKeeper group ``g``.

    ``members`` maps a consumer id to the number of streams for each topic, and ``extra`` to the advertised fields.
    Partitions are written as in ``"t:0"``; ``logs`` has (start, end) and thereby says which topics exist.
    The n-th member has session n + 1, and its nodes end with it.
    """
    names = list(members)
    session = {name: number + 1 for number, name in enumerate(names)}
    topics: dict[str, list[int]] = {}
    for text in logs:
        topic, number = partition(text)
        topics.setdefault(topic, []).append(number)

    def owner(thread: str) -> OwnerNode:
        return OwnerNode(thread, stat(200, 50.0, ephemeral_owner=session.get(thread.rpartition("-")[0], 999)))

    found: dict[str, Any] = {
        "group": "g",
        "taken": NOW,
        "zookeeper": "127.0.0.1:2181",
        "group_node": stat(),
        "ids_node": stat(),
        "members": {
            ConsumerId(name): MemberNode(
                Registration(STATIC, dict(wanted), str(NOW - 60_000), extra=extra.get(name, {})),
                stat(100 + session[name], 60.0, ephemeral_owner=session[name]),
            )
            for name, wanted in members.items()
        },
        "owners": {partition(text): owner(thread) for text, thread in owners.items()},
        "offsets": {
            partition(text): OffsetNode(offset, stat(150, 600.0, mzxid=300, mtime=NOW - 5_000, version=10))
            for text, offset in offsets.items()
        },
        "topics": {topic: TopicNode(tuple(sorted(numbers)), NOW - 86_400_000) for topic, numbers in topics.items()},
        "logs": {partition(text): LogState(start, end, 0) for text, (start, end) in logs.items()},
    }
    return GroupSnapshot(**{**found, **more})


class Snapshots:
    """A source of these snapshots."""

    def __init__(self, *snapshots: GroupSnapshot) -> None:
        self._known = {one.group: one for one in snapshots}

    def groups(self) -> Sequence[str]:
        return sorted(self._known)

    def snapshot(self, group: str, *, message_times: bool = False) -> GroupSnapshot:
        return self._known.get(group, GroupSnapshot(group, 1, brokers_group=BrokersGroup("Dead"), kafka_offsets={}))

    def history(self, group: str) -> Sequence[GroupSnapshot]:
        return [self.snapshot(group)]

    def close(self) -> None:
        """Nothing is open."""
