"""``sticky`` beside a Scala member, which ends the plan, on a real ZooKeeper."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from tests.cluster.conftest import NewTopic, owners_of
from tests.cluster.in_process import by_range
from tests.cluster.legacy_member import LegacyMember
from tests.timing import eventually
from zkconsumer import ZookeeperConsumerConnector
from zkconsumer.core.placement_plan import decode_plan

PARTITIONS, MEMBERS = 20, 4
SETTLED_S = 25.0
Connect = Callable[..., ZookeeperConsumerConnector]


def lasting(name: str) -> dict[str, str]:
    return {
        "partition.assignment.strategy": "sticky",
        "group.instance.id": name,
        "group.instance.grace.ms": "120000",
    }


STEADY = {"zookeeper.session.timeout.ms": "15000", "rebalance.backoff.ms": "600"}
"""So that no session ends on a machine that stalls."""


def underscored(properties: dict[str, str]) -> dict[str, str]:
    return {name.replace(".", "_"): value for name, value in properties.items()}


class Watched:
    """The owners and the plan of a group, seen from outside."""

    def __init__(self, client: KazooClient, group: str, topic: str) -> None:
        self._client, self._group, self._topic = client, group, topic

    def owners(self) -> dict[int, str]:
        return owners_of(self._client, self._group, self._topic)

    def has_plan(self) -> bool:
        try:
            decode_plan(self._client.get(f"/consumers/{self._group}/placement")[0])
        except NoNodeError:
            return False
        return True

    def even(self, threads: int) -> bool:
        shares = Counter(self.owners().values())
        return len(shares) == threads and sum(shares.values()) == PARTITIONS and set(shares.values()) == {5}


def test_a_scala_member_ends_the_plan_and_may_leave_again(
    connector: Connect,
    legacy_member: Callable[..., LegacyMember],
    zookeeper: KazooClient,
    new_topic: NewTopic,
    new_group: Callable[[], str],
) -> None:
    topic, group = new_topic(PARTITIONS), new_group()
    watched = Watched(zookeeper, group, topic)
    ours: list[Any] = []
    for number in range(MEMBERS):
        ours.append(connector(group, **underscored(lasting(f"m{number}") | STEADY)))
        ours[-1].create_message_streams({topic: 1})
    eventually(lambda: watched.even(MEMBERS), SETTLED_S, "an even start")
    scala = legacy_member("1.1.1", group, {topic: 1})
    scala.wait_ready()

    def by_range_of_all() -> bool:
        threads = [f"{name}-0" for name in zookeeper.get_children(f"/consumers/{group}/ids")]
        return len(threads) == MEMBERS + 1 and watched.owners() == by_range(threads, range(PARTITIONS))

    eventually(by_range_of_all, SETTLED_S, "range beside a Scala member")
    assert not watched.has_plan()
    ranges = watched.owners()
    scala.close()
    eventually(lambda: watched.even(MEMBERS) and watched.has_plan(), SETTLED_S, "a plan again")
    after = watched.owners()
    moved = [n for n, thread in ranges.items() if thread.startswith(f"{group}_m") and after[n] != thread]
    assert not moved, "the plan begins from the owners"
