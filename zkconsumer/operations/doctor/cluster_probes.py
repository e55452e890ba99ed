"""Questions to a live cluster beyond the snapshot: its other chroots, and ZooKeeper's clock.

One thread at a time uses the client. Nothing of the original is like this.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace

from zkconsumer.cluster.cluster_client import ClusterClient
from zkconsumer.core.names import name_problem
from zkconsumer.errors import RegistryError
from zkconsumer.operations.doctor.findings import ClockProbe
from zkconsumer.operations.group_lookup import closing_session, roots_beside
from zkconsumer.operations.group_snapshot import GroupSnapshot, Problem
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.zookeeper import paths
from zkconsumer.zookeeper.node_values import NodePart, Wanted

MOST_RIGHTS = 1000
"""The most offset nodes, and as many owner nodes, whose rights are read."""
MOST_GROUPS = 20
"""The most groups whose other chroots are looked for. Each takes some hundred reads."""


def chroots_beside(client: ClusterClient, groups: Sequence[str]) -> Mapping[str, Mapping[str, tuple[str, ...]]] | None:
    """Return for each group the chroots of these servers with their contents, of ``brokers`` and ``group``.

    The empty text stands for no chroot. Returns None if ZooKeeper is not asked or did not answer, or if there are too
    many groups.
    """
    if not client.zookeeper or len(groups) > MOST_GROUPS:
        return None
    chroot = client.config.zookeeper_chroot
    try:
        with closing_session(client) as session:
            return {
                group: {
                    path: (*(["brokers"] if root.brokers else []), *(["group"] if root.group else []))
                    for path, root in roots_beside(session, chroot, group, Deadline(client.timeout)).items()
                    if root is not None
                }
                for group in groups
            }
    except RegistryError:
        return None


def with_rights(client: ClusterClient, snapshot: GroupSnapshot) -> GroupSnapshot:
    """Return the snapshot with the rights on single owner and offset nodes as well.

    Members with different logins make nodes of different rights in one parent. Of very many nodes only the first are
    read. If ZooKeeper does not answer, a problem
    of the snapshot says so.
    """
    group = snapshot.group
    if not client.zookeeper or name_problem(group) is not None:
        return snapshot
    nodes = [paths.offset(group, tp) for tp in sorted(snapshot.offsets)][:MOST_RIGHTS]
    nodes += [paths.owner(group, tp) for tp in sorted(snapshot.owners)][:MOST_RIGHTS]
    deadline = Deadline(client.timeout)
    found: dict[str, str] = {}
    try:
        session = client.open_session(deadline)
        for one in session.read_each([Wanted(NodePart.RIGHTS, path) for path in nodes], deadline):
            if one.rights:
                found[one.wanted.path] = one.rights
    except RegistryError as error:
        problem = Problem("rights on nodes", str(error))
        return replace(snapshot, problems=(*snapshot.problems, problem))
    return replace(snapshot, acls={**snapshot.acls, **found})


def now_ms() -> int:
    """Return this machine's time in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def probe_clock(client: ClusterClient, group: str) -> ClockProbe:
    """Make an ephemeral node below the group's node, or in the root, read its time of creation, and delete the node.

    Members do not watch these places. A node below ``/consumers`` itself would be a group for other tools.
    Raises: ConfigException if ZooKeeper was not named, RegistryError if it does not answer or forbids the node.
    """
    deadline = Deadline(client.timeout)
    session = client.open_session(deadline)
    (there,) = session.read_each([Wanted(NodePart.STAT, paths.consumers_group(group))], deadline)
    parent = there.wanted.path if there.node is not None else ""
    path = f"{parent}/.zkconsumer-clock-{uuid.uuid4().hex}"
    before = now_ms()
    session.create(path, b"", deadline, ephemeral=True)
    after = now_ms()
    (made,) = session.read_each([Wanted(NodePart.STAT, path)], deadline)
    session.delete(path, deadline)
    if made.node is None:
        raise RegistryError(f"the node {path} that --write-probe made is gone already")
    return ClockProbe(before, after, made.node.ctime)
