"""Reads and deletes all nodes of one group that has no members.

ZooKeeper cannot check in a transaction that a node has no children, or that it is absent. Deleting ``ids`` fails if
``ids`` has children. Where ``ids`` is absent, the transaction creates and deletes the node. So a
member that registers meanwhile makes the transaction fail, and nothing of it is done. One thread.

The original's ``ZkUtils.deleteConsumerGroup`` looks first and deletes recursively after it. A member that joins between
the two loses its nodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from zkconsumer.runtime.deadline import Deadline
from zkconsumer.zookeeper import paths
from zkconsumer.zookeeper.fenced_writes import REQUEST_BYTES
from zkconsumer.zookeeper.node_requests import Transaction
from zkconsumer.zookeeper.node_values import FORBIDDEN, Look, Node
from zkconsumer.zookeeper.session import Session

_OVERHEAD = 64
MAX_NODES = 200_000
"""Nodes of one group that are read: 100,000 partitions. A group with more is refused."""


class Removal(Enum):
    """The result of deleting a group."""

    DONE = "deleted"
    MISSING = "there is no such group"
    LIVE = "it has live members"
    CHANGED = "somebody wrote or created a node of it meanwhile"
    FORBIDDEN = "a node must not be read"
    TOO_LARGE = "it has too many nodes"


@dataclass(frozen=True, slots=True)
class RemovalResult:
    """The result, the nodes that prevented it, and the numbers of deleted nodes and of all."""

    result: Removal
    nodes: tuple[str, ...] = ()
    deleted: int = 0
    total: int = 0


def read_nodes(session: Session, group: str, deadline: Deadline) -> dict[str, Node]:
    """Return the nodes of a group by path, in one round trip a level; empty if there is no such group.

    Reading ends beyond :data:`MAX_NODES`. Raises RegistryError.
    """
    found: dict[str, Node] = {}
    level = [paths.consumers_group(group)]
    while level and len(found) <= MAX_NODES:
        seen = session.look(Look(stats=level, children=level), deadline)
        found |= {path: node for path, node in seen.nodes.items() if node is not None}
        level = [f"{path}/{name}" for path, names in seen.children.items() for name in names or ()]
    return found


def delete_group(session: Session, group: str, deadline: Deadline) -> RemovalResult:
    """Delete all nodes of a group without members, in as few transactions as possible.

    A group of up to some thousands of partitions is deleted in one transaction, so wholly or not at all. Of a larger
    one, the first failure ends it. Raises RegistryError if the outcome is unknown.
    """
    nodes = read_nodes(session, group, deadline)
    refused = _refusal(group, nodes)
    if refused is not None:
        return refused
    ids = paths.ids(group)
    leaves_first = sorted((path for path in nodes if path != ids), key=lambda path: (-path.count("/"), path))
    deleted = 0
    for number, some in enumerate(_batches(leaves_first)):
        proven = ids in nodes and number == 0

        def build(transaction: Transaction, some: Sequence[str] = some, proven: bool = proven) -> None:
            if not proven:
                transaction.create(ids, b"")
            transaction.delete(ids)
            for path in some:
                transaction.delete(path, nodes[path].version)

        if any(session.transact(build, deadline)):
            changed = _refusal(group, read_nodes(session, group, deadline))
            result = Removal.CHANGED if changed is None or changed.result is Removal.MISSING else changed.result
            return RemovalResult(result, changed.nodes if changed else (), deleted, len(nodes))
        deleted += len(some) + proven
    return RemovalResult(Removal.DONE, (), deleted, len(nodes))


def _refusal(group: str, nodes: Mapping[str, Node]) -> RemovalResult | None:
    if not nodes:
        return RemovalResult(Removal.MISSING)
    if len(nodes) > MAX_NODES:
        return RemovalResult(Removal.TOO_LARGE, (paths.consumers_group(group),), 0, len(nodes))
    registered = f"{paths.ids(group)}/"
    live = [path for path, node in nodes.items() if node.ephemeral_owner or path.startswith(registered)]
    if live:
        return RemovalResult(Removal.LIVE, tuple(sorted(live)), 0, len(nodes))
    forbidden = [path for path, node in nodes.items() if node is FORBIDDEN]
    if forbidden:
        return RemovalResult(Removal.FORBIDDEN, tuple(sorted(forbidden)), 0, len(nodes))
    return None


def _batches(found: Sequence[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    size = 0
    for path in found:
        if batch and size + len(path) + _OVERHEAD > REQUEST_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(path)
        size += len(path) + _OVERHEAD
    if batch:
        yield batch
