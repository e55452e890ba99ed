"""A member of a cluster in memory whose ``run`` with ``concurrency`` is under way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import Thread
from types import MappingProxyType
from typing import Any

from tests.timing import scaled
from zkconsumer import Retry, ZookeeperConsumerConnector
from zkconsumer.balance.balance_state import PartitionBalance
from zkconsumer.model import TopicPartition
from zkconsumer.testing import FakeCluster

T0 = TopicPartition("t", 0)
PATIENT = Retry(delays=(3600.0,), park_after=99, park_seconds=9e9, jitter=0.0)
"""Failed messages neither come again nor are parked while a test lasts."""


@contextmanager
def running(
    cluster: FakeCluster, handler: Any, *, properties: Mapping[str, str] = MappingProxyType({}), **options: Any
) -> Iterator[ZookeeperConsumerConnector]:
    """A member that handles the topic ``t``. The run must end with its shutdown, and without an error.

    A handler that waits has an event ``go``, which is set before the shutdown.
    """
    base = {"group.id": "g", "auto.offset.reset": "smallest", "auto.commit.interval.ms": "60000"}
    if "group.coordination" not in properties:
        base["zookeeper.connect"] = cluster.zookeeper_connect
    failures: list[BaseException] = []
    connector = ZookeeperConsumerConnector({**base, **properties})

    def run() -> None:
        try:
            connector.run(handler, "t", **{"concurrency": 4, "order": "none", "retry": PATIENT, **options})
        except BaseException as error:
            failures.append(error)

    thread = Thread(target=run, name="the run")
    thread.start()
    try:
        yield connector
    finally:
        if (go := getattr(handler, "go", None)) is not None:
            go.set()  # also after a failure: nobody else ends the handler
        connector.shutdown(scaled(10))
        thread.join(scaled(20))
    assert not thread.is_alive()
    assert failures == []


def at_work(connector: ZookeeperConsumerConnector, tp: TopicPartition = T0) -> PartitionBalance:
    """Return the run's work on a partition, with base -1 while the partition is not read."""
    found = [one for one in (connector.balance.partitions if connector.balance else ()) if one.partition == tp]
    return found[0] if found else PartitionBalance(tp, -1)
