"""``run(until=...)`` on a real cluster, where the log before the end is not all messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.cluster.conftest import NewTopic, produce_in_transactions
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
    topic, taken = new_topic(prefix="until"), list[bytes]()
    produce_in_transactions(cluster.bootstrap_servers, topic, ("commit", [b"kept"] * 3), ("abort", [b"dropped"] * 3))
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
