"""Reads group snapshots from a live cluster: first ZooKeeper, then the brokers.

Offsets are read before the ends of the logs, so that a lag is never negative because of the order. When a side does not
answer, the snapshot has what the other one knows, and a problem says what is missing. :func:`with_topics` adds topics
that the group does not use. One thread at a time calls.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace

from zkconsumer.cluster.cluster_client import ClusterClient
from zkconsumer.errors import BrokerError, ChrootMissingError, NoBrokersError, RegistryError, ZkConsumerError
from zkconsumer.fetch.message_lookup import message_times
from zkconsumer.kafka import error_codes
from zkconsumer.model import Endpoint, TopicPartition
from zkconsumer.operations.brokers_reader import BrokersReader
from zkconsumer.operations.group_lookup import chroot_advice, closing_session
from zkconsumer.operations.group_snapshot import GroupSnapshot, LogState, Problem, TopicNode
from zkconsumer.operations.zookeeper_reader import ZooKeeperReader
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.zookeeper import paths
from zkconsumer.zookeeper.node_values import ZooKeeperServer
from zkconsumer.zookeeper.registry_security import registry_security
from zkconsumer.zookeeper.server_statistics import server_statistics
from zkconsumer.zookeeper.session import Session

BROKERS_SHARE = 0.4
"""The part of the time that is kept for the brokers while ZooKeeper is asked."""
LAST_SHARE = 0.1
"""The part of the time that is kept for leaders in ZooKeeper, for when the brokers do not answer."""
SERVERS_BELIEVED = 10.0
"""Seconds after which ZooKeeper's servers are asked again for their statistics."""
_PROBE = 5.0
"""Seconds for the search of the right chroot."""
_GROUP_TYPES = ("consumer", "")
"""The protocol types of consumers: the second one has offsets and never had members."""


class LiveSource:
    """The groups of a cluster. Connections are opened at their first use and kept.

    Arguments: ``client`` belongs to the source, which closes it.
    """

    def __init__(self, client: ClusterClient) -> None:
        self.client = client
        self._servers = _Servers(client)

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
                session = self._session("", deadline)
                found.update(session.children(paths.CONSUMERS, deadline) or ())
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
        client, deadline = self.client, Deadline(self.client.timeout)
        draft = GroupSnapshot(
            group, time.time_ns() // 1_000_000, zookeeper=client.zookeeper, bootstrap=client.bootstrap
        )
        with ThreadPoolExecutor(1, "zkconsumer-servers") as beside:
            servers = beside.submit(self._servers.read, deadline) if client.zookeeper else None
            reader, failed = self._read_zookeeper(draft, deadline)
            try:
                self._read_brokers(draft, reader, deadline.earlier(LAST_SHARE * client.timeout), times=message_times)
            except (RegistryError, BrokerError) as error:
                if failed is not None:
                    raise RegistryError(f"{failed}. The brokers: {error}") from None
                if reader is None:
                    raise
                draft.problem("brokers", self._with_advice(error, group))
                reader.partition_states(deadline)
            if reader is not None:
                reader.complete_topics()
            if servers is not None:
                draft.servers = servers.result()
        if draft.suppressed:
            draft.problems += (Problem("problems", f"{draft.suppressed} more of them are not listed"),)
            draft.suppressed = 0
        return draft

    def _read_zookeeper(
        self, draft: GroupSnapshot, deadline: Deadline
    ) -> tuple[ZooKeeperReader | None, RegistryError | None]:
        """Read ZooKeeper's part. Return the reader, or the error of a ZooKeeper that cannot be asked at all."""
        if not self.client.zookeeper:
            return None, None
        try:
            session = self._session(draft.group, deadline)
            reader = ZooKeeperReader(session, draft, self._zookeeper_deadline(deadline))
            if not reader.read():
                reader.broker_nodes.clear()  # some may be missing
            return reader, None
        except RegistryError as error:
            if not self.client.knows_brokers:
                raise  # it would have named the brokers
            draft.problem(f"ZooKeeper {self.client.zookeeper}", error)
            return None, error

    def _read_brokers(
        self, draft: GroupSnapshot, reader: ZooKeeperReader | None, deadline: Deadline, *, times: bool
    ) -> None:
        client = self.client
        if not client.bootstrap and reader is not None and reader.broker_nodes:
            endpoints: Sequence[Endpoint] = client.reachable(reader.broker_nodes)
        else:
            endpoints = client.brokers(deadline)
        exists = reader.offsets_topic if reader is not None else None
        BrokersReader(client, endpoints, deadline).read(draft, offsets_topic=exists, times=times)

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


class _Servers:
    """The statistics of ZooKeeper's servers, asked again after some seconds only. One thread at a time calls."""

    def __init__(self, client: ClusterClient) -> None:
        self._client = client
        self._known: tuple[float, tuple[ZooKeeperServer, ...]] = (0.0, ())

    def read(self, deadline: Deadline) -> tuple[ZooKeeperServer, ...]:
        """Return what each server says; a server that says nothing has a problem."""
        until, known = self._known
        if time.monotonic() < until:
            return known
        config = self._client.config
        servers = server_statistics(config.zookeeper_hosts, deadline, registry_security(config).tls)
        self._known = time.monotonic() + SERVERS_BELIEVED, servers
        return servers


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
    by_leader: dict[int, dict[TopicPartition, int]] = {}
    for tp, offset in offsets.items():
        log = snapshot.logs.get(tp)
        if log is not None and log.leader is not None and log.end is not None and offset < log.end:
            by_leader.setdefault(log.leader, {})[tp] = offset
    deadline = Deadline(client.timeout)
    found: dict[TopicPartition, int] = {}
    with suppress(BrokerError, RegistryError):
        endpoints = {endpoint.broker_id: endpoint for endpoint in client.brokers(deadline)}
        for leader in by_leader.keys() & endpoints.keys():
            with suppress(BrokerError), closing(client.channels.connected(endpoints[leader], deadline)) as channel:
                found.update(message_times(channel, by_leader[leader], deadline))
    return {tp: time for tp, time in found.items() if time >= 0}
