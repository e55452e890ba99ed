"""Checks of whether a group gets on: owners that stand still, groups without members or that do not settle.

Pure; any thread.
"""

from __future__ import annotations

from collections.abc import Iterator

from zkconsumer.model import ConsumerId, TopicPartition
from zkconsumer.operations.doctor.findings import (
    Finding,
    Level,
    Observations,
    counted,
    our_command,
    partitions_text,
    seconds,
    unknown,
)
from zkconsumer.operations.group_progress import Progress, still_since, waiting_messages
from zkconsumer.operations.group_view import GroupState, MemberKind, member_host, member_kind
from zkconsumer.zookeeper import paths

STANDS_STILL_MS = 180_000
"""An owner that does not move its offset for so long stands still: three commit intervals of the original (60 s)."""


def standing_still(seen: Observations) -> Iterator[Finding]:
    """Find members that own partitions with waiting messages, and whose offsets do not move."""
    snapshot = seen.latest
    still: dict[ConsumerId, dict[TopicPartition, int]] = {}
    untold: list[TopicPartition] = []
    for tp, progress in sorted(seen.progress.items()):
        if progress.waiting is None or not waiting_messages(snapshot, tp):
            continue
        since = still_since(snapshot, tp, progress)
        if since is not None and snapshot.taken - since >= STANDS_STILL_MS:
            still.setdefault(_member(seen, progress.claim[0]), {})[tp] = since
        elif _cannot_tell(seen, tp, progress):
            untold.append(tp)
    for member, tps in sorted(still.items()):
        yield _stands(seen, member, tps)
    if untold:
        why = (
            "their offsets are in Kafka, which keeps no time of a commit"
            if any(tp not in snapshot.offsets for tp in untold)
            else "when the next message came is not known"
        )
        yield unknown(
            f"whether the owners of {partitions_text(untold)} get on: {why}",
            remedy=f"look twice: --twice {STANDS_STILL_MS // 1000}, or let zkconsumer serve watch the group",
            partitions=untold,
        )


def _member(seen: Observations, owner: str) -> ConsumerId:
    return ConsumerId(owner if seen.analysis.by_brokers is not None else owner.rpartition("-")[0] or owner)


def _cannot_tell(seen: Observations, tp: TopicPartition, progress: Progress) -> bool:
    """Whether a partition may have stood still for long, and the snapshots lack the times that would show it."""
    if progress.idle:
        return False  # an earlier look has seen it get on
    snapshot = seen.latest
    node, log, limit = snapshot.offsets.get(tp), snapshot.logs.get(tp), snapshot.taken - STANDS_STILL_MS
    written = node.stat.mtime if node is not None and node.stat is not None else None
    came = None if log is None else log.known_time
    if seen.analysis.by_brokers is not None and node is not None:
        written = came = None  # both times are of an offset that the members do not use
    if came is not None and came > snapshot.taken + STANDS_STILL_MS:
        came = None  # a producer's clock, or its unit, is wrong
    owner = snapshot.owners.get(tp)
    claimed = owner.stat.ctime if owner is not None and owner.stat is not None else None
    if written is not None and came is not None:
        return False
    return all(time is None or time <= limit for time in (written, came, claimed))


def _stands(seen: Observations, member: ConsumerId, tps: dict[TopicPartition, int]) -> Finding:
    snapshot, since = seen.latest, min(tps.values())
    node = snapshot.members.get(member)
    spark = node is not None and member_kind(node) is MemberKind.SPARK
    waiting = sum(waiting_messages(snapshot, tp) for tp in tps)
    untimed = [tp for tp in tps if snapshot.logs[tp].message_time is None]
    verb = "stands" if len(tps) == 1 else "stand"
    # a transaction marker or deleted records count as lag, and nobody can read them
    maybe = " (or what waits are transaction markers: no message is known to be next)" if untimed else ""
    host = member_host(snapshot.group, member, node)
    path = f"{paths.CONSUMERS}/{snapshot.group}/owners/{next(iter(tps)).topic}"
    return Finding(
        Level.WARN if spark or len(untimed) == len(tps) else Level.ERROR,
        f"{member} owns {counted(len(tps), 'partition')} that {verb} still for {seconds(snapshot.taken - since)}:"
        f" {counted(waiting, 'message')} {'waits' if waiting == 1 else 'wait'}, and no offset moves{maybe}",
        f"{partitions_text(tps)}; the limit is {seconds(STANDS_STILL_MS)}, three commit intervals of the original",
        "" if seen.analysis.by_brokers is not None else path,
        f"look at what the member does{f' on {host}' if host else ''} (its log, jstack or connector.state). It hangs,"
        " it is paused, one message takes that long, or it commits more rarely. If it hangs, restart it",
        partitions=tuple(tps),
        since=since,
    )


def without_members(seen: Observations) -> Iterator[Finding]:
    """Find a group without members in which messages wait. A group of brokers may be one of a standalone consumer."""
    snapshot = seen.latest
    if seen.analysis.state.state is not GroupState.EMPTY:
        return
    waiting = {tp: lag for tp in snapshot.partitions() if (lag := snapshot.lag(tp))}
    if waiting:
        yield Finding(
            Level.WARN if snapshot.in_zookeeper else Level.NOTE,
            f"the group has no member, and {counted(sum(waiting.values()), 'message')} wait",
            partitions_text(waiting),
            f"{paths.CONSUMERS}/{snapshot.group}/ids" if snapshot.in_zookeeper else "",
            "start its members; if nobody needs the group any more: "
            + our_command(snapshot, "groups", "delete", snapshot.group),
            partitions=tuple(waiting),
        )


def stuck_groups(seen: Observations) -> Iterator[Finding]:
    """Find partitions that the wrong thread has owned for longer than any rebalance takes."""
    analysis, snapshot = seen.analysis, seen.latest
    if analysis.state.state is not GroupState.STUCK:
        return
    expected = analysis.expected
    wrong = [
        tp
        for tp, node in sorted(snapshot.owners.items())
        if (expected.get(tp) != node.thread if not analysis.problem else node.thread not in analysis.registered)
    ]
    if wrong:  # partitions without an owner have a check of their own
        yield Finding(
            Level.ERROR,
            f"the group is stuck: {analysis.state.reason}",
            partitions_text(wrong),
            f"{paths.CONSUMERS}/{snapshot.group}/owners",
            "see why: " + our_command(snapshot, "explain", snapshot.group),
            partitions=wrong,
        )
