"""Every form of sharing partitions on real servers: orders, executors, filters, bridges, beside Scala members."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.cluster.balanced_group import BalancedGroup
from tests.cluster.conftest import unique
from tests.cluster.legacy_member import LegacyMember
from tests.timing import eventually
from zkconsumer import ZookeeperConsumerConnector
from zkconsumer.devcluster import DevCluster
from zkconsumer.errors import ConfigException

BRIDGE = {
    "group.coordination": "kafka",
    "group.migration": "true",
    "offsets.storage": "kafka",
    "dual.commit.enabled": "true",
    "session.timeout.ms": "6000",
    "heartbeat.interval.ms": "300",
}
SHARING = {"share.partitions": "true"}


@pytest.fixture
def group(cluster: DevCluster) -> Iterator[BalancedGroup]:
    """A group with a topic of one partition."""
    topic = unique("kinds")
    cluster.create_topic(topic, 1)
    with BalancedGroup(cluster.zookeeper_connect, cluster.bootstrap_servers, unique("group"), {topic: 1}) as made:
        yield made


def start_in_turn(group: BalancedGroup, *names: str, **how: Any) -> None:
    """Start members of which the first owns the partition.

    Later it must not move any more: an owner whose handlers last longer than the drain ends up beside the next one.
    """
    for name in names:
        member = group.start(name, concurrency=4, **how).wait_ready()
        if "group.migration" in how["properties"]:  # the brokers have told it its share
            eventually(lambda m=member: "brokers.status owning" in m.log_text(), 30, lambda: group.told("a share"))  # type: ignore[misc]
    group.wait_owners({0: names[0]})


def wait_busy(group: BalancedGroup, *names: str) -> None:
    """Wait until each of these has work."""
    eventually(lambda: all(group.in_hand(name) for name in names), 30, lambda: group.told(f"work of {names}"))


@pytest.mark.parametrize(
    ("own", "properties"),
    [
        pytest.param({"order": "none"}, {}, id="none"),
        pytest.param({"executor": "processes"}, {}, id="processes"),
        pytest.param({"executor": "asyncio"}, {}, id="asyncio"),
        pytest.param({"whitelist": True}, {}, id="filter"),
        pytest.param({}, BRIDGE, id="bridge"),
        pytest.param({}, {"offsets.storage": "kafka", "dual.commit.enabled": "true"}, id="dual"),
    ],
)
def test_members_share_a_partition_in_each_form(
    group: BalancedGroup, own: dict[str, Any], properties: dict[str, str]
) -> None:
    """Both have messages in hand at once; the helper leaves in order, and the owner goes on with its slots."""
    if "whitelist" in own:
        own = {"whitelist": group.topic}
    order = own.get("order", "key")
    start_in_turn(group, "a", "b", properties={**SHARING, **properties}, **own)
    held = group.produce([f"{n} hold=a" for n in range(600)])
    wait_busy(group, "a", "b")
    group.release("a")
    group.wait_done(held)
    assert {one.member for one in group.records.handlings} == set("ab")
    assert group.members["b"].stop() is not None, group.told("a clean end")
    group.wait_done(group.produce([str(n) for n in range(40)]))
    eventually(lambda: group.offset() == 640, 20, lambda: group.told(f"offset 640, not {group.offset()}"))
    group.check(order)


def test_sharing_goes_on_after_a_scala_member(group: BalancedGroup, legacy_member: Callable[..., LegacyMember]) -> None:
    """It takes the partition over while slots are on loan, and gives it back: the loans of before are void."""
    start_in_turn(group, "b", "c", properties=SHARING)
    held = group.produce([f"{n} hold=a" for n in range(100)])
    wait_busy(group, "b", "c")
    scala = legacy_member("1.1.1", group.name, {group.topic: 1}, properties={"consumer.id": "a"}).wait_ready()
    scala.wait_messages(100, 40)
    group.release("a")
    assert scala.stop() is not None
    more = group.produce([f"{n} hold=b" for n in range(100)])
    wait_busy(group, "b", "c")
    group.release("b")
    group.wait_done(more)
    group.wait_noted(more)
    group.check(others=held, anew={(group.topic, 0): 0})


def test_sharing_needs_an_order_that_can_be_shared(connector: Callable[..., ZookeeperConsumerConnector]) -> None:
    with pytest.raises(ConfigException, match="order='partition'"):
        connector("g", share_partitions=True).run(print, "t", concurrency=4, order="partition")
