"""The doctor: checks that find what is wrong with a group, and say what to do.

:func:`examine` runs every check of :data:`CHECKS` on snapshots of one group. Each check is a pure function. The
original's only check was ``VerifyConsumerRebalance``: every partition has an owner, and the owner is a registered
thread. Pure; any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from zkconsumer.model import TopicPartition
from zkconsumer.operations.doctor import balance, cluster, findings, members, offsets, owners, strategies, timeouts
from zkconsumer.operations.doctor.findings import DOCS_PAGE, ClockProbe, Finding, Level, Observations, unknown
from zkconsumer.operations.group_snapshot import GroupSnapshot
from zkconsumer.operations.stalled_partitions import Progress

__all__ = ["CHECKS", "Check", "ClockProbe", "Finding", "Level", "Observations", "examine", "worst"]

MOST_FINDINGS = 20
"""The most findings of one check; the others are counted in one more."""


@dataclass(frozen=True, slots=True)
class Check:
    """One check: its name, which is also the anchor in the docs, its purpose, and its function.

    ``needs`` are the parents below ``/consumers/<group>`` whose nodes it judges: if they were not all read, the check
    is undecided. ``in_zookeeper``: it is left out for a group that only the brokers know. ``page`` is the page of the
    docs that explains it.
    """

    name: str
    purpose: str
    run: Callable[[Observations], Iterator[Finding]]
    needs: tuple[str, ...] = ()
    in_zookeeper: bool = True
    page: str = DOCS_PAGE


_IDS, _OWNERS, _OFFSETS = ("ids",), ("owners",), ("offsets",)
_CLAIMS = _IDS + _OWNERS
_ACKS, _PARKED, _LOANS = ("acks",), ("parked",), ("loans",)

_JUDGED = "docs/explain.md"

CHECKS: tuple[Check, ...] = (
    Check("persistent-owner", "owner nodes that no session ends", owners.persistent_owners, _OWNERS),
    Check("orphan-owner", "owner nodes of a session that registered no member", owners.orphan_owners, _CLAIMS),
    Check("unknown-owner", "owner nodes that name a thread of no member", owners.unknown_owners, _CLAIMS),
    Check("unowned-partition", "partitions that nobody owns and a member should", owners.unowned_partitions, _CLAIMS),
    Check("unreadable-registration", "registrations that stop every Scala member", members.unreadable_nodes, _IDS),
    Check("double-registration", "sessions or processes with two registrations", members.double_registrations, _IDS),
    Check("mixed-strategies", "members that assign by different strategies", strategies.mixed_strategies, _CLAIMS),
    Check("roundrobin-releases", "`roundrobin` of releases 0.x beside 1.x", strategies.mixed_releases, _CLAIMS),
    Check("idle-member", "members that subscribe to nothing", members.idle_members, _IDS),
    Check("idle-threads", "threads that own nothing by the plan", strategies.idle_threads, _IDS),
    Check("flapping", "members that come and go", members.flapping_members, _IDS),
    Check("membership-size", "a list of members too large for one answer", members.membership_size, _IDS),
    Check("mixed-coordination", "both message models, or a migration half way", members.mixed_coordination, _IDS),
    Check("session-timeout", "session timeouts that the servers change", timeouts.session_timeouts, _IDS),
    Check("scala-patience", "Scala members that give up before a session ends", timeouts.scala_patience, _IDS),
    Check("member-clock", "members whose clock differs from ZooKeeper's", timeouts.member_clocks, _IDS),
    Check("our-clock", "this machine's clock against ZooKeeper's", timeouts.our_clock),
    Check("standing-still", "owners that do not get on", owners.standing_still, _OWNERS + _OFFSETS, False, _JUDGED),
    Check("no-member", "waiting messages of a group without members", owners.without_members, _IDS, False, _JUDGED),
    Check("stuck", "a group that does not settle", owners.stuck_groups, _CLAIMS, True, _JUDGED),
    Check("dead-offsets", "offsets of topics and partitions that are gone", offsets.dead_offsets, _OFFSETS, False),
    Check("offset-outside-log", "offsets below or beyond their log", offsets.offsets_outside_logs, _OFFSETS, False),
    Check("offset-not-a-number", "offset nodes that nobody can read", offsets.offsets_that_are_no_numbers, _OFFSETS),
    Check("stores-disagree", "different offsets in ZooKeeper and Kafka", offsets.stores_that_disagree, _OFFSETS),
    Check("parked-without-member", "parked messages that nobody handles", balance.parked_without_member, _PARKED),
    Check("parked-beside-scala", "parked messages of Scala members", balance.parked_beside_scala, _PARKED + _CLAIMS),
    Check("full-pointers", "partitions that can park no more messages", balance.full_pointers, _PARKED),
    Check("dead-letters", "messages that were given up", balance.dead_letters, _PARKED),
    Check("pointer-retention", "pointers that retention passes", balance.pointers_and_retention, _PARKED),
    Check("held-base", "an offset that one message holds", balance.held_bases, _ACKS, False),
    Check("void-note", "notes of finished messages that do not count", balance.void_notes, _ACKS),
    Check("lost-loan", "slots on loan whose borrower or lender is gone", balance.lost_loans, _LOANS),
    Check("mixed-sharing", "members that do not share, beside ones that do", balance.mixed_sharing, _CLAIMS),
    Check("acl", "nodes that only some members may change", cluster.mixed_rights, _CLAIMS + _OFFSETS),
    Check("chroot", "a wrong, missing or doubled chroot", cluster.chroot_mistakes),
    Check("brokers", "missing listeners, leaders and replicas", cluster.broker_side, (), False),
    Check("unread", "what could not be read", findings.unread_parts, (), False),
)
"""All checks, in the order of their findings of equal level."""


def examine(
    snapshots: Sequence[GroupSnapshot],
    member_config: Mapping[str, str] | None = None,
    *,
    probe: ClockProbe | None = None,
    chroots: Mapping[str, Collection[str]] | None = None,
    progress: Mapping[TopicPartition, Progress] | None = None,
) -> tuple[Finding, ...]:
    """Return the findings about one group, the worst first. A check that finds nothing yields one of level ``OK``.

    Arguments: ``snapshots`` of the group, oldest first, at least one; ``member_config`` are the properties of a Scala
    member; ``probe`` compares our clock with ZooKeeper's; ``chroots`` maps each chroot of the servers (empty: none) to
    its contents, of ``brokers`` and ``group``; ``progress`` is found from the snapshots unless it is given. Raises
    ValueError without a snapshot.
    """
    return findings_of(Observations(snapshots, member_config, probe, chroots, progress or {}))


def findings_of(seen: Observations) -> tuple[Finding, ...]:
    """Return the findings about what was observed, as :func:`examine` does."""
    found = [
        finding
        for check in CHECKS
        if not check.in_zookeeper or seen.latest.in_zookeeper or not seen.latest.in_kafka
        for finding in _run(check, seen)
    ]
    return tuple(sorted(_told_once(found), key=lambda one: (-one.level, one.unknown)))


def _told_once(found: Sequence[Finding]) -> list[Finding]:
    """Return the findings with one for all nodes that we may not read, which names the checks left undecided by them.

    Otherwise each check says the same sentence of the same node.
    """
    told = next((one for one in found if one.check == "acl" and "right to read is missing" in one.text), None)
    if told is None:
        return list(found)
    same = [one for one in found if one.unknown and findings.is_forbidden(one.text)]
    if not same:
        return list(found)
    checks = ", ".join(dict.fromkeys(one.check for one in same))
    evidence = "; ".join(filter(None, (told.evidence, f"undecided without these nodes: {checks}")))
    return [replace(one, evidence=evidence) if one is told else one for one in found if one not in same]


def _run(check: Check, seen: Observations) -> Iterable[Finding]:
    found = list(check.run(seen))
    gaps = [] if any(one.unknown for one in found) else _gaps(check, seen.latest)
    if not found and not gaps:
        return (_nothing(check),)
    if len(found) > MOST_FINDINGS:
        rest = found[MOST_FINDINGS:]
        tps = tuple(tp for one in rest for tp in one.partitions)
        level, such = max(one.level for one in rest), f"such as: {rest[0].text}"
        more = Finding(level, f"{len(rest)} more findings of this check", such, partitions=tps)
        found = [*found[:MOST_FINDINGS], more]
    return [replace(finding, check=check.name, link=_link(check)) for finding in (*found, *gaps)]


@cache
def _nothing(check: Check) -> Finding:
    """Return the finding that there is nothing: one object for all groups, as most checks of most groups yield it."""
    return Finding(Level.OK, f"{check.purpose}: none", check=check.name, link=_link(check))


def _link(check: Check) -> str:
    return f"{check.page}#{check.name}"


def _gaps(check: Check, snapshot: GroupSnapshot) -> list[Finding]:
    """Return one finding if nodes that the check judges were not all read."""
    if not check.in_zookeeper and not snapshot.zookeeper:
        return []
    reasons = [why for part in check.needs if (why := findings.why_no_nodes(snapshot, part))]
    return [unknown(f"not all nodes were read ({reasons[0]})")] if reasons else []


def worst(findings: Sequence[Finding]) -> Level:
    """Return the worst level among findings, ``OK`` if there are none."""
    return max((one.level for one in findings), default=Level.OK)
