"""Checks of registrations: who is registered, how, by which strategy, and how steadily. Pure; any thread."""

from __future__ import annotations

from collections.abc import Iterator

from zkconsumer.core.registration import PROCESS_KEY, Registration
from zkconsumer.model import ConsumerId
from zkconsumer.operations.doctor.findings import (
    Finding,
    Level,
    Observations,
    counted,
    delete_node,
    listed,
    not_looked_at,
    our_command,
    process_of,
    seconds,
    topics_problem,
    unknown,
)
from zkconsumer.operations.group_lookup import similar_names
from zkconsumer.operations.group_snapshot import GroupSnapshot
from zkconsumer.operations.group_view import MemberKind, member_kind

JUTE_MAXBUFFER = 1_048_575
"""The largest answer of ZooKeeper that its clients and servers accept by default, in bytes."""
YOUNG_MS = 60_000
"""A member younger than this, in a group that has committed for long, may be one of many restarts."""
MANY_COMMITS = 100
FLAPS_AN_HOUR = 12
FEWEST_FLAPS = 4
"""Changes under ``ids`` that count as flapping: so many an hour, and so many at least (one deployment makes two)."""


def unreadable_nodes(seen: Observations) -> Iterator[Finding]:
    """Find registrations that members cannot read. One of them stops the rebalances of all Scala members."""
    snapshot = seen.latest
    for consumer, node in sorted(snapshot.members.items()):
        path = snapshot.path("ids", consumer)
        if node.registration is not None:
            continue
        if node.stat is None:
            yield unknown(f"the registration was not read: {node.problem}", node=path)
            continue
        ends = "end the process that wrote it; the node goes with its session"
        yield Finding(
            Level.ERROR,
            f"the registration of {consumer} cannot be read; while it exists, no Scala member of the group can"
            " rebalance",
            f"{node.problem}; {node.stat.length} bytes",
            path,
            ends if node.stat.ephemeral_owner else f"delete it: {delete_node(snapshot, path, node.stat.version)}",
        )


def double_registrations(seen: Observations) -> Iterator[Finding]:
    """Find sessions with two registrations, and registrations that no session ends."""
    snapshot = seen.latest
    by_session: dict[int, list[ConsumerId]] = {}
    for consumer, node in sorted(snapshot.members.items()):
        if node.stat is None:
            yield unknown(
                f"the session of {consumer} was not read: {node.problem}", node=snapshot.path("ids", consumer)
            )
        elif node.stat.ephemeral_owner:
            by_session.setdefault(node.stat.ephemeral_owner, []).append(consumer)
        else:
            path = snapshot.path("ids", consumer)
            yield Finding(
                Level.ERROR,
                f"the registration of {consumer} is persistent: no session ends it, and its share of the partitions"
                " stays unowned",
                f"ephemeralOwner 0, {seconds(snapshot.taken - node.stat.ctime)} old",
                path,
                f"delete it: {delete_node(snapshot, path, node.stat.version)}",
            )
    for session, twins in by_session.items():
        if len(twins) > 1:
            yield Finding(
                Level.WARN,
                f"one session has {len(twins)} registrations: partitions are reserved for members that do not exist",
                f"session {session:#x}: {listed(twins)}",
                snapshot.path("ids", twins[0]),
                "restart that process, and make one connector for each session",
            )
    yield from _doubles_in_a_process(snapshot)


def _doubles_in_a_process(snapshot: GroupSnapshot) -> Iterator[Finding]:
    """Find processes that advertise two members."""
    by_process: dict[tuple[str, str], list[ConsumerId]] = {}
    for consumer, node in sorted(snapshot.members.items()):
        extra = {} if node.registration is None else node.registration.extra
        host, process = extra.get("host"), extra.get(PROCESS_KEY)
        if isinstance(host, str) and process is not None:
            by_process.setdefault((host, str(process)), []).append(consumer)
    for (host, process), twins in by_process.items():
        if len(twins) > 1:
            yield Finding(
                Level.NOTE,
                f"process {process} on {host} has {len(twins)} connectors in this group",
                listed(twins),
                snapshot.path("ids", twins[0]),
                "one connector with more streams takes less, and rebalances once",
            )


def _missing_topics(snapshot: GroupSnapshot, consumer: ConsumerId, one: Registration) -> Iterator[Finding]:
    """Tell of topics that were deleted, or are not there yet, beside others that a member reads."""
    if missing := [topic for topic in sorted(one.subscription) if topic not in snapshot.topics]:
        yield Finding(
            Level.NOTE,
            f"{consumer} subscribes also to {listed(missing, 3)}, {'which does' if len(missing) == 1 else 'which do'}"
            " not exist",
            f"subscription {listed(sorted(one.subscription))}",
            snapshot.path("ids", consumer),
            "create the topic, or correct the subscription",
        )


def idle_members(seen: Observations) -> Iterator[Finding]:
    """Find members whose subscription has no topic that exists: the plan can give them nothing to read."""
    snapshot = seen.latest
    why = topics_problem(snapshot)
    for consumer, node in sorted(snapshot.members.items()):
        one = node.registration
        if one is None or one.is_nudge:
            continue
        if any(topic in snapshot.topics for topic in seen.analysis.threads.get(consumer, {})):
            if not why and not one.is_wildcard:
                yield from _missing_topics(snapshot, consumer, one)
            continue
        if one.subscription and snapshot.path("ids", consumer) in seen.analysis.view.unreadable:
            continue  # its filter cannot be computed here
        path = snapshot.path("ids", consumer)
        if not one.subscription:
            yield Finding(
                Level.WARN,
                f"{consumer} subscribes to nothing: it is registered, owns nothing and reads nothing",
                f"pattern {one.pattern}, subscription {{}}",
                path,
                f"name its topics where it makes its streams, or end its process{process_of(snapshot, consumer)}",
            )
        elif why:
            yield unknown(f"whether the topics of {consumer} exist: {why}", node=path)
        else:
            what = "a filter that no topic matches" if one.is_wildcard else "topics that do not exist"
            yield Finding(
                Level.WARN,
                f"{consumer} subscribes to {what}: it owns nothing and reads nothing",
                f"pattern {one.pattern}, subscription {listed(sorted(one.subscription))}",
                path,
                f"correct the subscription{_likely(snapshot, one)} of the process{process_of(snapshot, consumer)}, or"
                " create the topic",
            )


def _likely(snapshot: GroupSnapshot, one: Registration) -> str:
    """Return the topics that a subscription without an existing topic may mean, in brackets, or an empty text."""
    meant = {} if one.is_wildcard else {name: similar_names(name, snapshot.topics) for name in one.subscription}
    told = "; ".join(f"{name!a} may mean {' or '.join(map(ascii, close))}" for name, close in meant.items() if close)
    return f" ({told})" if told else ""


# ---- the group as a whole


def membership_size(seen: Observations) -> Iterator[Finding]:
    """Compare the answer that lists the members with the largest one that ZooKeeper's clients accept."""
    snapshot = seen.latest
    size = 100 + sum(4 + len(consumer.encode("utf-8", "replace")) for consumer in snapshot.members)
    if size > JUTE_MAXBUFFER // 2:
        full = size > JUTE_MAXBUFFER
        yield Finding(
            Level.ERROR if full else Level.WARN,
            f"listing the members takes {size} bytes"
            + (": clients refuse it and lose their connection" if full else ", more than half of what clients accept"),
            f"{counted(len(snapshot.members), 'member')}; jute.maxbuffer {JUTE_MAXBUFFER}",
            snapshot.path("ids"),
            "use fewer members with more streams each, or raise jute.maxbuffer on all servers and clients. This check"
            " does not learn of a raised jute.maxbuffer, and goes on to say this",
        )


def flapping_members(seen: Observations) -> Iterator[Finding]:
    """Find a group whose members come and go: by two snapshots, or as a suspicion by one."""
    snapshot = seen.latest
    node = snapshot.ids_node
    first = next((one for one in seen.earlier if one.ids_node is not None), None)
    if node is None or (not snapshot.members and first is None):
        return
    path, causes = (snapshot.path("ids"), "look for long pauses of the JVM, a short")
    causes += (
        " zookeeper.session.timeout.ms, restarts, and the network between members and ZooKeeper. Then look again: "
    )
    causes += our_command(snapshot, "doctor", snapshot.group, "--twice", "600")
    if first is not None and first.ids_node is not None and first.ids_node.ctime == node.ctime:
        span = max(1, snapshot.taken - first.taken)
        changes = node.cversion - first.ids_node.cversion
        rate = changes * 3_600_000 / span
        if changes >= FEWEST_FLAPS and rate > FLAPS_AN_HOUR:
            text = f"members came or went {changes} times within {seconds(span)}: each time, Scala members stop reading"
            yield Finding(Level.WARN, text, f"cversion {first.ids_node.cversion}, then {node.cversion}", path, causes)
        return
    young = [
        consumer
        for consumer, one in snapshot.members.items()
        if one.stat is not None and snapshot.taken - one.stat.ctime < YOUNG_MS
    ]
    commits = max((one.stat.version for one in snapshot.offsets.values() if one.stat is not None), default=0)
    if young and commits > MANY_COMMITS:
        text = f"{counted(len(young), 'member')} joined within the last minute, in a group that commits for long"
        yield Finding(
            Level.NOTE,
            f"{text} ({commits} times to one offset): a restart, or flapping",
            listed(sorted(young), 3),
            path,
            causes,
        )
    age = max(1, snapshot.taken - node.ctime)
    average = f"; since the group began, ids changed {node.cversion} times in {seconds(age)}"
    yield not_looked_at(
        "one look cannot tell whether members come and go" + average,
        remedy="look twice: add --twice 60, or give two files with --from",
    )


def mixed_coordination(seen: Observations) -> Iterator[Finding]:
    """Find members of both ``message.model``s, migrations that stand half way, and members on both sides."""
    snapshot = seen.latest
    shared = snapshot.path("broadcast", "")
    broadcasting = sorted(path for path, stat in snapshot.other_nodes.items() if path.startswith(shared))
    if broadcasting and snapshot.members:
        yield Finding(
            Level.ERROR,
            "broadcasting and clustering members are in one group: each kind consumes everything",
            f"broadcasting: {listed([path.rpartition('/')[2] for path in broadcasting], 3)};"
            f" clustering: {listed(sorted(snapshot.members), 3)}",
            broadcasting[0],
            "stop one kind, or give it another group.id",
        )
    yield from _two_coordinators(snapshot)


def _two_coordinators(snapshot: GroupSnapshot) -> Iterator[Finding]:
    """Find bridges of a migration beside plain members, and members of the brokers' group beside those of ZooKeeper."""
    kinds = {consumer: member_kind(node) for consumer, node in snapshot.members.items()}
    bridges = sorted(consumer for consumer, kind in kinds.items() if kind is MemberKind.BRIDGE)
    plain = sorted(consumer for consumer, kind in kinds.items() if kind is not MemberKind.BRIDGE)
    path = snapshot.path("ids")
    verify = our_command(snapshot, "migrate", snapshot.group, "--verify")
    if bridges and plain:
        text = f"{counted(len(bridges), 'bridge')} beside {counted(len(plain), 'plain member')}"
        yield Finding(
            Level.NOTE,
            f"the migration stands half way: {text}",
            f"plain: {listed(plain, 3)}",
            path,
            f"replace the plain members; then {verify}",
        )
    brokers = snapshot.brokers_group
    if brokers is None:
        if snapshot.members:
            yield unknown("whether the brokers coordinate members of this group as well was not read")
        return
    clients = sorted({member.client_id for member in brokers.members} - set(bridges))
    if clients and snapshot.members:
        yield Finding(
            Level.ERROR,
            f"{counted(len(clients), 'member')} of the brokers' group consume beside {counted(len(kinds), 'member')} of"
            " ZooKeeper's: each side consumes everything",
            f"brokers: {listed(clients, 3)}; ZooKeeper: {listed(sorted(kinds), 3)}",
            path,
            f"stop one side; then {verify}",
        )
    if brokers.members and bridges and plain:
        text = "bridges are in the brokers' group although plain members remain: they leave it soon"
        yield Finding(Level.NOTE, text, listed(plain, 3), path, "look again in a minute")
