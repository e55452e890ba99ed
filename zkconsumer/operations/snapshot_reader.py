"""Reads group snapshots from a live cluster: first ZooKeeper, then the brokers.

Offsets are read before the ends of the logs, so that a lag is never negative because of the order. When a side does not
answer, the snapshot has what the other one knows, and a problem says what is missing. One thread calls.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from zkconsumer.deadline import Deadline
from zkconsumer.errors import BrokerError, RegistryError, ZkConsumerError
from zkconsumer.model import Endpoint
from zkconsumer.operations.brokers_reader import BrokersReader
from zkconsumer.operations.cluster_connection import ClusterConnection
from zkconsumer.operations.group_snapshot import GroupSnapshot
from zkconsumer.operations.snapshot_draft import SnapshotDraft
from zkconsumer.operations.zookeeper_reader import ZooKeeperReader
from zkconsumer.zookeeper import paths

BROKERS_SHARE = 0.4
"""The part of the time that is kept for the brokers while ZooKeeper is asked."""
_GROUP_TYPES = ("consumer", "")
"""The protocol types of consumers: the second one has offsets and never had members."""


class LiveSource:
    """The groups of a cluster. Each use opens what it needs, and keeps it for the next one.

    Arguments: ``connection`` belongs to the source, which closes it.
    """

    def __init__(self, connection: ClusterConnection) -> None:
        self.connection = connection

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
                session = self.connection.open_session(self._zookeeper_deadline(deadline))
                found.update(session.children(paths.CONSUMERS, deadline) or ())
            except RegistryError as error:
                failed.append(error)
        try:
            listed, _ = BrokersReader(self.connection, self.connection.brokers(deadline), deadline).list_groups()
            found.update(one.group for one in listed if one.protocol_type in _GROUP_TYPES)
        except (RegistryError, BrokerError) as error:
            failed.append(error)
        if failed and (len(failed) == 2 or not self.connection.zookeeper):
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
        failed: list[ZkConsumerError] = []
        reader: ZooKeeperReader | None = None
        if connection.zookeeper:
            try:
                session = connection.open_session(self._zookeeper_deadline(deadline))
                reader = ZooKeeperReader(session, draft, self._zookeeper_deadline(deadline))
                if not reader.read():
                    reader.broker_nodes.clear()
            except RegistryError as error:
                failed.append(error)
                draft.problem(f"ZooKeeper {connection.zookeeper}", error)
        try:
            self._read_brokers(draft, reader, deadline, times=message_times)
        except (RegistryError, BrokerError) as error:
            failed.append(error)
            draft.problem("brokers", error)
            if reader is not None and reader.broker_nodes:
                reader.partition_states()
        if len(failed) == (2 if connection.zookeeper else 1):
            raise failed[0]
        return draft.finished()

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

    def _zookeeper_deadline(self, deadline: Deadline) -> Deadline:
        return deadline.earlier(BROKERS_SHARE * self.connection.timeout)
