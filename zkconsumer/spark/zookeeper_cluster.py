"""The cluster as the driver's side of a query asks it: partitions, leaders, log ends, and the group's offsets.

One thread at a time (the planner's, or that of a stream's driver process). No threads are started but those of the
ZooKeeper client. A request that fails because somebody is away, or a leader moves, is asked again until its deadline. A
task uses this only to find the leader of a partition that moved while it was read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from threading import Event
from time import monotonic
from typing import Final, Self, TypeVar

from zkconsumer.config import ConsumerConfig
from zkconsumer.errors import (
    BrokerAuthenticationError,
    BrokerError,
    BrokerResponseError,
    BrokerUnavailableError,
    MalformedNodeError,
    NoBrokersError,
    OffsetCommitError,
    RegistryUnavailableError,
    SessionLostError,
)
from zkconsumer.kafka import BrokerChannel, channel_security
from zkconsumer.kafka import error_codes as codes
from zkconsumer.model import Endpoint, TopicPartition
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.spark.offset_ranges import LogSpan
from zkconsumer.spark.options import Selection
from zkconsumer.wiring.member_parts import reachable, zookeeper_session
from zkconsumer.zookeeper import node_codecs, paths
from zkconsumer.zookeeper.broker_directory import broker_ids, decode_brokers
from zkconsumer.zookeeper.node_cache import NodeCache
from zkconsumer.zookeeper.node_values import Look, Seen
from zkconsumer.zookeeper.session import Session, SessionChanged, SessionState

log = logging.getLogger(__name__)

T = TypeVar("T")

EARLIEST, LATEST = -2, -1
_REGISTRY_TIMEOUT = 15.0
_CLOSE_TIMEOUT = 2.0
BELIEVED: Final = 300.0
"""Seconds after which all nodes are read again although no watch fired, in case a watch was lost."""


def open_channel(config: ConsumerConfig, endpoint: Endpoint, deadline: Deadline) -> BrokerChannel:
    """Return a connected channel to a broker. Raises BrokerError, ConfigException for a file of TLS."""
    channel = BrokerChannel(
        endpoint,
        client_id=config.client_id,
        socket_timeout=config.socket_timeout_ms / 1000,
        receive_buffer=config.socket_receive_buffer_bytes,
        security=channel_security(config),
    )
    channel.connect(deadline)
    return channel


class LiveMembersError(OffsetCommitError):
    """The group's coordinator takes offsets from its members only, as long as it has any."""


class NoTimesError(BrokerError):
    """A broker cannot look up offsets by time (before 0.10.1)."""


class WatchedNodes:
    """The nodes of ZooKeeper that a query knows between its triggers, on one session.

    A query may have hundreds of triggers a second, and a node hardly ever changes in between. So each node is read
    once, with a watch. It is read again only when the watch fires, the connection breaks, or a broker contradicts it.
    Threads: one thread at a time looks and forgets; any thread may call ``doubt``.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self.cache = NodeCache(session, lambda _: None)
        self._doubtful = Event()
        self._until = monotonic() + BELIEVED

    def doubt(self) -> None:
        """Read all nodes again at the next look: the connection broke, and its watches with it. Returns at once."""
        self._doubtful.set()

    def look(self, wanted: Look, deadline: Deadline) -> Seen:
        """Return the wanted nodes; only nodes that are unknown or have changed are read.

        Raises RegistryUnavailableError also where all are known but no watch could tell a change now; RegistryError.
        """
        if not self._session.connected:
            raise RegistryUnavailableError(
                f"not connected to ZooKeeper ({self._session.hosts}); the client keeps trying"
            )
        if self._doubtful.is_set() or monotonic() >= self._until:
            self._doubtful.clear()  # before the reading: a connection that breaks meanwhile makes all doubtful again
            self.cache.refresh()
            self._until = monotonic() + BELIEVED
        return self.cache.look(wanted, deadline)

    def forget(self, paths: Iterable[str]) -> None:
        """Drop these cached nodes, because an answer contradicts them. The next look reads them again."""
        self.cache.forget(paths)


class QueryCluster:
    """A session of ZooKeeper and channels to the brokers, opened when first needed; a context manager.

    Arguments: ``isolation_level`` 1 takes the last stable offset for a log's end.
    """

    nodes: WatchedNodes | None = None
    """What was read of ZooKeeper, while the session is open."""
    _made_anew: frozenset[str] = frozenset()

    def __init__(self, config: ConsumerConfig, isolation_level: int = 0) -> None:
        self._config = config
        self._isolation_level = isolation_level
        self._session: Session | None = None
        self._channels: dict[Endpoint, BrokerChannel] = {}
        self._leaders: dict[TopicPartition, Endpoint] = {}
        self._created: dict[str, int] = {}
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
        session, self._session, self.nodes = self._session, None, None
        if session is not None:
            session.close(Deadline(_CLOSE_TIMEOUT))

    # ---- ZooKeeper ----

    def session(self) -> Session:
        """Return the session, opened if need be. Raises RegistryError."""
        if self._session is None:
            config = self._config
            session = zookeeper_session(config, self._session_changed)
            try:
                session.open(Deadline(config.zookeeper_connection_timeout_ms / 1000))
            except BaseException:
                session.close(Deadline(_CLOSE_TIMEOUT))
                raise
            self._session, self.nodes = session, WatchedNodes(session)
        return self._session

    def _session_changed(self, change: SessionChanged) -> None:
        """Doubt all nodes when the connection breaks. Called on kazoo's connection thread."""
        log.debug("ZooKeeper session: %s", change.state.value)
        nodes = self.nodes
        if nodes is not None and change.state is not SessionState.CONNECTED:
            nodes.doubt()

    def _look(self, wanted: Look) -> Seen:
        """Return nodes as ZooKeeper has them, by watches; see :class:`WatchedNodes`. Raises RegistryError."""
        self.session()
        assert self.nodes is not None
        nodes = self.nodes
        return self.ask(lambda _, deadline: nodes.look(wanted, deadline))

    def _contradicted(self, partitions: Sequence[TopicPartition]) -> None:
        """Look these leaders up again: a broker's answer, or its silence, says that they may have moved."""
        if self.nodes is not None:
            brokers = {paths.broker(endpoint.broker_id) for endpoint in self._leaders.values()}
            self.nodes.forget([paths.BROKER_IDS, *brokers, *map(paths.partition_state, partitions)])

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

    def partitions(self, selection: Selection) -> tuple[tuple[TopicPartition, ...], tuple[str, ...]]:
        """Return the selected partitions that exist, sorted, and the names of topics that do not exist.

        Raises RegistryError; a partition of ``assign`` that its topic does not have is left out.
        """
        topics: Sequence[str] = selection.topics or sorted({tp.topic for tp in selection.partitions})
        if selection.allowed is not None:
            names = self._look(Look(children=[paths.TOPICS])).children[paths.TOPICS] or ()
            excluded = self._config.exclude_internal_topics
            topics = sorted(name for name in names if selection.allowed.allows(name, excluded))
        seen = self._look(Look(nodes=[paths.topic(name) for name in topics])).nodes
        nodes = [seen[paths.topic(name)] for name in topics]
        created = {name: node.czxid for name, node in zip(topics, nodes, strict=True) if node is not None}
        self._made_anew |= {name for name, id_ in created.items() if self._created.get(name, id_) != id_}
        self._created |= created
        found = [
            TopicPartition(name, number)
            for name, node in zip(topics, nodes, strict=True)
            if node is not None
            for number in node_codecs.decode_topic(node.data, paths.topic(name))
        ]
        missing = tuple(name for name, node in zip(topics, nodes, strict=True) if node is None)
        if selection.partitions:
            found = [tp for tp in found if tp in selection.partitions]
        return tuple(sorted(found)), missing

    def made_anew(self) -> frozenset[str]:
        """Return the topics that were deleted and created again since :meth:`partitions` first saw them, each once.

        Their nodes tell that also if the new log is as long as the former one. Brokers that coordinate groups by
        themselves are not asked for it.
        """
        found, self._made_anew = self._made_anew, frozenset()
        return found

    def gone(self, partitions: Sequence[TopicPartition]) -> frozenset[TopicPartition]:
        """Return those that exist no more, as ZooKeeper says now. Raises as :meth:`partitions`."""
        if self.nodes is not None:
            self.nodes.forget({paths.topic(tp.topic) for tp in partitions})
        there, _ = self.partitions(Selection(partitions=tuple(partitions)))
        return frozenset(partitions).difference(there)

    def live_members(self, group: str) -> tuple[str, ...]:
        """Return the ids of the group's live members. Raises RegistryError."""
        ids = paths.ids(group)
        return tuple(sorted(self._look(Look(children=[ids])).children[ids] or ()))

    def leaders(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Endpoint]:
        """Return where to read each partition, without those that have no leader now.

        Raises NoBrokersError, NoReachableEndpointError, RegistryError.
        """
        state_paths = [paths.partition_state(tp) for tp in partitions]
        ids = broker_ids(self._look(Look(children=[paths.BROKER_IDS])).children[paths.BROKER_IDS])
        broker_paths = [paths.broker(broker_id) for broker_id in ids]
        seen = self._look(Look(nodes=state_paths, existing=broker_paths)).nodes
        states = [seen[path] for path in state_paths]
        brokers = decode_brokers(ids, [seen[path] for path in broker_paths])
        if not brokers:
            raise NoBrokersError(f"no broker is registered in ZooKeeper ({self._config.zookeeper_connect})")
        endpoints = {endpoint.broker_id: endpoint for endpoint in reachable(brokers, self._config)}
        found, asked = {}, set(partitions)
        for tp, path, node in zip(partitions, state_paths, states, strict=True):
            leader = None if node is None else node_codecs.decode_partition_state(node.data, path).leader
            if leader in endpoints:
                found[tp] = endpoints[leader]
        self._leaders = {tp: where for tp, where in self._leaders.items() if tp not in asked} | found
        return found

    def seen_leaders(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, Endpoint]:
        """Return the leaders of the last look, unless one is missing. Tasks find leaders that have moved since."""
        if all(tp in self._leaders for tp in partitions):
            return {tp: self._leaders[tp] for tp in partitions}
        return self.leaders(partitions)

    def committed(self, group: str, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the group's offsets, without partitions that have none. A node that cannot be read counts as none.

        Raises RegistryError.
        """
        offset_paths = [paths.offset(group, tp) for tp in partitions]
        nodes = self.ask(lambda session, deadline: session.read(offset_paths, deadline))
        found = {}
        for tp, path, node in zip(partitions, offset_paths, nodes, strict=True):
            if node is None:
                continue
            try:
                offset = node_codecs.decode_offset(node.data, path)
            except MalformedNodeError as error:
                log.warning("%s; taken for none", error)
                continue
            if offset >= 0:
                found[tp] = offset
        return found

    def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Move the group's offsets on to these; one that is further already stays. Not fenced: nobody owns anything.

        Raises OffsetCommitError, RegistryError.
        """
        self._write(group, offsets, also_back=False)

    def set_back(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Set the group's offsets to these, also back: their logs end before them. Raises as :meth:`commit`."""
        self._write(group, offsets, also_back=True)

    def _write(self, group: str, offsets: Mapping[TopicPartition, int], *, also_back: bool) -> None:
        todo = dict(offsets)
        for _ in range(10):  # somebody else may write at the same time, but hardly always
            todo = self.ask(partial(self._write_once, group=group, offsets=todo, also_back=also_back))
            if not todo:
                return
        raise OffsetCommitError(f"group {group}: others keep writing the offsets of {', '.join(map(str, todo))}")

    @staticmethod
    def _write_once(
        session: Session, deadline: Deadline, group: str, offsets: Mapping[TopicPartition, int], also_back: bool
    ) -> dict[TopicPartition, int]:
        """Return the offsets that could not be written because the node changed meanwhile."""
        again = {}
        offset_paths = [paths.offset(group, tp) for tp in offsets]
        nodes = session.read(offset_paths, deadline)
        for (tp, offset), path, node in zip(offsets.items(), offset_paths, nodes, strict=True):
            data = node_codecs.encode_offset(offset)
            if node is None:
                session.ensure([paths.offset_topic(group, tp.topic)], deadline)
                done = session.create(path, data, deadline)
            else:
                reached = not also_back and _reached(node.data, path, offset)
                done = reached or session.write(path, data, deadline, node.version)
            if not done:
                again[tp] = offset
        return again

    # ---- brokers ----

    def log_ends(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the end of each partition's log as consumers see it. Raises BrokerError, RegistryError."""
        return self._list(dict.fromkeys(partitions, LATEST))

    def written_ends(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the end of each leader's log, which may hold messages that consumers cannot read yet.

        An end as consumers see it can go back without any loss. A new leader of Kafka before 2.2 tells an old one until
        its followers have asked it. With ``read_committed`` an open transaction hides messages of an earlier query.
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
        deadline = Deadline(self._config.socket_timeout_ms / 1000)
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
                    asked,
                    Deadline(self._config.socket_timeout_ms / 1000),
                    isolation_level=self._isolation_level,
                    written=written,
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

    def _channel(self, endpoint: Endpoint) -> BrokerChannel:
        channel = self._channels.get(endpoint)
        if channel is None:
            deadline = Deadline(self._config.socket_timeout_ms / 1000)
            channel = self._channels[endpoint] = open_channel(self._config, endpoint, deadline)
        return channel

    def _drop(self, endpoint: Endpoint) -> None:
        channel = self._channels.pop(endpoint, None)
        if channel is not None:
            channel.close()


def _reached(data: bytes, path: str, offset: int) -> bool:
    """Return whether an offset node already says so much."""
    try:
        return node_codecs.decode_offset(data, path) >= offset
    except MalformedNodeError:
        return False


def describe(partitions: Iterable[TopicPartition], limit: int = 5) -> str:
    """Return some partitions as text for a message."""
    names = [str(tp) for tp in partitions]
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")
