"""Reads and writes a whole group's offsets from outside the group, in ZooKeeper or in Kafka.

The commands ``migrate``, ``offsets`` and ``groups delete`` use this; one thread at a time. A write to ZooKeeper is
refused if the partition has an owner, or if the offset node is not of the version that was read. ZooKeeper checks both
within the transaction. A write to Kafka is a commit in no member's name. The coordinator refuses such a commit while
the group has members with the coordinator.

Mirrors the purpose of the original's ``ExportZkOffsets`` and ``ImportZkOffsets``, which check neither.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from time import sleep
from typing import Protocol, TypeVar

from zkconsumer.cluster.cluster_client import ClusterClient, existing_partitions
from zkconsumer.core.offset_move_plan import MoveVerdict, Step, Store, StoreEntry
from zkconsumer.errors import (
    BrokerError,
    BrokerResponseError,
    BrokerUnavailableError,
    MalformedNodeError,
    NoBrokersError,
    NotPermittedError,
    RegistryUnavailableError,
)
from zkconsumer.kafka import error_codes
from zkconsumer.kafka.group_channel import GroupChannel, Membership, OffsetAndMetadata
from zkconsumer.model import Endpoint, TopicPartition
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.zookeeper import node_codecs, ownership_transactions, paths
from zkconsumer.zookeeper.ownership_transactions import Change, Outcome
from zkconsumer.zookeeper.session import Session

T = TypeVar("T")

_NUMBER = re.compile("0|[1-9][0-9]{0,9}", re.ASCII)
_PAUSE = 0.2
_OLDEST = 2
"""The node version of brokers of 0.9, the first that coordinate groups."""

BATCH = 200
"""Partitions in one request: far below the size that servers refuse, with the longest names."""

REASONS = {Outcome.OWNED: "somebody owns it", Outcome.OFFSET_MOVED: "somebody wrote it meanwhile"}


class GroupOffsets(Protocol):
    """The offsets of one group in one of the two stores."""

    @property
    def store(self) -> Store:
        """Which of the two."""

    def read(self, deadline: Deadline) -> dict[TopicPartition, StoreEntry]:
        """Return all offsets of the group. Raises RegistryError, BrokerError if any of them is unknown."""

    def members(self, deadline: Deadline) -> list[str]:
        """Return the group's live members with these servers, by names that people know. Raises as :meth:`read`."""

    def catch_up(self, deadline: Deadline) -> None:
        """Have the next read show every write that the store took before now. Raises as :meth:`read`."""

    def write(self, steps: Sequence[Step], deadline: Deadline) -> dict[TopicPartition, str]:
        """Perform the steps (WRITE, REMOVE; at most :data:`BATCH`). Returns the refused partitions with the reasons.

        Raises RegistryError, BrokerError if the outcome is unknown.
        """


class ZooKeeperGroupOffsets:
    """The nodes below ``/consumers/<group>``. ``versions`` has the data version of each offset node as last read."""

    store = Store.ZOOKEEPER

    def __init__(self, session: Session, group: str) -> None:
        self._session = session
        self._group = group
        self.versions: dict[TopicPartition, int] = {}

    def read(self, deadline: Deadline) -> dict[TopicPartition, StoreEntry]:
        """Return all offset nodes, and remember their versions. A node whose content is no offset is an entry too."""
        partitions: list[TopicPartition] = []
        for topic in sorted(self._session.children(paths.offsets(self._group), deadline) or ()):
            names = self._session.children(paths.offset_topic(self._group, topic), deadline) or ()
            numbers = sorted(int(name) for name in names if _NUMBER.fullmatch(name))
            partitions += [TopicPartition(topic, number) for number in numbers]
        nodes = self._session.read([paths.offset(self._group, tp) for tp in partitions], deadline)
        found = {tp: node for tp, node in zip(partitions, nodes, strict=True) if node is not None}
        self.versions = {tp: node.version for tp, node in found.items()}
        return {tp: self._entry(tp, node.data) for tp, node in found.items()}

    def _entry(self, tp: TopicPartition, data: bytes) -> StoreEntry:
        text = data.decode("utf-8", "surrogateescape")
        try:
            return StoreEntry(node_codecs.decode_offset(data, paths.offset(self._group, tp)), text=text)
        except MalformedNodeError as e:
            return StoreEntry(None, str(e), text=text)

    def catch_up(self, deadline: Deadline) -> None:
        """Have the next read show every write that ZooKeeper took before now. Raises RegistryError.

        Otherwise a server that lags behind could show the nodes as they were before a write whose answer was lost. A
        delete passes through the leader, in order with all writes, also if there is no such node or it is forbidden.
        """
        with suppress(NotPermittedError):
            self._session.delete(f"{paths.consumers_group(self._group)}/no-such-node", deadline)

    def members(self, deadline: Deadline) -> list[str]:
        """Return the names under ``ids``."""
        return sorted(self._session.children(paths.ids(self._group), deadline) or ())

    def write(self, steps: Sequence[Step], deadline: Deadline) -> dict[TopicPartition, str]:
        """Perform all steps in one transaction; a step that makes it fail is taken out and the others are done."""
        changes = [Change(one.partition, node_content(one), self.versions.get(one.partition)) for one in steps]
        outcomes = ownership_transactions.write_unowned(self._session, self._group, changes, deadline)
        return {tp: REASONS.get(one, one.value) for tp, one in outcomes.items() if one is not Outcome.DONE}


def node_content(step: Step) -> bytes | None:
    """Return the content of the offset node after a step; None to delete it."""
    if step.verdict is MoveVerdict.REMOVE:
        return None
    assert step.after is not None
    text, offset = step.after.text, step.after.offset
    return (str(offset) if offset is not None and not text else text).encode("utf-8", "surrogateescape")


class KafkaGroupOffsets:
    """The offsets that a group's coordinator keeps. ``close`` ends its connections, and not those of the client."""

    store = Store.KAFKA

    def __init__(self, client: ClusterClient, group: str) -> None:
        self._cluster = client
        self._group = group
        self._known: Sequence[Endpoint] = ()
        self._client = client.group_client(group, lambda _: self._known)
        self.close = self._client.close

    def read(self, deadline: Deadline) -> dict[TopicPartition, StoreEntry]:
        """Return all offsets of the group. Raises BrokerError if that of any partition is unknown."""
        found = self._ask(lambda coordinator: self._offsets(coordinator, deadline), deadline)
        return {
            tp: StoreEntry(stored.offset, metadata=stored.metadata, leader_epoch=stored.leader_epoch)
            for tp, stored in sorted(found.items())
        }

    def _offsets(self, coordinator: GroupChannel, deadline: Deadline) -> Mapping[TopicPartition, OffsetAndMetadata]:
        # brokers before 0.10.2 cannot list a group's offsets, so they are asked for all existing partitions
        lists = coordinator.versions["OffsetFetch"] >= 2
        wanted = None if lists else existing_partitions(self._cluster, None, deadline)
        return self._client.fetch(wanted, deadline)

    def catch_up(self, deadline: Deadline) -> None:
        """Do nothing: one broker, the coordinator, takes all writes and answers all reads."""

    def members(self, deadline: Deadline) -> list[str]:
        """Return the members, each by its client.id and host, as the coordinator describes them."""
        return self._ask(lambda coordinator: coordinator.describe([self._group], deadline), deadline)[self._group].who

    def write(self, steps: Sequence[Step], deadline: Deadline) -> dict[TopicPartition, str]:
        """Send one commit for all writes and one request for all removals. Returns the refused partitions."""
        wanted = {
            step.partition: OffsetAndMetadata(step.after.offset, 0, step.after.metadata, step.after.leader_epoch)
            for step in steps
            if step.verdict is MoveVerdict.WRITE and step.after is not None and step.after.offset is not None
        }
        removed = [step.partition for step in steps if step.verdict is MoveVerdict.REMOVE]
        refused: dict[TopicPartition, str] = {}
        if wanted:
            nobody = Membership(self._group)
            codes = self._ask(lambda coordinator: coordinator.commit(nobody, wanted, deadline), deadline)
            refused = {tp: error_codes.name(code) for tp, code in codes.items() if code}
        if removed:
            refused |= self._remove(removed, deadline)
        return refused

    def _remove(self, removed: Collection[TopicPartition], deadline: Deadline) -> dict[TopicPartition, str]:
        def remove(coordinator: GroupChannel) -> Mapping[TopicPartition, str]:
            if "OffsetDelete" in coordinator.versions:
                codes = coordinator.delete_offsets(self._group, removed, deadline)
                return {tp: error_codes.name(code) for tp, code in codes.items() if code}
            if "DeleteGroups" in coordinator.versions and set(self._offsets(coordinator, deadline)) <= set(removed):
                coordinator.delete_group(self._group, deadline)
                return {}
            return dict.fromkeys(removed, "brokers before 2.4 can delete a group's offsets all together only")

        return dict(self._ask(remove, deadline))

    def delete_offsets(
        self, partitions: Collection[TopicPartition], deadline: Deadline
    ) -> Mapping[TopicPartition, int]:
        """Delete offsets. Returns the error code of each partition, that of an unknown request from brokers before 2.4.

        Raises: BrokerError.
        """

        def delete(coordinator: GroupChannel) -> Mapping[TopicPartition, int]:
            if "OffsetDelete" not in coordinator.versions:
                return dict.fromkeys(partitions, error_codes.UNSUPPORTED_VERSION)
            return coordinator.delete_offsets(self._group, partitions, deadline)

        return self._ask(delete, deadline)

    def delete_group(self, deadline: Deadline) -> None:
        """Delete the group, which must not have members (brokers from 1.1 on). Raises BrokerError."""
        self._ask(lambda coordinator: coordinator.delete_group(self._group, deadline), deadline)

    def _ask(self, question: Callable[[GroupChannel], T], deadline: Deadline) -> T:
        """Ask the coordinator, and again after an error that may pass. Raises the last error at the deadline."""
        trouble: BrokerError | None = None
        while True:
            try:
                self._known = self._known or self._registered(deadline)
                return self._client.ask(question, deadline)
            except BrokerResponseError as e:
                if not error_codes.retriable(e.code):
                    raise
                trouble = e
            except (BrokerUnavailableError, NoBrokersError) as e:
                trouble = e
            except RegistryUnavailableError:
                if trouble is None:
                    raise
            self._known = ()  # others may be there by now
            sleep(deadline.bounded(_PAUSE))
            if deadline.expired:
                raise trouble

    def _registered(self, deadline: Deadline) -> Sequence[Endpoint]:
        brokers = self._cluster.brokers(deadline)
        for endpoint in brokers:
            if endpoint.generation < _OLDEST:
                raise BrokerError(
                    f"broker {endpoint.broker_id} is of 0.8, which cannot say whether a group has members; there, let"
                    " the members themselves move the offsets, with offsets.storage=kafka and dual.commit.enabled=true"
                )
        return brokers


def batches(steps: Sequence[Step]) -> Iterator[Sequence[Step]]:
    """Cut the steps into pieces of :data:`BATCH`."""
    for start in range(0, len(steps), BATCH):
        yield steps[start : start + BATCH]
