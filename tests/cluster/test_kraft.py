"""A member of a group that the brokers coordinate, on a broker without ZooKeeper (KRaft, 4.0)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Iterator
from contextlib import ExitStack
from threading import Event, Thread
from typing import Any, Self

import pytest

from tests.cluster.conftest import produce_to, unique
from tests.cluster.in_process import Reader
from tests.cluster.kraft import KraftBroker, jars
from tests.cluster.operator_commands import run_command
from tests.timing import eventually, scaled
from zkconsumer import TopicPartition, Whitelist, ZookeeperConsumerConnector
from zkconsumer.devcluster import JarResolutionError

PARTITIONS, MESSAGES = 4, 200


@pytest.fixture(scope="module")
def broker() -> Iterator[KraftBroker]:
    try:
        jars()
    except JarResolutionError as missing:
        pytest.skip(f"this broker comes from Maven: {missing}")
    with KraftBroker() as started:
        yield started


@pytest.fixture
def topic(broker: KraftBroker) -> str:
    from confluent_kafka.admin import AdminClient, NewTopic

    name = unique("kraft")
    admin = AdminClient({"bootstrap.servers": broker.address, "log_level": 0})
    admin.create_topics([NewTopic(name, num_partitions=PARTITIONS, replication_factor=1)])[name].result(scaled(20))
    return name


class KraftGroup:
    """Members in this process, with all their messages together."""

    def __init__(self, broker: KraftBroker, topic: str, ends: ExitStack) -> None:
        self.broker, self.topic, self._ends = broker, topic, ends
        self.name = unique("group")
        self.readers: list[Reader] = []
        self.sent = 0

    def join(self, **properties: Any) -> ZookeeperConsumerConnector:
        member = self._ends.enter_context(
            ZookeeperConsumerConnector(
                {
                    "group.coordination": "kafka",
                    "bootstrap.servers": self.broker.address,
                    "group.id": self.name,
                    "auto.offset.reset": "smallest",
                    "auto.commit.interval.ms": 200,
                    **{name.replace("_", "."): value for name, value in properties.items()},
                }
            )
        )
        self.readers += map(Reader, member.create_message_streams_by_filter(Whitelist(self.topic), 1))
        return member

    def send(self) -> None:
        values = [b"%d" % n for n in range(self.sent, self.sent + MESSAGES)]
        self.sent += produce_to(self.broker.address, self.topic, values, partitions=PARTITIONS)

    @property
    def places(self) -> list[tuple[int, int]]:
        return sorted(place for reader in self.readers for place in reader.places)

    def all_once(self) -> bool:
        each = self.sent // PARTITIONS
        return self.places == [(partition, offset) for partition in range(PARTITIONS) for offset in range(each)]


def test_members_share_commit_and_start_again(broker: KraftBroker, topic: str) -> None:
    """No message is lost or repeated by a join, a leave, and a restart of the whole group."""
    with ExitStack() as ends:
        group = KraftGroup(broker, topic, ends)
        first = group.join(partition_assignment_strategy="cooperative-sticky")
        assert len(first.assignment()) == PARTITIONS
        group.send()
        eventually(group.all_once, 20, "all of it at one member")
        second = group.join(partition_assignment_strategy="cooperative-sticky")
        eventually(lambda: (len(first.assignment()), len(second.assignment())) == (2, 2), 20, "a half for each")
        group.send()
        eventually(group.all_once, 20, "all of it at two members")
        assert all(reader.got for reader in group.readers)
        first.shutdown()
        eventually(lambda: len(second.assignment()) == PARTITIONS, 20, "all partitions at the one that stays")
        group.send()
        eventually(group.all_once, 20, "what came after a leave")
        second.commit_offsets()
        second.shutdown()
        third = group.join(partition_assignment_strategy="cooperative-sticky")
        third.commit_offsets()
        each = group.sent // PARTITIONS
        known = {TopicPartition(topic, partition): each for partition in range(PARTITIONS)}
        eventually(lambda: {tp: third.committed(tp) for tp in third.assignment()} == known, 20, "the offsets")
        group.send()
        eventually(group.all_once, 20, "what came after a restart")


class AiokafkaMember:
    """A member of aiokafka, on a thread with its own event loop. ``owned`` are its partitions."""

    def __init__(self, broker: KraftBroker, group: str, topic: str) -> None:
        self.owned: Collection[TopicPartition] = frozenset()
        self._place = (broker.address, group, topic)
        self._stop = Event()
        self._thread = Thread(target=lambda: asyncio.run(self._run()), name="aiokafka", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(scaled(20))
        assert not self._thread.is_alive()

    async def _run(self) -> None:
        from aiokafka import AIOKafkaConsumer
        from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

        address, group, topic = self._place
        consumer = AIOKafkaConsumer(
            topic,
            bootstrap_servers=address,
            group_id=group,
            heartbeat_interval_ms=200,
            partition_assignment_strategy=(StickyPartitionAssignor,),
        )
        await consumer.start()
        try:
            while not self._stop.is_set():
                await consumer.getmany(timeout_ms=50)
                self.owned = frozenset(TopicPartition(*tp) for tp in consumer.assignment())
        finally:
            await consumer.stop()


@pytest.mark.parametrize("leader", ["ours", "aiokafka"])
def test_sticky_shares_a_group_with_aiokafka(broker: KraftBroker, topic: str, leader: str) -> None:
    """With each leader, every partition has one owner. A third member's partitions go back after it leaves."""
    with ExitStack() as ends:
        group = KraftGroup(broker, topic, ends)
        peer = AiokafkaMember(broker, group.name, topic)
        if leader == "aiokafka":
            ends.enter_context(peer)
            eventually(lambda: len(peer.owned) == PARTITIONS, 20, "all of it at the first")
        members = [group.join(partition_assignment_strategy="sticky")]
        if leader == "ours":
            ends.enter_context(peer)

        def shares(least: int) -> list[Collection[TopicPartition]]:
            """Return the partitions of all members, once they are settled and each has at least so many."""
            found = [peer.owned, *(member.assignment() for member in members)]
            settled = sum(map(len, found)) == len(frozenset().union(*found)) == PARTITIONS
            return found if settled and min(map(len, found)) >= least else []

        halves = eventually(lambda: shares(2), 20, "a half for each")
        members.append(group.join(partition_assignment_strategy="sticky"))
        eventually(lambda: shares(1), 20, "something for each of three")
        members.pop().shutdown()
        eventually(lambda: shares(2) == halves, 20, "what each had before")


def test_a_group_of_the_new_protocol_is_described(broker: KraftBroker, topic: str) -> None:
    """Its members are not ours and not of the classic protocol; the commands show them all the same."""
    from confluent_kafka import Consumer, Message

    group = unique("new")
    produce_to(broker.address, topic, [b"x"] * PARTITIONS, partitions=PARTITIONS)
    member = Consumer(
        {
            "bootstrap.servers": broker.address,
            "group.id": group,
            "group.protocol": "consumer",
            "client.id": "peer",
            "auto.offset.reset": "earliest",
        }
    )

    def described(*form: str) -> list[dict[str, Any]]:
        where = ("--bootstrap-server", broker.address, "--format", "json")
        return list(json.loads(run_command("groups", "describe", group, *form, *where).out))

    try:
        member.subscribe([topic])
        got: Message | None = eventually(lambda: member.poll(0.1), 30, "a message")
        assert got is not None
        member.commit(message=got, asynchronous=False)
        eventually(lambda: described("--state")[0]["state"] == "Stable", 20, "the group is stable")
        (state,) = described("--state")
        assert (state["number_members"], state["assignment_strategy"]) == (1, "uniform")
        rows = described()
        assert {(row["partition"], row["client_id"], row["log_end_offset"]) for row in rows} == {
            (number, "peer", 1) for number in range(PARTITIONS)
        }
        assert {row["partition"]: row["lag"] for row in rows}[got.partition()] == 0
    finally:
        member.close()
