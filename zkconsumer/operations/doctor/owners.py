"""Checks of owner nodes: who holds a partition, and whether that member can. Pure; any thread."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from zkconsumer.core.registration import NUDGE
from zkconsumer.model import ConsumerId, ThreadId, TopicPartition
from zkconsumer.operations.doctor.findings import (
    Finding,
    Level,
    Observations,
    counted,
    delete_node,
    partitions_text,
    seconds,
    shell_command,
    unknown,
)
from zkconsumer.operations.doctor.reading import why_no_nodes
from zkconsumer.operations.doctor.strategies import mixed_members, probably_mixed
from zkconsumer.operations.doctor.timeouts import longest_session, member_patience
from zkconsumer.operations.group_snapshot import GroupSnapshot, OwnerNode
from zkconsumer.operations.group_view import MemberKind, member_kind
from zkconsumer.zookeeper import paths


def persistent_owners(seen: Observations) -> Iterator[Finding]:
    """Find owner nodes that end with no session."""
    for tp, node in sorted(seen.latest.owners.items()):
        if node.stat is not None and node.stat.ephemeral_owner == 0:
            path = _path(seen.latest, tp)
            yield Finding(
                Level.ERROR,
                f"the owner node of {tp} is persistent: no session ends it, so nobody can ever claim the partition",
                f"ephemeralOwner 0, content {node.thread or node.problem!r}, {_age(seen.latest, node)} old",
                path,
                f"delete it: {delete_node(seen.latest, path, node.stat.version)}",
                partitions=(tp,),
            )


def orphan_owners(seen: Observations) -> Iterator[Finding]:
    """Find owner nodes of sessions that registered no member."""
    snapshot = seen.latest
    unread = why_no_nodes(snapshot, "ids") or _unread_sessions(snapshot)
    orphans: dict[int, list[TopicPartition]] = {}
    registered = _sessions(snapshot)
    for tp, node in sorted(snapshot.owners.items()):
        if node.stat is not None and node.stat.ephemeral_owner and node.stat.ephemeral_owner not in registered:
            orphans.setdefault(node.stat.ephemeral_owner, []).append(tp)
    earlier = [(one, _sessions(one)) for one in seen.earlier] if orphans else []
    for session, tps in orphans.items():
        if unread:
            yield unknown(f"whose session {session:#x} is: {unread}", node=_path(snapshot, tps[0]))
        else:
            yield _orphan(seen, session, tps, [one for one, before in earlier if session not in before])


def _orphan(seen: Observations, session: int, tps: list[TopicPartition], earlier: Sequence[GroupSnapshot]) -> Finding:
    """``earlier`` are the snapshots in which the session had registered no member either."""
    snapshot = seen.latest
    node = snapshot.owners[tps[0]]
    limit, sure = longest_session(snapshot)
    address = next((server.sessions[session][0] for server in snapshot.servers if session in server.sessions), "")
    since = [
        one.taken
        for one in earlier
        if tps[0] in one.owners
        if (stat := one.owners[tps[0]].stat) is not None and stat.ephemeral_owner == session
    ]
    age = _age(snapshot, node)
    evidence = f"session {session:#x}, thread {node.thread!r}, {partitions_text(tps)}, claimed {age} ago"
    if address or (since and snapshot.taken - min(since) > limit):
        shown = f"connected from {address}" if address else f"so since {seconds(snapshot.taken - min(since))} at least"
        return Finding(
            Level.ERROR,
            f"a live client owns {counted(len(tps), 'partition')} but is not registered: no member will get them",
            f"{evidence}, {shown}",
            _path(snapshot, tps[0]),
            f"restart the process of {node.thread!r}" + (f" at {address}" if address else "") + ": its session ends"
            " with it, and then its owner nodes",
            partitions=tps,
        )
    most = f"{seconds(limit)}, the longest session {'that the servers allow' if sure else 'by default'}"
    return Finding(
        Level.WARN,
        f"no registered member has the session that owns {counted(len(tps), 'partition')}. Either the session ends"
        f" within {most}, or a live client lost its registration",
        evidence,
        _path(snapshot, tps[0]),
        f"look again after {seconds(limit)}; if it is still there, restart the process of {node.thread!r}",
        partitions=tps,
    )


def unknown_owners(seen: Observations) -> Iterator[Finding]:
    """Find owner nodes of registered sessions that name a thread which no member has for the topic."""
    snapshot = seen.latest
    if not snapshot.members:
        return
    threads = seen.analysis.threads
    by_session = {
        node.stat.ephemeral_owner: consumer for consumer, node in snapshot.members.items() if node.stat is not None
    }
    for tp, node in sorted(snapshot.owners.items()):
        path = _path(snapshot, tp)
        if node.problem:
            yield unknown(f"whose {tp} is: {node.problem}", node=path)
            continue
        member = _member(node.thread)
        if member in snapshot.members and member not in threads:
            continue  # unknown threads: another check reports the registration that cannot be read
        if any(node.thread in threads.get(member, {}).get(tp.topic, ()) for member in (member,)):
            continue
        holder = by_session.get(node.stat.ephemeral_owner) if node.stat is not None else None
        if holder is None and node.stat is not None and node.stat.ephemeral_owner:
            continue  # an orphan, which has its own check
        who = f"the session is that of {holder}" if holder else "no session"
        yield Finding(
            Level.ERROR,
            f"{tp} is owned by {node.thread!r}, which no registration has as a thread for {tp.topic}: "
            + ("its member is not registered" if member not in snapshot.members else "the member has other threads"),
            f"{who}, claimed {_age(snapshot, node)} ago",
            path,
            f"restart {holder}" if holder else "see the findings on persistent owners",
            partitions=(tp,),
        )


def unowned_partitions(seen: Observations) -> Iterator[Finding]:
    """Find partitions that a member should own and nobody does."""
    snapshot = seen.latest
    if not snapshot.members or why_no_nodes(snapshot, "owners") or why_no_nodes(snapshot, "ids"):
        return
    expected = seen.analysis.expected
    if seen.analysis.problem:
        yield unknown(f"who should own what: {seen.analysis.problem}")
    wanted = snapshot.partitions_of(seen.analysis.subscribed)
    missing: dict[ConsumerId, list[TopicPartition]] = {}
    for tp in wanted:
        if tp not in snapshot.owners and tp not in seen.analysis.reserved:
            missing.setdefault(_member(expected.get(tp, ThreadId(""))), []).append(tp)
    quiet = seen.analysis.quiet_for
    settled = bool(missing) and quiet is not None and quiet * 1000 > member_patience(seen)[0]
    # computed once: both look at the whole group
    mixed, probably = (mixed_members(seen), probably_mixed(seen)) if settled else ("", {})
    for member, tps in sorted(missing.items()):
        yield replace(_unowned(seen, member, tps, quiet, mixed, probably.get(member, "")), partitions=tps)


def _unowned(
    seen: Observations, member: ConsumerId, tps: list[TopicPartition], quiet: float | None, mixed: str, other: str
) -> Finding:
    """Arguments: ``mixed`` and ``other`` say that strategies differ: certainly, or probably that of this member."""
    snapshot = seen.latest
    node = snapshot.members.get(member)
    kind = MemberKind.UNKNOWN if node is None else member_kind(node)
    patience, told = member_patience(seen)
    who = f", which {member} should own" if member else ""
    text = f"nobody owns {counted(len(tps), 'partition')}{who}"
    if quiet is None:
        since = "since when cannot be told"
    else:
        since = f"the group has not changed for {seconds(quiet * 1000)} at least"
    evidence = f"{partitions_text(tps)}; {since}"
    path = _path(snapshot, tps[0])
    if quiet is None:
        twice = "look twice: --twice 60"
        return Finding(Level.WARN, f"{text}; a rebalance is under way, or stuck", evidence, path, twice)
    if quiet * 1000 <= patience:
        later = f"look again after {seconds(patience)} without a change"
        return Finding(Level.NOTE, f"{text}; a rebalance may be under way", evidence, path, later)
    if mixed:
        text += "; the members use different strategies, so that they claim the same partitions"
        remedy = f"set one partition.assignment.strategy, and restart the members that change: {mixed}"
        return Finding(Level.ERROR, text, evidence, path, f"{remedy}. Waking the members cannot mend it")
    if kind is MemberKind.SCALA:
        found = _gave_up(snapshot, text, evidence, path, f"{seconds(patience)} {told}")
        if other:
            first = f"compare its partition.assignment.strategy with {seen.analysis.strategy.label}, that of the others"
            remedy = f"{first}, and set one strategy ({other}). Only if they are the same, {found.remedy}"
            found = replace(found, evidence=f"{evidence}; {other}", remedy=remedy)
        return found
    advice = "restart the member that should own them" if node is None else "its connector.state and log say why"
    return Finding(Level.ERROR, f"{text}; it cannot claim them", evidence, path, advice)


def _gave_up(snapshot: GroupSnapshot, text: str, evidence: str, path: str, patience: str) -> Finding:
    node = f"{paths.CONSUMERS}/{snapshot.group}/ids/{snapshot.group}_nudge"
    return Finding(
        Level.ERROR,
        f"{text}; it gave up (it tries rebalance.max.retries x rebalance.backoff.ms = {patience},"
        " and then waits for the next change of the group), or another member holds what it wants",
        evidence,
        path,
        "wake all members once; the node lives up to 30 s longer than the command, and they rebalance again when it"
        f" goes: {shell_command(snapshot, 'create', '-e', node, NUDGE)}",
    )


# ---- nodes


def _path(snapshot: GroupSnapshot, tp: TopicPartition) -> str:
    return f"{paths.CONSUMERS}/{snapshot.group}/owners/{tp.topic}/{tp.partition}"


def _member(thread: str) -> ConsumerId:
    return ConsumerId(thread.rpartition("-")[0])


def _sessions(snapshot: GroupSnapshot) -> set[int]:
    return {node.stat.ephemeral_owner for node in snapshot.members.values() if node.stat is not None}


def _unread_sessions(snapshot: GroupSnapshot) -> str:
    without = [consumer for consumer, node in snapshot.members.items() if node.stat is None]
    return f"the registration of {without[0]} was not read" if without else ""


def _age(snapshot: GroupSnapshot, node: OwnerNode) -> str:
    return "?" if node.stat is None else seconds(snapshot.taken - node.stat.ctime)
