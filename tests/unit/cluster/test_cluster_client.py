"""The connections of a client: when they open, whom they ask, and that a closed client stays closed."""

from __future__ import annotations

import pytest

from tests.timing import eventually, scaled
from zkconsumer.cluster.cluster_client import ClusterClient
from zkconsumer.config import ConsumerConfig
from zkconsumer.errors import ConfigException, RegistryUnavailableError
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
