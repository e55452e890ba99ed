"""Checks of committed offsets: their nodes, their topics, the logs, and the two stores. Pure; any thread."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from zkconsumer.model import ConsumerId, TopicPartition
from zkconsumer.operations.doctor.findings import (
    Finding,
    Level,
    Observations,
    counted,
    not_read,
    our_command,
    partitions_text,
    seconds,
    shell_command,
    topics_problem,
    unknown,
    why_topic_unread,
)
from zkconsumer.operations.group_snapshot import (
    GroupSnapshot,
    LogState,
    MemberNode,
    gone_before,
    gone_words,
    lag_between,
)
from zkconsumer.operations.group_view import MemberKind, member_kind

JUST_COMMITTED_MS = 10_000
"""Stores that differ after a commit this young may only have been read at different moments."""

_NONE = re.compile("-[0-9]+ ", re.ASCII)
"""How the problem of a node with a negative number begins."""


@dataclass(frozen=True, slots=True)
class _Committed:
    """A committed offset: its store, the path of the node (empty in Kafka), and the time of the write (ms, or None)."""

    offset: int
    store: str
    node: str
    written: int | None


def _committed(snapshot: GroupSnapshot) -> Iterator[tuple[TopicPartition, _Committed]]:
    """Yield every readable offset of both stores."""
    for tp, node in sorted(snapshot.offsets.items()):
        if node.offset is not None:
            written = None if node.stat is None else node.stat.mtime
            yield tp, _Committed(node.offset, "ZooKeeper", snapshot.path("offsets", *tp), written)
    for tp, stored in sorted((snapshot.kafka_offsets or {}).items()):
        if stored.offset is not None:
            yield tp, _Committed(stored.offset, "Kafka", "", None)


def _reset(snapshot: GroupSnapshot, tp: TopicPartition, where: str) -> str:
    words = ["groups", "--reset-offsets", f"--group={snapshot.group}", f"--topic={tp.topic}:{tp.partition}", where]
    owner = snapshot.owners.get(tp)
    member = snapshot.members.get(ConsumerId(owner.thread.rpartition("-")[0])) if owner is not None else None
    first = "stop its owner, since a Scala member writes over a reset: " if _is_scala(member) else ""
    return first + our_command(snapshot, *words, "--dry-run", brokers=True)


def _is_scala(member: MemberNode | None) -> bool:
    return member is not None and member_kind(member) is MemberKind.SCALA


def dead_offsets(seen: Observations) -> Iterator[Finding]:
    """Find offsets of topics and partitions that are gone, and of topics that no member subscribes to any more."""
    snapshot = seen.latest
    committed: set[TopicPartition] = {*snapshot.offsets, *(snapshot.kafka_offsets or ())}
    why = topics_problem(snapshot)
    if committed and why:
        yield unknown(f"which topics exist was not read ({why})")
        return
    remedy = our_command(snapshot, "offsets", "prune", snapshot.group, "--dry-run", brokers=True)
    by_topic: dict[str, list[TopicPartition]] = {}
    for tp in sorted(committed):
        by_topic.setdefault(tp.topic, []).append(tp)
    hidden = any(node.registration is None for node in snapshot.members.values())  # it may subscribe to anything
    subscribed = seen.analysis.subscribed if snapshot.members and not hidden else None
    existing = set(snapshot.partitions_of(by_topic))
    for topic, stored in by_topic.items():
        known = snapshot.topics.get(topic)
        node = snapshot.path("offsets", topic)
        if unread := why_topic_unread(snapshot, topic):
            yield unknown(f"whether topic {topic} exists: {unread}", node=node)
        elif known is None:
            text = f"topic {topic} does not exist, but has {counted(len(stored), 'offset')}"
            yield Finding(Level.WARN, text, partitions_text(stored), node, remedy, partitions=stored)
        elif known.problem:
            yield unknown(f"the partitions of topic {topic} were not read ({known.problem})", node=node)
        elif gone := sorted(set(stored) - existing):
            text = f"topic {topic} has {counted(len(known.partitions), 'partition')}; {len(gone)} offsets are of others"
            yield Finding(Level.WARN, text, partitions_text(gone), node, remedy, partitions=gone)
        elif subscribed is not None and topic not in subscribed:
            text = f"no member subscribes to topic {topic} any more; its lag only grows"
            yield Finding(Level.NOTE, text, partitions_text(stored), node, f"{remedy} --unsubscribed")


def offsets_outside_logs(seen: Observations) -> Iterator[Finding]:
    """Find offsets below the start or beyond the end of their log, and offsets of a topic's former life."""
    snapshot = seen.latest
    unread: list[TopicPartition] = []
    existing = set(snapshot.partitions_of(snapshot.topics))
    for tp, one in _committed(snapshot):
        topic, log = snapshot.topics.get(tp.topic), snapshot.logs.get(tp)
        if one.offset < 0 or topic is None or tp not in existing:
            continue
        former = topic.created is not None and one.written is not None and one.written < topic.created
        if log is not None and log.start is not None and one.offset < log.start:
            yield _below(snapshot, tp, one, log, former=former)
        elif log is not None and log.end is not None and one.offset > log.end:
            yield _beyond(snapshot, tp, one, log, former=former)
        elif former:
            text = f"the offset {one.offset} of {tp} is older than the topic, which was created anew after it"
            remedy = _reset(snapshot, tp, "--to-earliest")
            yield Finding(Level.WARN, text, _times(topic.created, one), one.node, remedy, partitions=(tp,))
        elif log is None or log.start is None or log.end is None:
            unread.append(tp)
    if unread:
        why = not_read(snapshot, "log")
        yield unknown(f"the logs of {partitions_text(unread)} were not read{why}", partitions=unread)


def _times(created: int | None, one: _Committed) -> str:
    if created is None or one.written is None:
        return ""
    return f"committed {seconds(created - one.written)} before the topic's creation"


def _below(snapshot: GroupSnapshot, tp: TopicPartition, one: _Committed, log: LogState, *, former: bool) -> Finding:
    lost = gone_before(one.offset, log)
    left = lag_between(one.offset, log)
    more = "" if left is None else f", largest skips the {left} too"
    return Finding(
        Level.ERROR,
        f"the offset of {tp} in {one.store} lies below its log: {gone_words(lost, left)}. The {lost} messages were"
        f" deleted before they were read. auto.offset.reset will apply: smallest goes on behind them{more}"
        + (". The topic was created anew" if former else ""),
        f"offset {one.offset}, log {log.start}..{log.end}",
        one.node,
        _reset(snapshot, tp, "--to-earliest"),
        partitions=(tp,),
    )


def _beyond(snapshot: GroupSnapshot, tp: TopicPartition, one: _Committed, log: LogState, *, former: bool) -> Finding:
    again = "" if log.start is None else f"smallest repeats {(log.end or 0) - log.start} messages, "
    cause = "the topic was created anew" if former else "the topic was created anew, or its log was cut"
    return Finding(
        Level.ERROR,
        f"the offset of {tp} in {one.store} lies beyond its log, so its lag is unknown: {cause}."
        f" auto.offset.reset will apply: {again}"
        "largest skips them",
        f"offset {one.offset}, log {log.start}..{log.end}",
        one.node,
        _reset(snapshot, tp, "--to-earliest"),
        partitions=(tp,),
    )


def offsets_that_are_no_numbers(seen: Observations) -> Iterator[Finding]:
    """Find offset nodes that no member can read, and negative offsets."""
    snapshot = seen.latest
    for tp, node in sorted(snapshot.offsets.items()):
        if _NONE.match(node.problem) or (node.offset is not None and node.offset < 0):
            text = node.problem or f"{node.offset} means that there is none"
            yield Finding(
                Level.NOTE,
                f"the offset of {tp}: {text}; auto.offset.reset will apply",
                node=snapshot.path("offsets", *tp),
            )
        elif node.offset is None:
            stat = node.stat
            if stat is None:  # an ACL, or a lost connection: nothing is known about the content
                yield unknown(f"the offset of {tp} was not read: {node.problem}", node=snapshot.path("offsets", *tp))
                continue
            yield Finding(
                Level.ERROR,
                f"the offset of {tp} is no number; a Scala member that should own it fails every rebalance",
                node.problem,
                snapshot.path("offsets", *tp),
                f"write the right offset{_span(snapshot, tp)}: "
                + shell_command(snapshot, "set", "-v", str(stat.version), snapshot.path("offsets", *tp), "OFFSET"),
            )


def _span(snapshot: GroupSnapshot, tp: TopicPartition) -> str:
    log = snapshot.logs.get(tp)
    return "" if log is None or log.end is None else f", {log.start or 0} to {log.end}"


def stores_that_disagree(seen: Observations) -> Iterator[Finding]:
    """Compare the offsets in ZooKeeper with those in Kafka, where a partition has both."""
    snapshot = seen.latest
    if snapshot.kafka_offsets is None:
        if snapshot.offsets:
            yield unknown("the offsets in Kafka were not read" + not_read(snapshot, "offset"))
        return
    young: list[str] = []
    differing: list[str] = []
    for tp, node in sorted(snapshot.offsets.items()):
        other = snapshot.kafka_offsets.get(tp)
        if node.offset is None or other is None or other.offset is None or node.offset == other.offset:
            continue
        text = f"{tp} ZooKeeper {node.offset}, Kafka {other.offset} ({node.offset - other.offset:+d})"
        recent = node.stat is not None and snapshot.taken - node.stat.mtime < JUST_COMMITTED_MS
        (young if recent else differing).append(text)
    remedy = our_command(snapshot, "migrate", snapshot.group, "--verify")
    parent = snapshot.path("offsets")
    counts = (
        "With offsets.storage=zookeeper, ZooKeeper's counts; with kafka and dual.commit.enabled, the larger one counts"
    )
    if differing:
        text = f"the two stores differ for {counted(len(differing), 'partition')}. {counts}"
        yield Finding(Level.WARN, text, _few(differing), parent, remedy)
    if young:
        text = f"the two stores differ for {counted(len(young), 'partition')} with a commit just now: look again"
        yield Finding(Level.NOTE, text, _few(young), parent, remedy)


def _few(texts: list[str]) -> str:
    return "; ".join(texts[:5]) + (f"; and {len(texts) - 5} more" if len(texts) > 5 else "")
