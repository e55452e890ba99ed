"""``zkconsumer explain`` and ``plan`` on real groups: a Scala member, one of ours, and a third that joins."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kazoo.client import KazooClient

from tests.cluster.conftest import NewTopic, owners_of
from tests.cluster.legacy_member import LegacyMember
from tests.cluster.operator_commands import OperatorCommands
from tests.cluster.our_member import OurMember
from tests.timing import eventually
from zkconsumer import ZookeeperConsumerConnector

PARTITIONS = 8
SETTLED_S = 25.0

Connector = Callable[..., ZookeeperConsumerConnector]


def made_at(zookeeper: KazooClient, group: str, topic: str) -> dict[int, int]:
    """The transaction that made each owner node."""
    return {p: zookeeper.exists(f"/consumers/{group}/owners/{topic}/{p}").czxid for p in range(PARTITIONS)}


def moved(owners: Mapping[int, str], moves: list[dict[str, Any]], joined: str, real: str) -> dict[int, str]:
    """The owners after the moves of a plan, with the id that the member that joined really has."""
    after = {**owners, **{move["partition"]: move["to"] for move in moves}}
    return {number: thread.replace(joined, real) for number, thread in after.items()}


def test_a_mixed_group_is_explained_and_a_join_predicted(
    commands: OperatorCommands,
    new_topic: NewTopic,
    new_group: Callable[[], str],
    produce: Callable[..., int],
    zookeeper: KazooClient,
    legacy_member: Callable[..., LegacyMember],
    our_member: Callable[..., OurMember],
    connector: Connector,
) -> None:
    """A Scala member and one of ours are healthy. A third joins, and partitions move and pause as planned."""
    topic, group = new_topic(PARTITIONS), new_group()
    scala = legacy_member("1.1.1", group, {topic: 1}, properties={"consumer.id": "a-scala"})
    ours = our_member(group, {topic: 1}, properties={"consumer.id": "m-ours"})
    produce(topic, ["x"] * PARTITIONS, partitions=PARTITIONS)
    scala.wait_ready()
    ours.wait_ready()

    def healthy(members: int) -> Any:
        said = commands.document("explain", group)
        assert (said["state"], len(said["members"])) == ("Stable", members), said["reason"]
        assert all(one["position"]["lag"] == 0 and one["position"]["lag_ms"] == 0 for one in said["partitions"])
        return said

    said = eventually(lambda: healthy(2), SETTLED_S, "a healthy group")
    assert {one["kind"] for one in said["members"]} == {"Scala", "zkconsumer"}
    assert (said["strategy"]["name"], said["strategy"]["sure"]) == ("range", True), said["strategy"]
    fourth = said["partitions"][3]
    assert fourth["owner"] == fourth["should"] == f"{group}_a-scala-0"
    assert any("thread 1 of 2" in step and "is the 4th of these" in step for step in fourth["why"])

    before, claimed = owners_of(zookeeper, group, topic), made_at(zookeeper, group, topic)
    plan = commands.document("plan", group, "--join", "z-host")
    third = connector(group, consumer_id="z-host")
    third.create_message_streams({topic: 1})
    predicted = moved(before, plan["moves"], plan["joined"][0], f"{group}_z-host")
    eventually(lambda: owners_of(zookeeper, group, topic) == predicted, SETTLED_S, f"owners as planned: {predicted}")
    eventually(lambda: healthy(3), SETTLED_S, "a healthy group")
    now = made_at(zookeeper, group, topic)
    stay = {p for p in predicted if predicted[p] == before[p]}
    assert plan["stays"] == len(stay)
    kept = {p for p in stay if "m-ours" in before[p]}
    assert kept, "the plan keeps something with the member of ours"
    assert {p for p in kept if now[p] == claimed[p]} == kept, "ours pauses nothing that stays"
    assert all(now[p] > claimed[p] for p in stay - kept), "the Scala member stops all"
