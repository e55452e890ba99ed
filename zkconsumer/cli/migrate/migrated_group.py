"""The offsets of a group to migrate: in ZooKeeper, at the coordinator, and the partitions' logs. The main thread's."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Self

from zkconsumer.cluster.cluster_client import ClusterClient, existing_partitions
from zkconsumer.cluster.group_offsets import REASONS, GroupOffsets, KafkaGroupOffsets, ZooKeeperGroupOffsets
from zkconsumer.config import ConsumerConfig
from zkconsumer.core.offset_moves import LogRange, Step, Store
from zkconsumer.model import TopicPartition
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.zookeeper.fenced_writes import Outcome


class MemberlessOffsets:
    """A store to write. It looks for live members, and at the offsets in Kafka, right before each write.

    Arguments: ``live`` returns the live members that forbid a write.
    """

    def __init__(self, offsets: GroupOffsets, live: Callable[[], Sequence[str]]) -> None:
        self._offsets = offsets
        self._live = live
        self.store, self.read, self.members = offsets.store, offsets.read, offsets.members
        self.catch_up = offsets.catch_up

    def write(self, steps: Sequence[Step], deadline: Deadline) -> dict[TopicPartition, str]:
        """Write the steps whose offsets are those that the undo file has. Raises as :class:`GroupOffsets`."""
        if live := self._live():
            return dict.fromkeys((step.partition for step in steps), f"{live[0]} has come meanwhile")
        refused: dict[TopicPartition, str] = {}
        if self.store is Store.KAFKA:  # a commit names no version, so it would overwrite what came meanwhile
            held = self.read(deadline)
            moved = [step.partition for step in steps if held.get(step.partition) != step.before]
            refused = dict.fromkeys(moved, REASONS[Outcome.OFFSET_MOVED])
        allowed = [step for step in steps if step.partition not in refused]
        return {**refused, **(self._offsets.write(allowed, deadline) if allowed else {})}


class MigratedGroup:
    """One group on one cluster. A context manager; each connection opens when it is first needed.

    Arguments: ``config`` with the addresses and the security; ``timeout`` of each read or write in seconds.
    """

    def __init__(self, config: ConsumerConfig, timeout: float) -> None:
        self.group = config.group_id
        self.cluster = config.zookeeper_connect
        self.timeout = timeout
        self._client = ClusterClient(config, timeout, socket_timeout=config.socket_timeout_ms / 1000)
        self._kafka = KafkaGroupOffsets(self._client, self.group)

    def __enter__(self) -> Self:
        """Connect. Raises RegistryError."""
        self._client.open_session(Deadline(self._client.config.zookeeper_connection_timeout_ms / 1000))
        return self

    def __exit__(self, *_: object) -> None:
        self._kafka.close()
        self._client.close()

    def deadline(self) -> Deadline:
        """Return the deadline of one read or write."""
        return Deadline(self.timeout)

    def offsets(self, store: Store) -> GroupOffsets:
        """Return one of the stores."""
        return ZooKeeperGroupOffsets(self._client.session, self.group) if store is Store.ZOOKEEPER else self._kafka

    def logs(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, LogRange]:
        """Return the logs of the partitions that exist. Raises RegistryError, BrokerError."""
        topics = {tp.topic for tp in partitions}
        wanted = sorted(existing_partitions(self._client, topics, self.deadline()) & set(partitions))
        return self._client.lookup.logs(wanted, self.deadline())
