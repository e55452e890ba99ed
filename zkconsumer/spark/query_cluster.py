"""The cluster as the driver's side of a query asks it: partitions, leaders, log ends, and the group's offsets.

One thread at a time (the planner's, or that of a stream's driver process). No threads are started but those of the
ZooKeeper client. A request that fails because somebody is away, or a leader moves, is asked again until its deadline. A
task uses this only to find the leader of a partition that moved while it was read.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from threading import Event
from typing import Self, TypeVar

from zkconsumer.cluster.cluster_client import BrokerChannels, ClusterClient, security_of
from zkconsumer.config import ConsumerConfig
from zkconsumer.errors import (
    BrokerAuthenticationError,
    BrokerError,
    BrokerResponseError,
    BrokerUnavailableError,
    ConfigException,
    NoBrokersError,
    OffsetCommitError,
    RegistryUnavailableError,
    SessionLostError,
)
from zkconsumer.kafka import BrokerChannel
from zkconsumer.kafka import error_codes as codes
from zkconsumer.model import EARLIEST, LATEST, Endpoint, TopicPartition
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.spark.offset_ranges import LogSpan
from zkconsumer.spark.options import Selection
from zkconsumer.zookeeper.session import Session, SessionChanged

log = logging.getLogger(__name__)

T = TypeVar("T")

_REGISTRY_TIMEOUT = 15.0


class LiveMembersError(OffsetCommitError):
    """The group's coordinator takes offsets from its members only, as long as it has any."""


class NoTimesError(BrokerError):
    """A broker cannot look up offsets by time (before 0.10.1)."""


class RenewedChannels(BrokerChannels):
    """Makes channels, each with the files of TLS as they are then.

    Certificates are renewed under a query that runs for months: a channel with the former ones would be refused. While
    a file cannot be used (somebody may be writing to it), channels are made with the former certificates.
    """

    def __init__(self, config: ConsumerConfig, socket_timeout: float) -> None:
        super().__init__(config, socket_timeout)
        self._config = config

    def __call__(self, endpoint: Endpoint, client_id: str | None = None) -> BrokerChannel:
        """Do as :class:`BrokerChannels`."""
        try:
            self.security = security_of(self._config)
        except ConfigException as error:
            log.warning("the former certificates are used still: %s", error)
        return super().__call__(endpoint, client_id)


class QueryCluster(ABC):
    """A client of the cluster whose connections stay open between the triggers of a query; a context manager.

    Arguments: ``isolation_level`` 1 takes the last stable offset for a log's end.
    """

    def __init__(self, config: ConsumerConfig, isolation_level: int = 0) -> None:
        self._config = config
        self._isolation_level = isolation_level
        self._patience = config.socket_timeout_ms / 1000
        self._client = ClusterClient(
            config, self._patience, on_change=self._session_changed, channels=RenewedChannels(config, self._patience)
        )
        self._channels: dict[Endpoint, BrokerChannel] = {}
        self._leaders: dict[TopicPartition, Endpoint] = {}
        self._pause = Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close everything; within seconds. May be called again."""
        for channel in self._channels.values():
            channel.close()
        self._channels.clear()
        self._client.close()

    # ---- what ZooKeeper or the brokers tell ----

    @abstractmethod
    def partitions(self, selection: Selection) -> tuple[tuple[TopicPartition, ...], tuple[str, ...]]:
        """Return the selected partitions that exist, sorted, and the names of topics that do not exist.

        A partition of ``assign`` that its topic does not have is left out. Raises RegistryError, BrokerError.
        """

    @abstractmethod
    def _find_leaders(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Endpoint]:
        """Look up the leader of each partition. Raises as :meth:`leaders`."""

    @abstractmethod
    def live_members(self, group: str) -> tuple[str, ...]:
        """Return the group's live members, by names that people know. Raises RegistryError, BrokerError."""

    @abstractmethod
    def committed(self, group: str, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the group's offsets, without partitions that have none. Raises RegistryError, BrokerError."""

    @abstractmethod
    def commit(self, group: str, offsets: Mapping[TopicPartition, int], *, also_back: bool = False) -> None:
        """Write the group's offsets. An offset that is further already stays, unless ``also_back`` is true.

        Nothing fences the write: nobody owns anything. Raises OffsetCommitError, RegistryError, BrokerError.
        """

    def made_anew(self) -> frozenset[str]:
        """Return the topics that were deleted and created again since :meth:`partitions` first saw them, each once.

        ZooKeeper tells that also if the new log is as long as the former one. Brokers that coordinate groups by
        themselves are not asked for it.
        """
        return frozenset()

    def gone(self, partitions: Sequence[TopicPartition]) -> frozenset[TopicPartition]:
        """Return those that exist no more. Raises as :meth:`partitions`."""
        there, _ = self.partitions(Selection(partitions=tuple(partitions)))
        return frozenset(partitions).difference(there)

    def leaders(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Endpoint]:
        """Return where to read each partition, without those that have no leader now.

        Raises NoBrokersError, NoReachableEndpointError, RegistryError, BrokerError.
        """
        found, asked = self._find_leaders(partitions), set(partitions)
        self._leaders = {tp: where for tp, where in self._leaders.items() if tp not in asked} | found
        return found

    def seen_leaders(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, Endpoint]:
        """Return the leaders of the last look, unless one is missing. Tasks find leaders that have moved since."""
        if all(tp in self._leaders for tp in partitions):
            return {tp: self._leaders[tp] for tp in partitions}
        return self.leaders(partitions)

    # ---- ZooKeeper ----

    def session(self) -> Session:
        """Return the session, opened if need be. Raises RegistryError."""
        return self._client.open_session(Deadline(self._config.zookeeper_connection_timeout_ms / 1000))

    def _session_changed(self, change: SessionChanged) -> None:
        """Take note of a change. Called on kazoo's connection thread."""
        log.debug("ZooKeeper session: %s", change.state.value)

    def ask(self, question: Callable[[Session, Deadline], T]) -> T:
        """Send a request to ZooKeeper. Retry for a session timeout while ZooKeeper is away. Raises RegistryError."""
        session = self.session()
        deadline = Deadline(max(_REGISTRY_TIMEOUT, 2.0 * session.timeout))
        while True:
            try:
                return question(session, deadline)
            except (RegistryUnavailableError, SessionLostError):
                if deadline.expired:
                    raise
                self._pause.wait(deadline.bounded(self._config.refresh_leader_backoff_ms / 1000))

    # ---- brokers ----

    def log_ends(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the end of each partition's log as consumers see it. Raises BrokerError, RegistryError."""
        return self._list(dict.fromkeys(partitions, LATEST))

    def written_ends(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the end of each leader's log, which may hold messages that consumers cannot read yet.

        An end as consumers see it can go back without any loss. A new leader of Kafka before 2.2 tells an old end until
        its followers have asked. With ``read_committed`` an open transaction hides messages of an earlier query.
        Raises BrokerError, RegistryError.
        """
        return self._list(dict.fromkeys(partitions, LATEST), written=True)

    def log_spans(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, LogSpan]:
        """Return the beginning and the end of each partition's log. Raises BrokerError, RegistryError."""
        ends = self._list(dict.fromkeys(partitions, LATEST))
        firsts = self._list(dict.fromkeys(partitions, EARLIEST))
        # the beginning may have moved beyond the end that was asked for before
        return {tp: LogSpan(firsts[tp], max(firsts[tp], ends[tp])) for tp in partitions}

    def offsets_at(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return the first offsets that are not older than the times (ms since 1970), without partitions that have
        none.

        Raises NoTimesError, BrokerError, RegistryError.
        """
        found = self._list(times)
        return {tp: offset for tp, offset in found.items() if offset >= 0}

    def _list(self, wanted: Mapping[TopicPartition, int], *, written: bool = False) -> dict[TopicPartition, int]:
        """Ask the leaders, and again while one is missing, until all have answered."""
        found: dict[TopicPartition, int] = {}
        deadline = Deadline(self._patience)
        while True:
            left = [tp for tp in wanted if tp not in found]
            if not left:
                return found
            try:
                troubles = self._list_once({tp: wanted[tp] for tp in left}, found, written)
            except NoBrokersError as error:  # perhaps they lost their sessions and will register again
                if deadline.expired:
                    raise
                troubles = [str(error)]
            if troubles and deadline.expired:
                raise BrokerUnavailableError("; ".join(troubles))
            if troubles:
                self._contradicted([tp for tp in left if tp not in found])
                self._pause.wait(deadline.bounded(self._config.refresh_leader_backoff_ms / 1000))

    def _list_once(
        self, wanted: Mapping[TopicPartition, int], found: dict[TopicPartition, int], written: bool
    ) -> list[str]:
        """Make one round; return what went wrong. Raises BrokerResponseError if asking again cannot cure it."""
        leaders = self.leaders(list(wanted))
        troubles = [f"{tp} has no leader" for tp in wanted if tp not in leaders]
        for endpoint in dict.fromkeys(leaders.values()):
            asked = {tp: wanted[tp] for tp, leader in leaders.items() if leader == endpoint}
            try:
                answers = self._channel(endpoint).list_offsets(
                    asked, Deadline(self._patience), isolation_level=self._isolation_level, written=written
                )
            except (BrokerAuthenticationError, BrokerResponseError):
                raise  # asking again cures neither
            except BrokerError as error:
                self._drop(endpoint)
                troubles.append(str(error))
                continue
            for tp in asked:
                answer = answers.get(tp)
                by_time = wanted[tp] >= 0
                known = answer is not None and (answer.offset >= 0 or by_time)  # of a time there may be none
                if answer is not None and answer.error == codes.NONE and known:
                    if by_time and answer.timestamp < 0 <= answer.offset:
                        told = "knows only when segments of its logs ended, not the times of messages"
                        raise NoTimesError(f"broker {endpoint.broker_id} is older than 0.10.1 and {told}")
                    found[tp] = answer.offset
                elif answer is not None and answer.error != codes.NONE and not codes.retriable(answer.error):
                    raise codes.error(answer.error, f"offsets of {tp}")
                else:
                    told = "nothing" if answer is None else codes.name(answer.error)
                    troubles.append(f"broker {endpoint.broker_id} told {told} of {tp}")
        return troubles

    def _contradicted(self, partitions: Sequence[TopicPartition]) -> None:
        """Forget the leaders of these partitions. An answer, or a missing answer, says that leaders may have moved."""
        for tp in partitions:
            self._leaders.pop(tp, None)

    def _channel(self, endpoint: Endpoint) -> BrokerChannel:
        channel = self._channels.get(endpoint)
        if channel is None:
            channel = self._channels[endpoint] = self._client.channels.connected(endpoint, Deadline(self._patience))
        return channel

    def _drop(self, endpoint: Endpoint) -> None:
        channel = self._channels.pop(endpoint, None)
        if channel is not None:
            channel.close()
