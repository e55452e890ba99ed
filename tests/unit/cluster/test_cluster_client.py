"""The connections of a client: when they open, whom they ask, and that a closed client stays closed."""

from __future__ import annotations

from collections.abc import Collection
from time import sleep
from unittest.mock import Mock

import pytest

from tests.timing import eventually, scaled
from zkconsumer.cluster import cluster_client
from zkconsumer.cluster.cluster_client import ClusterClient, existing_partitions
from zkconsumer.config import ConsumerConfig
from zkconsumer.errors import BrokerUnavailableError, ConfigException, RegistryUnavailableError
from zkconsumer.kafka import BrokerChannel
from zkconsumer.kafka.cluster_metadata import ClusterSeen, cluster_of
from zkconsumer.model import Endpoint, TopicPartition
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.testing import FakeCluster
from zkconsumer.zookeeper.session import Session


def soon() -> Deadline:
    return Deadline(scaled(10))


def test_zookeeper_is_needed_where_it_was_not_named() -> None:
    config = ConsumerConfig({"bootstrap.servers": "b:1", "group.id": "g", "group.coordination": "kafka"})
    with pytest.raises(ConfigException, match="--zookeeper.*needs ZooKeeper"):
        _ = ClusterClient(config).session


def test_a_closed_client_opens_no_other_session() -> None:
    """A fetcher thread that outlived the close would have begun a session that nobody ends."""
    with FakeCluster(zookeeper=True) as cluster:
        client = ClusterClient(ConsumerConfig(zookeeper_connect=cluster.zookeeper_connect, group_id="g"), scaled(10))
        assert client.brokers(soon())
        client.close()
        client.close()
        with pytest.raises(RegistryUnavailableError, match="was closed"):
            client.open_session(soon())


@pytest.mark.parametrize("meanwhile", ["interrupted", "closed"])
def test_a_session_that_nobody_gets_is_closed(meanwhile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt, or a close by another thread, right after the session had opened left it to nobody."""
    original = Session.open

    def opened(session: Session, deadline: Deadline) -> None:
        original(session, deadline)
        if meanwhile == "interrupted":
            raise KeyboardInterrupt
        client.close()

    monkeypatch.setattr(Session, "open", opened)
    with FakeCluster(zookeeper=True) as cluster:
        client = ClusterClient(ConsumerConfig(zookeeper_connect=cluster.zookeeper_connect, group_id="g"), scaled(10))
        with pytest.raises(KeyboardInterrupt if meanwhile == "interrupted" else RegistryUnavailableError):
            client.open_session(soon())
        served = cluster.zookeeper_server
        eventually(lambda: served is not None and not served.sessions, 5, "the end of the session")


def test_an_interrupted_close_ends_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    original, calls = Session.close, []

    def interrupted(session: Session, deadline: Deadline) -> None:
        calls.append(deadline)
        if len(calls) == 1:
            raise KeyboardInterrupt
        original(session, deadline)

    with FakeCluster(zookeeper=True) as cluster:
        config = ConsumerConfig(zookeeper_connect=cluster.zookeeper_connect, group_id="g")
        client = ClusterClient(config, scaled(10))
        client.open_session(soon())
        monkeypatch.setattr(Session, "close", interrupted)
        with pytest.raises(KeyboardInterrupt):
            client.close()
        served = cluster.zookeeper_server
        eventually(lambda: served is not None and not served.sessions, 5, "the end of the session")


def test_the_next_broker_is_asked_if_one_is_away() -> None:
    with FakeCluster(2, zookeeper=True) as cluster:
        cluster.create_topic("t", 2)
        away = Endpoint(9, "127.0.0.1", 1)
        config = ConsumerConfig(zookeeper_connect=cluster.zookeeper_connect, group_id="g")
        with ClusterClient(config, scaled(10)) as client:
            seen = client.describe(["t"], soon(), [away, *client.brokers(soon())])
            ends = client.lookup.find(dict.fromkeys(seen.partitions, -1), soon())
    assert ends == {TopicPartition("t", 0): 0, TopicPartition("t", 1): 0}


def test_a_broker_silent_at_metadata_leaves_time_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the connection was limited, so one broker that took connections and hung used up the whole time."""
    asked: list[int] = []

    def silent_once(channel: BrokerChannel, topics: Collection[str] | None, deadline: Deadline) -> ClusterSeen:
        asked.append(channel.endpoint.broker_id)
        if len(asked) == 1:
            sleep(deadline.bounded(scaled(60)))
            raise BrokerUnavailableError("no answer")
        return cluster_of(channel, topics, deadline)

    monkeypatch.setattr(cluster_client, "cluster_of", silent_once)
    with FakeCluster(2, zookeeper=True) as cluster:
        cluster.create_topic("t", 1)
        config = ConsumerConfig(zookeeper_connect=cluster.zookeeper_connect, group_id="g")
        with ClusterClient(config, scaled(10)) as client:
            seen = client.describe(["t"], Deadline(scaled(2)))
    assert len(asked) == 2
    assert set(seen.partitions) == {TopicPartition("t", 0)}


def test_zookeeper_tells_which_partitions_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker with old metadata was asked: partitions that it did not know "did not exist"."""
    monkeypatch.setattr(ClusterClient, "describe", Mock(side_effect=AssertionError("a broker was asked")))
    with FakeCluster(zookeeper=True) as cluster:
        cluster.create_topic("t", 2)
        cluster.zookeeper.put("/brokers/topics/new", b'{"version":1,"partitions":{"3":[1]}}')
        config = ConsumerConfig(zookeeper_connect=cluster.zookeeper_connect, group_id="g")
        with ClusterClient(config, scaled(10)) as client:
            of_two = existing_partitions(client, ["t", "none"], soon())
            of_all = existing_partitions(client, None, soon())
    assert of_two == {TopicPartition("t", 0), TopicPartition("t", 1)}
    assert of_all == {*of_two, TopicPartition("new", 3)}


def test_brokers_tell_which_partitions_exist_sans_zookeeper() -> None:
    with FakeCluster() as cluster:
        cluster.create_topic("t", 2)
        brokers = ",".join(f"{host}:{port}" for _, host, port in cluster.addresses())
        config = ConsumerConfig({"bootstrap.servers": brokers, "group.id": "g", "group.coordination": "kafka"})
        with ClusterClient(config, scaled(10)) as client:
            assert existing_partitions(client, None, soon()) == {TopicPartition("t", 0), TopicPartition("t", 1)}
