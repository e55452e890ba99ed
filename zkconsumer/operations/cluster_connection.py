"""The connections of a command: a session with ZooKeeper, and channels to the brokers.

One thread at a time uses it. A connection opens when it is first needed. Without ``zookeeper.connect`` there is no
session. Brokers are found by ``bootstrap.servers``, else through ZooKeeper.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from zkconsumer.config import ConsumerConfig
from zkconsumer.config.config_definition import closest_name, keys_of
from zkconsumer.config.java_properties import parse_properties
from zkconsumer.config.security_properties import SecurityConfig
from zkconsumer.errors import BrokerUnavailableError, ConfigException, NoBrokersError, RegistryUnavailableError
from zkconsumer.kafka import BrokerChannel, channel_security, choose_endpoint
from zkconsumer.kafka.cluster_metadata import BootstrapBrokers
from zkconsumer.model import Endpoint
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.wiring.member_parts import reachable, registered_endpoints
from zkconsumer.zookeeper.node_codecs import RegisteredBroker
from zkconsumer.zookeeper.registry_security import registry_security
from zkconsumer.zookeeper.session import Session

_CLOSE_WITHIN = 2.0
_CLIENT_ID = "zkconsumer-operations"
_TAKEN = (
    *("client.id", "broker.address.map", "zookeeper.session.timeout.ms", "zookeeper.connect", "bootstrap.servers"),
    *keys_of(SecurityConfig),
)
"""The properties of a command's configuration file that have an effect."""


def command_config(
    zookeeper: str | None, bootstrap: str | None, properties: Mapping[str, str] = {}
) -> tuple[ConsumerConfig, tuple[str, ...]]:
    """Return the configuration of a command's connections, and warnings for misspelt properties.

    Arguments: ``zookeeper`` and ``bootstrap`` are the command's own options, or None; ``properties`` are those of
    ``--command-config``, which may be a file for a member or for a Java tool. Its addresses count if the command names
    none. Raises ConfigException.
    """
    taken = {name: properties[name] for name in _TAKEN if properties.get(name)}
    if zookeeper or bootstrap:
        taken.pop("zookeeper.connect", None)
        taken.pop("bootstrap.servers", None)
    taken |= {name: text for name, text in (("zookeeper.connect", zookeeper), ("bootstrap.servers", bootstrap)) if text}
    if "zookeeper.connect" not in taken and "bootstrap.servers" not in taken:
        raise ConfigException("--zookeeper", "is missing: name ZooKeeper, or brokers with --bootstrap-server, or both")
    by_brokers = {"group.coordination": "kafka"} if "bootstrap.servers" in taken else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some texts name a member's properties that do not matter here
        config = ConsumerConfig({"client.id": _CLIENT_ID, **taken, **by_brokers, "group.id": _CLIENT_ID})
    return config, tuple(_misspelt(properties))


def read_properties(path: str) -> dict[str, str]:
    """Return the properties in a Java properties file. Raises ConfigException that names the file."""
    try:
        return parse_properties(Path(path).read_bytes().decode("iso-8859-1"))
    except (OSError, ValueError) as error:
        raise ConfigException(path, str(error)) from None


def _misspelt(properties: Mapping[str, str]) -> list[str]:
    """Return warnings for unknown properties that look like one of security. Values are not shown."""
    known, security = keys_of(ConsumerConfig), keys_of(SecurityConfig)
    found = []
    for name in properties:
        meant = closest_name(name, known) if name not in known else None
        if meant in security:
            found.append(f"unknown property {name!r} has no effect; did you mean {meant!r}?")
    return found


class ClusterConnection:
    """ZooKeeper and the brokers, as one command uses them. A context manager.

    Arguments: ``config`` of :func:`command_config`; ``timeout`` in seconds of each use.
    """

    def __init__(self, config: ConsumerConfig, timeout: float = 5.0) -> None:
        self.config = config
        self.timeout = timeout
        self.security = channel_security(config)
        self._session: Session | None = None
        self._last_brokers: list[Endpoint] = []
        self._bootstrap: BootstrapBrokers | None = None
        if config.bootstrap_servers:
            self._bootstrap = BootstrapBrokers(
                config.bootstrap_addresses, self.channel, config.security_protocol, config.broker_addresses
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections, within two seconds. May be called again."""
        session, self._session = self._session, None
        if session is not None:
            session.close(Deadline(_CLOSE_WITHIN))

    @property
    def zookeeper(self) -> str:
        """``zookeeper.connect``; empty if ZooKeeper is not asked."""
        return self.config.zookeeper_connect

    @property
    def bootstrap(self) -> str:
        """``bootstrap.servers``; empty if brokers are found through ZooKeeper."""
        return self.config.bootstrap_servers or ""

    @property
    def session(self) -> Session:
        """The open session with ZooKeeper.

        Raises: ConfigException if ZooKeeper was not named; RegistryError if it does not answer within the timeout.
        """
        return self.open_session(Deadline(self.timeout))

    def open_session(self, deadline: Deadline) -> Session:
        """Return :attr:`session`, opened within this deadline."""
        if not self.zookeeper:
            raise ConfigException("--zookeeper", "is missing: this needs ZooKeeper")
        if self._session is None:
            session = self.new_session(self.zookeeper)
            session.open(deadline)
            self._session = session
        return self._session

    def new_session(self, connect: str) -> Session:
        """Return another session with the same login, not open; ``connect`` is as ``zookeeper.connect``."""
        return Session(
            connect,
            timeout=self.config.zookeeper_session_timeout_ms / 1000,
            on_change=lambda _: None,
            security=registry_security(self.config),
        )

    @property
    def knows_brokers(self) -> bool:
        """Whether brokers can be asked without ZooKeeper."""
        return bool(self._bootstrap or self._last_brokers)

    def brokers(self, deadline: Deadline) -> Sequence[Endpoint]:
        """Return the live brokers with the addresses to reach them at; the last known ones while ZooKeeper is away.

        Raises RegistryError, BrokerError.
        """
        if self._bootstrap is not None:
            return self._bootstrap(deadline)
        try:
            found = registered_endpoints(self.open_session(deadline), self.config, deadline)
        except RegistryUnavailableError:
            if not self._last_brokers:
                raise
            return self._last_brokers
        if not found:
            raise NoBrokersError("no broker is registered in ZooKeeper under /brokers/ids")
        self._last_brokers = found
        return found

    def reachable(self, brokers: Sequence[RegisteredBroker]) -> list[Endpoint]:
        """Return the addresses of registered brokers. Raises NoReachableEndpointError if no broker has one."""
        self._last_brokers = reachable(brokers, self.config)
        return self._last_brokers

    def endpoint(self, broker: int, host: str, port: int) -> Endpoint:
        """Return the address of a broker that another broker told of."""
        told = Endpoint(broker, host, port, protocol=self.config.security_protocol)
        return choose_endpoint([told], self.config.security_protocol, self.config.broker_addresses)

    def channel(self, endpoint: Endpoint) -> BrokerChannel:
        """Return a channel to a broker, not connected yet."""
        return BrokerChannel(
            endpoint, client_id=self.config.client_id, socket_timeout=self.timeout, security=self.security
        )

    def connected(self, endpoint: Endpoint, deadline: Deadline) -> BrokerChannel:
        """Return a connected channel to a broker. Raises BrokerError."""
        if deadline.expired:
            raise BrokerUnavailableError(f"broker {endpoint.broker_id}: no time was left to ask it")
        channel = self.channel(endpoint)
        try:
            channel.connect(deadline)
        except BaseException:
            channel.close()
            raise
        return channel
