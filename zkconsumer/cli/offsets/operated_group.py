"""The stores of one group, as the commands that write offsets use them. The main thread's."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import closing
from typing import Self

from zkconsumer.core.migration.planning import Store
from zkconsumer.kafka.cluster_metadata import cluster_of
from zkconsumer.model import TopicPartition
from zkconsumer.offsets.group_offsets_admin import KafkaSide, OffsetsPlace
from zkconsumer.operations.cluster_connection import ClusterConnection
from zkconsumer.operations.offset_writer import GroupOwners, OwnedZooKeeperSide, OwnerCheckedKafkaSide
from zkconsumer.runtime.deadline import Deadline


class OperatedGroup:
    """One group on one cluster. A context manager; it does not close the connection."""

    def __init__(self, connection: ClusterConnection, group: str) -> None:
        self.group = group
        self.connection = connection
        self._kafka: KafkaSide | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._kafka is not None:
            self._kafka.close()

    def side(self, store: Store) -> OffsetsPlace:
        """Return one of the stores. Raises ConfigException if ZooKeeper is needed and was not named; RegistryError."""
        if store is Store.ZOOKEEPER:
            return OwnedZooKeeperSide(self.connection.session, self.group)
        self._kafka = self._kafka or KafkaSide(
            self.group, self.connection.brokers, self.connection.channel, self._partitions
        )
        owners = GroupOwners(self.connection.session, self.group) if self.connection.zookeeper else None
        return OwnerCheckedKafkaSide(self._kafka, owners)

    def _partitions(self, deadline: Deadline) -> Collection[TopicPartition]:
        with closing(self.connection.connected(self.connection.brokers(deadline)[0], deadline)) as channel:
            return list(cluster_of(channel, None, deadline).partitions)
