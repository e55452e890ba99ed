"""The migration of a group from ZooKeeper to the brokers' coordinator and back, member by member and under load.

The command moves the offsets of a group without live members.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from tests.cluster.conftest import NewTopic, owners_of, produce_to
from tests.cluster.even_load import EvenLoad
from tests.cluster.in_process import Reader, kafka_offsets, offsets_of
from tests.cluster.kafka_tools import tool
from tests.cluster.legacy_member import LegacyMember
from tests.cluster.member_process import QUICK
from tests.timing import eventually, scaled
from zkconsumer import TopicPartition, ZookeeperConsumerConnector, cli
from zkconsumer.devcluster import DevCluster
from zkconsumer.errors import ConsumerRebalanceFailedException

PARTITIONS = 6
NAMES = ("a", "b", "c")
ZOOKEEPER: dict[str, str] = {}
KAFKA = {"group.coordination": "kafka", "session.timeout.ms": "6000", "heartbeat.interval.ms": "300"}
BRIDGE = {**KAFKA, "group.migration": "true"}
UNHURRIED = {"rebalance.drain.timeout.ms": "10000"}
"""A reader that the machine keeps waiting shall not count as one that keeps its message."""


class RollingGroup:
    """Members in this process, each with two streams and two readers, which restart in turn."""

    def __init__(self, cluster: DevCluster, group: str, topic: str) -> None:
        self._base = {"zookeeper.connect": cluster.zookeeper_connect, "group.id": group, **QUICK, **UNHURRIED}
        self._topic = topic
        self.members: dict[str, ZookeeperConsumerConnector] = {}
        self._readers: dict[str, list[Reader]] = {}
        self._all: list[Reader] = []

    def stop(self, name: str) -> None:
        """Shut a member down. Its readers end."""
        self.members.pop(name).shutdown()
        for reader in self._readers.pop(name):
            reader.join()

    def restart(self, name: str, properties: dict[str, str]) -> None:
        if name in self.members:
            self.stop(name)
        member = ZookeeperConsumerConnector({**self._base, "consumer.id": name, **properties})
        self.members[name] = member
        streams = member.create_message_streams({self._topic: 2})[self._topic]
        self._readers[name] = [Reader(stream) for stream in streams]
        self._all += self._readers[name]

    def roll(self, properties: dict[str, str], load: EvenLoad) -> None:
        """Restart the members one after the other. Each owns and reads its partitions before the next one restarts."""
        for name in NAMES:
            self.restart(name, properties)
            eventually(lambda: self.shared(len(self.members)), 60, f"an even share after {name} became {properties}")
            self.await_all(list(load.sent), f"everything to flow after {name} became {properties}")

    def shared(self, members: int) -> bool:
        """Return whether every partition has one owner, and the owners have equal numbers."""
        shares = [member.assignment() for member in self.members.values()]
        owned = [tp for share in shares for tp in share]
        assert sorted(owned) == [TopicPartition(self._topic, p) for p in range(PARTITIONS)], shares
        assert {len(share) for share in shares} == {PARTITIONS // members}, shares
        return True

    def await_all(self, ends: list[int], what: str) -> None:
        last = [(partition, end - 1) for partition, end in enumerate(ends) if end]
        eventually(lambda: self.consumed().keys() >= set(last), 60, what)

    def consumed(self) -> Counter[tuple[int, int]]:
        return Counter(place for reader in self._all for place in list(reader.places))

    def close(self) -> None:
        for name in list(self.members):
            self.stop(name)


@pytest.fixture
def rolling(
    cluster: DevCluster, new_topic: NewTopic, new_group: Callable[[], str]
) -> Iterator[tuple[RollingGroup, str, str]]:
    topic, group = new_topic(PARTITIONS), new_group()
    made = RollingGroup(cluster, group, topic)
    yield made, group, topic
    for member in made.members.values():
        member.shutdown()


def migrate(cluster: DevCluster, group: str, *arguments: str) -> int:
    return cli.main(["migrate", group, "--zookeeper", cluster.zookeeper_connect, *arguments])


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_a_live_group_moves_to_the_brokers_and_back_under_load(
    cluster: DevCluster, rolling: tuple[RollingGroup, str, str], zookeeper: KazooClient, strategy: str
) -> None:
    """A live group moves to the brokers and back, member by member, under load."""
    group, name, topic = rolling
    by = {"partition.assignment.strategy": strategy}
    load = EvenLoad(cluster.bootstrap_servers, topic, PARTITIONS)
    for member in NAMES:
        group.restart(member, ZOOKEEPER)
    eventually(lambda: group.shared(3), 30, "a share of each")

    group.roll({**BRIDGE, **by}, load)
    assert migrate(cluster, name, "--verify", "--wait", str(scaled(30))) == 0
    assert migrate(cluster, name, "--to", "kafka") == 5
    eventually(lambda: len(owners_of(zookeeper, name, topic)) == PARTITIONS, 10, "their owner nodes")
    group.roll({**KAFKA, **by}, load)
    assert owners_of(zookeeper, name, topic) == {}
    assert zookeeper.get_children(f"/consumers/{name}/ids") == []
    seen = set(group.consumed())  # more comes all the while
    eventually(lambda: seen <= set(_stored(cluster, name, topic)), 30, "commits to Kafka")

    group.roll({**BRIDGE, **by}, load)
    assert migrate(cluster, name, "--verify", "--wait", str(scaled(30))) == 0
    group.roll(ZOOKEEPER, load)
    sent = load.stop()
    eventually(lambda: group.consumed() >= sent, 60, "all messages")
    assert group.consumed() == sent  # lost none; and in clean restarts none twice
    group.close()
    assert offsets_of(zookeeper, name, topic) == dict(enumerate(load.sent))
    # On a busy machine the brokers wait for the session of a member that they had lost and that joined anew.
    eventually(lambda: _members(cluster, name) == [], 30, "no live members")
    assert migrate(cluster, name, "--to", "kafka", "--backup", "/dev/null/x") == 1  # without a file there is no write


def _stored(cluster: DevCluster, group: str, topic: str) -> list[tuple[int, int]]:
    return [
        (p, o)
        for p, end in kafka_offsets(cluster.bootstrap_servers, group, topic, PARTITIONS).items()
        for o in range(end)
    ]


def test_a_scala_member_keeps_its_partitions_until_it_leaves(
    cluster: DevCluster,
    rolling: tuple[RollingGroup, str, str],
    legacy_member: Callable[..., LegacyMember],
    zookeeper: KazooClient,
) -> None:
    """A Scala member keeps its partitions until it leaves. After that the brokers coordinate the group."""
    group, name, topic = rolling
    scala = legacy_member("1.1.1", name, {topic: 2}, properties={"consumer.id": "c"}).wait_ready()
    for member in ("a", "b"):
        group.restart(member, BRIDGE)
    produce_to(cluster.bootstrap_servers, topic, [b"x"] * 60, partitions=PARTITIONS)

    def consumed() -> Counter[tuple[int, int]]:
        return group.consumed() + Counter((m.partition, m.offset) for m in scala.messages)

    def owned_by(suffix: str) -> int:
        return sum(owner.startswith(f"{name}_{suffix}-") for owner in owners_of(zookeeper, name, topic).values())

    eventually(lambda: [owned_by(s) for s in "abc"] == [2, 2, 2], 40, "a share of each, the Scala member's included")
    eventually(lambda: len(consumed()) == 60, 30, "all messages")
    with pytest.raises(ConsumerRebalanceFailedException, match=f"ZooKeeper alone coordinates: {name}_c; both kinds"):
        group.restart("d", KAFKA)
    del group.members["d"]
    assert _members(cluster, name) == []  # otherwise the coordinator would refuse commits from outside the group
    assert scala.stop() is not None, scala.log_text()
    eventually(lambda: _members(cluster, name) == [f"{name}_a", f"{name}_b"], 30, "the bridges in the brokers' group")
    eventually(lambda: group.shared(2), 30, "all partitions with the bridges")
    produce_to(cluster.bootstrap_servers, topic, [b"x"] * 60, partitions=PARTITIONS)
    eventually(lambda: len(consumed()) == 120, 30, "all messages")
    assert set(consumed().values()) == {1}
    back = legacy_member("1.1.1", name, {topic: 2}, properties={"consumer.id": "c"}).wait_ready()
    eventually(lambda: [owned_by(s) for s in "abc"] == [2, 2, 2], 40, "a share of each again")
    assert _members(cluster, name) == []
    assert back.stop() is not None, back.log_text()


def _members(cluster: DevCluster, group: str) -> list[str]:
    """Return the names in the brokers' group, from Kafka's own client."""
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    described = admin.describe_consumer_groups([group], request_timeout=scaled(10))[group].result(scaled(10))
    return sorted(member.client_id for member in described.members)


# ---- the command without live members ----


def test_our_export_and_the_java_tools_are_interchangeable(
    cluster: DevCluster,
    new_topic: NewTopic,
    new_group: Callable[[], str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The Java tool reads our export, and we read its export."""
    topic, name = new_topic(2, prefix="a-topic-with-a-name-that-the-java-tool-quotes"), new_group()
    produce_to(cluster.bootstrap_servers, topic, [b"x"] * 20, partitions=2)
    ours, theirs = tmp_path / "ours.csv", tmp_path / "theirs.csv"
    ours.write_text(f"{topic},0,3\n{topic},1,7\n")
    assert migrate(cluster, name, "--to", "kafka", "--from-file", str(ours), "--backup", str(tmp_path / "b")) == 0
    exported = tmp_path / "exported.csv"
    assert migrate(cluster, name, "--export", "kafka", "--output", str(exported)) == 0
    assert exported.read_text() == ours.read_text()

    def java_tool(*arguments: str) -> list[str]:
        where = ("--bootstrap-server", cluster.bootstrap_servers, "--group", name, "--reset-offsets")
        return tool("1.1.1", "kafka.admin.ConsumerGroupCommand", *where, *arguments)

    exported.write_text(f"{topic},0,4\n{topic},1,8\n")
    java_tool("--from-file", str(exported), "--execute")
    assert kafka_offsets(cluster.bootstrap_servers, name, topic, 2) == {0: 4, 1: 8}
    lines = java_tool("--to-current", "--all-topics", "--export", "--dry-run")
    theirs.write_text("\n".join(line for line in lines if line.count(",") == 2) + "\n")
    assert migrate(cluster, name, "--to", "zookeeper", "--from-file", str(theirs), "--backup", str(tmp_path / "c")) == 0
    capsys.readouterr()
    assert migrate(cluster, name, "--export", "zookeeper") == 0
    assert capsys.readouterr().out == f"{topic},0,4\n{topic},1,8\n"
