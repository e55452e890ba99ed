"""``zkconsumer explain`` and ``plan`` on real groups: a mixed one, one with a dead owner, one of the brokers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from tests.cluster.conftest import TICK_MS, NewTopic, owners_of
from tests.cluster.legacy_member import LegacyMember
from tests.cluster.our_member import OurMember
from tests.timing import eventually
from zkconsumer import ZookeeperConsumerConnector
from zkconsumer.cli import main
from zkconsumer.devcluster import DevCluster
from zkconsumer.model import ConsumerId, TopicPartition
from zkconsumer.operations.cluster_connection import ClusterConnection, command_config
from zkconsumer.operations.explanation import explain
from zkconsumer.operations.group_snapshot import GroupSnapshot
from zkconsumer.operations.snapshot_reader import LiveSource

PARTITIONS = 8
SETTLED_S = 25.0

Ask = Callable[..., Any]
Connector = Callable[..., ZookeeperConsumerConnector]


@pytest.fixture
def ask(cluster: DevCluster, capsys: pytest.CaptureFixture[str]) -> Ask:
    """``ask("explain", group, ...)``: the command's JSON."""

    def run(*arguments: str) -> Any:
        where = ("--zookeeper", cluster.zookeeper_connect, "--timeout", "20000", "--format", "json")
        assert main([*arguments, *where]) == 0, capsys.readouterr().err
        return json.loads(capsys.readouterr().out)

    return run


def made_at(zookeeper: KazooClient, group: str, topic: str) -> dict[int, int]:
    """The transaction that made each owner node."""
    return {p: zookeeper.exists(f"/consumers/{group}/owners/{topic}/{p}").czxid for p in range(PARTITIONS)}


def moved(owners: Mapping[int, str], moves: list[dict[str, Any]], joined: str, real: str) -> dict[int, str]:
    """The owners after the moves of a plan, with the id that the member that joined really has."""
    after = {**owners, **{move["partition"]: move["to"] for move in moves}}
    return {number: thread.replace(joined, real) for number, thread in after.items()}


def test_a_mixed_group_is_explained_and_a_join_predicted(
    ask: Ask,
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
        said = ask("explain", group)
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
    plan = ask("plan", group, "--join", "z-host")
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


class DeadOwner:
    """A member that died, and whose registration somebody deleted before its session ended."""

    def __init__(self, source: LiveSource, zookeeper: KazooClient, group: str, topic: str) -> None:
        self._source = source
        self._zookeeper = zookeeper
        self._group = group
        self._topic = topic

    def stage(self, member: OurMember, name: str) -> tuple[GroupSnapshot, GroupSnapshot] | None:
        """Kill the member. Return the group before and after the deletion, None if its session ended meanwhile.

        Explanations are made later: a slow machine has little time here.
        """
        path = f"/consumers/{self._group}/ids/{name}"
        session = self._zookeeper.exists(path).ephemeralOwner
        member.kill()
        eventually(lambda: session not in self._connected(), SETTLED_S, "ZooKeeper to see the connection end")
        dying = self._source.snapshot(self._group)
        try:
            self._zookeeper.delete(path)
        except NoNodeError:
            return None
        dead = self._source.snapshot(self._group)
        held = [node for node in dead.owners.values() if node.stat and node.stat.ephemeral_owner == session]
        return (dying, dead) if held and ConsumerId(name) in dying.members else None

    def _connected(self) -> set[int]:
        servers = self._source.snapshot(self._group).servers
        assert servers
        assert servers[0].sessions
        return set(servers[0].sessions)


def test_a_dead_owner_is_explained_until_its_session_ends(
    ask: Ask,
    cluster: DevCluster,
    new_topic: NewTopic,
    new_group: Callable[[], str],
    zookeeper: KazooClient,
    our_member: Callable[..., OurMember],
    connector: Connector,
) -> None:
    """Staged again if the machine was so slow that the session ended before the look."""
    topic, group = new_topic(PARTITIONS), new_group()
    connector(group, consumer_id="a").create_message_streams({topic: 1})
    config, _ = command_config(cluster.zookeeper_connect, None, {})
    source = LiveSource(ClusterConnection(config, 20.0))
    staged = None
    for attempt in range(5):
        name = f"{group}_m-{attempt}"
        timeout = {"consumer.id": f"m-{attempt}", "zookeeper.session.timeout.ms": "6000"}
        victim = our_member(group, {topic: 1}, properties=timeout)
        victim.wait_ready()
        eventually(lambda: ask("explain", group)["state"] == "Stable", SETTLED_S, "a healthy group")
        staged = DeadOwner(source, zookeeper, group, topic).stage(victim, name)
        if staged is not None:
            break
    source.close()
    assert staged is not None, "the session always ended before the look"
    dying, dead = staged
    half = TopicPartition(topic, PARTITIONS - 1)
    one = explain(dying, half)
    assert (one.owner, one.should, one.settled) == (f"{name}-0", f"{name}-0", False)
    assert "no connection" in one.sentence
    one = explain(dead, half)
    assert (one.owner, one.should) == (f"{name}-0", f"{group}_a-0")
    assert "its owner is dead" in one.sentence, one.sentence
    assert one.cause.until == dead.taken + 20 * TICK_MS, "no session of this ZooKeeper lasts longer"
    eventually(lambda: ask("explain", group)["state"] == "Stable", SETTLED_S, "the others to take over")
    assert set(owners_of(zookeeper, group, topic).values()) == {f"{group}_a-0"}


def test_a_brokers_group_is_explained(
    ask: Ask, cluster: DevCluster, new_topic: NewTopic, new_group: Callable[[], str], connector: Connector
) -> None:
    """Its coordinator says who owns what; the arithmetic of its leader can be computed again."""
    topic, group = new_topic(PARTITIONS), new_group()
    kafka = {"group_coordination": "kafka", "bootstrap_servers": cluster.bootstrap_servers}
    connector(group, **kafka).create_message_streams({topic: 1})

    def stable() -> Any:
        said = ask("explain", group)
        assert said["state"] == "Stable", said
        # before the brokers know the new topic, the leader may hand out none of it
        assert [one["partition"] for one in said["partitions"] if one["owner"]] == list(range(PARTITIONS)), said
        return said

    said = eventually(stable, SETTLED_S, "a stable brokers' group")
    last = said["partitions"][-1]
    assert last["settled"]
    assert f"gets partitions 0-{PARTITIONS - 1}; {topic}-{PARTITIONS - 1} is the 8th of these" in last["why"][-1]
