"""Reads group snapshots from a live cluster: first ZooKeeper, then the brokers.

Offsets are read before the ends of the logs, so that a lag is never negative because of the order. When a side does not
answer, the snapshot has what the other one knows, and a problem says what is missing. :func:`with_topics` adds topics
that the group does not use. One thread at a time calls; :meth:`LiveSource.snapshots_once` has another one.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from typing import TypeAlias

from zkconsumer.cluster.cluster_client import ClusterClient
from zkconsumer.errors import (
    BrokerError,
    ChrootMissingError,
    NoBrokersError,
    RegistryError,
    RegistryUnavailableError,
    SessionLostError,
    ZkConsumerError,
)
from zkconsumer.fetch.message_lookup import message_times
from zkconsumer.kafka import error_codes
from zkconsumer.model import TopicPartition
from zkconsumer.operations.brokers_reader import BrokersReader, MessageTimes
from zkconsumer.operations.group_lookup import chroot_advice, closing_session
from zkconsumer.operations.group_snapshot import GroupSnapshot, LogState, Problem, TopicNode
from zkconsumer.operations.watched_groups import SnapshotOf, WatchedGroups
from zkconsumer.operations.zookeeper_reader import ZooKeeperReader
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.zookeeper import paths
from zkconsumer.zookeeper.node_values import ZooKeeperServer
from zkconsumer.zookeeper.server_statistics import server_statistics
from zkconsumer.zookeeper.session import Session
from zkconsumer.zookeeper.zookeeper_security import zookeeper_security

BROKERS_SHARE = 0.4
"""The part of the time that is kept for the brokers while ZooKeeper is asked."""
LAST_SHARE = 0.1
"""The part of the time that is kept for leaders in ZooKeeper, for when the brokers do not answer."""
SERVERS_BELIEVED = 10.0
"""Seconds after which ZooKeeper's servers are asked again for their statistics."""
_PROBE = 5.0
"""Seconds for the search of the right chroot."""
BATCH = 100
"""Groups that are read together, so that their answers come soon."""
SLOW_SHARE = 0.5  # of the timeout: a batch of known groups takes longer only if a server does not answer
PATIENCE = 3.0
"""Timeouts in which a group that is held by watches must be read. Only the first reading of a large one needs them."""
_Part: TypeAlias = "tuple[GroupSnapshot, ZooKeeperReader | None, RegistryError | None]"
"""A draft with ZooKeeper's part, the reader if ZooKeeper answered, the error if it did not."""
_GROUP_TYPES = ("consumer", "")
"""The protocol types of consumers: the second one has offsets and never had members."""


class LiveSource:
    """The groups of a cluster. Connections are opened at their first use and kept.

    Arguments: ``client`` belongs to the source, which closes it.
    """

    def __init__(self, client: ClusterClient) -> None:
        self.client = client
        self._servers = _Servers(client)
        self._held: WatchedGroups | None = None
        self._times = MessageTimes()
        self._known: set[str] = set()
        self._compared = time.monotonic()

    def close(self) -> None:
        """Close the connections."""
        self.client.close()

    def groups(self) -> Sequence[str]:
        """Return the names of the groups under ``/consumers`` and of those that the brokers list, sorted.

        A side that does not answer is left out. Raises RegistryError, BrokerError if neither answers.
        """
        deadline, found, failed = (Deadline(self.client.timeout), set[str](), list[ZkConsumerError]())
        if self.client.zookeeper:
            try:
                if self._held is not None:
                    self._held.begin()
                    found.update(self._held.names(self._zookeeper_deadline(deadline)))
                else:
                    found.update(self._session("", deadline).children(paths.CONSUMERS, deadline) or ())
            except RegistryError as error:
                if not self.client.knows_brokers:
                    raise
                failed.append(error)
        try:
            listed, _ = BrokersReader(self.client, self.client.brokers(deadline), deadline).list_groups()
            found.update(one.group for one in listed if one.protocol_type in _GROUP_TYPES)
        except (RegistryError, BrokerError) as error:
            failed.append(error)
        if len(failed) == (2 if self.client.zookeeper else 1):
            raise failed[0]
        return sorted(found)

    def history(self, group: str) -> Sequence[GroupSnapshot]:
        """Return the present snapshot alone."""
        return (self.snapshot(group),)

    def snapshot(self, group: str, *, message_times: bool = False) -> GroupSnapshot:
        """Return the group now, see :class:`~zkconsumer.operations.group_snapshot.SnapshotSource`."""
        ((_, found),) = self._read([group], None, times=message_times)
        self._times.sweep()
        if isinstance(found, Exception):
            raise found
        return found

    def snapshots(self, groups: Sequence[str], *, message_times: bool = False) -> Iterator[Sequence[SnapshotOf]]:
        """Yield batches of the snapshots of groups, or of the errors in place of them. New groups come first.

        Each later call costs what has changed since: nodes are held by watches. A batch has all changes before its
        begin. The brokers are asked for a whole batch at once. If that takes long, the known groups that are left are
        one batch: a broker that does not answer would cost each batch its timeout. A call forgets groups that it does
        not name. ``message_times`` as for :meth:`snapshot`.
        """
        held = self._holding(Deadline(self.client.timeout))
        if held is not None:
            held.begin()
            self._known.intersection_update(held.groups)  # after a lost connection none is left
        new = [group for group in groups if group not in self._known]
        old = deque(group for group in groups if group in self._known)
        self._known = set(groups)
        for batch in _batches(new):
            yield self._read_batch(batch, held, times=message_times)
        size = BATCH
        while old:
            began = time.monotonic()
            batch = [old.popleft() for _ in range(min(size, len(old)))]
            if held is not None:
                held.begin()
            found = self._read_batch(batch, held, times=message_times)
            size = BATCH if time.monotonic() - began < SLOW_SHARE * self.client.timeout else len(groups)
            yield found
        if held is not None:
            held.leave(groups)
            held.compare(max(0.0, time.monotonic() - self._compared), Deadline(self.client.timeout))
        self._compared = time.monotonic()
        self._times.sweep()

    def snapshots_once(self, groups: Sequence[str], *, message_times: bool = False) -> Iterator[SnapshotOf]:
        """Yield each snapshot of :meth:`snapshots`, for a caller that looks once: no watch is set, nothing is kept.

        While one batch gets the brokers' part and the caller looks at it, a thread reads the nodes of the next one.
        """
        batches = list(_batches(groups))
        session: Session | RegistryError | None = None
        if self.client.zookeeper:  # opened here, since no two threads may open one
            try:
                session = self._session("", Deadline(self.client.timeout))
            except RegistryError as error:
                session = error
        ahead = ThreadPoolExecutor(2, "zkconsumer-ahead")
        try:
            servers = None
            if batches and self.client.zookeeper:  # first of all, since the answers tell how nodes may be read
                servers = ahead.submit(self._servers.read, Deadline(self.client.timeout))
            coming = [ahead.submit(self._nodes_ahead, batch, session) for batch in batches[:1]]
            for number, batch in enumerate(batches, 1):
                parts, failed = coming.pop().result()
                more = batches[number : number + 1]
                coming += [ahead.submit(self._nodes_ahead, one, session) for one in more]
                deadline = Deadline(self.client.timeout)
                yield from self._completed(batch, parts, failed, servers, deadline, times=message_times)
                if more and servers is not None:
                    servers = ahead.submit(self._servers.read, Deadline(self.client.timeout))
        finally:
            ahead.shutdown(wait=False, cancel_futures=True)  # a read under way ends with the session, or its time
        self._times.sweep()

    def _nodes_ahead(
        self, groups: Sequence[str], session: Session | RegistryError | None
    ) -> tuple[Sequence[_Part], dict[str, Exception]]:
        """Return ZooKeeper's parts of these groups, and the errors; ``session`` may be the error of its opening."""
        held, failed = None, dict[str, Exception]()
        if isinstance(session, Session):
            held = WatchedGroups(session, watching=False)
            held.prefetch(groups, Deadline(PATIENCE * self.client.timeout))
        away = session if isinstance(session, RegistryError) else None
        return list(self._read_zookeeper(groups, held, Deadline(self.client.timeout), failed, away)), failed

    def _read_batch(self, groups: Sequence[str], held: WatchedGroups | None, *, times: bool) -> Sequence[SnapshotOf]:
        if held is not None:
            held.prefetch(groups, Deadline(PATIENCE * self.client.timeout))
        return list(self._read(groups, held, times=times))

    @property
    def differences(self) -> int:
        """The number of nodes that had changed without an event, as comparisons found."""
        return 0 if self._held is None else self._held.differences

    def _holding(self, deadline: Deadline) -> WatchedGroups | None:
        """Return the groups that watches hold, None while ZooKeeper is not asked or does not answer."""
        if self._held is None and self.client.zookeeper:
            try:
                self._held = WatchedGroups(self._session("", deadline))
            except RegistryError:
                return None  # each group's reading tells
        return self._held

    def _read(self, groups: Sequence[str], held: WatchedGroups | None, *, times: bool) -> Iterator[SnapshotOf]:
        client, deadline = self.client, Deadline(self.client.timeout)
        failed: dict[str, Exception] = {}
        with ThreadPoolExecutor(1, "zkconsumer-servers") as beside:
            servers = beside.submit(self._servers.read, deadline) if client.zookeeper else None
            parts = list(self._read_zookeeper(groups, held, deadline, failed))
            if held is not None or len(groups) > 1:
                deadline = Deadline(client.timeout)  # each group had its own
            yield from self._completed(groups, parts, failed, servers, deadline, times=times)

    def _completed(
        self,
        groups: Sequence[str],
        parts: Sequence[_Part],
        failed: dict[str, Exception],
        servers: Future[tuple[ZooKeeperServer, ...]] | None,
        deadline: Deadline,
        *,
        times: bool,
    ) -> Iterator[SnapshotOf]:
        """Yield the snapshots with the brokers' part, or the errors in place of them."""
        self._read_brokers(parts, deadline.earlier(LAST_SHARE * self.client.timeout), failed, times=times)
        last = Deadline(self.client.timeout)  # the nodes may have been read long before
        for draft, reader, _ in parts:
            if reader is not None and draft.group not in failed:
                reader.complete_topics(last)
            if servers is not None:
                draft.servers = servers.result()
        drafts = {draft.group: draft for draft, _, _ in parts}
        for group in groups:
            if group in failed:
                yield group, failed[group]
                continue
            draft = drafts[group]
            if draft.suppressed:
                draft.problems += (Problem("problems", f"{draft.suppressed} more of them are not listed"),)
                draft.suppressed = 0
            yield group, draft

    def _read_zookeeper(
        self,
        groups: Sequence[str],
        held: WatchedGroups | None,
        deadline: Deadline,
        failed: dict[str, Exception],
        refused: RegistryError | None = None,
    ) -> Iterator[_Part]:
        """Yield ZooKeeper's part of each group, or the error of a ZooKeeper that cannot be asked at all.

        Once ZooKeeper is away, it is not asked for the other groups: each would wait for its own timeout. ``refused``
        says that no group can be asked for.
        """
        client, away = self.client, refused
        for group in groups:
            draft = GroupSnapshot(
                group, time.time_ns() // 1_000_000, zookeeper=client.zookeeper, bootstrap=client.bootstrap
            )
            if not client.zookeeper:
                yield draft, None, None
                continue
            try:
                if away is not None:
                    raise away
                held_until = Deadline(PATIENCE * client.timeout)  # what was read until then is kept for the next call
                until = self._zookeeper_deadline(deadline) if held is None else held_until
                yield self._nodes_of(draft, held, until)
            except RegistryError as error:
                away = error if isinstance(error, RegistryUnavailableError | SessionLostError) else refused
                if client.knows_brokers:
                    draft.problem(f"ZooKeeper {client.zookeeper}", error)
                    yield draft, None, error
                else:
                    failed[group] = error  # it would have named the brokers
            except Exception as error:  # noqa: BLE001 (hostile content may raise anything; the other groups are read)
                failed[group] = error

    def _nodes_of(self, draft: GroupSnapshot, held: WatchedGroups | None, deadline: Deadline) -> _Part:
        if held is not None:
            reader, draft, complete = held.read(draft, deadline)
        else:
            reader = ZooKeeperReader(self._session(draft.group, deadline), draft, deadline)
            complete = reader.read()
        if not complete:
            reader.broker_nodes.clear()  # some may be missing
        return draft, reader, None

    def _read_brokers(
        self, parts: Sequence[_Part], deadline: Deadline, failed: dict[str, Exception], *, times: bool
    ) -> None:
        client, drafts = self.client, [draft for draft, _, _ in parts]
        readers = [reader for _, reader, _ in parts if reader is not None]
        named = next((reader.broker_nodes for reader in readers if reader.broker_nodes), None)
        exists = next((reader.offsets_topic for reader in readers if reader.offsets_topic is not None), None)
        if not drafts:
            return
        try:
            endpoints = client.reachable(named) if named and not client.bootstrap else client.brokers(deadline)
            BrokersReader(client, endpoints, deadline, self._times).read(drafts, offsets_topic=exists, times=times)
        except (RegistryError, BrokerError) as error:
            advice, last = self._with_advice(error, drafts[0].group), Deadline(LAST_SHARE * client.timeout)
            for draft, reader, missing in parts:
                if missing is not None:
                    failed[draft.group] = RegistryError(f"{missing}. The brokers: {error}")
                elif reader is None:
                    failed[draft.group] = error
                else:
                    draft.problem("brokers", advice)
                    reader.partition_states(last)

    def chroot_advice(self, group: str) -> str:
        """Return where the group, or the brokers, are if the chroot is not the right one; else an empty text."""
        if not self.client.zookeeper:
            return ""
        try:
            with closing_session(self.client) as session:
                return chroot_advice(session, self.client.config.zookeeper_chroot, group, Deadline(_PROBE))
        except RegistryError:
            return ""  # it is advice only

    def _with_advice(self, error: Exception, group: str) -> str:
        """Return the text of an error, with the likely chroot if no brokers are registered below ours."""
        advice = self.chroot_advice(group) if isinstance(error, NoBrokersError) else ""
        return f"{error}. {advice}" if advice else str(error)

    def _session(self, group: str, deadline: Deadline) -> Session:
        """Return the session. Raises RegistryError, with advice if the chroot does not exist."""
        try:
            return self.client.open_session(self._zookeeper_deadline(deadline))
        except ChrootMissingError as error:
            raise ChrootMissingError(f"{error}. {self.chroot_advice(group)}".rstrip(" .")) from None

    def _zookeeper_deadline(self, deadline: Deadline) -> Deadline:
        return deadline.earlier(BROKERS_SHARE * self.client.timeout)


def _batches(groups: Sequence[str]) -> Iterator[Sequence[str]]:
    for begin in range(0, len(groups), BATCH):
        yield groups[begin : begin + BATCH]


class _Servers:
    """The statistics of ZooKeeper's servers, asked again after some seconds only. One thread at a time calls."""

    def __init__(self, client: ClusterClient) -> None:
        self._client = client
        self._known: tuple[float, tuple[ZooKeeperServer, ...]] = (0.0, ())
        self._allowed = False

    def read(self, deadline: Deadline) -> tuple[ZooKeeperServer, ...]:
        """Return what each server says; a server that says nothing has a problem."""
        until, known = self._known
        if time.monotonic() >= until:
            config = self._client.config
            known = server_statistics(config.zookeeper_hosts, deadline, zookeeper_security(config).tls)
            self._known = time.monotonic() + SERVERS_BELIEVED, known
        if any(one.version and not one.multi_read for one in known):
            self._client.multi_read.clear()
        elif known and not self._allowed and all(one.multi_read for one in known):
            self._allowed = True  # once: after a failed reading each node is read alone
            self._client.multi_read.set()
        return known


def with_topics(client: ClusterClient, snapshot: GroupSnapshot, topics: Collection[str]) -> GroupSnapshot:
    """Return the snapshot with these topics and their logs too, if they exist. Raises RegistryError, BrokerError."""
    missing = set(topics) - snapshot.topics.keys()
    if not missing:
        return snapshot
    deadline = Deadline(client.timeout)
    seen = client.describe(missing, deadline)
    found: dict[str, list[int]] = {}
    for tp in seen.partitions:
        if tp.topic in missing:
            found.setdefault(tp.topic, []).append(tp.partition)
    known = {topic: TopicNode(tuple(sorted(numbers))) for topic, numbers in found.items()}
    for topic in missing - known.keys():
        code = seen.errors.get(topic, error_codes.UNKNOWN_TOPIC_OR_PARTITION)
        if code != error_codes.UNKNOWN_TOPIC_OR_PARTITION:
            known[topic] = TopicNode((), problem=error_codes.name(code))
    wanted = [TopicPartition(topic, number) for topic, numbers in found.items() for number in numbers]
    spans = client.lookup.logs(wanted, Deadline(client.timeout))
    logs = {tp: LogState(*span, seen.partitions[tp].leader) for tp, span in spans.items()}
    return replace(snapshot, topics={**snapshot.topics, **known}, logs={**snapshot.logs, **logs})


def times_of(
    client: ClusterClient, snapshot: GroupSnapshot, offsets: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Return the timestamps (ms since 1970) of the messages at these offsets, without unknown ones.

    They are for people only, so a broker that does not answer is no error.
    """
    by_leader: dict[int, dict[TopicPartition, Collection[int]]] = {}
    for tp, offset in offsets.items():
        log = snapshot.logs.get(tp)
        if log is not None and log.leader is not None and log.end is not None and offset < log.end:
            by_leader.setdefault(log.leader, {})[tp] = [offset]
    deadline = Deadline(client.timeout)
    found: dict[TopicPartition, int] = {}
    with suppress(BrokerError, RegistryError):
        endpoints = {endpoint.broker_id: endpoint for endpoint in client.brokers(deadline)}
        for leader in by_leader.keys() & endpoints.keys():
            with suppress(BrokerError), closing(client.channels.connected(endpoints[leader], deadline)) as channel:
                times = message_times(channel, by_leader[leader], deadline, deadline)
                found.update((tp, time) for tp, _, time in times)
    return {tp: time for tp, time in found.items() if time >= 0}
