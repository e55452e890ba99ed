"""The offsets of a group to migrate: in ZooKeeper, at the coordinator, and the partitions' logs.

The main thread uses it. Each connection opens when it is first needed and closes at the end of the ``with`` block.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Self

from zkconsumer.config import ConsumerConfig
from zkconsumer.core.migration.planning import LogRange, Store
from zkconsumer.fetch.fetcher import EARLIEST, LATEST
from zkconsumer.fetch.offset_lookup import OffsetLookup
from zkconsumer.kafka import BrokerChannel, channel_security
from zkconsumer.model import Endpoint, TopicPartition
from zkconsumer.offsets.group_offsets_admin import KafkaSide, OffsetsPlace, ZooKeeperSide
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.wiring import fetch_settings
from zkconsumer.wiring.member_parts import registered_endpoints
from zkconsumer.zookeeper import node_codecs, paths
from zkconsumer.zookeeper.registry_security import registry_security
from zkconsumer.zookeeper.session import Session

_CLOSE_WITHIN = 2.0


class MigratedGroup:
    """One group on one cluster. A context manager.

    Arguments: ``config`` with the addresses and the security; ``timeout`` of each read or write in seconds.
    """

    def __init__(self, config: ConsumerConfig, timeout: float) -> None:
        self.group = config.group_id
        self.cluster = config.zookeeper_connect
        self._config = config
        self._timeout = timeout
        security = channel_security(config)
        self._session = Session(
            config.zookeeper_connect,
            timeout=config.zookeeper_session_timeout_ms / 1000,
            on_change=lambda _: None,
            security=registry_security(config),
        )
        settings = replace(fetch_settings(config), security=security)
        self._lookup = OffsetLookup(settings, self._brokers)
        self._kafka = KafkaSide(self.group, self._brokers, self._channel, self._partitions)
        self._security = security

    def __enter__(self) -> Self:
        """Connect. Raises RegistryError."""
        self._session.open(Deadline(self._config.zookeeper_connection_timeout_ms / 1000))
        return self

    def __exit__(self, *_: object) -> None:
        self._lookup.close()
        self._kafka.close()
        self._session.close(Deadline(_CLOSE_WITHIN))

    def deadline(self) -> Deadline:
        """Return the deadline of one read or write."""
        return Deadline(self._timeout)

    def side(self, store: Store) -> OffsetsPlace:
        """Return one of the stores."""
        return ZooKeeperSide(self._session, self.group) if store is Store.ZOOKEEPER else self._kafka

    def logs(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, LogRange]:
        """Return the logs of the partitions that exist. Raises RegistryError, BrokerError."""
        topics = sorted({tp.topic for tp in partitions})
        wanted = sorted(self._existing(topics, self.deadline()).intersection(partitions))
        ends = self._lookup.find(dict.fromkeys(wanted, LATEST), self.deadline())
        starts = self._lookup.find(dict.fromkeys(wanted, EARLIEST), self.deadline())
        # the start may have moved beyond the end, which was read before it
        return {tp: LogRange(starts[tp] or 0, max(starts[tp] or 0, ends[tp] or 0)) for tp in wanted}

    def _partitions(self, deadline: Deadline) -> Collection[TopicPartition]:
        return self._existing(self._session.children(paths.TOPICS, deadline) or (), deadline)

    def _existing(self, topics: Sequence[str], deadline: Deadline) -> set[TopicPartition]:
        nodes = self._session.read([paths.topic(topic) for topic in topics], deadline)
        return {
            TopicPartition(topic, number)
            for topic, node in zip(topics, nodes, strict=True)
            if node is not None
            for number in node_codecs.decode_topic(node.data, paths.topic(topic))
        }

    def _channel(self, endpoint: Endpoint) -> BrokerChannel:
        config = self._config
        return BrokerChannel(
            endpoint,
            client_id=config.client_id,
            socket_timeout=config.socket_timeout_ms / 1000,
            security=self._security,
        )

    def _brokers(self, deadline: Deadline) -> Sequence[Endpoint]:
        return registered_endpoints(self._session, self._config, deadline)
