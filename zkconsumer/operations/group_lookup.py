"""Finds the group that a command names, or says what the user probably meant: another name, or another chroot.

The texts are pure; :func:`require_group` asks its source, in the caller's thread.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from zkconsumer.errors import BrokerError, RegistryError, ZkConsumerError
from zkconsumer.operations.group_snapshot import GroupSnapshot
from zkconsumer.operations.snapshot_source import SnapshotSource

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


def similar_names(name: str, names: Collection[str], most: int = MOST_NAMES) -> list[str]:
    """Return the names that the user may have meant, the most similar one first."""
    by_small = {one.lower(): one for one in sorted(names)}
    small = name.lower()
    found = [by_small[small]] if small in by_small else []
    found += [by_small[one] for one in difflib.get_close_matches(small, by_small, n=most, cutoff=0.7)]
    if len(small) > 2:
        found += [one for one in sorted(names) if small in one.lower()]
    return list(dict.fromkeys(found))[:most]


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
