"""The nodes of brokers and topics that a fake cluster writes into its fake ZooKeeper.

The thread that changes the cluster calls it. The nodes are those of Kafka 1.1 and 3.9 in ZooKeeper mode.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from zkconsumer.testing.fake_zookeeper import FakeZooKeeper
from zkconsumer.testing.partition_log import PartitionLog
from zkconsumer.zookeeper import paths


class BrokerRegistration:
    """Writes the nodes of one cluster's brokers and topics into a FakeZooKeeper."""

    def __init__(self, zookeeper: FakeZooKeeper, modern: bool) -> None:
        self._zookeeper = zookeeper
        self._version = 5 if modern else 4

    def prepare(self) -> None:
        """Make the directories that the first broker of a cluster makes."""
        for path in ("/consumers", "/brokers/ids", "/brokers/topics", "/config/topics", "/admin/delete_topics"):
            if self._zookeeper.node(path) is None:
                self._zookeeper.put(path)

    def broker_started(self, broker_id: int, host: str, port: int) -> None:
        """Write a broker's node."""
        node: dict[str, object] = {
            "listener_security_protocol_map": {"PLAINTEXT": "PLAINTEXT"},
            "endpoints": [f"PLAINTEXT://{host}:{port}"],
            "jmx_port": -1,
            "host": host,
            "timestamp": "1700000000000",
            "port": port,
            "version": self._version,
        }
        if self._version >= 5:
            node["features"] = {}
        self._put(paths.broker(broker_id), node)

    def broker_stopped(self, broker_id: int) -> None:
        """Delete a broker's node."""
        self._zookeeper.remove(paths.broker(broker_id))

    def topic(self, name: str, logs: Sequence[PartitionLog]) -> None:
        """Write a topic's node with all its partitions."""
        partitions = {str(log.where.partition): [max(log.leader, 0)] for log in logs}
        for log in logs:
            self.leader(log)
        self._put(paths.topic(name), {"version": 1, "partitions": partitions})

    def topic_deleted(self, name: str) -> None:
        """Delete a topic's nodes."""
        self._zookeeper.remove(paths.topic(name))

    def leader(self, log: PartitionLog) -> None:
        """Write a partition's leader."""
        state = {
            "controller_epoch": 1,
            "leader": log.leader,
            "version": 1,
            "leader_epoch": log.epoch,
            "isr": [max(log.leader, 0)],
        }
        self._put(paths.partition_state(log.where), state)

    def _put(self, path: str, content: object) -> None:
        self._zookeeper.put(path, json.dumps(content, separators=(",", ":")).encode())
