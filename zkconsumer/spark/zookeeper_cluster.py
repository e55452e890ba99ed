"""The cluster as a query asks it by default: ZooKeeper, also for offsets. Threads: see ``query_cluster``."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from threading import Event
from time import monotonic
from typing import Final

from zkconsumer.cluster.cluster_client import reachable
from zkconsumer.config import ConsumerConfig
from zkconsumer.errors import MalformedNodeError, NoBrokersError, OffsetCommitError, RegistryUnavailableError
from zkconsumer.model import Endpoint, TopicPartition
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.spark.options import Selection
from zkconsumer.spark.query_cluster import QueryCluster
from zkconsumer.zookeeper import node_codecs, paths
from zkconsumer.zookeeper.broker_directory import broker_ids, decode_brokers
from zkconsumer.zookeeper.node_cache import NodeCache
from zkconsumer.zookeeper.node_values import Look, Seen
from zkconsumer.zookeeper.session import Session, SessionChanged, SessionState

log = logging.getLogger(__name__)

BELIEVED: Final = 300.0
"""Seconds after which all nodes are read again although no watch fired, in case a watch was lost."""


class WatchedNodes:
    """The nodes of ZooKeeper that a query knows between its triggers, on one session.

    A query may have hundreds of triggers a second, and a node hardly ever changes in between. So each node is read
    once, with a watch. It is read again only when the watch fires, the connection breaks, or a broker contradicts it.
    Threads: one thread at a time looks, and forgets nodes of ``cache`` that an answer contradicts; any thread may set
    ``doubtful``.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self.cache = NodeCache(session, lambda _: None)
        self.doubtful = Event()
        """Set when the connection broke, and its watches with it: the next look reads all nodes again."""
        self._until = monotonic() + BELIEVED

    def look(self, wanted: Look, deadline: Deadline) -> Seen:
        """Return the wanted nodes; only nodes that are unknown or have changed are read.

        Raises RegistryUnavailableError also where all are known but no watch could tell a change now; RegistryError.
        """
        if not self._session.connected:
            raise RegistryUnavailableError(
                f"not connected to ZooKeeper ({self._session.hosts}); the client keeps trying"
            )
        if self.doubtful.is_set() or monotonic() >= self._until:
            self.doubtful.clear()  # before the reading: a connection that breaks meanwhile makes all doubtful again
            self.cache.refresh()
            self._until = monotonic() + BELIEVED
        return self.cache.look(wanted, deadline)


class ZooKeeperQueryCluster(QueryCluster):
    """The nodes of ZooKeeper tell partitions, leaders, members and offsets."""

    nodes: WatchedNodes | None = None
    """What was read of ZooKeeper, while the session is open."""

    def __init__(self, config: ConsumerConfig, isolation_level: int = 0) -> None:
        super().__init__(config, isolation_level)
        self._created: dict[str, int] = {}
        self._made_anew: frozenset[str] = frozenset()

    def close(self) -> None:
        """Close everything; within seconds. May be called again."""
        self.nodes = None
        super().close()

    def session(self) -> Session:
        """Return the session, opened if need be. Raises RegistryError."""
        session = super().session()
        if self.nodes is None:
            self.nodes = WatchedNodes(session)
        return session

    def _session_changed(self, change: SessionChanged) -> None:
        """Doubt all nodes when the connection breaks. Called on kazoo's connection thread."""
        log.debug("ZooKeeper session: %s", change.state.value)
        nodes = self.nodes
        if nodes is not None and change.state is not SessionState.CONNECTED:
            nodes.doubtful.set()

    def _look(self, wanted: Look) -> Seen:
        """Return nodes as ZooKeeper has them, by watches; see :class:`WatchedNodes`. Raises RegistryError."""
        self.session()
        nodes = self.nodes
        assert nodes is not None
        return self.ask(lambda _, deadline: nodes.look(wanted, deadline))

    def _contradicted(self, partitions: Sequence[TopicPartition]) -> None:
        """Forget the leaders of these partitions, and the cached nodes of these partitions and of all brokers."""
        if self.nodes is not None:
            brokers = {paths.broker(endpoint.broker_id) for endpoint in self._leaders.values()}
            self.nodes.cache.forget([paths.BROKER_IDS, *brokers, *map(paths.partition_state, partitions)])
        super()._contradicted(partitions)

    def partitions(self, selection: Selection) -> tuple[tuple[TopicPartition, ...], tuple[str, ...]]:
        """Do as :meth:`QueryCluster.partitions`. Raises RegistryError."""
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
        """Do as :meth:`QueryCluster.made_anew`."""
        found, self._made_anew = self._made_anew, frozenset()
        return found

    def gone(self, partitions: Sequence[TopicPartition]) -> frozenset[TopicPartition]:
        """Do as :meth:`QueryCluster.gone`, as ZooKeeper says now. Raises RegistryError."""
        if self.nodes is not None:
            self.nodes.cache.forget({paths.topic(tp.topic) for tp in partitions})
        return super().gone(partitions)

    def live_members(self, group: str) -> tuple[str, ...]:
        """Return the ids of the group's live members. Raises RegistryError."""
        ids = paths.ids(group)
        return tuple(sorted(self._look(Look(children=[ids])).children[ids] or ()))

    def _find_leaders(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Endpoint]:
        """Look at the nodes. Raises NoBrokersError, NoReachableEndpointError, RegistryError."""
        state_paths = [paths.partition_state(tp) for tp in partitions]
        ids = broker_ids(self._look(Look(children=[paths.BROKER_IDS])).children[paths.BROKER_IDS])
        broker_paths = [paths.broker(broker_id) for broker_id in ids]
        seen = self._look(Look(nodes=state_paths, existing=broker_paths)).nodes
        states = [seen[path] for path in state_paths]
        brokers = decode_brokers(ids, [seen[path] for path in broker_paths])
        if not brokers:
            raise NoBrokersError(f"no broker is registered in ZooKeeper ({self._config.zookeeper_connect})")
        endpoints = {endpoint.broker_id: endpoint for endpoint in reachable(brokers, self._config)}
        found = {}
        for tp, path, node in zip(partitions, state_paths, states, strict=True):
            leader = None if node is None else node_codecs.decode_partition_state(node.data, path).leader
            if leader in endpoints:
                found[tp] = endpoints[leader]
        return found

    def committed(self, group: str, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Do as :meth:`QueryCluster.committed`. A node that cannot be read counts as none. Raises RegistryError."""
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

    def commit(self, group: str, offsets: Mapping[TopicPartition, int], *, also_back: bool = False) -> None:
        """Do as :meth:`QueryCluster.commit`. Raises OffsetCommitError, RegistryError."""
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


def _reached(data: bytes, path: str, offset: int) -> bool:
    """Return whether an offset node already says so much."""
    try:
        return node_codecs.decode_offset(data, path) >= offset
    except MalformedNodeError:
        return False
