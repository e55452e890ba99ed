"""Questions of a connector about the cluster: topics, partitions, log ends, offsets of the group."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest

from tests.timing import eventually, scaled
from tests.unit.clusters import Join, cluster_with, connectors_with
from zkconsumer import TopicPartition, ZookeeperConsumerConnector
from zkconsumer.errors import (
    BrokerUnavailableError,
    ConnectorClosedException,
    PartitionNotOwnedError,
    UnknownTopicError,
)
from zkconsumer.kafka import BrokerChannel
from zkconsumer.kafka.requests import ListedOffset
from zkconsumer.testing import FakeCluster

FIRST, SECOND = TopicPartition("events", 0), TopicPartition("events", 1)
cluster = cluster_with({"events": [[b"v"] * 5, []], "others": [[]]}, brokers=2)
connect = connectors_with()


def check_answers(connector: ZookeeperConsumerConnector) -> None:
    assert connector.topics() >= {"events", "others"}
    assert not any(topic.startswith("__") for topic in connector.topics())
    assert connector.partitions_for("events") == [FIRST, SECOND]
    assert connector.beginning_offsets([FIRST]) == {FIRST: 0}
    assert connector.end_offsets(connector.partitions_for("events")) == {FIRST: 5, SECOND: 0}
    assert connector.end_offsets([("events", 0)]) == {FIRST: 5}
    assert connector.end_offsets([]) == {}


def test_answers_come_before_streams_and_join_no_group(cluster: FakeCluster, connect: Join) -> None:
    check_answers(connect())

    assert not any("/consumers/g" in path for path in cluster.zookeeper.tree("/"))


def test_answers_come_from_a_member(connect: Join) -> None:
    connector = connect()
    connector.create_message_streams({"others": 1})

    check_answers(connector)


def test_answers_come_from_bootstrap_servers(cluster: FakeCluster) -> None:
    with ZookeeperConsumerConnector(
        bootstrap_servers=cluster.bootstrap_servers, group_id="g", group_coordination="kafka"
    ) as connector:
        check_answers(connector)


def test_the_beginning_follows_deleted_messages(cluster: FakeCluster, connect: Join) -> None:
    cluster.truncate_before("events", 0, 3)

    assert connect().beginning_offsets([FIRST]) == {FIRST: 3}


def test_an_end_that_is_not_told_is_no_zero(connect: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that names no offset, and no error, made logs end at 0: a read up to the end gave nothing."""

    def nothing(_: Any, partitions: Any, *__: Any, **___: Any) -> dict[TopicPartition, ListedOffset]:
        return {tp: ListedOffset(-1, -1, 0) for tp in partitions}

    connector = connect()
    monkeypatch.setattr(BrokerChannel, "list_offsets", nothing)
    for ask in (connector.beginning_offsets, connector.end_offsets):
        with pytest.raises(BrokerUnavailableError, match="no offset"):
            ask([FIRST], timeout=scaled(1))


def test_an_unknown_topic_is_told_in_time(connect: Join) -> None:
    """Bug: a missing topic of ``read`` looked like a broker that is away."""
    connector = connect()
    for ask in (connector.partitions_for, lambda name, timeout: connector.read(name, timeout=timeout)):
        with pytest.raises(UnknownTopicError, match=r"no topic 'evnets'; did you mean 'events'\?") as told:
            ask("evnets", timeout=scaled(1))
        assert told.value.topics == ("evnets",)
        assert isinstance(told.value, BrokerUnavailableError | LookupError)  # programs may catch either


def test_an_unknown_topic_needs_an_answer(connect: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that is away says nothing of topics."""
    connector = connect()
    monkeypatch.setattr(BrokerChannel, "metadata", Mock(side_effect=BrokerUnavailableError("away")))
    with pytest.raises(BrokerUnavailableError, match="away") as told:
        connector.partitions_for("evnets", timeout=scaled(0.3))
    assert not isinstance(told.value, UnknownTopicError)


def test_offsets_of_the_group_are_read_from_its_store(connect: Join) -> None:
    """A member that owns nothing sees what the owner has committed."""
    owner, other = connect(), connect()
    stream = owner.create_message_streams({"events": 1})["events"][0]
    other.create_message_streams({})
    stream.get(timeout=20)
    owner.commit_offsets()

    assert owner.committed(FIRST) == 1
    assert other.assignment() == frozenset()
    eventually(lambda: other.committed(FIRST) == 1, 20, "the committed offset to be read")
    assert other.committed(("others", 0)) is None


def test_offsets_of_the_group_need_a_member(connect: Join) -> None:
    with pytest.raises(PartitionNotOwnedError):
        connect().committed(FIRST)


def test_a_closed_connector_answers_nothing(connect: Join) -> None:
    connector = connect()
    connector.shutdown()

    with pytest.raises(ConnectorClosedException):
        connector.topics()
