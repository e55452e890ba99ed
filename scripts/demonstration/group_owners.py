"""The view of a group in ZooKeeper: its members, owners and offsets. The main thread uses it with its own session."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Event
from typing import Self

from zkconsumer.core.message_pointers import Pointer, decode_pointers
from zkconsumer.errors import ZkConsumerError
from zkconsumer.model import TopicPartition
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.zookeeper import node_codecs, paths
from zkconsumer.zookeeper.session import Session

_ANSWER_S = 10.0
_SESSION_S = 10.0
LOOK_S = 0.05
"""The pause between two looks at the group."""


@dataclass(frozen=True)
class GroupOwners:
    """The registered ``members`` and, by partition, the ``owners`` (member, stream number)."""

    members: frozenset[str] = frozenset()
    owners: dict[int, tuple[str, int]] = field(default_factory=dict)

    def settled(self, members: set[str], partitions: int, streams: int) -> bool:
        """Return whether exactly these members are registered and each of their streams owns a partition."""
        busy = {owner for owner in self.owners.values() if owner[0] in members}
        return self.members == members and len(self.owners) == partitions and len(busy) == len(members) * streams

    def __str__(self) -> str:
        """Return text such as "ann/0: 0,1  ann/1: 2,3"."""
        shares: dict[str, list[str]] = {}
        for partition, (member, stream) in sorted(self.owners.items()):
            shares.setdefault(f"{member}/{stream}", []).append(str(partition))
        return "  ".join(f"{who}: {','.join(which)}" for who, which in sorted(shares.items())) or "nobody"


def wait_until(done: Callable[[], bool], look: Callable[[], GroupOwners], what: str, seconds: float) -> None:
    """Call ``look`` again and again until ``done``. Raises ZkConsumerError after so many ``seconds``."""
    deadline, pause = Deadline(seconds), Event()
    while True:
        view = look()
        if done():
            return
        if deadline.expired:
            raise ZkConsumerError(f"gave up after {seconds:.0f} s of waiting until {what}; owners: {view}")
        pause.wait(LOOK_S)


class GroupInZooKeeper:
    """A reader of one group's nodes for one topic. A context manager."""

    def __init__(self, zookeeper_connect: str, group: str, topic: str, partitions: int) -> None:
        self._session = Session(zookeeper_connect, timeout=_SESSION_S, on_change=lambda _: None)
        self._group = group
        self._partitions = [TopicPartition(topic, number) for number in range(partitions)]

    def __enter__(self) -> Self:
        self._session.open(Deadline(_ANSWER_S))
        return self

    def __exit__(self, *_: object) -> None:
        self._session.close(Deadline(_ANSWER_S))

    def look(self) -> GroupOwners:
        """Return the present members and owners. Raises: RegistryError."""
        deadline = Deadline(_ANSWER_S)
        ids = self._session.children(paths.ids(self._group), deadline) or ()
        where = [paths.owner(self._group, partition) for partition in self._partitions]
        owners = {}
        for partition, path, node in zip(self._partitions, where, self._session.read(where, deadline), strict=True):
            if node is not None:
                member, _, stream = self._name(node_codecs.decode_owner(node.data, path)).rpartition("-")
                owners[partition.partition] = (member, int(stream))
        return GroupOwners(frozenset(map(self._name, ids)), owners)

    def _name(self, full: str) -> str:
        return full.removeprefix(f"{self._group}_")

    def committed(self) -> dict[int, int]:
        """Return the committed offsets in ZooKeeper by partition. Raises: RegistryError."""
        where = [paths.offset(self._group, partition) for partition in self._partitions]
        nodes = self._session.read(where, Deadline(_ANSWER_S))
        return {
            partition.partition: node_codecs.decode_offset(node.data, path)
            for partition, path, node in zip(self._partitions, where, nodes, strict=True)
            if node is not None
        }

    def borrowers(self) -> frozenset[str]:
        """Return the members to which keys of some partition are lent. Raises: RegistryError."""
        deadline = Deadline(_ANSWER_S)
        found = [
            self._session.children(paths.partition_loans(self._group, tp), deadline) or () for tp in self._partitions
        ]
        return frozenset(self._name(name) for names in found for name in names)

    def pointers(self) -> dict[tuple[int, int], Pointer]:
        """Return the pointers to parked messages and dead letters, by partition and offset.

        Raises: RegistryError; ValueError for a node that cannot be understood.
        """
        where = [paths.pointers(self._group, partition) for partition in self._partitions]
        nodes = self._session.read(where, Deadline(_ANSWER_S))
        return {
            (partition.partition, pointer.offset): pointer
            for partition, node in zip(self._partitions, nodes, strict=True)
            if node is not None
            for pointer in decode_pointers(node.data).values()
        }
