"""A session that ends on a real cluster. ``tests/faults`` has more faults."""

from __future__ import annotations

from collections.abc import Callable

from kazoo.client import KazooClient

from tests.cluster.conftest import NewTopic
from tests.cluster.in_process import Reader, offsets_of
from tests.cluster.member_process import QUICK
from tests.internals import kazoo_client_of, session_of
from tests.sessions import end_session
from tests.timing import eventually
from zkconsumer import ZookeeperConsumerConnector
from zkconsumer.devcluster import DevCluster


def values(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def client_id_of(member: ZookeeperConsumerConnector) -> tuple[int, bytes]:
    """The session's id and password, with which another client can take the session over and end it."""
    return kazoo_client_of(session_of(member)).client_id  # type: ignore[no-any-return]


def test_a_message_in_hand_at_the_expiry_is_not_skipped(
    cluster: DevCluster,
    new_topic: NewTopic,
    new_group: Callable[[], str],
    produce: Callable[..., int],
    zookeeper: KazooClient,
) -> None:
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
