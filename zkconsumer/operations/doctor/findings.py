"""The findings of the doctor's checks, the data that the checks examine, and the parts of the data that are missing.

Pure; any thread.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import reduce

from zkconsumer.core.registration import PROCESS_KEY
from zkconsumer.model import ConsumerId, TopicPartition
from zkconsumer.operations.group_snapshot import FORBIDDEN_NODE, GroupSnapshot
from zkconsumer.operations.group_view import GroupAnalysis, member_host
from zkconsumer.operations.stalled_partitions import Progress, after
from zkconsumer.zookeeper import paths

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
    and is found from the snapshots unless it is given. ``before`` is the analysis of an earlier snapshot: what has not
    changed since is not computed again.
    """

    snapshots: Sequence[GroupSnapshot]
    member_config: Mapping[str, str] | None = None
    probe: ClockProbe | None = None
    chroots: Mapping[str, Collection[str]] | None = None
    progress: Mapping[TopicPartition, Progress] = field(default_factory=dict)
    before: GroupAnalysis | None = None
    latest: GroupSnapshot = field(init=False)
    analysis: GroupAnalysis = field(init=False)

    def __post_init__(self) -> None:
        if not self.snapshots:
            raise ValueError("snapshots: at least one is needed")
        object.__setattr__(self, "latest", self.snapshots[-1])
        latest, earlier, before = self.latest, self.earlier, self.before
        analysis = GroupAnalysis(latest, earlier) if before is None else before.of_later(latest, earlier)
        object.__setattr__(self, "analysis", analysis)
        object.__setattr__(self, "before", None)  # or each would keep the one before, without end
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
    """Return a command of this package for the cluster of this snapshot. ``brokers``: the command asks them too.

    A group such as ``--all-groups`` comes last. Otherwise the command would take the name for an option.
    """
    where = ["--zookeeper", snapshot.zookeeper] if snapshot.zookeeper else []
    if snapshot.bootstrap and (brokers or not where):
        where += ["--bootstrap-server", snapshot.bootstrap]
    last = ["--", snapshot.group] if snapshot.group.startswith("-") and snapshot.group in words else []
    return shlex.join(["zkconsumer", *(word for word in words if word not in last), *where, *last])


def process_of(snapshot: GroupSnapshot, consumer: ConsumerId) -> str:
    """Return where a member runs, as far as its registration and its id tell: `` on h1 (process 77)``, or empty."""
    node = snapshot.members.get(consumer)
    host = member_host(snapshot.group, consumer, node)
    pid = None if node is None or node.registration is None else node.registration.extra.get(PROCESS_KEY)
    return (f" on {host}" if host else "") + (f" (process {pid})" if pid else "")


def why_unread(snapshot: GroupSnapshot, what: str) -> str:
    """Return why something in ZooKeeper could not be read, empty if it could.

    ``what`` is a path; nodes below it count as well.
    """
    lost = [one.why for one in snapshot.problems if one.what.startswith("ZooKeeper ")]
    if lost:
        return lost[0]
    found = [one for one in snapshot.problems if one.what == what or one.what.startswith(what.rstrip("/") + "/")]
    return f"{found[0].what}: {found[0].why}" if found else ""


def why_no_nodes(snapshot: GroupSnapshot, part: str) -> str:
    """Return why nodes of the group were not all read, empty if they were.

    ``part`` is the name of the parent below ``/consumers/<group>``.
    """
    if not snapshot.zookeeper:
        return "ZooKeeper was not asked"
    if not snapshot.problems:  # each of dozens of checks asks, for each of many groups
        return ""
    return why_unread(snapshot, snapshot.path(part))


def topics_problem(snapshot: GroupSnapshot) -> str:
    """Return why the list of topics is not complete, empty if it is."""
    if not snapshot.topics and not snapshot.brokers and not snapshot.zookeeper:
        return "neither ZooKeeper nor brokers were asked"
    if snapshot.zookeeper:
        lost = [one for one in snapshot.problems if one.what == paths.TOPICS or one.what.startswith("ZooKeeper ")]
    else:
        lost = [one for one in snapshot.problems if one.what == "brokers"]
    return lost[0].why if lost else ""


def why_topic_unread(snapshot: GroupSnapshot, topic: str) -> str:
    """Return why it is unknown whether a topic exists, empty if it is known."""
    refused = [one.why for one in snapshot.problems if one.what == f"topic {topic!a}"]
    return refused[0] if refused else why_unread(snapshot, f"{paths.TOPICS}/{topic}")


def not_read(snapshot: GroupSnapshot, word: str) -> str:
    """Return in brackets why brokers did not say something, if a problem mentions the word; else empty."""
    if not snapshot.bootstrap and not snapshot.brokers:
        return " (no broker was asked)"
    found = [one for one in snapshot.problems if word in f"{one.what} {one.why}".lower()]
    return f" ({found[0].what}: {found[0].why})" if found else ""


def forbidden_nodes(snapshot: GroupSnapshot) -> list[str]:
    """Return the paths that ZooKeeper does not let us read, each once. The check ``acl`` tells them."""
    found = {one.what for one in snapshot.problems if is_forbidden(one.why) and one.what.startswith("/")}
    group = snapshot.path()
    for part, nodes in (("owners", snapshot.owners), ("offsets", snapshot.offsets)):
        found |= {f"{group}/{part}/{tp.topic}/{tp.partition}" for tp, one in nodes.items() if is_forbidden(one.problem)}
    found |= {f"{group}/ids/{name}" for name, one in snapshot.members.items() if is_forbidden(one.problem)}
    return sorted(found)


def is_forbidden(text: str) -> bool:
    """Return whether a reason is that of a node that we may not read."""
    return FORBIDDEN_NODE in text


def unread_parts(seen: Observations) -> Iterator[Finding]:
    """Name the parts that could not be read at all, since no other check knows of such a part."""
    told = set(forbidden_nodes(seen.latest)) if seen.latest.in_zookeeper else set()
    problems = [one for one in seen.latest.problems if one.what not in told or not is_forbidden(one.why)]
    if problems:
        texts = [f"{one.what}: {one.why}" for one in problems]
        yield unknown(f"{counted(len(problems), 'thing')} could not be read", node=problems[0].what)
        yield Finding(Level.NOTE, "they are: " + listed(texts, 10))
