"""Reads group snapshots from a live cluster: first ZooKeeper, then the brokers.

Offsets are read before the ends of the logs, so that a lag is never negative because of the order. When a side does not
answer, the snapshot has what the other one knows, and a problem says what is missing. One thread calls.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields

from zkconsumer.cluster.cluster_client import ClusterClient
from zkconsumer.errors import BrokerError, ChrootMissingError, NoBrokersError, RegistryError, ZkConsumerError
from zkconsumer.model import Endpoint
from zkconsumer.operations.brokers_reader import BrokersReader
from zkconsumer.operations.chroot_probe import chroot_advice, closing_session
from zkconsumer.operations.group_snapshot import GroupSnapshot, ZooKeeperServer
from zkconsumer.operations.snapshot_draft import SnapshotDraft
from zkconsumer.operations.zookeeper_reader import ZooKeeperReader
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.zookeeper import paths
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
    """The groups of a cluster. Each use opens what it needs, and keeps it for the next one.

    Arguments: ``connection`` belongs to the source, which closes it.
    """

    def __init__(self, connection: ClusterClient) -> None:
        self.connection = connection
        self._servers = _Servers(connection)

    def close(self) -> None:
        """Close the connections."""
        self.connection.close()

    def groups(self) -> Sequence[str]:
        """Return the names of the groups under ``/consumers`` and of those that the brokers list, sorted.

        A side that does not answer is left out. Raises RegistryError, BrokerError if neither answers.
        """
        deadline, found, failed = (Deadline(self.connection.timeout), set[str](), list[ZkConsumerError]())
        if self.connection.zookeeper:
            try:
                session = self._session("", deadline)
                found.update(session.children(paths.CONSUMERS, deadline) or ())
            except RegistryError as error:
                if not self.connection.knows_brokers:
                    raise
                failed.append(error)
        try:
            listed, _ = BrokersReader(self.connection, self.connection.brokers(deadline), deadline).list_groups()
            found.update(one.group for one in listed if one.protocol_type in _GROUP_TYPES)
        except (RegistryError, BrokerError) as error:
            failed.append(error)
        if len(failed) == (2 if self.connection.zookeeper else 1):
            raise failed[0]
        return sorted(found)

    def history(self, group: str) -> Sequence[GroupSnapshot]:
        """Return the present snapshot alone."""
        return (self.snapshot(group),)

    def snapshot(self, group: str, *, message_times: bool = False) -> GroupSnapshot:
        """Return the group now, see :class:`~zkconsumer.operations.snapshot_source.SnapshotSource`."""
        connection, deadline = self.connection, Deadline(self.connection.timeout)
        draft = SnapshotDraft(
            group, time.time_ns() // 1_000_000, zookeeper=connection.zookeeper, bootstrap=connection.bootstrap
        )
        with ThreadPoolExecutor(1, "zkconsumer-servers") as beside:
            servers = beside.submit(self._servers.read, deadline) if connection.zookeeper else None
            reader, failed = self._read_zookeeper(draft, deadline)
            try:
                self._read_brokers(
                    draft, reader, deadline.earlier(LAST_SHARE * connection.timeout), times=message_times
                )
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
        return draft.finished()

    def _read_zookeeper(
        self, draft: SnapshotDraft, deadline: Deadline
    ) -> tuple[ZooKeeperReader | None, RegistryError | None]:
        """Read ZooKeeper's part. Return the reader, or the error of a ZooKeeper that cannot be asked at all."""
        if not self.connection.zookeeper:
            return None, None
        try:
            session = self._session(draft.group, deadline)
            reader = ZooKeeperReader(session, draft, self._zookeeper_deadline(deadline))
            if not reader.read():
                reader.broker_nodes.clear()  # some may be missing
            return reader, None
        except RegistryError as error:
            if not self.connection.knows_brokers:
                raise  # it would have named the brokers
            draft.problem(f"ZooKeeper {self.connection.zookeeper}", error)
            return None, error

    def _read_brokers(
        self, draft: SnapshotDraft, reader: ZooKeeperReader | None, deadline: Deadline, *, times: bool
    ) -> None:
        connection = self.connection
        if not connection.bootstrap and reader is not None and reader.broker_nodes:
            endpoints: Sequence[Endpoint] = connection.reachable(reader.broker_nodes)
        else:
            endpoints = connection.brokers(deadline)
        exists = reader.offsets_topic if reader is not None else None
        BrokersReader(connection, endpoints, deadline).read(draft, offsets_topic=exists, times=times)

    def chroot_advice(self, group: str) -> str:
        """Return where the group, or the brokers, are if the chroot is not the right one; else an empty text."""
        if not self.connection.zookeeper:
            return ""
        try:
            with closing_session(self.connection) as session:
                return chroot_advice(session, self.connection.config.zookeeper_chroot, group, Deadline(_PROBE))
        except RegistryError:
            return ""  # it is advice only

    def _with_advice(self, error: Exception, group: str) -> str:
        """Return the text of an error, with the likely chroot if no brokers are registered below ours."""
        advice = self.chroot_advice(group) if isinstance(error, NoBrokersError) else ""
        return f"{error}. {advice}" if advice else str(error)

    def _session(self, group: str, deadline: Deadline) -> Session:
        """Return the session. Raises RegistryError, with advice if the chroot does not exist."""
        try:
            return self.connection.open_session(self._zookeeper_deadline(deadline))
        except ChrootMissingError as error:
            raise ChrootMissingError(f"{error}. {self.chroot_advice(group)}".rstrip(" .")) from None

    def _zookeeper_deadline(self, deadline: Deadline) -> Deadline:
        return deadline.earlier(BROKERS_SHARE * self.connection.timeout)


class _Servers:
    """The statistics of ZooKeeper's servers, asked again after some seconds only. One thread at a time calls."""

    def __init__(self, connection: ClusterClient) -> None:
        self._connection = connection
        self._known: tuple[float, tuple[ZooKeeperServer, ...]] = (0.0, ())

    def read(self, deadline: Deadline) -> tuple[ZooKeeperServer, ...]:
        """Return what each server says; a server that says nothing has a problem."""
        until, known = self._known
        if time.monotonic() < until:
            return known
        config = self._connection.config
        told = server_statistics(config.zookeeper_hosts, deadline, registry_security(config).tls)
        servers = tuple(
            ZooKeeperServer(**{one.name: getattr(each, one.name) for one in fields(ZooKeeperServer)}) for each in told
        )
        self._known = time.monotonic() + SERVERS_BELIEVED, servers
        return servers
