"""Consumed messages, the time of commits, and where reading begins, on a cluster in memory.

A message is finished when the reader asks its stream for the next one. So a crash may repeat messages, and loses none.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from tests.cluster.in_process import Reader
from tests.timing import eventually, scaled
from tests.unit.clusters import Join, cluster_with, committed, connectors_with
from zkconsumer import ConsumerTimeoutException, KafkaStream, ZookeeperConsumerConnector
from zkconsumer.testing import FakeCluster

SECONDS = scaled(15)
COUNT = 10
cluster = cluster_with({"events": [[]]})
join = connectors_with({"auto.commit.interval.ms": 50})


@pytest.fixture(autouse=True)
def _messages(cluster: FakeCluster) -> None:
    for first in (0, 5):
        cluster.append("events", 0, [b"%d" % number for number in range(first, first + 5)])


def only_stream(connector: ZookeeperConsumerConnector) -> KafkaStream[Any, Any]:
    (stream,) = connector.create_message_streams({"events": 1})["events"]
    return stream


def read_from(cluster: FakeCluster, stream: KafkaStream[Any, Any], start: int) -> None:
    """Check that the stream begins there, and that the start is stored before a message that comes later."""
    reader = Reader(stream)
    eventually(lambda: committed(cluster)[0] in (start, COUNT), 10, "the start is stored")
    cluster.append("events", 0, [b"new"])
    assert [message.offset for message in reader.wait_for(COUNT + 1 - start)] == list(range(start, COUNT + 1))


def test_with_consumed_on_return_a_hand_out_counts(cluster: FakeCluster, join: Join) -> None:
    """With ``consumed.on.return`` a message counts as consumed when it is handed out."""
    member = join(**{"consumed.on": "return"})
    stream = only_stream(member)
    for count in (3, COUNT):
        while stream.get(SECONDS).offset < count - 1:
            pass
        eventually(lambda count=count: committed(cluster) == [count], 5, "a commit beyond the message in hand")  # type: ignore[misc]
    with pytest.raises(ConsumerTimeoutException):
        stream.get(0.1)
    member.shutdown()
    assert committed(cluster) == [COUNT]


@pytest.mark.parametrize("fails", [False, True], ids=["it ends", "it fails"])
def test_leaving_with_counts_the_message_in_hand(cluster: FakeCluster, join: Join, *, fails: bool) -> None:
    """An exception leaves it unfinished."""
    with suppress(KeyError), join() as member:
        for message in only_stream(member):
            if message.offset == 4:
                if fails:
                    raise KeyError
                break
    assert committed(cluster) == [4 if fails else 5]
    nodes = cluster.zookeeper.tree("/consumers/g")
    assert not any("/ids/" in path or "/owners/events/" in path for path in nodes)


@pytest.mark.parametrize("stored", [None, -1, 10_000])
@pytest.mark.parametrize("reset", ["smallest", "largest"])
def test_the_reset_policy_applies_without_a_valid_offset(
    cluster: FakeCluster, join: Join, reset: str, stored: int | None
) -> None:
    """An offset beyond the log's end belongs to an older, longer log. All messages are new, so reading starts at the
    beginning whatever the reset policy. The original starts at the end with ``largest``.
    """
    if stored is not None:
        cluster.zookeeper.put("/consumers/g/offsets/events/0", b"%d" % stored)
    stream = only_stream(join(**{"auto.offset.reset": reset}))
    read_from(cluster, stream, 0 if reset == "smallest" or stored == 10_000 else COUNT)


@pytest.mark.parametrize(("reset", "start"), [("smallest", 5), ("largest", COUNT)])
def test_the_reset_policy_applies_to_a_deleted_offset(cluster: FakeCluster, join: Join, reset: str, start: int) -> None:
    """The reset policy decides where to begin if the stored offset was deleted from the log."""
    cluster.zookeeper.put("/consumers/g/offsets/events/0", b"2")
    cluster.truncate_before("events", 0, 5)
    read_from(cluster, only_stream(join(**{"auto.offset.reset": reset})), start)
