"""The connections to one cluster: a session with ZooKeeper, and channels to the brokers.

Everything that asks a cluster without being a member has a :class:`ClusterClient`: the commands, an application's
questions about topics, a query of Spark. Members take only the functions that make a session or a channel. A connection
opens when it is first needed. Without ``zookeeper.connect`` there is no session. Brokers are found by
``bootstrap.servers``, else through ZooKeeper.

:func:`command_config` makes the configuration of a command from its options and the file of ``--command-config``. Any
thread may call it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Self

from zkconsumer.cluster.offset_lookup import OffsetLookup
from zkconsumer.config import ConsumerConfig
from zkconsumer.config.config_definition import keys_of
from zkconsumer.config.java_properties import parse_properties
from zkconsumer.config.security_properties import SecurityConfig
from zkconsumer.config.unknown_properties import closest_name
from zkconsumer.errors import (
    BrokerError,
    BrokerUnavailableError,
    ConfigException,
    NoBrokersError,
    NoReachableEndpointError,
    RegistryError,
    RegistryUnavailableError,
)
from zkconsumer.kafka import BrokerChannel, Security, choose_endpoint
from zkconsumer.kafka.cluster_metadata import BootstrapBrokers, ClusterSeen, cluster_of
from zkconsumer.model import Endpoint, TopicPartition
from zkconsumer.runtime.deadline import Deadline

if TYPE_CHECKING:
    from zkconsumer.kafka.coordinator_client import OffsetClient
    from zkconsumer.zookeeper.node_codecs import RegisteredBroker
    from zkconsumer.zookeeper.session import Session, SessionChanged


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


CLOSE_WITHIN = 2.0
"""Seconds for the end of a session."""
_NO_CREATION = 4  # the version of Metadata that creates no topic

Brokers = Callable[[Deadline], Sequence[Endpoint]]


def zookeeper_session(
    config: ConsumerConfig, on_change: Callable[[SessionChanged], None], connect: str | None = None
) -> Session:
    """Return a ZooKeeper session that is not open yet.

    Arguments: ``on_change`` as for :class:`Session`; ``connect`` takes the place of ``zookeeper.connect``.
    """
    # imported here because a task of Spark makes channels to brokers only, and kazoo takes longer to import than a read
    from zkconsumer.zookeeper.session import Session
    from zkconsumer.zookeeper.zookeeper_security import zookeeper_security

    return Session(
        config.zookeeper_connect if connect is None else connect,
        timeout=config.zookeeper_session_timeout_ms / 1000,
        on_change=on_change,
        security=zookeeper_security(config),
    )


def security_of(config: ConsumerConfig) -> Security | None:
    """Return TLS and the login of channels to brokers, None for neither. Raises: as :class:`BrokerChannels`."""
    if not config.uses_tls and not config.uses_sasl:
        return None
    from zkconsumer.kafka.channel_security import channel_security

    return channel_security(config)


class BrokerChannels:
    """Makes channels to brokers. Any thread.

    Arguments: ``socket_timeout`` in seconds is how long a broker may be silent.
    Raises: ConfigException for a file of the configuration that cannot be used, MissingExtraError for a login that
    needs a library.
    """

    def __init__(self, config: ConsumerConfig, socket_timeout: float) -> None:
        self.security = security_of(config)
        self._client_id = config.client_id
        self._socket_timeout = socket_timeout
        self._receive_buffer = config.socket_receive_buffer_bytes

    def __call__(self, endpoint: Endpoint, client_id: str | None = None) -> BrokerChannel:
        """Return a channel that is not connected yet; ``client_id`` is by default the configured one."""
        return BrokerChannel(
            endpoint,
            client_id=client_id or self._client_id,
            socket_timeout=self._socket_timeout,
            receive_buffer=self._receive_buffer,
            security=self.security,
        )

    def connected(self, endpoint: Endpoint, deadline: Deadline) -> BrokerChannel:
        """Return a connected channel to a broker. Raises BrokerError."""
        if deadline.expired:
            raise BrokerUnavailableError(f"broker {endpoint.broker_id}: no time was left to ask it")
        channel = self(endpoint)
        try:
            channel.connect(deadline)
        except BaseException:
            channel.close()
            raise
        return channel


def bootstrap_brokers(config: ConsumerConfig, channels: Callable[[Endpoint], BrokerChannel]) -> BootstrapBrokers:
    """Return the brokers of ``bootstrap.servers``."""
    return BootstrapBrokers(config.bootstrap_addresses, channels, config.security_protocol, config.broker_addresses)


def registered_endpoints(session: Session, config: ConsumerConfig, deadline: Deadline) -> list[Endpoint]:
    """Return the brokers that are registered in ZooKeeper, each with the address to reach it at.

    Raises: RegistryError; NoReachableEndpointError if no broker has such an address.
    """
    from zkconsumer.zookeeper.broker_directory import registered_brokers

    return reachable(registered_brokers(session, deadline), config)


def reachable(brokers: Iterable[RegisteredBroker], config: ConsumerConfig) -> list[Endpoint]:
    """Return the addresses of these brokers. Raises NoReachableEndpointError if no broker has one that we can use."""
    found: list[Endpoint] = []
    unreachable: NoReachableEndpointError | None = None
    for broker in brokers:
        try:
            found.append(choose_endpoint(broker.endpoints, config.security_protocol, config.broker_addresses))
        except NoReachableEndpointError as e:
            unreachable = e  # it harms only its own partitions (in the original: those of all brokers)
    if not found and unreachable is not None:
        raise unreachable
    return found


def existing_partitions(
    client: ClusterClient, topics: Collection[str] | None, deadline: Deadline
) -> set[TopicPartition]:
    """Return the partitions of these topics (None: of all topics) that exist.

    ZooKeeper tells which exist: a single broker may have old metadata, or may not know a new topic yet. Brokers are
    asked if ZooKeeper was not named. Raises RegistryError, BrokerError.
    """
    if not client.zookeeper:
        return set(client.describe(topics, deadline).partitions)
    from zkconsumer.zookeeper import node_codecs, paths

    session = client.open_session(deadline)
    names = sorted((session.children(paths.TOPICS, deadline) or ()) if topics is None else topics)
    nodes = session.read([paths.topic(name) for name in names], deadline)
    return {
        TopicPartition(name, number)
        for name, node in zip(names, nodes, strict=True)
        if node is not None
        for number in node_codecs.decode_topic(node.data, paths.topic(name))
    }


class ClusterClient:
    """ZooKeeper and the brokers that a configuration names. A context manager.

    One thread at a time calls; after :meth:`open`, any thread may ask for brokers and use ``lookup``.

    Arguments: ``timeout`` in seconds of each use; ``socket_timeout`` in seconds is how long a broker may be silent, by
    default as long; ``on_change`` as for :class:`Session`; ``channels`` makes the channels, by default with the files
    of TLS as they are now. Raises: as :class:`BrokerChannels`.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        timeout: float = 5.0,
        *,
        socket_timeout: float | None = None,
        on_change: Callable[[SessionChanged], None] = lambda _: None,
        channels: BrokerChannels | None = None,
    ) -> None:
        self.config = config
        self.timeout = timeout
        self.channels = channels or BrokerChannels(config, timeout if socket_timeout is None else socket_timeout)
        self.lookup = OffsetLookup(
            self.brokers,
            self.channels,
            config.refresh_leader_backoff_ms / 1000,
            1 if config.isolation_level == "read_committed" else 0,
        )
        self._on_change = on_change
        self._bootstrap = bootstrap_brokers(config, self.channels) if config.bootstrap_servers else None
        self.multi_read = Event()  # see zookeeper.node_requests
        self._session: Session | None = None
        self._last_brokers: list[Endpoint] = []
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self, deadline: Deadline) -> Self:
        """Connect to ZooKeeper, if the brokers are found there. Raises RegistryError."""
        if self._bootstrap is None:
            self.open_session(Deadline(deadline.bounded(self.config.zookeeper_connection_timeout_ms / 1000)))
        return self

    def close(self, within: float = CLOSE_WITHIN) -> None:
        """Close the connections for good, ``within`` so many seconds. May be called again."""
        try:
            self._close(within)
        except BaseException:  # also an interrupt, after which nobody may call this again
            self._close(min(within, 1.0))
            raise

    def _close(self, within: float) -> None:
        self._closed = True
        self.lookup.close()
        session = self._session
        if session is not None:
            session.close(Deadline(within))
            self._session = None

    # ---- ZooKeeper ----

    @property
    def zookeeper(self) -> str:
        """``zookeeper.connect``; empty if ZooKeeper is not asked."""
        return self.config.zookeeper_connect

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
        session = self._session
        if session is None:
            if self._closed:  # a thread that a close left behind must not begin another session
                raise RegistryUnavailableError("the client of the cluster was closed")
            session = zookeeper_session(self.config, self._on_change)
            session.multi_read = self.multi_read
            try:
                session.open(deadline)
                self._session = session
                if self._closed:  # in the meantime, by a thread that did not see this session
                    raise RegistryUnavailableError("the client of the cluster was closed")
            except BaseException as error:  # also an interrupt: nobody else knows the open session
                # ZooKeeper has been waited for if the session did not open
                waited = isinstance(error, RegistryError) and self._session is None
                self._session = None
                session.close(Deadline(0.0 if waited else CLOSE_WITHIN))
                raise
        return session

    # ---- brokers ----

    @property
    def bootstrap(self) -> str:
        """``bootstrap.servers``; empty if brokers are found through ZooKeeper."""
        return self.config.bootstrap_servers or ""

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

    def describe(
        self, topics: Collection[str] | None, deadline: Deadline, brokers: Collection[Endpoint] | None = None
    ) -> ClusterSeen:
        """Return the brokers, and the partitions of these topics (None: all), told by the first broker that answers.

        Each broker but the last one has half of the time that is left. Arguments: ``brokers`` are those to ask, by
        default the live ones. Creates no topic. Raises BrokerError, RegistryError.
        """
        asked = list(self.brokers(deadline) if brokers is None else brokers)
        trouble: BrokerError | None = None
        for number, endpoint in enumerate(asked, 1):
            # a silent broker must leave time for the others
            left = deadline.remaining()
            share = deadline if left is None or number == len(asked) else Deadline(left / 2)
            try:
                with closing(self.channels.connected(endpoint, share)) as channel:
                    # brokers before 0.11 create a topic that is asked for by name, so they are asked for all
                    safe = channel.versions.get("Metadata", 0) >= _NO_CREATION
                    return cluster_of(channel, topics if safe else None, share)
            except BrokerError as error:
                trouble = trouble or error
        raise trouble or BrokerUnavailableError("no broker is known")

    def group_client(self, group: str, brokers: Brokers | None = None, *, offsets_only: bool = False) -> OffsetClient:
        """Return a client of the coordinator of a group, not connected; the caller closes it.

        Arguments: ``brokers`` and ``offsets_only`` as for :class:`CoordinatorSearch`.
        """
        from zkconsumer.kafka.coordinator_client import CoordinatorSearch, OffsetClient

        search = CoordinatorSearch(group, brokers or self.brokers, self.channels, offsets_only=offsets_only)
        return OffsetClient(search)
