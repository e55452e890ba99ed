"""The findings of the doctor's checks, and the data that the checks examine. Pure; any thread."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import reduce

from zkconsumer.model import TopicPartition
from zkconsumer.operations.group_progress import Progress, after
from zkconsumer.operations.group_snapshot import GroupSnapshot
from zkconsumer.operations.group_view import GroupAnalysis

DOCS_PAGE = "docs/doctor.md"
"""The page that explains most checks; each check's name is an anchor in its page."""


class Level(IntEnum):
    """How bad a finding is. Only ``ERROR`` makes the command's exit code 1."""

    OK = 0
    NOTE = 1
    WARN = 2
    ERROR = 3

    def __str__(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding of one check.

    ``text`` says what is wrong, or that nothing is. ``evidence`` are the values that show it, ``node`` is the path of
    the node or the name of the broker, ``remedy`` is what to do, with the command to type. ``unknown`` marks a check
    that lacks the values to decide. Its level is ``NOTE`` and its text begins with "unknown". Its level is ``OK`` if
    the check needs an option, or a right, that was not given. ``check`` and ``link`` are the name of the check and its
    place in the docs. ``partitions`` are those that the finding is about, and ``since`` is when their illness began at
    the latest, in milliseconds since 1970; None if that is unknown.
    """

    level: Level
    text: str
    evidence: str = ""
    node: str = ""
    remedy: str = ""
    unknown: bool = False
    check: str = ""
    link: str = ""
    partitions: Collection[TopicPartition] = ()
    since: int | None = None

    @property
    def headline(self) -> str:
        """The first sentence of the text."""
        return self.text.partition(". ")[0]


def unknown(why: str, *, remedy: str = "", node: str = "", partitions: Collection[TopicPartition] = ()) -> Finding:
    """Return the finding of a check that cannot be decided. It is never "ok"."""
    return Finding(Level.NOTE, f"unknown: {why}", node=node, remedy=remedy, unknown=True, partitions=partitions)


def not_looked_at(why: str, *, remedy: str) -> Finding:
    """Return the finding of a check that needs what was not asked for. A group is "ok" without it.

    Otherwise no group would ever be "ok": there is always one more option.
    """
    return Finding(Level.OK, f"not looked at: {why}", remedy=remedy, unknown=True)


@dataclass(frozen=True, slots=True)
class ClockProbe:
    """The outcome of ``--write-probe``: our clock before and after a node was made, and its ``ctime``, all in ms."""

    before: int
    after: int
    ctime: int


@dataclass(frozen=True, slots=True)
class Observations:
    """All that the checks look at.

    ``snapshots`` are of one group, oldest first, at least one. ``member_config`` are the properties of a Scala member,
    None if they were not given. ``probe`` is None if no node was written. ``chroots`` maps each chroot of the servers
    to its contents, of ``brokers`` and ``group``; None if they were not asked. ``progress`` is that of the partitions,
    and is found from the snapshots unless it is given.
    """

    snapshots: Sequence[GroupSnapshot]
    member_config: Mapping[str, str] | None = None
    probe: ClockProbe | None = None
    chroots: Mapping[str, Collection[str]] | None = None
    progress: Mapping[TopicPartition, Progress] = field(default_factory=dict)
    latest: GroupSnapshot = field(init=False)
    analysis: GroupAnalysis = field(init=False)

    def __post_init__(self) -> None:
        if not self.snapshots:
            raise ValueError("snapshots: at least one is needed")
        object.__setattr__(self, "latest", self.snapshots[-1])
        object.__setattr__(self, "analysis", GroupAnalysis(self.latest, self.earlier))
        if not self.progress:
            object.__setattr__(self, "progress", reduce(after, self.snapshots, self.progress))

    @property
    def earlier(self) -> Sequence[GroupSnapshot]:
        """All snapshots but the latest."""
        return self.snapshots[:-1]


# ---- texts


def seconds(milliseconds: float) -> str:
    """Return a length of time in the unit that a person would use."""
    value = milliseconds / 1000
    for limit, size, unit in ((120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if abs(value) < limit:
            return f"{round(value / size, 1 if abs(value / size) < 10 else None):g} {unit}"
    return f"{value / 86_400:.0f} days"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless it is 1."""
    return f"{number} {noun}" + ("" if number == 1 else "s")


def listed(values: Iterable[object], most: int = 5) -> str:
    """Return the first few values as text, with the number of the others."""
    texts = [str(value) for value in values]
    rest = len(texts) - most
    return ", ".join(texts[:most]) + (f" and {rest} more" if rest > 0 else "")


def partitions_text(partitions: Iterable[TopicPartition]) -> str:
    """Return partitions as ``t:0,1,2 u:5``, the form of ``--topic``, shortened."""
    by_topic: dict[str, list[int]] = {}
    for tp in sorted(partitions):
        by_topic.setdefault(tp.topic, []).append(tp.partition)
    texts = []
    for topic, numbers in by_topic.items():
        more = f"... ({len(numbers)})" if len(numbers) > 8 else ""
        texts.append(f"{topic}:{','.join(map(str, numbers[:8]))}{more}")
    return listed(texts, 3).replace(", ", " ")


# ---- commands to type


def shell_command(snapshot: GroupSnapshot, *words: str) -> str:
    """Return a command of Kafka's ``zookeeper-shell.sh`` for the ZooKeeper of this snapshot."""
    return shlex.join(["zookeeper-shell.sh", snapshot.zookeeper or "HOST:2181", *words])


def delete_node(snapshot: GroupSnapshot, path: str, version: int) -> str:
    """Return the command that deletes a node if it has not changed since."""
    return shell_command(snapshot, "delete", "-v", str(version), path)


def our_command(snapshot: GroupSnapshot, *words: str, brokers: bool = False) -> str:
    """Return a command of this package for the cluster of this snapshot. ``brokers``: the command asks them too."""
    where = ["--zookeeper", snapshot.zookeeper] if snapshot.zookeeper else []
    if snapshot.bootstrap and (brokers or not where):
        where += ["--bootstrap-server", snapshot.bootstrap]
    return shlex.join(["zkconsumer", *words, *where])
