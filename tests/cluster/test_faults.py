"""Faults of servers and sessions on a real cluster: no message is lost, and shutdowns are bounded.

``tests/faults`` has more of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any

import pytest
from kazoo.client import KazooClient

from tests.cluster.conftest import NewTopic, produce_to, unique
from tests.cluster.in_process import Reader, client_of, offsets_of
from tests.cluster.member_process import QUICK
from tests.internals import kazoo_client_of, session_of
from tests.sessions import end_session
from tests.timing import eventually, scaled
from zkconsumer import ZookeeperConsumerConnector
from zkconsumer.devcluster import DevCluster


@pytest.fixture(scope="module")
def own() -> Iterator[DevCluster]:
    """A cluster to mistreat, which every test leaves complete."""
    with DevCluster(tick_ms=500) as made:
        yield made


@contextmanager
def joined(cluster: DevCluster, group: str, topic: str, **more: Any) -> Iterator[tuple[Any, Reader]]:
    settings = {**QUICK, "zookeeper.connect": cluster.zookeeper_connect, "group.id": group, **more}
    with ZookeeperConsumerConnector(settings) as member:
        yield member, Reader(member.create_message_streams({topic: 1})[topic][0])


def values(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def client_id_of(member: ZookeeperConsumerConnector) -> tuple[int, bytes]:
    """The session's id and password, with which another client can take the session over and end it."""
    return kazoo_client_of(session_of(member)).client_id  # type: ignore[no-any-return]


# ---- sessions ----


def test_a_message_in_hand_at_the_expiry_is_not_skipped(
    cluster: DevCluster,
    new_topic: NewTopic,
    new_group: Callable[[], str],
    produce: Callable[..., int],
    zookeeper: KazooClient,
) -> None:
    """A message in the user's hand when the session expires is not skipped."""
    topic, group = new_topic(1), new_group()
    produce(topic, values(20), partitions=1)
    settings = {**QUICK, "zookeeper.connect": cluster.zookeeper_connect, "group.id": group}
    with ZookeeperConsumerConnector(settings) as member:
        reader = Reader(member.create_message_streams({topic: 1})[topic][0], hold_at=5)
        reader.wait_for(6)
        eventually(lambda: offsets_of(zookeeper, group, topic) == {0: 5}, 5, "a commit")
        identity = client_id_of(member)
        end_session(cluster.zookeeper_connect, identity)
        eventually(lambda: member.assignment() and client_id_of(member) != identity, 15, "another session")
        assert offsets_of(zookeeper, group, topic) == {0: 5}
        reader.go_on()
        reader.wait_for(20)
        assert [m.offset for m in reader.got] in ([*range(6), *range(5, 20)], list(range(20)))


# ---- brokers ----


def test_a_silent_broker_does_not_hold_up_shutdown(own: DevCluster) -> None:
    topic = unique("silent")
    own.create_topic(topic, 1)
    produce_to(own.bootstrap_servers, topic, values(10), partitions=1)
    group = unique("group")
    with joined(own, group, topic) as (member, reader):
        reader.wait_for(10)
        own.kafka.suspend()
        try:
            begin = monotonic()
            member.shutdown()
            assert monotonic() - begin < scaled(3)
            reader.join(2)
        finally:
            own.kafka.resume()
        with client_of(own.zookeeper_connect) as client:
            assert offsets_of(client, group, topic) == {0: 10}


# ---- ZooKeeper ----
