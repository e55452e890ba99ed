"""The way to the brokers without a group: for questions about topics, and for reading partitions that are named.

A connector asks through its member if it has one. Before that each question opens what it needs, and closes it.

Threads: any, one at a time.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Self

from zkconsumer.config import ConsumerConfig
from zkconsumer.fetch.offset_lookup import OffsetLookup
from zkconsumer.kafka.cluster_metadata import BootstrapBrokers
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.wiring.member_parts import (
    Brokers,
    CoordinatorChannels,
    fetch_settings,
    registered_endpoints,
    zookeeper_session,
)
from zkconsumer.zookeeper.session import Session

CLOSE_WITHIN = 2.0


class ClusterAccess:
    """The brokers that a configuration names: ``bootstrap.servers``, else those registered in ZooKeeper.

    A context manager. Nothing is connected before :meth:`open`. Raises: as :class:`CoordinatorChannels`.
    """

    def __init__(self, config: ConsumerConfig) -> None:
        self.channels = CoordinatorChannels(config)
        self._limit = config.zookeeper_connection_timeout_ms / 1000
        self._session: Session | None = None
        self.brokers: Brokers
        if config.bootstrap_servers:
            self.brokers = BootstrapBrokers(
                config.bootstrap_addresses, self.channels, config.security_protocol, config.broker_addresses
            )
        else:
            self._session = zookeeper_session(config, lambda _: None)
            self.brokers = partial(registered_endpoints, self._session, config)
        settings = replace(fetch_settings(config), security=self.channels.security)
        self.lookup = OffsetLookup(settings, self.brokers)

    def open(self, deadline: Deadline | None = None) -> Self:
        """Connect to ZooKeeper, if the brokers are found there. Raises RegistryError."""
        if self._session is not None:
            self._session.open(Deadline(self._limit if deadline is None else deadline.bounded(self._limit)))
        return self

    def close(self, within: float = CLOSE_WITHIN) -> None:
        """Close the connections, ``within`` so many seconds. May be called again."""
        self.lookup.close()
        if self._session is not None:
            self._session.close(Deadline(within))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
