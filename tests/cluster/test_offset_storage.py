"""Offsets outside ZooKeeper: a mixed group moves them to Kafka and back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from kazoo.client import KazooClient

from tests.cluster.conftest import NewTopic, owners_of
from tests.cluster.in_process import by_range, kafka_offsets, offsets_of
from tests.cluster.legacy_member import LegacyMember
from tests.cluster.member_process import MemberProcess
from tests.cluster.our_member import OurMember
from tests.timing import eventually, scaled
from zkconsumer.devcluster import DevCluster

ZOOKEEPER = {"offsets.storage": "zookeeper"}
DUAL = {"offsets.storage": "kafka", "dual.commit.enabled": "true"}
KAFKA = {"offsets.storage": "kafka", "dual.commit.enabled": "false"}
PARTITIONS = 4


class MovingGroup:
    """A member of ours and a member of the original, restarted in turn. Ours sorts first and owns the first half."""

    def __init__(self, ours: Callable[..., OurMember], original: Callable[..., LegacyMember]) -> None:
        self.make = {"a": ours, "b": original}
        self.running: dict[str, MemberProcess] = {}
        self.all: list[MemberProcess] = []

    def roll(self, properties: dict[str, str]) -> None:
        """The documented step: every member restarted with the new properties, one after the other."""
        for suffix in ("b", "a"):
            if suffix in self.running:
                assert self.running[suffix].stop() is not None, self.running[suffix].log_text()
            self.running[suffix] = self.make[suffix](properties={**properties, "consumer.id": suffix})
            self.all.append(self.running[suffix].wait_ready())

    def consumed(self) -> Counter[tuple[int, int]]:
        return Counter((m.partition, m.offset) for member in self.all for m in member.messages)


def test_a_mixed_group_moves_its_offsets_to_kafka_and_back(
    cluster: DevCluster,
    legacy_member: Callable[..., LegacyMember],
    our_member: Callable[..., OurMember],
    new_topic: NewTopic,
    new_group: Callable[[], str],
    zookeeper: KazooClient,
) -> None:
    """A mixed group moves its offsets to Kafka and back without loss or repetition."""
    topic, name = new_topic(PARTITIONS), new_group()
    group = MovingGroup(
        lambda **o: our_member(name, {topic: 1}, **o), lambda **o: legacy_member("1.1.1", name, {topic: 1}, **o)
    )
    ends = dict.fromkeys(range(PARTITIONS), 0)
    threads = [f"{name}_a-0", f"{name}_b-0"]

    def phase(properties: dict[str, str], *busy: int) -> None:
        group.roll(properties)
        expected = by_range(threads, range(PARTITIONS))
        eventually(lambda: owners_of(zookeeper, name, topic) == expected, 25, f"a share of each with {properties}")
        for partition in busy:
            _produce(cluster, topic, partition)
            ends[partition] += 10
        wanted = Counter({(p, o): 1 for p, end in ends.items() for o in range(end)})
        eventually(lambda: group.consumed() >= wanted, 20, f"all messages with {properties}")
        assert group.consumed() == wanted

    def in_zookeeper() -> dict[int, int]:
        return offsets_of(zookeeper, name, topic)

    def in_kafka() -> dict[int, int]:
        return kafka_offsets(cluster.bootstrap_servers, name, topic)

    phase(ZOOKEEPER, 0, 1, 2, 3)
    phase(DUAL, 0, 2, 3)  # partition 1 has no message any more
    eventually(lambda: in_zookeeper() == in_kafka() == ends, 10, "both stores to hold the same")
    phase(KAFKA, 0, 2, 3)
    eventually(lambda: in_kafka() == ends, 10, "Kafka to hold the end")
    assert in_zookeeper()[0] < ends[0]
    phase(DUAL, 2, 3)  # partition 0 has no message since ZooKeeper was not written
    eventually(lambda: in_zookeeper() == in_kafka() == ends, 10, "both stores to hold the same again")
    phase(ZOOKEEPER, 0, 1, 2, 3)
    eventually(lambda: in_zookeeper() == ends, 10, "ZooKeeper to hold the end")


def _produce(cluster: DevCluster, topic: str, partition: int) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    for _ in range(10):
        producer.produce(topic, b"x", partition=partition)
    assert producer.flush(scaled(20)) == 0
