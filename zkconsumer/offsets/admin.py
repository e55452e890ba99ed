"""A whole group's offsets in ZooKeeper, to be read, written and put back from outside the group.

For ``zkconsumer migrate``; used by one thread. A write names what it expects to find and whom it must not meet, and
both are part of its transaction: the version of the offset node as it was read, and that no owner node stands.

Mirrors what the original's ``ExportZkOffsets`` and ``ImportZkOffsets`` were for, which looked at neither.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from zkconsumer.core.migration.planning import Entry, Step, Store, Verdict
from zkconsumer.deadline import Deadline
from zkconsumer.errors import MalformedNodeError
from zkconsumer.model import TopicPartition
from zkconsumer.zookeeper import node_codecs, paths
from zkconsumer.zookeeper.session import Session
from zkconsumer.zookeeper.transaction import NodeFailure, Transaction

_NUMBER = re.compile("0|[1-9][0-9]{0,9}", re.ASCII)

BATCH = 200
"""Partitions in one request: far below the size that servers refuse, with the longest names."""


class Side(Protocol):
    """One of the two stores, as a migration needs it."""

    @property
    def store(self) -> Store:
        """Which one."""

    def read(self, deadline: Deadline) -> dict[TopicPartition, Entry]:
        """Everything it holds of the group. Raises RegistryError, BrokerError where anything is unknown."""

    def members(self, deadline: Deadline) -> list[str]:
        """The live members that it coordinates, as people would look for them. Raises RegistryError, BrokerError."""

    def write(self, steps: Sequence[Step], deadline: Deadline) -> dict[TopicPartition, str]:
        """Do what the steps (WRITE, REMOVE; at most :data:`BATCH`) say. Returns what was refused, with the reason.

        Raises RegistryError, BrokerError where nothing is known of the outcome.
        """


class ZooKeeperSide:
    """The nodes below ``/consumers/<group>``."""

    store = Store.ZOOKEEPER

    def __init__(self, session: Session, group: str) -> None:
        self._session = session
        self._group = group
        self._versions: dict[TopicPartition, int] = {}

    def read(self, deadline: Deadline) -> dict[TopicPartition, Entry]:
        """All offset nodes, remembering their versions. A node whose content is no offset is an entry too."""
        partitions: list[TopicPartition] = []
        for topic in sorted(self._session.children(paths.offsets(self._group), deadline) or ()):
            names = self._session.children(paths.offset_topic(self._group, topic), deadline) or ()
            numbers = sorted(int(name) for name in names if _NUMBER.fullmatch(name))
            partitions += [TopicPartition(topic, number) for number in numbers]
        nodes = self._session.read([paths.offset(self._group, tp) for tp in partitions], deadline)
        found = {tp: node for tp, node in zip(partitions, nodes, strict=True) if node is not None}
        self._versions = {tp: node.version for tp, node in found.items()}
        return {tp: self._entry(tp, node.data) for tp, node in found.items()}

    def _entry(self, tp: TopicPartition, data: bytes) -> Entry:
        text = data.decode("utf-8", "surrogateescape")
        try:
            return Entry(node_codecs.decode_offset(data, paths.offset(self._group, tp)), text=text)
        except MalformedNodeError as e:
            return Entry(None, str(e), text=text)

    def members(self, deadline: Deadline) -> list[str]:
        """The names under ``ids``."""
        return sorted(self._session.children(paths.ids(self._group), deadline) or ())

    def write(self, steps: Sequence[Step], deadline: Deadline) -> dict[TopicPartition, str]:
        """All in one transaction; what makes it fail is taken out and the rest is done."""
        topics = sorted({step.partition.topic for step in steps})
        parents = [paths.owner_topic(self._group, topic) for topic in topics]
        parents += [paths.offset_topic(self._group, topic) for topic in topics]
        self._session.ensure(parents, deadline)
        refused: dict[TopicPartition, str] = {}
        left = list(steps)
        while left:
            offender = self._transact(left, deadline)
            if offender is None:
                break
            index, reason = offender
            refused[left.pop(index).partition] = reason
        return refused

    def _transact(self, steps: Sequence[Step], deadline: Deadline) -> tuple[int, str] | None:
        """Do it all, or say which step stands in the way and why."""
        meanings: list[tuple[int, Callable[[NodeFailure], str]]] = []

        def build(transaction: Transaction) -> None:
            for index, step in enumerate(steps):
                owner = paths.owner(self._group, step.partition)
                # ZooKeeper cannot check that a node is absent; making it, and deleting it at once, can
                transaction.create(owner, b"", ephemeral=True)
                transaction.delete(owner)
                self._change(transaction, step)
                meanings.extend((index, meaning) for meaning in (_owned, _owned, _moved))

        for (index, meaning), failure in zip(meanings, self._session.transact(build, deadline), strict=True):
            if failure is not None:
                return index, meaning(failure)
        return None

    def _change(self, transaction: Transaction, step: Step) -> None:
        path, version = paths.offset(self._group, step.partition), self._versions.get(step.partition)
        if step.verdict is Verdict.REMOVE:
            transaction.delete(path, -1 if version is None else version)
            return
        assert step.after is not None
        text, offset = step.after.text, step.after.offset
        data = (str(offset) if offset is not None and not text else text).encode("utf-8", "surrogateescape")
        if version is None:
            transaction.create(path, data)
        else:
            transaction.write(path, data, version)


def _owned(failure: NodeFailure) -> str:
    return "somebody owns it" if failure is NodeFailure.NODE_EXISTS else f"its owner node: {failure.value}"


def _moved(failure: NodeFailure) -> str:
    if failure in (NodeFailure.NO_AUTH, NodeFailure.OTHER):
        return f"its offset node: {failure.value}"
    return "somebody wrote it meanwhile"


def batches(steps: Sequence[Step]) -> Iterator[Sequence[Step]]:
    """The steps in pieces of :data:`BATCH`."""
    for start in range(0, len(steps), BATCH):
        yield steps[start : start + BATCH]
