"""Where a group's offsets are: the session of ZooKeeper, the coordinator, the logs. For ``zkconsumer migrate``.

Used by the main thread. Everything is opened when it is first needed and closed at the end of the ``with`` block.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Self

from zkconsumer.config import ConsumerConfig
from zkconsumer.core.migration.planning import LogSpan, Store
from zkconsumer.deadline import Deadline
from zkconsumer.errors import NoReachableEndpointError
from zkconsumer.fetch.fetcher import EARLIEST, LATEST
from zkconsumer.fetch.offset_lookup import OffsetLookup
from zkconsumer.kafka import BrokerChannel, channel_security, choose_endpoint
from zkconsumer.model import Endpoint, TopicPartition
from zkconsumer.offsets.admin import KafkaSide, Side, ZooKeeperSide
from zkconsumer.wiring import fetch_settings
from zkconsumer.zookeeper import node_codecs, paths
from zkconsumer.zookeeper.broker_directory import registered_brokers
from zkconsumer.zookeeper.security import registry_security
from zkconsumer.zookeeper.session import Session

_CLOSE_WITHIN = 2.0


class GroupOffsets:
    """One group on one cluster.

    Arguments: ``config`` says where and as whom; ``timeout`` in seconds for each look or write. A context manager.
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
        """Connects. Raises RegistryError."""
        self._session.open(Deadline(self._config.zookeeper_connection_timeout_ms / 1000))
        return self

    def __exit__(self, *_: object) -> None:
        self._lookup.close()
        self._kafka.close()
        self._session.close(Deadline(_CLOSE_WITHIN))

    def deadline(self) -> Deadline:
        """For one look or write."""
        return Deadline(self._timeout)

    def side(self, store: Store) -> Side:
        """One of the stores."""
        return ZooKeeperSide(self._session, self.group) if store is Store.ZOOKEEPER else self._kafka

    def logs(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, LogSpan]:
        """The logs of those that exist. Raises RegistryError, BrokerError where one cannot be asked for now."""
        topics = sorted({tp.topic for tp in partitions})
        wanted = sorted(self._existing(topics, self.deadline()).intersection(partitions))
        ends = self._lookup.find(dict.fromkeys(wanted, LATEST), self.deadline())
        starts = self._lookup.find(dict.fromkeys(wanted, EARLIEST), self.deadline())
        # the start may have moved beyond the end that was asked for before
        return {tp: LogSpan(starts[tp] or 0, max(starts[tp] or 0, ends[tp] or 0)) for tp in wanted}

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
        found: list[Endpoint] = []
        unreachable: NoReachableEndpointError | None = None
        for broker in registered_brokers(self._session, deadline):
            try:
                found.append(
                    choose_endpoint(broker.endpoints, self._config.security_protocol, self._config.broker_addresses)
                )
            except NoReachableEndpointError as e:
                unreachable = e
        if not found and unreachable is not None:
            raise unreachable
        return found
