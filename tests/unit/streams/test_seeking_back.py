"""A commit takes a seek back into account from the moment it returns, also for messages in the user's hands.

Bug: a commit leaves out messages in hand if the committed offset lies behind them, since the user may have committed
them explicitly. The offset that was committed before a seek back looked the same. So a seek back by one message, or by
less than a batch, was not committed while it was in hand. A crash left the old offset, which skipped the messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.unit.clusters import cluster_with
from tests.unit.streams.bench import elsewhere
from zkconsumer import KafkaStream, ZookeeperConsumerConnector
from zkconsumer.model import TopicPartition
from zkconsumer.testing import FakeCluster
from zkconsumer.zookeeper import paths

TP = TopicPartition("t", 0)
KEPT: dict[str, dict[str, Any]] = {
    "zookeeper": {},
    "kafka": {"offsets.storage": "kafka"},
    "dual": {"offsets.storage": "kafka", "dual.commit.enabled": True},
    "brokers": {"group.coordination": "kafka"},
}


def one_by_one(stream: KafkaStream[Any, Any]) -> Callable[[], list[int]]:
    messages = iter(stream)
    return lambda: [next(messages).offset]


def as_columns(stream: KafkaStream[Any, Any]) -> Callable[[], list[int]]:
    batches = stream.batches(max_rows=5)
    return lambda: next(batches).column("offset").to_pylist()


READS = {"messages": (one_by_one, 9), "columns": (as_columns, 7)}
cluster = cluster_with({"t": [[b"%d" % number for number in range(20)]]})


@pytest.fixture(params=KEPT)
def kept(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def connector(cluster: FakeCluster, kept: str) -> Iterator[ZookeeperConsumerConnector]:
    settings: dict[str, Any] = {
        "group.id": "g",
        "auto.offset.reset": "smallest",
        "auto.commit.enable": False,
        "consumer.timeout.ms": 20_000,
        **KEPT[kept],
    }
    if kept == "brokers":
        settings["bootstrap.servers"] = cluster.bootstrap_servers
    else:
        settings["zookeeper.connect"] = cluster.zookeeper_connect
    with ZookeeperConsumerConnector(settings) as made:
        yield made


def stored(cluster: FakeCluster, kept: str) -> set[int]:
    """Return the offset in each store that matters."""
    found = set()
    if kept in ("zookeeper", "dual"):
        node = cluster.zookeeper.node(paths.offset("g", TP))
        found.add(-1 if node is None else int(node.data))
    if kept != "zookeeper":
        found.add(cluster.committed("g").get(("t", 0), -1))
    return found


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("explicit", [False, True], ids=["by the timer", "after an explicit commit"])
def test_a_seek_back_is_committed_while_the_first_is_in_hand(
    cluster: FakeCluster, connector: ZookeeperConsumerConnector, kept: str, read: str, explicit: bool
) -> None:
    """The offset committed before the seek lies at the end of the message in hand after it.

    The timer's commit does not take an explicit commit of the message in hand back.
    """
    reader, sought = READS[read]
    take = reader(connector.create_message_streams({"t": 1})["t"][0])
    while take()[-1] != 9:
        pass
    connector.commit_offsets()
    assert stored(cluster, kept) == {10}
    connector.seek(TP, sought)
    taken = take()
    assert taken[0] == sought
    if explicit:
        connector.commit_offsets()
    elsewhere(connector.commit_offsets)  # so that what is in hand does not count as finished
    assert stored(cluster, kept) == {taken[-1] + 1 if explicit else sought}
