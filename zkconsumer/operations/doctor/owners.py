"""Checks of owners: who holds a partition, whether that member can, and whether the group gets on. Pure; any thread."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from zkconsumer.core.registration import NUDGE
from zkconsumer.model import ConsumerId, ThreadId, TopicPartition
from zkconsumer.operations.doctor.findings import (
    Finding,
    Level,
    Observations,
    counted,
    delete_node,
    our_command,
    partitions_text,
    process_of,
    seconds,
    shell_command,
    unknown,
    why_no_nodes,
)
from zkconsumer.operations.doctor.strategies import mixed_members, probably_mixed
from zkconsumer.operations.doctor.timeouts import longest_session, member_patience
from zkconsumer.operations.group_snapshot import GroupSnapshot, MemberNode, OwnerNode
from zkconsumer.operations.group_state import GroupState
from zkconsumer.operations.group_view import MemberKind, member_kind
from zkconsumer.operations.stalled_partitions import STANDS_STILL_MS, may_stand_still, still_since, waiting_messages


def persistent_owners(seen: Observations) -> Iterator[Finding]:
    """Find owner nodes that end with no session."""
    for tp, node in sorted(seen.latest.owners.items()):
        if node.stat is not None and node.stat.ephemeral_owner == 0:
            path = seen.latest.path("owners", *tp)
            yield Finding(
                Level.ERROR,
                f"the owner node of {tp} is persistent: no session ends it, so nobody can ever claim the partition",
                f"ephemeralOwner 0, content {node.thread or node.problem!r}, {_age(seen.latest, node)} old",
                path,
                f"{_deletion(seen, tp)}: {delete_node(seen.latest, path, node.stat.version)}",
                partitions=(tp,),
            )


def _deletion(seen: Observations, tp: TopicPartition) -> str:
    """Return what to do with an owner node that no session ends, and what is left to do after that."""
    heir = _member(seen.analysis.expected.get(tp, ThreadId("")))
    node = seen.latest.members.get(heir)
    if node is None or member_kind(node) is not MemberKind.SCALA:
        return "delete it"
    return f"delete it, then wake {heir}, a Scala member that watches no owner (see unowned-partition)"


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
            yield unknown(f"whose session {session:#x} is: {unread}", node=snapshot.path("owners", *tps[0]))
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
            snapshot.path("owners", *tps[0]),
            f"restart the process of {node.thread!r}{_found_at(address)}: its session ends with it, and then its owner"
            " nodes",
            partitions=tps,
        )
    most = f"{seconds(limit)}, the longest session {'that the servers allow' if sure else 'by default'}"
    return Finding(
        Level.WARN,
        f"no registered member has the session that owns {counted(len(tps), 'partition')}. Either the session ends"
        f" within {most}, or a live client lost its registration",
        evidence,
        snapshot.path("owners", *tps[0]),
        f"if its process{process_of(snapshot, _member(node.thread))} is dead, wait: the session ends, and other members"
        f" claim the partitions. Look again after {seconds(limit)}, and if the node is still there, restart the process"
        f" of {node.thread!r}: {our_command(snapshot, 'doctor', snapshot.group, '--twice', str(limit // 1000 + 1))}",
        partitions=tps,
    )


def _found_at(address: str) -> str:
    port = address.rpartition(":")[2]
    return f" at {address} (there, ss -tnp 'sport = :{port}' shows its number)" if address else ""


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
        path = snapshot.path("owners", *tp)
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
            f"restart {holder}{process_of(snapshot, holder)}"
            if holder
            else f"{_deletion(seen, tp)}: {delete_node(snapshot, path, 0 if node.stat is None else node.stat.version)}",
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
    path = snapshot.path("owners", *tps[0])
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
    node = snapshot.path("ids", f"{snapshot.group}_nudge")
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


def _member(thread: str) -> ConsumerId:
    return ConsumerId(thread.rpartition("-")[0])


def _sessions(snapshot: GroupSnapshot) -> set[int]:
    return {node.stat.ephemeral_owner for node in snapshot.members.values() if node.stat is not None}


def _unread_sessions(snapshot: GroupSnapshot) -> str:
    without = [consumer for consumer, node in snapshot.members.items() if node.stat is None]
    return f"the registration of {without[0]} was not read" if without else ""


def _age(snapshot: GroupSnapshot, node: OwnerNode) -> str:
    return "?" if node.stat is None else seconds(snapshot.taken - node.stat.ctime)


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
            still.setdefault(_standing_member(seen, progress.claim[0]), {})[tp] = since
        elif may_stand_still(snapshot, tp, progress, by_brokers=seen.analysis.by_brokers is not None):
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


def _standing_member(seen: Observations, owner: str) -> ConsumerId:
    return ConsumerId(owner if seen.analysis.by_brokers is not None else owner.rpartition("-")[0] or owner)


def _stands(seen: Observations, member: ConsumerId, tps: dict[TopicPartition, int]) -> Finding:
    snapshot, since = seen.latest, min(tps.values())
    node = snapshot.members.get(member)
    spark = node is not None and member_kind(node) is MemberKind.SPARK
    waiting = sum(waiting_messages(snapshot, tp) for tp in tps)
    untimed = [tp for tp in tps if snapshot.logs[tp].message_time is None]
    verb = "stands" if len(tps) == 1 else "stand"
    # a transaction marker or deleted records count as lag, and nobody can read them
    maybe = " (or what waits are transaction markers: no message is known to be next)" if untimed else ""
    path = snapshot.path("owners", next(iter(tps)).topic)
    return Finding(
        Level.WARN if spark or len(untimed) == len(tps) else Level.ERROR,
        f"{member} owns {counted(len(tps), 'partition')} that {verb} still for {seconds(snapshot.taken - since)}:"
        f" {counted(waiting, 'message')} {'waits' if waiting == 1 else 'wait'}, and no offset moves{maybe}",
        f"{partitions_text(tps)}; {_held(snapshot, tps)}; the limit is {seconds(STANDS_STILL_MS)}, three commit"
        " intervals of the original",
        "" if seen.analysis.by_brokers is not None else path,
        f"see what the member does{process_of(snapshot, member)}: {_thread_dump(node)}. It hangs, it is paused, one"
        " message takes that long, or it commits more rarely. If it hangs, restart it: other members claim its"
        " partitions and begin at these offsets",
        partitions=tuple(tps),
        since=since,
    )


def _held(snapshot: GroupSnapshot, tps: Iterable[TopicPartition]) -> str:
    """Return the places and the last commits of the first few partitions."""
    told = []
    for tp in list(tps)[:3]:
        node, beyond = snapshot.offsets.get(tp), snapshot.finished_beyond(tp)
        text = f"{tp} at {snapshot.committed(tp)} of {snapshot.logs[tp].end}"
        if node is not None and node.stat is not None:
            text += f", last commit {seconds(snapshot.taken - node.stat.mtime)} ago"
        told.append(text + (f", {counted(beyond, 'message')} beyond it finished" if beyond else ""))
    return "; ".join(told)


def _thread_dump(node: MemberNode | None) -> str:
    """Return how to see the threads of a member."""
    kind = MemberKind.UNKNOWN if node is None else member_kind(node)
    if kind is MemberKind.SPARK:
        return "the query's progress, and the thread dumps in Spark's page of its executors"
    python = "py-spy dump --pid PID; connector.state; kill -ABRT PID ends it, and first prints all threads if it runs"
    python += " with python -X faulthandler"
    if kind in (MemberKind.ZKCONSUMER, MemberKind.BRIDGE):
        return python
    java = "kill -QUIT PID makes a JVM print its threads on its standard output, as jstack does, and goes on"
    return java if kind is MemberKind.SCALA else f"{java}; of Python: {python}"


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
            snapshot.path("ids") if snapshot.in_zookeeper else "",
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
            snapshot.path("owners"),
            "see why: " + our_command(snapshot, "explain", snapshot.group),
            partitions=wrong,
        )
