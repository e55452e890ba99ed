"""The stores of one group, as the commands that write offsets use them. The main thread's."""

from __future__ import annotations

from typing import Self

from zkconsumer.cluster.cluster_client import ClusterClient
from zkconsumer.cluster.group_offsets import GroupOffsets, KafkaGroupOffsets
from zkconsumer.core.offset_moves import Store
from zkconsumer.operations.offset_writer import GroupOwners, OwnedZooKeeperOffsets, OwnerCheckedKafkaOffsets


class OperatedGroup:
    """One group on one cluster. A context manager; it does not close the client."""

    def __init__(self, client: ClusterClient, group: str) -> None:
        self.group = group
        self.client = client
        self._kafka: KafkaGroupOffsets | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._kafka is not None:
            self._kafka.close()

    def offsets(self, store: Store) -> GroupOffsets:
        """Return one of the stores. Raises ConfigException if ZooKeeper is needed and was not named; RegistryError."""
        if store is Store.ZOOKEEPER:
            return OwnedZooKeeperOffsets(self.client.session, self.group)
        self._kafka = self._kafka or KafkaGroupOffsets(self.client, self.group)
        owners = GroupOwners(self.client.session, self.group) if self.client.zookeeper else None
        return OwnerCheckedKafkaOffsets(self._kafka, owners)
