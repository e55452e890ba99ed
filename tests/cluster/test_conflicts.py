"""Conflicts: another program writes the offset of a partition that a member owns.

It sends an old commit request to a broker, which writes to ZooKeeper.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable

import pytest
from kazoo.client import KazooClient

from tests.cluster.conftest import NewTopic
from tests.cluster.in_process import Reader, offsets_of
from tests.timing import eventually, scaled
from zkconsumer import ZookeeperConsumerConnector
from zkconsumer.devcluster import DevCluster
from zkconsumer.errors import OffsetConflictError

OFFSET_COMMIT = 8
MESSAGES, THEIRS = 20, 5


def through_a_broker(cluster: DevCluster, group: str, topic: str, offset: int) -> None:
    """Send an OffsetCommit of version 0, which brokers write to ZooKeeper."""

    def text(value: str) -> bytes:
        return struct.pack(">h", len(value)) + value.encode()

    request = struct.pack(">hhi", OFFSET_COMMIT, 0, 1) + text("old") + text(group)
    request += struct.pack(">i", 1) + text(topic) + struct.pack(">iiq", 1, 0, offset) + text("")
    host, port = cluster.bootstrap_servers.split(",")[0].rsplit(":", 1)
    with socket.create_connection((host, int(port)), scaled(10)) as broker:
        broker.sendall(struct.pack(">i", len(request)) + request)
        size = struct.unpack(">i", broker.recv(4, socket.MSG_WAITALL))[0]
        answer = broker.recv(size, socket.MSG_WAITALL)
    assert struct.unpack(">h", answer[-2:]) == (0,), "the broker's error code"


@pytest.mark.parametrize("conflict", ["adopt", "overwrite", "raise"])
def test_an_offset_conflict_is_resolved_as_configured(
    connector: Callable[..., ZookeeperConsumerConnector],
    new_topic: NewTopic,
    new_group: Callable[[], str],
    produce: Callable[..., int],
    zookeeper: KazooClient,
    cluster: DevCluster,
    conflict: str,
) -> None:
    topic, group = new_topic(1), new_group()
    member = connector(
        group, **{"offset.conflict": conflict, "auto.commit.interval.ms": 200, "rebalance.interval.ms": 1000}
    )
    reader = Reader(member.create_message_streams({topic: 1})[topic][0])
    produce(topic, [b"%d" % number for number in range(MESSAGES)], partitions=1)
    eventually(lambda: offsets_of(zookeeper, group, topic) == {0: MESSAGES}, 20, "a commit")
    through_a_broker(cluster, group, topic, THEIRS)
    if conflict == "raise":
        eventually(lambda: isinstance(reader.error, OffsetConflictError), 20, "an error at the reader")
        assert (reader.error.ours, reader.error.theirs) == (MESSAGES, THEIRS)  # type: ignore[union-attr]
        assert offsets_of(zookeeper, group, topic) == {0: THEIRS}
        return
    eventually(lambda: offsets_of(zookeeper, group, topic) == {0: MESSAGES}, 20, "ours again")
    again = list(range(THEIRS, MESSAGES)) if conflict == "adopt" else []
    eventually(lambda: [m.offset for m in reader.got] == [*range(MESSAGES), *again], 20, "what comes again")
