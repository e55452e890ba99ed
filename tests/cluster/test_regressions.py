"""Bugs of the original that only a real ZooKeeper shows; see ``zkconsumer/REGRESSIONS.md``."""

from __future__ import annotations

from collections.abc import Callable

from tests.timing import eventually
from zkconsumer import Whitelist, ZookeeperConsumerConnector
from zkconsumer.devcluster import DevCluster


def test_kafka_1103_a_member_has_one_session_also_with_a_filter(
    cluster: DevCluster, connector: Callable[..., ZookeeperConsumerConnector], new_group: Callable[[], str]
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
