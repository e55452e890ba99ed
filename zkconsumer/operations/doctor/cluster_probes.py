"""What the doctor asks a live cluster beyond the snapshot: other chroots, and ZooKeeper's clock.

One thread at a time uses the connection. Nothing of the original is like this.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Mapping, Sequence

from zkconsumer.core.node_names import name_problem
from zkconsumer.deadline import Deadline
from zkconsumer.errors import RegistryError
from zkconsumer.operations.cluster_connection import ClusterConnection
from zkconsumer.operations.doctor.findings import ClockProbe
from zkconsumer.zookeeper import paths
from zkconsumer.zookeeper.node_values import Part, Reading, Wanted

MOST_CHROOTS = 200
"""The most nodes beside the chroot that are looked into."""
_CLOSE_S = 2.0
_NO_CHROOTS = frozenset({"brokers", "consumers", "config", "admin", "controller", "zookeeper", "cluster", "isr_change"})


def chroots_beside(
    connection: ClusterConnection, groups: Sequence[str]
) -> Mapping[str, Mapping[str, tuple[str, ...]]] | None:
    """Return for each group the chroots of these servers with what is there: ``brokers``, ``group``.

    It looks at the root, its children, the children of the named chroot, and the doubled chroot. The empty text stands
    for the root. Returns None if ZooKeeper is not asked, or did not answer.
    """
    servers, _, rest = connection.zookeeper.partition("/")
    if not servers:
        return None
    chroot = f"/{rest.strip('/')}" if rest.strip("/") else ""
    deadline = Deadline(connection.timeout)
    session = connection.new_session(servers)
    try:
        session.open(deadline)
        tops = [Wanted(Part.CHILDREN, path) for path in dict.fromkeys(("/", chroot or "/"))]
        candidates = {"", chroot, chroot * 2}
        for one in session.read_each(tops, deadline):
            base = one.wanted.path.rstrip("/")
            names = [name for name in sorted(one.names) if name not in _NO_CHROOTS and name_problem(name) is None]
            candidates.update(f"{base}/{name}" for name in names[:MOST_CHROOTS])
        wanted = [Wanted(Part.STAT, one + paths.BROKER_IDS) for one in sorted(candidates)]
        brokers = _existing(session.read_each(wanted, deadline), paths.BROKER_IDS)
        found = {}
        for group in groups:
            node = paths.consumers_group(group)
            there = _existing(
                session.read_each([Wanted(Part.STAT, one + node) for one in sorted(candidates)], deadline), node
            )
            found[group] = {
                one: (*(["brokers"] if brokers.get(one) else []), *(["group"] if one in there else []))
                for one in {*brokers, *there}
            }
        return found
    except RegistryError:
        return None
    finally:
        session.close(Deadline(_CLOSE_S))


def _existing(readings: Iterable[Reading], suffix: str) -> dict[str, int]:
    """Return the number of children of each existing node, by its path without the suffix."""
    return {one.wanted.path.removesuffix(suffix): one.node.children for one in readings if one.node is not None}


def probe_clock(connection: ClusterConnection, group: str) -> ClockProbe:
    """Make one ephemeral node below the group's, or in the root, read when ZooKeeper made it, and delete it.

    Members do not watch these places. A node below ``/consumers`` itself would be a group for other tools.
    Raises: ConfigException if ZooKeeper was not named, RegistryError if it does not answer or forbids the node.
    """
    deadline = Deadline(connection.timeout)
    session = connection.open_session(deadline)
    (there,) = session.read_each([Wanted(Part.STAT, paths.consumers_group(group))], deadline)
    parent = there.wanted.path if there.node is not None else ""
    path = f"{parent}/.zkconsumer-clock-{uuid.uuid4().hex}"
    before = time.time_ns() // 1_000_000
    session.create(path, b"", deadline, ephemeral=True)
    after = time.time_ns() // 1_000_000
    (made,) = session.read_each([Wanted(Part.STAT, path)], deadline)
    session.delete(path, deadline)
    if made.node is None:
        raise RegistryError(f"the node {path} that --write-probe made is gone already")
    return ClockProbe(before, after, made.node.ctime)
