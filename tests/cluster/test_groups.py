"""A group on a real cluster: refused members, new and deleted topics, and missing servers."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable
from contextlib import ExitStack, closing
from time import monotonic

import pytest
from kazoo.client import KazooClient

from tests.cluster.conftest import NewTopic, unique
from tests.cluster.in_process import Reader
from tests.cluster.member_process import QUICK
from tests.timing import eventually, scaled
from zkconsumer import MessageStreamsExistException, Whitelist, ZookeeperConsumerConnector
from zkconsumer.devcluster import DevCluster
from zkconsumer.devcluster.server_process import free_port
from zkconsumer.errors import ChrootMissingError, ConsumerIdInUseError, RegistryUnavailableError

NewConnector = Callable[..., ZookeeperConsumerConnector]


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def read(connector: ZookeeperConsumerConnector, topics: dict[str, int]) -> list[Reader]:
    return [Reader(stream) for streams in connector.create_message_streams(topics).values() for stream in streams]


def values(*readers: Reader) -> list[bytes]:
    return [message.value or b"" for reader in readers for message in reader.got]


def test_a_whitelist_follows_topics_as_they_come_grow_and_go(
    cluster: DevCluster, connector: NewConnector, new_group: Callable[[], str], produce: Callable[..., int]
) -> None:
    prefix = unique("follow")
    one, two, other = f"{prefix}.one", f"{prefix}.two", f"not-{prefix}"
    cluster.create_topic(other, 1)
    following = connector(new_group())
    streams = following.create_message_streams_by_filter(Whitelist(re.escape(prefix) + r"\..*"), 2)
    readers = [Reader(stream) for stream in streams]
    assert following.assignment() == frozenset()

    def owned() -> dict[str, int]:
        topics = [tp.topic for tp in following.assignment()]
        return {topic: topics.count(topic) for topic in topics}

    cluster.create_topic(one, 2)
    cluster.create_topic(two, 1)
    eventually(lambda: owned() == {one: 2, two: 1}, 15, "new topics")
    produce(one, numbers(10), partitions=2)
    produce(two, numbers(5), partitions=1)
    produce(other, numbers(5), partitions=1)
    eventually(lambda: len(values(*readers)) == 15, 15, "messages of both topics")
    cluster.add_partitions(one, 4)
    eventually(lambda: owned() == {one: 4, two: 1}, 15, "new partitions")
    produce(one, numbers(8), partitions=4)
    eventually(lambda: len(values(*readers)) == 23, 15, "messages of the new partitions")
    cluster.delete_topic(one)
    eventually(lambda: owned() == {two: 1}, 15, "the end of a deleted topic")
    produce(two, numbers(5), partitions=1)
    eventually(lambda: len(values(*readers)) == 28, 15, "messages of the topic that is left")
    assert {m.topic for reader in readers for m in reader.got} == {one, two}
    assert not any(reader.error for reader in readers)


def test_streams_are_created_once(
    connector: NewConnector, new_topic: NewTopic, new_group: Callable[[], str], produce: Callable[..., int]
) -> None:
    topic = new_topic(1)
    member = connector(new_group())
    (reader,) = read(member, {topic: 1})
    with pytest.raises(MessageStreamsExistException):
        member.create_message_streams({topic: 1})
    with pytest.raises(MessageStreamsExistException):
        member.create_message_streams_by_filter(Whitelist(topic))
    produce(topic, numbers(3), partitions=1)
    reader.wait_for(3)


def test_a_consumer_id_in_use_is_refused_by_name(
    connector: NewConnector, new_topic: NewTopic, new_group: Callable[[], str], produce: Callable[..., int]
) -> None:
    topic, group = new_topic(1), new_group()
    (reader,) = read(connector(group, consumer_id="same"), {topic: 1})
    twin = connector(group, consumer_id="same", zookeeper_session_timeout_ms=1000, rebalance_max_retries=4)
    with pytest.raises(ConsumerIdInUseError, match="same"):
        twin.create_message_streams({topic: 1})
    produce(topic, numbers(3), partitions=1)
    reader.wait_for(3)


def test_kafka_1103_a_member_has_one_session_also_with_a_filter(
    cluster: DevCluster, connector: NewConnector, new_group: Callable[[], str]
) -> None:
    """The original's watcher of topics had its own session. It could expire while the consumer's lived, or live on."""

    def connections() -> int:
        return sum(line.startswith(" /") for line in cluster.zookeeper.ask("cons").splitlines())

    one = connector(new_group())
    before = connections()
    one.create_message_streams_by_filter(Whitelist("nothing-like-it.*"), 2)
    eventually(lambda: connections() == before + 1, 10, "one connection more")
    one.shutdown()
    eventually(lambda: connections() == before, 10, "none more")


def ours_left() -> list[str]:
    """Return the threads of connectors and of their ZooKeeper client."""
    return [
        t.name
        for t in threading.enumerate()
        if re.search(r"zkconsumer|leader-finder|Fetcher|committer|executor|kazoo|Thread-", t.name)
    ]


def test_a_missing_chroot_is_named_and_not_created(
    cluster: DevCluster, new_group: Callable[[], str], zookeeper: KazooClient
) -> None:
    before = ours_left()
    lost = ZookeeperConsumerConnector(
        {**QUICK, "zookeeper.connect": f"{cluster.zookeeper_connect}/no/such/chroot", "group.id": new_group()}
    )
    with pytest.raises(ChrootMissingError, match="/no/such/chroot"):
        lost.create_message_streams({"t": 1})
    assert zookeeper.exists("/no") is None
    lost.shutdown()
    eventually(lambda: sorted(ours_left()) == sorted(before), 5, "the end of all threads")


@pytest.mark.parametrize("server", ["refuses", "is silent"])
def test_an_unreachable_zookeeper_raises_within_its_timeout(server: str, new_group: Callable[[], str]) -> None:
    """An unreachable ZooKeeper is reported within the connection timeout."""
    with ExitStack() as stack:
        port = free_port()
        if server == "is silent":
            stack.enter_context(closing(socket.create_server(("127.0.0.1", port))))
        before = ours_left()
        lost = ZookeeperConsumerConnector(
            {
                **QUICK,
                "zookeeper.connect": f"127.0.0.1:{port}",
                "zookeeper.connection.timeout.ms": 800,
                "group.id": new_group(),
            }
        )
        begin = monotonic()
        with pytest.raises(RegistryUnavailableError, match=str(port)):
            lost.create_message_streams({"t": 1})
        assert 0.7 < monotonic() - begin < scaled(3.5)
        begin = monotonic()
        lost.shutdown()
        assert monotonic() - begin < scaled(1.0)
        eventually(lambda: sorted(ours_left()) == sorted(before), 5, "the end of all threads")
