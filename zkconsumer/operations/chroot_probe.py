"""Looks below other paths of a ZooKeeper for the brokers and a group that are not below the given chroot.

One thread calls. Only reads, and only some hundred nodes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager

from zkconsumer.cluster import cluster_client
from zkconsumer.cluster.cluster_client import ClusterClient
from zkconsumer.config.addresses import format_connect
from zkconsumer.core.names import name_problem
from zkconsumer.operations.group_lookup import Root, candidate_roots, chroot_text
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.zookeeper import paths
from zkconsumer.zookeeper.node_values import NodePart, Wanted
from zkconsumer.zookeeper.session import Session

MOST_ROOTS = 200
"""The most paths to look below."""
_OWN = frozenset({"zookeeper", "brokers", "consumers", "config", "admin", "controller", "isr_change_notification"})
"""Nodes of ZooKeeper's and the brokers' own, which are no chroots."""


@contextmanager
def closing_session(client: ClusterClient) -> Iterator[Session]:
    """Open a session without a chroot for the block. Raises RegistryError."""
    bare = format_connect(client.config.zookeeper_hosts, "")
    session = cluster_client.zookeeper_session(client.config, lambda _: None, bare)
    session.open(Deadline(client.timeout))
    try:
        yield session
    finally:
        session.close(Deadline(1.0))


def chroot_advice(session: Session, chroot: str, group: str, deadline: Deadline) -> str:
    """Return where the group (empty: none), or the brokers, are if not below the chroot; else an empty text.

    Arguments: ``session`` has no chroot. Raises RegistryError.
    """
    roots = roots_beside(session, chroot, group, deadline)
    here = roots.pop(chroot)
    return chroot_text(session.hosts, chroot, here, {path: root for path, root in roots.items() if root is not None})


def roots_beside(session: Session, chroot: str, group: str, deadline: Deadline) -> dict[str, Root | None]:
    """Return the nodes below the chroot and below paths that may be meant instead, None for a path that does not exist.

    Arguments: ``session`` has no chroot; ``group`` may be empty. Raises RegistryError.
    """
    top = _children(session, [""], deadline)
    below = _children(session, top, deadline)
    candidates = [chroot, *candidate_roots(chroot, [*top, *below])][:MOST_ROOTS]
    wanted = []
    for path in candidates:
        wanted += [Wanted(NodePart.CHILDREN, path + paths.BROKER_IDS), Wanted(NodePart.STAT, path + paths.CONSUMERS)]
        if group and name_problem(group) is None:
            wanted.append(Wanted(NodePart.STAT, path + paths.consumers_group(group)))
        wanted.append(Wanted(NodePart.STAT, path or "/"))
    found = {one.wanted.path: one for one in session.read_each(wanted, deadline)}
    present = {path for path, one in found.items() if one.node is not None}
    return {
        path: Root(
            bool(found[path + paths.BROKER_IDS].names),
            path + paths.CONSUMERS in present,
            bool(group) and f"{path}{paths.CONSUMERS}/{group}" in present,
        )
        if (path or "/") in present
        else None
        for path in candidates
    }


def _children(session: Session, roots: Collection[str], deadline: Deadline) -> list[str]:
    """Return the paths of the children of these paths that may be chroots, at most :data:`MOST_ROOTS`."""
    found: list[str] = []
    for one in session.read_each([Wanted(NodePart.CHILDREN, path or "/") for path in roots], deadline):
        path = one.wanted.path.rstrip("/")
        found += [f"{path}/{name}" for name in sorted(one.names) if name not in _OWN and name_problem(name) is None]
    return found[:MOST_ROOTS]
