"""The offsets of a group to migrate: in ZooKeeper, at the coordinator, and the partitions' logs.

The main thread uses it. Each connection opens when it is first needed and closes at the end of the ``with`` block.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Self

from zkconsumer.cluster.cluster_client import ClusterClient
from zkconsumer.cluster.group_offsets import KafkaSide, OffsetsPlace, ZooKeeperSide
from zkconsumer.config import ConsumerConfig
from zkconsumer.core.migration.planning import LogRange, Store
from zkconsumer.kafka import EARLIEST, LATEST
from zkconsumer.model import TopicPartition
from zkconsumer.runtime.deadline import Deadline


class MigratedGroup:
    """One group on one cluster. A context manager.

    Arguments: ``config`` with the addresses and the security; ``timeout`` of each read or write in seconds.
    """

    def __init__(self, config: ConsumerConfig, timeout: float) -> None:
        self.group = config.group_id
        self.cluster = config.zookeeper_connect
        self._client = ClusterClient(config, timeout, socket_timeout=config.socket_timeout_ms / 1000)
        self._kafka = KafkaSide(self._client, self.group)

    def __enter__(self) -> Self:
        """Connect. Raises RegistryError."""
        self._client.open_session(Deadline(self._client.config.zookeeper_connection_timeout_ms / 1000))
        return self

    def __exit__(self, *_: object) -> None:
        self._kafka.close()
        self._client.close()

    def deadline(self) -> Deadline:
        """Return the deadline of one read or write."""
        return Deadline(self._client.timeout)

    def side(self, store: Store) -> OffsetsPlace:
        """Return one of the stores."""
        return ZooKeeperSide(self._client.session, self.group) if store is Store.ZOOKEEPER else self._kafka

    def logs(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, LogRange]:
        """Return the logs of the partitions that exist. Raises RegistryError, BrokerError."""
        topics = {tp.topic for tp in partitions}
        wanted = sorted(self._client.describe(topics, self.deadline()).partitions.keys() & set(partitions))
        ends = self._client.lookup.find(dict.fromkeys(wanted, LATEST), self.deadline())
        starts = self._client.lookup.find(dict.fromkeys(wanted, EARLIEST), self.deadline())
        # the start may have moved beyond the end, which was read before it
        return {tp: LogRange(starts[tp] or 0, max(starts[tp] or 0, ends[tp] or 0)) for tp in wanted}
