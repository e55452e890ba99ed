"""The parts of a snapshot that could not be read, and the reasons. Pure; any thread."""

from __future__ import annotations

from collections.abc import Iterator

from zkconsumer.operations.doctor.findings import Finding, Level, Observations, counted, listed, unknown
from zkconsumer.operations.group_snapshot import FORBIDDEN_NODE, GroupSnapshot
from zkconsumer.zookeeper import paths


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
    return why_unread(snapshot, f"{paths.CONSUMERS}/{snapshot.group}/{part}")


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
    group = f"{paths.CONSUMERS}/{snapshot.group}"
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
