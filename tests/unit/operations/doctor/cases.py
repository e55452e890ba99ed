"""A healthy group, to be made ill in one way by each case of the tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.group_snapshots import group_snapshot, partition
from tests.values import present
from zkconsumer.model import ConsumerId
from zkconsumer.operations.doctor import CHECKS, Finding, Level, examine
from zkconsumer.operations.group_snapshot import (
    BrokerNode,
    BrokersGroup,
    GroupSnapshot,
    LogState,
    MemberNode,
    OffsetNode,
    OwnerNode,
    Problem,
)
from zkconsumer.zookeeper.node_values import ZooKeeperServer

OURS = {"zkconsumer": "1.0", "strategy": "range", "host": "h1"}
"""What a member of this package advertises."""
RIGHTS = "world:anyone=cdrwa"
NODES = ("ids", "owners", "offsets", "owners/t", "offsets/t")
CHROOTS = {"": ("brokers", "group")}
CONFIG = {"zookeeper.connect": "127.0.0.1:2181", "rebalance.max.retries": "8", "rebalance.backoff.ms": "2000"}


def healthy(**more: Any) -> GroupSnapshot:
    """A Scala member ``g_a`` and one of ours, ``g_b``, which own two partitions each."""
    given: dict[str, Any] = {
        "members": {"g_a": {"t": 1}, "g_b": {"t": 1}},
        "extra": {"g_b": OURS},
        "owners": {"t:0": "g_a-0", "t:1": "g_a-0", "t:2": "g_b-0", "t:3": "g_b-0"},
        "offsets": {f"t:{n}": 50 for n in range(4)},
        "kafka_offsets": {},
        "brokers_group": BrokersGroup("Dead"),
        "logs": {f"t:{n}": (0, 100) for n in range(4)},
        "brokers": {0: BrokerNode("b", 9092, protocols=("PLAINTEXT",))},
        "servers": (ZooKeeperServer("zk:2181", tick_time=2000, sessions={1: ("1.2.3.4:5", 6000), 2: ("h:6", 6000)}),),
        "acls": {f"/consumers/g/{name}": RIGHTS for name in NODES},
        **more,
    }
    made = group_snapshot(**given)
    if "logs" in more:
        return made
    return replace(
        made, logs={tp: replace(log, replicas=(0,), in_sync=(0,), leader=0) for tp, log in made.logs.items()}
    )


def diagnosed(check: str, *snapshots: GroupSnapshot, **more: Any) -> list[Finding]:
    """The findings of one check."""
    assert check in {one.name for one in CHECKS}
    found = examine(snapshots, **{"chroots": CHROOTS, **more})
    return [one for one in found if one.check == check]


def table(check: str, *cases: Any, ids: Sequence[str] | None = None) -> Any:
    """Return a test of one check. A case has a snapshot or several, the levels of the findings, and what is said.

    The first finding has these words in its text, node, evidence or remedy. A mapping among the words has more
    arguments of :func:`examine`.
    """

    @pytest.mark.parametrize("case", cases, ids=ids)
    def test(case: tuple[Any, ...]) -> None:
        snapshots, expected, *rest = case
        more = {key: value for options in rest if isinstance(options, Mapping) for key, value in options.items()}
        found = diagnosed(check, *([snapshots] if isinstance(snapshots, GroupSnapshot) else snapshots), **more)
        assert levels(found) == expected
        said = f"{found[0].text}\n{found[0].node}\n{found[0].evidence}\n{found[0].remedy}"
        assert [words for words in rest if isinstance(words, str) and words not in said] == []

    return test


def levels(found: list[Finding]) -> list[str]:
    """Return the levels as text, with ``unknown`` for undecided findings."""
    return ["unknown" if one.unknown else str(one.level) for one in found]


def with_owner(snapshot: GroupSnapshot, text: str, thread: str | None = None, **stat: Any) -> GroupSnapshot:
    """The snapshot with another owner node."""
    tp = partition(text)
    node = snapshot.owners[tp]
    made = OwnerNode(node.thread if thread is None else thread, replace(present(node.stat), **stat))
    return replace(snapshot, owners={**snapshot.owners, tp: made})


def without_owner(snapshot: GroupSnapshot, *texts: str) -> GroupSnapshot:
    gone = set(map(partition, texts))
    return replace(snapshot, owners={tp: node for tp, node in snapshot.owners.items() if tp not in gone})


def with_member(snapshot: GroupSnapshot, name: str, problem: str | None = None, **stat: Any) -> GroupSnapshot:
    """The snapshot with another node of a member; ``problem``: its registration cannot be read."""
    node = snapshot.members[ConsumerId(name)]
    made = MemberNode(
        node.registration if problem is None else None, replace(present(node.stat), **stat), problem or node.problem
    )
    return replace(snapshot, members={**snapshot.members, ConsumerId(name): made})


def with_offset(
    snapshot: GroupSnapshot, text: str, offset: int | None, problem: str = "", **stat: Any
) -> GroupSnapshot:
    tp = partition(text)
    node = snapshot.offsets[tp]
    made = OffsetNode(offset, replace(present(node.stat), **stat), problem)
    return replace(snapshot, offsets={**snapshot.offsets, tp: made})


def with_log(snapshot: GroupSnapshot, text: str, **more: Any) -> GroupSnapshot:
    tp = partition(text)
    return replace(snapshot, logs={**snapshot.logs, tp: replace(snapshot.logs.get(tp, LogState()), **more)})


def with_problem(snapshot: GroupSnapshot, what: str, why: str = "no time was left") -> GroupSnapshot:
    return replace(snapshot, problems=(*snapshot.problems, Problem(what, why)))


def later(snapshot: GroupSnapshot, seconds: float, **more: Any) -> GroupSnapshot:
    """The same snapshot, taken later."""
    return replace(snapshot, taken=snapshot.taken + int(seconds * 1000), **more)


def above_notes(found: tuple[Finding, ...]) -> list[Finding]:
    return [one for one in found if one.level > Level.NOTE]


def sessions(**timeouts: Mapping[int, tuple[str, int]]) -> tuple[ZooKeeperServer, ...]:
    return tuple(ZooKeeperServer(name, tick_time=2000, sessions=known) for name, known in timeouts.items())
