"""Checks of the group's surroundings: chroots, rights on nodes, and brokers; and what they ask a live cluster for.

The checks are pure; any thread. One thread at a time uses the client of the questions.
"""

from __future__ import annotations

import shlex
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from sys import intern

from zkconsumer.cluster.cluster_client import ClusterClient
from zkconsumer.core.names import name_problem
from zkconsumer.errors import RegistryError
from zkconsumer.model import TopicPartition
from zkconsumer.operations.doctor.findings import (
    ClockProbe,
    Finding,
    Level,
    Observations,
    counted,
    forbidden_nodes,
    listed,
    not_looked_at,
    partitions_text,
    shell_command,
    unknown,
    why_unread,
)
from zkconsumer.operations.group_lookup import closing_session, roots_beside
from zkconsumer.operations.group_snapshot import GroupSnapshot, Problem
from zkconsumer.operations.group_view import MemberKind, member_kind
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.zookeeper import paths
from zkconsumer.zookeeper.node_values import NodePart, Wanted

_PLAINTEXT = "PLAINTEXT"


def _split(connect: str) -> tuple[str, str]:
    """Return the servers and the chroot of ``zookeeper.connect``, the chroot with its slash or empty."""
    servers, slash, chroot = connect.partition("/")
    return servers, f"/{chroot.strip('/')}" if slash and chroot.strip("/") else ""


def chroot_mistakes(seen: Observations) -> Iterator[Finding]:
    """Find groups beside no broker, the same group in two chroots, and members with another chroot."""
    snapshot = seen.latest
    if not snapshot.zookeeper:
        return
    servers, chroot = _split(snapshot.zookeeper)
    beside = seen.chroots
    if not snapshot.brokers:
        why = why_unread(snapshot, paths.BROKER_IDS)
        likely = [shlex.quote(f"{servers}{one}") for one, found in sorted((beside or {}).items()) if "brokers" in found]
        if why:
            yield unknown(f"whether brokers are registered in this chroot: {why}", node=paths.BROKER_IDS)
        elif not any(
            one.created for one in snapshot.topics.values()
        ):  # with topics the chroot is the right one, and its brokers are away
            said = f"use --zookeeper {listed(likely)}, and so for the members" if likely else "compare with"
            said += "" if likely else " zookeeper.connect in the brokers' server.properties"
            text = f"no broker is registered in the chroot {chroot or '/'}: it may be the wrong one"
            yield Finding(Level.ERROR, text, snapshot.zookeeper, paths.BROKER_IDS, said)
    yield from _configured(seen, servers, chroot)
    if beside is None:
        yield not_looked_at("the other chroots of these servers", remedy="ask the servers (without --from)")
        return
    with_brokers = [one or "/" for one, found in sorted(beside.items()) if "brokers" in found]
    for other in sorted(one for one, found in beside.items() if one != chroot and "group" in found):
        doubled = " (the chroot is doubled)" if chroot and other == chroot * 2 else ""
        right = servers + (chroot if "brokers" in beside.get(chroot, ()) or snapshot.brokers else other)
        yield Finding(
            Level.WARN,
            f"the group exists in two chroots: {chroot or '/'} and {other or '/'}{doubled}. Members with another chroot"
            " consume by themselves, or nothing",
            f"brokers are registered in {listed(with_brokers)}",
            f"{other}{paths.CONSUMERS}/{snapshot.group}",
            f"zookeeper.connect of every member should be {right}",
        )


def _configured(seen: Observations, servers: str, chroot: str) -> Iterator[Finding]:
    told = (seen.member_config or {}).get("zookeeper.connect", "").strip()
    if told and _split(told)[1] != chroot:
        yield Finding(
            Level.ERROR,
            f"the member's properties name the chroot {_split(told)[1] or '/'}, the group was read in {chroot or '/'}",
            f"zookeeper.connect={told}",
            f"{paths.CONSUMERS}/{seen.latest.group}",
            f"zookeeper.connect={servers}{chroot}, if the group as shown here is the right one",
        )


# ---- rights


def mixed_rights(seen: Observations) -> Iterator[Finding]:
    """Find owner and offset nodes that only some members may change."""
    snapshot = seen.latest
    if not snapshot.zookeeper or not snapshot.in_zookeeper:
        return
    if not snapshot.acls and not forbidden_nodes(snapshot):
        yield not_looked_at("the rights on the nodes", remedy="run zkconsumer doctor on the cluster (without --from)")
    base = f"{paths.CONSUMERS}/{snapshot.group}/"
    for part in ("ids", "owners", "offsets"):
        by_writers: dict[str, list[str]] = {}
        for path, rights in sorted(snapshot.acls.items()):
            if path == base + part or path.startswith(f"{base}{part}/"):
                by_writers.setdefault(_writers(rights), []).append(path)
        if len(by_writers) > 1:
            yield _mixed(seen, part, by_writers)
    if forbidden := forbidden_nodes(snapshot):
        yield _forbidden(snapshot, forbidden)


def _forbidden(snapshot: GroupSnapshot, nodes: Sequence[str]) -> Finding:
    """Name the nodes that we may not read, once for all checks."""
    parents = sorted({path for path in (one.rpartition("/")[0] for one in nodes) if path in snapshot.acls})
    known = [f"{path} has {snapshot.acls[path]}" for path in (*nodes, *parents) if path in snapshot.acls]
    return Finding(
        Level.WARN,
        f"the right to read is missing on {counted(len(nodes), 'node')}: {listed(nodes, 3)}. What a member without this"
        " right does there fails as well",
        "; ".join(known[:3]),
        nodes[0],
        "log in as the members do (--command-config FILE). To give the right to all, as a user with the right to"
        " administer (getAcl shows who has it now): "
        + shell_command(snapshot, "setAcl", nodes[0], "world:anyone:cdrwa"),
        partitions=_behind(snapshot, frozenset(nodes)),
    )


def _behind(snapshot: GroupSnapshot, nodes: frozenset[str]) -> list[TopicPartition]:
    """Return the partitions whose offset or owner is in one of these nodes. Nobody knows how they are."""
    group = snapshot.path()
    parts = (f"{group}/owners", f"{group}/offsets")

    def unread(tp: TopicPartition) -> bool:
        return any(
            not nodes.isdisjoint((one, f"{one}/{tp.topic}", f"{one}/{tp.topic}/{tp.partition}")) for one in parts
        )

    return sorted(filter(unread, {*snapshot.partitions(), *snapshot.partitions_of(snapshot.topics)}))


def _mixed(seen: Observations, part: str, by_writers: Mapping[str, list[str]]) -> Finding:
    snapshot = seen.latest
    fewest = min(sorted(by_writers), key=lambda writers: len(by_writers[writers]))
    path = by_writers[fewest][0]
    texts = [f"{writers or 'nobody'}: {listed(where, 2)}" for writers, where in sorted(by_writers.items())]
    makers = sorted({_maker(snapshot, one) for where in by_writers.values() for one in where} - {""})
    made = f"; owner nodes made by {listed(makers, 3)}" if makers else ""
    return Finding(
        Level.WARN,
        f"nodes under {part} may be changed by different users: a member without the login of another cannot take over"
        " its partitions, or cannot commit",
        "; ".join(texts) + made,
        path,
        "let all members log in as one user and set zookeeper.set.acl alike; then give the nodes the same rights"
        f" ({shell_command(snapshot, 'getAcl', path)} shows how to write them): "
        + shell_command(snapshot, "setAcl", "-R", snapshot.path(part), "ACL"),
    )


def _writers(rights: str) -> str:
    """Return who may write or create, from rights in words such as ``world:anyone=cdrwa, digest:alice=r``."""
    found = []
    for entry in rights.split(", "):
        who, _, letters = entry.rpartition("=")
        if set(letters) & set("cdw"):
            found.append(who)
    return ", ".join(sorted(found))


def _maker(snapshot: GroupSnapshot, path: str) -> str:
    topic, _, number = path.rpartition("/")
    if "/owners/" not in path or not number.isdecimal():
        return ""
    node = snapshot.owners.get(TopicPartition(topic.rpartition("/")[2], int(number)))
    return "" if node is None else f"{node.thread} ({snapshot.acls[path]})"


# ---- brokers


def broker_side(seen: Observations) -> Iterator[Finding]:
    """Find brokers that members cannot talk to, and partitions without leader or with missing replicas."""
    snapshot = seen.latest
    if not snapshot.brokers:
        if why := why_unread(snapshot, paths.BROKER_IDS):
            yield unknown(f"the brokers were not read: {why}")
        elif snapshot.zookeeper:
            text = "no broker is registered: members own and read nothing until one is"
            yield Finding(Level.ERROR, text, node=paths.BROKER_IDS, remedy="start the brokers; see the check chroot")
        else:
            yield unknown("no broker was asked")
        return
    yield from _listeners(snapshot)
    yield from _partitions(seen)


def _listeners(snapshot: GroupSnapshot) -> Iterator[Finding]:
    scala = [c for c, node in snapshot.members.items() if member_kind(node) is MemberKind.SCALA]
    mute = sorted(n for n, one in snapshot.brokers.items() if one.protocols and _PLAINTEXT not in one.protocols)
    if scala and mute:
        yield Finding(
            Level.ERROR,
            f"brokers {listed(mute)} have no {_PLAINTEXT} listener: Scala members speak nothing else, and find no"
            " leader at all while one broker has none",
            "; ".join(f"{n}: {', '.join(snapshot.brokers[n].protocols)}" for n in mute[:5])
            + f"; Scala members: {listed(sorted(scala), 3)}",
            paths.broker(mute[0]),
            f"add a {_PLAINTEXT} listener to each broker, or move these members to zkconsumer",
        )
    unknowns = sorted(n for n, one in snapshot.brokers.items() if not one.protocols)
    if scala and unknowns and snapshot.zookeeper:
        yield unknown(f"the listeners of brokers {listed(unknowns)}")


def _partitions(seen: Observations) -> Iterator[Finding]:
    snapshot = seen.latest
    wanted = sorted(
        {*snapshot.partitions_of(seen.analysis.subscribed), *snapshot.owners} & set(snapshot.logs)
        if snapshot.members
        else set(snapshot.logs)
    )
    headless = [tp for tp in wanted if _without_leader(snapshot, tp)]
    if headless:
        replicas = sorted({broker for tp in headless for broker in snapshot.logs[tp].replicas})
        down = [broker for broker in replicas if broker not in snapshot.brokers]
        brokers = f"broker{'s' if len(down) > 1 else ''} {listed(down)}"
        away = f"; {brokers} {'is' if len(down) == 1 else 'are'} not registered" if down else ""
        yield Finding(
            Level.ERROR,
            f"{counted(len(headless), 'partition')} without a leader: nothing can be read there{away}",
            partitions_text(headless),
            paths.partition_state(headless[0]),
            f"start {brokers}" if down else "see the controller's log",
            partitions=headless,
        )
    silent = [tp for tp in wanted if tp not in headless and _unread(snapshot, tp)]
    if silent:
        why = listed(sorted({snapshot.logs[tp].problem for tp in silent}), 3)
        text = f"the logs of {counted(len(silent), 'partition')} cannot be read, so their lag is unknown: {why}"
        yield Finding(Level.WARN, text, partitions_text(silent), remedy="look at these brokers", partitions=silent)
    thin = [tp for tp in wanted if 0 < len(snapshot.logs[tp].in_sync) < len(snapshot.logs[tp].replicas)]
    if thin:
        missing = sorted({b for tp in thin for b in set(snapshot.logs[tp].replicas) - set(snapshot.logs[tp].in_sync)})
        text = f"{counted(len(thin), 'under-replicated partition')}: one more failure may lose messages"
        evidence = f"{partitions_text(thin)}; not in sync: brokers {listed(missing)}"
        yield Finding(Level.WARN, text, evidence, paths.partition_state(thin[0]), f"look at brokers {listed(missing)}")
    blind = [tp for tp in wanted if not snapshot.logs[tp].replicas and not _without_leader(snapshot, tp)]
    if blind:
        why = snapshot.logs[blind[0]].problem
        yield unknown(f"leaders and replicas of {partitions_text(blind)}" + (f": {why}" if why else ""))


def _unread(snapshot: GroupSnapshot, tp: TopicPartition) -> bool:
    """Whether a broker was asked for the log of a partition in vain. Its last known lag may be old."""
    log = snapshot.logs[tp]
    return log.end is None and "did not answer" in log.problem


def _without_leader(snapshot: GroupSnapshot, tp: TopicPartition) -> bool:
    log = snapshot.logs[tp]
    known = log.replicas or log.in_sync
    return "LEADER_NOT_AVAILABLE" in log.problem or bool(known and (log.leader is None or log.leader < 0))


MOST_RIGHTS = 1000
"""The most offset nodes, and as many owner nodes, whose rights are read."""
MOST_GROUPS = 20
"""The most groups whose other chroots are looked for. Each takes some hundred reads."""


def chroots_beside(client: ClusterClient, groups: Sequence[str]) -> Mapping[str, Mapping[str, tuple[str, ...]]] | None:
    """Return for each group the chroots of these servers with their contents, of ``brokers`` and ``group``.

    The empty text stands for no chroot. Returns None if ZooKeeper is not asked or did not answer, or if there are too
    many groups.
    """
    if not client.zookeeper or len(groups) > MOST_GROUPS:
        return None
    chroot = client.config.zookeeper_chroot
    try:
        with closing_session(client) as session:
            return {
                group: {
                    path: (*(["brokers"] if root.brokers else []), *(["group"] if root.group else []))
                    for path, root in roots_beside(session, chroot, group, Deadline(client.timeout)).items()
                    if root is not None
                }
                for group in groups
            }
    except RegistryError:
        return None


def with_rights(client: ClusterClient, snapshots: Sequence[GroupSnapshot]) -> list[GroupSnapshot]:
    """Return the snapshots with the rights on single owner and offset nodes as well.

    Members with different logins make nodes of different rights in one parent. The owner nodes of one session have one
    maker, so one of these is read. Rights that somebody changed later on another one are not seen. Of very many nodes
    only the first are read. If ZooKeeper does not answer, a problem of the snapshot says so.
    """
    part = [one for one in snapshots if client.zookeeper and name_problem(one.group) is None]
    found: dict[str, dict[str, str]] = {one.group: {} for one in part}
    problems: tuple[Problem, ...] = ()
    try:
        _read_rights(client, part, found)
    except RegistryError as error:
        problems = (Problem("rights on nodes", str(error)),)
    return [
        replace(one, acls={**one.acls, **found[one.group]}, problems=(*one.problems, *problems))
        if one.group in found
        else one
        for one in snapshots
    ]


def _read_rights(
    client: ClusterClient, snapshots: Sequence[GroupSnapshot], found: Mapping[str, dict[str, str]]
) -> None:
    """Add the rights on the owner and offset nodes of each group to what was found. Raises RegistryError."""
    nodes: dict[str, str] = {}
    for one in snapshots:
        nodes |= {paths.offset(one.group, tp): one.group for tp in sorted(one.offsets)[:MOST_RIGHTS]}
        owners = {
            (node.stat.ephemeral_owner if node.stat else 0) or tp: tp
            for tp, node in sorted(one.owners.items(), reverse=True)
        }
        nodes |= {paths.owner(one.group, tp): one.group for tp in sorted(owners.values())[:MOST_RIGHTS]}
    wanted = [Wanted(NodePart.RIGHTS, path) for path in nodes]
    for begin in range(0, len(wanted), 2 * MOST_RIGHTS):  # as much time for so many nodes as a large group alone has
        deadline = Deadline(client.timeout)
        session = client.open_session(deadline)
        for reading in session.read_each(wanted[begin : begin + 2 * MOST_RIGHTS], deadline):
            path = reading.wanted.path
            if reading.rights:
                found[nodes[path]][path] = intern(reading.rights)


def now_ms() -> int:
    """Return this machine's time in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def probe_clock(client: ClusterClient, group: str) -> ClockProbe:
    """Make an ephemeral node below the group's node, or in the root, read its time of creation, and delete the node.

    Members do not watch these places. A node below ``/consumers`` itself would be a group for other tools.
    Raises: ConfigException if ZooKeeper was not named, RegistryError if it does not answer or forbids the node.
    """
    deadline = Deadline(client.timeout)
    session = client.open_session(deadline)
    (there,) = session.read_each([Wanted(NodePart.STAT, paths.consumers_group(group))], deadline)
    parent = there.wanted.path if there.node is not None else ""
    path = f"{parent}/.zkconsumer-clock-{uuid.uuid4().hex}"
    before = now_ms()
    session.create(path, b"", deadline, ephemeral=True)
    after = now_ms()
    (made,) = session.read_each([Wanted(NodePart.STAT, path)], deadline)
    session.delete(path, deadline)
    if made.node is None:
        raise RegistryError(f"the node {path} that --write-probe made is gone already")
    return ClockProbe(before, after, made.node.ctime)
