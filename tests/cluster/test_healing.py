"""Self-healing: members that gave up, a ZooKeeper that lost its data, and a session that two clients use."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import KazooException

from tests.cluster.conftest import NewTopic, owners_of
from tests.cluster.in_process import Reader, client_of
from tests.cluster.legacy_member import LegacyMember
from tests.cluster.our_member import OurMember
from tests.internals import kazoo_client_of, session_of
from tests.timing import eventually, scaled
from zkconsumer import ZookeeperConsumerConnector
from zkconsumer.devcluster import DevCluster, EmbeddedZooKeeper
from zkconsumer.member.connector_state import Phase
from zkconsumer.runtime.deadline import Deadline


def send(cluster: DevCluster, topic: str, partition: int, value: bytes) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    eventually(lambda: len(producer.list_topics(topic, 5).topics[topic].partitions) > partition, 20, topic)
    producer.produce(topic, value, partition=partition)
    assert producer.flush(scaled(20)) == 0


def test_a_scala_member_that_used_up_its_attempts_is_woken(
    legacy_member: Callable[..., LegacyMember],
    our_member: Callable[..., OurMember],
    connector: Callable[..., ZookeeperConsumerConnector],
    new_topic: NewTopic,
    new_group: Callable[[], str],
    cluster: DevCluster,
    zookeeper: KazooClient,
) -> None:
    """The Scala member tries twice, 0.3 s apart, while our reader holds a message for longer. Then it owns nothing and
    gets no more events (KAFKA-4228). Our member releases, looks 1.6 s later, and writes its id node again.
    """
    topic, name = new_topic(7), new_group()
    tries = {"rebalance.max.retries": 2, "rebalance.backoff.ms": 300}
    first = our_member(name, {topic: 1}, properties={"consumer.id": "0"}).wait_ready()
    with pytest.warns(Warning, match="rebalance.max.retries"):
        ours = connector(name, **{"consumer.id": "a", "rebalance.drain.timeout.ms": 60_000, **tries})
    reader = Reader(ours.create_message_streams({topic: 1})[topic][0], hold_at=0)
    scala = legacy_member("1.1.1", name, {topic: 1}, properties={"consumer.id": "s", **tries}).wait_ready()
    eventually(
        lambda: (
            list(owners_of(zookeeper, name, topic).values())
            == [f"{name}_{m}-0" for m in ("0", "0", "0", "a", "a", "s", "s")]
        ),
        25,
        "three members",
    )
    send(cluster, topic, 4, b"held")
    reader.wait_for(1)
    first.stop()
    eventually(lambda: "can't rebalance after 2 retries" in scala.log_text(), 30, "a member that gave up")
    assert set(owners_of(zookeeper, name, topic)) <= {3, 4}
    before = zookeeper.exists(f"/consumers/{name}/ids/{ours.consumer_id}").czxid
    reader.go_on()
    by_range = [f"{ours.consumer_id}-0"] * 4 + [f"{scala.consumer_id}-0"] * 3
    eventually(lambda: list(owners_of(zookeeper, name, topic).values()) == by_range, 30, "everything owned")
    assert zookeeper.exists(f"/consumers/{name}/ids/{ours.consumer_id}").czxid > before
    send(cluster, topic, 6, b"later")
    assert scala.wait_messages(1)[0].value == b"later"


@pytest.fixture
def lonely(tmp_path: Path) -> Iterator[EmbeddedZooKeeper]:
    """A ZooKeeper for tests that damage it."""
    with EmbeddedZooKeeper(tmp_path / "zookeeper", tick_ms=200) as server:
        yield server


def make_topic(server: EmbeddedZooKeeper, topic: str, **nodes: bytes) -> None:
    with client_of(server.connect) as client:
        client.create(f"/brokers/topics/{topic}", b'{"version":1,"partitions":{"0":[0],"1":[0]}}', makepath=True)
        client.ensure_path("/brokers/ids")
        for partition, offset in nodes.items():
            client.create(f"/consumers/g/offsets/{topic}/{partition.lstrip('p')}", offset, makepath=True)


def owned(server: EmbeddedZooKeeper, topic: str) -> dict[int, str]:
    with client_of(server.connect) as client:
        return owners_of(client, "g", topic)


SETTINGS = {
    "group.id": "g",
    "zookeeper.session.timeout.ms": 2000,
    "zookeeper.connection.timeout.ms": 20_000,
    "refresh.leader.backoff.ms": 1000,
}


def test_a_zookeeper_that_lost_its_data_is_joined_anew(lonely: EmbeddedZooKeeper) -> None:
    """The server's transaction ids start again, so the server refuses every client that has seen later ids. Without
    healing such a client stays suspended for ever.
    """
    make_topic(lonely, "t", p0=b"5")
    for number in range(20):
        make_topic(lonely, f"later-{number}")
    with ZookeeperConsumerConnector({**SETTINGS, "zookeeper.connect": lonely.connect}) as member:
        member.create_message_streams({"t": 1})
        eventually(lambda: len(owned(lonely, "t")) == 2, 20, "ownership")
        lonely.stop()
        shutil.rmtree(lonely.directory / "data")
        lonely.start(Deadline(scaled(30)))
        make_topic(lonely, "t", p0=b"3")
        eventually(lambda: member.state.phase is Phase.SUSPENDED, 10, "a suspended member")
        eventually(lambda: len(owned(lonely, "t")) == 2, 40, f"ownership in the new ZooKeeper: {member.state}")


def test_a_session_that_two_clients_use_is_given_up(lonely: EmbeddedZooKeeper) -> None:
    """As after a fork: each connection of one client ends that of the other, several times a second, for ever."""
    make_topic(lonely, "t", p0=b"5")
    with ZookeeperConsumerConnector({**SETTINGS, "zookeeper.connect": lonely.connect}) as member:
        member.create_message_streams({"t": 1})
        eventually(lambda: len(owned(lonely, "t")) == 2, 20, "ownership")
        session = session_of(member)
        contested = session.session_id
        twin = KazooClient(lonely.connect, client_id=kazoo_client_of(session).client_id, timeout=2.0)
        twin.start_async()  # the twin may lose the session again before it learns that it has a session
        try:
            eventually(lambda: session.session_id not in (0, contested), 30, "another session")
            eventually(lambda: member.state.phase is Phase.OWNING and member.state.owned == 2, 30, "ownership")
            calm_since, own = time.monotonic(), session.session_id

            def calm() -> bool:
                return session.session_id == own and time.monotonic() > calm_since + 1.0

            eventually(calm, 10, "a session of its own")
        finally:
            with suppress(KazooException):
                twin.stop()
            twin.close()
