"""``run(until=...)`` on a real cluster, where the log before the end is not all messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.cluster.conftest import NewTopic
from tests.cluster.member_process import QUICK
from tests.timing import scaled
from zkconsumer import ZookeeperConsumerConnector
from zkconsumer.devcluster import DevCluster

WITHIN = 30.0


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_a_log_that_ends_with_an_aborted_transaction(
    cluster: DevCluster, new_topic: NewTopic, new_group: Callable[[], str], isolation: str
) -> None:
    """The last offset is the marker's, and with read_committed no message comes after the first transaction."""
    from confluent_kafka import Producer

    topic, taken = new_topic(prefix="until"), list[bytes]()
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": topic, "log_level": 0})
    producer.init_transactions(scaled(WITHIN))
    for value, end in ((b"kept", producer.commit_transaction), (b"dropped", producer.abort_transaction)):
        producer.begin_transaction()
        for _ in range(3):
            producer.produce(topic, value)
        producer.flush(scaled(WITHIN))
        end(scaled(WITHIN))
    properties: dict[str, Any] = {
        **QUICK,
        "zookeeper.connect": cluster.zookeeper_connect,
        "group.id": new_group(),
        "isolation.level": isolation,
        "consumer.timeout.ms": int(scaled(WITHIN) * 1000),  # the run may not hang
    }

    with ZookeeperConsumerConnector(properties) as connector:
        connector.run(lambda m: taken.append(m.value), topic, concurrency=2, order="none", until="end")
        position = connector.committed((topic, 0))

    assert sorted(taken) == [b"dropped"] * 3 * (isolation == "read_uncommitted") + [b"kept"] * 3
    assert position == 8  # both markers included
