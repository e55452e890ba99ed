"""Acknowledgements survive a member, wherever its group keeps offsets: ZooKeeper, Kafka, or both."""

from __future__ import annotations

from contextlib import suppress
from threading import Event, Thread
from typing import Any

import pytest

from tests.timing import eventually, scaled
from tests.unit.clusters import cluster_with
from zkconsumer import ConsumerTimeoutException, ZookeeperConsumerConnector
from zkconsumer.errors import OffsetCommitError
from zkconsumer.testing import FakeCluster

COUNT = 30
WHERE: dict[str, dict[str, Any]] = {
    "zookeeper": {},
    "kafka": {"offsets.storage": "kafka"},
    "both": {"offsets.storage": "kafka", "dual.commit.enabled": True},
    "brokers": {"group.coordination": "kafka"},
}

cluster = cluster_with({"events": [[]]})


def connector(cluster: FakeCluster, where: str, **more: Any) -> ZookeeperConsumerConnector:
    base = {
        "zookeeper.connect": cluster.zookeeper_connect,
        "group.id": "g",
        "auto.offset.reset": "smallest",
        "consumer.timeout.ms": int(scaled(1.0) * 1000),
    }
    if where == "brokers":
        base["bootstrap.servers"] = cluster.bootstrap_servers
    return ZookeeperConsumerConnector(base | WHERE[where] | more)


@pytest.mark.parametrize("where", WHERE)
def test_only_what_was_in_hand_is_repeated(cluster: FakeCluster, where: str) -> None:
    cluster.append("events", 0, [b"%d" % n for n in range(COUNT)])
    one, done, free = connector(cluster, where, **{"rebalance.drain.timeout.ms": 1}), set[int](), Event()

    def stuck(message: Any) -> None:
        if message.offset == 3:
            free.wait(scaled(60))
            raise RuntimeError("the member ends before it is handled")
        done.add(message.offset)

    def run() -> None:
        with suppress(ConsumerTimeoutException, OffsetCommitError):
            one.run(stuck, "events", concurrency=4, order="none")

    thread = Thread(target=run, daemon=True)
    thread.start()
    eventually(lambda: len(done) == COUNT - 1, 20, "all others to be handled")
    one.commit_offsets()
    with suppress(OffsetCommitError):  # it tells what is consumed again
        one.shutdown(timeout=scaled(1.0))
    free.set()
    thread.join(scaled(20))
    again: list[int] = []
    two = connector(cluster, where)
    with pytest.raises(ConsumerTimeoutException):
        two.run(lambda message: again.append(message.offset), "events", concurrency=4, order="none")
    two.shutdown()
    assert again == [3]
