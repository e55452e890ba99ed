"""Finds the group that a command names, or says what the user probably meant: another name, or another chroot.

:func:`require_group` asks its source, in the caller's thread. :func:`chroot_advice` looks below other paths of a
ZooKeeper for the brokers and a group that are not below the given chroot. It only reads, and only some hundred nodes.
The texts are pure.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Protocol, runtime_checkable

from zkconsumer.cluster import cluster_client
from zkconsumer.cluster.cluster_client import ClusterClient
from zkconsumer.config.addresses import format_connect
from zkconsumer.core.names import name_problem
from zkconsumer.errors import BrokerError, RegistryError, ZkConsumerError
from zkconsumer.operations.group_snapshot import GroupSnapshot, SnapshotSource
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


MOST_NAMES = 3
"""The most similar names that an error lists."""


class UnknownGroupError(ZkConsumerError):
    """Neither ZooKeeper nor the brokers know the group; the message has similar names, or the likely chroot."""


class Root(NamedTuple):
    """One path of a ZooKeeper: whether brokers, groups, and the group in question are below it."""

    brokers: bool
    consumers: bool
    group: bool


@runtime_checkable
class _KnowsRoots(Protocol):
    def chroot_advice(self, group: str) -> str:
        """Return where the group, or the brokers, are in place of the given chroot; empty if that is unknown."""


def require_group(source: SnapshotSource, group: str, *, message_times: bool = False) -> GroupSnapshot:
    """Return the snapshot of a group that exists.

    A group that the part of the cluster that answered does not know is returned too: it may be known to the rest, and
    ``problems`` says what did not answer. Raises UnknownGroupError; RegistryError, BrokerError as the source does.
    """
    found = source.snapshot(group, message_times=message_times)
    if found.in_zookeeper or found.in_kafka:
        return found
    if found.problems:
        answered = not any(problem.what.startswith("ZooKeeper ") for problem in found.problems)
        advice = _chroot_advice(source, group) if answered else ""
        if not advice:
            return found
        raise UnknownGroupError(f"Consumer group {_quoted(group)} does not exist. {advice}")
    hint = hint_for_unknown(source, group) or "There are other groups: see 'zkconsumer groups --list'."
    raise UnknownGroupError(f"Consumer group {_quoted(group)} does not exist. {hint}")


def hint_for_unknown(source: SnapshotSource, group: str) -> str:
    """Return what the user probably meant by the name of an unknown group, empty if that is unclear."""
    advice = _chroot_advice(source, group)
    try:
        names: Sequence[str] = source.groups()
    except (RegistryError, BrokerError):
        names = ()
    return unknown_group_hint(group, names, advice)


def _chroot_advice(source: SnapshotSource, group: str) -> str:
    return source.chroot_advice(group) if isinstance(source, _KnowsRoots) else ""


def unknown_group_hint(group: str, names: Collection[str], advice: str = "") -> str:
    """Return the hint for an unknown group. ``names`` are the known groups; ``advice`` is about the chroot."""
    similar = similar_names(group, names)
    if advice:
        return advice
    if similar:
        return f"Did you mean {' or '.join(map(_quoted, similar))}?"
    return "" if names else "There are no groups at all."


def similar_names(name: str, names: Collection[str]) -> list[str]:
    """Return the names that the user may have meant, the most similar one first."""
    by_small = {one.lower(): one for one in sorted(names)}
    small = name.lower()
    found = [by_small[small]] if small in by_small else []
    found += [by_small[one] for one in difflib.get_close_matches(small, by_small, n=MOST_NAMES, cutoff=0.7)]
    if len(small) > 2:
        found += [one for one in sorted(names) if small in one.lower()]
    return list(dict.fromkeys(found))[:MOST_NAMES]


def candidate_roots(chroot: str, children: Collection[str]) -> tuple[str, ...]:
    """Return the paths that may be meant in place of ``chroot``; an empty path is no chroot.

    They are: the parents, the chroot without a repeated part, twice and in lower case, and ``children``, existing paths
    below the root.
    """
    parts = [part for part in chroot.split("/") if part]
    paths = ["/" + "/".join(parts[:count]) if count else "" for count in range(len(parts))]
    half = len(parts) // 2
    if parts and parts[:half] == parts[half:]:
        paths.insert(0, "/" + "/".join(parts[:half]))
    if parts:
        paths += [chroot + chroot, chroot.lower()]
    return tuple(one for one in dict.fromkeys([*paths, *sorted(children)]) if one != chroot)


def chroot_text(servers: str, chroot: str, here: Root | None, others: Mapping[str, Root]) -> str:
    """Return advice about a chroot under which the group is missing, empty if nothing better is known.

    Arguments: ``servers`` without the chroot; ``here`` is what stands under the chroot, None if the chroot is missing;
    ``others`` are the other candidates, the likeliest first.
    """
    with_group = [path for path, root in others.items() if root.group]
    with_brokers = [path for path, root in others.items() if root.brokers]
    if with_group:
        likely = min(with_group, key=lambda path: not others[path].brokers)
        return f"It is there with {_option(servers, likely)}."
    if (here is None or not here.brokers) and with_brokers:
        missing = f"No brokers are registered under {_quoted((chroot or '') + '/brokers/ids')}."
        meant = " or ".join(_option(servers, path) for path in with_brokers[:MOST_NAMES])
        return f"{missing} There are some with {meant}."
    if here is not None and not here.brokers and not here.consumers:
        return f"There is neither /brokers/ids nor /consumers below {_quoted(chroot or '/')}: is the chroot right?"
    return ""


def _option(servers: str, chroot: str) -> str:
    return f"--zookeeper {servers}{_plain(chroot)}"


def _quoted(name: str) -> str:
    return f"'{_plain(name)}'"


def _plain(name: str) -> str:
    """Return a name without control characters: it may come from a node."""
    return name if name.isprintable() else ascii(name)[1:-1]
