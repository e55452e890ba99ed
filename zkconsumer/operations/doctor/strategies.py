"""Checks of strategies: members that assign partitions differently, and threads that get none. Pure; any thread."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from zkconsumer.assignors.group_strategy import RELEASE_KEY, SCALA_STRATEGIES
from zkconsumer.model import ConsumerId, ThreadId, TopicPartition
from zkconsumer.operations.doctor.findings import (
    Finding,
    Level,
    Observations,
    counted,
    listed,
    partitions_text,
    process_of,
    unknown,
)
from zkconsumer.operations.group_snapshot import GroupSnapshot
from zkconsumer.operations.group_view import GroupAnalysis, MemberKind, member_kind
from zkconsumer.operations.strategy_inference import RANGE, ROUNDROBIN, ROUNDROBIN_OLD

LOOKS = 3
"""The most snapshots by which the strategy of a member is inferred, the latest ones."""


def mixed_strategies(seen: Observations) -> Iterator[Finding]:
    """Find members that assign by another strategy than the others, also if they advertise nothing."""
    yield from _odd_ones(seen, releases=False)
    yield from _not_in_effect(seen.latest)


def _not_in_effect(snapshot: GroupSnapshot) -> Iterator[Finding]:
    """Name members whose strategy waits until all others advertise it."""
    registered = {c: node.registration for c, node in snapshot.members.items() if node.registration is not None}
    names = {c: one.extra.get("strategy") for c, one in registered.items()}
    waiting = {c: name for c, name in names.items() if isinstance(name, str) and name not in SCALA_STRATEGIES}
    if waiting and len(set(map(str, names.values()))) > 1:
        others = sorted(set(names) - set(waiting)) or sorted(names)
        yield Finding(
            Level.NOTE,
            f"{listed(sorted(set(waiting.values())))} is not in effect, since not all members advertise it: members of"
            " this package use range",
            f"{listed(sorted(waiting), 3)} advertise it; look at {listed(others, 3)}",
            snapshot.path("ids", others[0]),
            "give all members the same partition.assignment.strategy; Scala members know range and roundrobin only",
        )


def mixed_releases(seen: Observations) -> Iterator[Finding]:
    """Find ``roundrobin`` members of releases 0.x beside 1.x, which sort partitions differently (KAFKA-5822)."""
    yield from _odd_ones(seen, releases=True)


def _odd_ones(seen: Observations, *, releases: bool) -> Iterator[Finding]:
    if seen.analysis.bridges_only or len(seen.latest.members) < 2:
        return
    fits, undecided = _fits(seen)
    labels = {label for one in fits.values() for label in one}
    best = max(sorted(labels), key=lambda label: sum(label in one for one in fits.values()), default="")
    odd = {consumer: one for consumer, one in fits.items() if best not in one}
    between = {best, *(label for one in odd.values() for label in one)}
    only_releases = between <= {ROUNDROBIN.label, ROUNDROBIN_OLD.label}
    if odd and all(odd.values()) and releases == only_releases:
        yield _mixture(seen, best, fits, odd, releases=releases)
    elif undecided and not odd:
        silent = [c for c in undecided if member_kind(seen.latest.members[c]) is MemberKind.SCALA]
        if silent and not releases:
            yield from _silent(seen, best, fits, silent)
        elif silent and best in (ROUNDROBIN.label, ROUNDROBIN_OLD.label):
            yield unknown(f"the release of {listed(silent, 3)}, which own nothing to tell by")


def _silent(
    seen: Observations, best: str, fits: Mapping[ConsumerId, Sequence[str]], silent: Sequence[ConsumerId]
) -> Iterator[Finding]:
    """Judge members that own nothing and advertise nothing: does another strategy explain why they own nothing?"""
    words = probably_mixed(seen)
    colliding = [consumer for consumer in silent if consumer in words]
    for consumer in colliding:
        others = [one for one in sorted(fits) if best in fits[one]]
        yield Finding(
            Level.WARN,
            f"{consumer} probably uses another strategy: set one strategy. These members have {best}:"
            f" {listed(others, 3)}; {consumer} owns nothing, and nobody holds what {best} gives it",
            words[consumer],
            seen.latest.path("ids", consumer),
            f"set partition.assignment.strategy={best.partition(' ')[0]} for {consumer}"
            f"{process_of(seen.latest, consumer)}, and restart it",
        )
    if rest := [consumer for consumer in silent if consumer not in colliding]:
        yield unknown(f"the strategy of {listed(rest, 3)}, which advertise none: their partitions do not tell")


def probably_mixed(seen: Observations) -> Mapping[ConsumerId, str]:
    """Return the Scala members that own nothing although nobody holds what the strategy in effect gives them.

    Each comes with the partitions of others that another strategy would make it claim. Such a member claims all or
    nothing, so that strategy explains why the member owns nothing. Waking it cannot mend that.
    """
    found: dict[ConsumerId, str] = {}
    owning = {seen.analysis.registered.get(thread) for thread in seen.analysis.owners.values()}
    advertised = _advertised(seen.latest)
    given: dict[ConsumerId | None, bool] = {}  # whether all partitions that the member should have are free
    for tp, thread in seen.analysis.expected.items():
        member = seen.analysis.registered.get(thread)
        given[member] = given.get(member, True) and tp not in seen.analysis.owners
    for consumer, node in sorted(seen.latest.members.items()):
        free = given.get(consumer, False)
        if member_kind(node) is MemberKind.SCALA and free and consumer not in owning and consumer not in advertised:
            words = [
                f"{label} would make it claim {partitions_text(taken)}, which others own"
                for label, taken in seen.analysis.collisions.get(consumer, {}).items()
            ]
            found |= {consumer: "; ".join(words)} if words else {}
    return found


def mixed_members(seen: Observations) -> str:
    """Return which members have which strategy, empty unless they certainly differ."""
    if seen.analysis.bridges_only or len(seen.latest.members) < 2:
        return ""
    fits, _ = _fits(seen)
    if not all(fits.values()) or not fits or set.intersection(*map(set, fits.values())):
        return ""
    by_label: dict[str, list[ConsumerId]] = {}
    for consumer, labels in sorted(fits.items()):
        by_label.setdefault(" or ".join(labels), []).append(consumer)
    return "; ".join(f"{label}: {listed(members, 3)}" for label, members in sorted(by_label.items()))


def _fits(seen: Observations) -> tuple[dict[ConsumerId, tuple[str, ...]], list[ConsumerId]]:
    """Return for each member the strategies that it may have, and the members of which nothing tells.

    A member may have every strategy that explains its partitions in all snapshots with the same members. The strategy
    of a member without a subscription has no effect, because the member claims nothing.
    """
    fits: dict[ConsumerId, tuple[str, ...]] = {}
    advertised = _advertised(seen.latest)
    # each computes the assignment of the whole group three times, and a server judges at every reading
    for snapshot in _telling(seen) if advertised.keys() != seen.latest.members.keys() else ():
        analysis = seen.analysis if snapshot is seen.latest else GroupAnalysis(snapshot)
        for consumer, one in _explained(analysis).items():
            fits[consumer] = tuple(label for label in fits.get(consumer, one) if label in one)
    fits |= {consumer: (label,) for consumer, label in advertised.items()}
    telling = {consumer: one for consumer, one in fits.items() if one}
    others = {c: node.registration for c, node in seen.latest.members.items() if c not in telling}
    return telling, sorted(c for c, one in others.items() if one is None or one.subscription)


def _telling(seen: Observations) -> list[GroupSnapshot]:
    """Return the latest few snapshots with the present members that differ in their owners."""

    def registered(snapshot: GroupSnapshot) -> object:
        return {c: n.registration for c, n in snapshot.members.items()}, snapshot.topics

    found: list[GroupSnapshot] = []
    for snapshot in reversed(seen.snapshots):
        if len(found) == LOOKS:
            break
        if registered(snapshot) == registered(seen.latest) and all(one.owners != snapshot.owners for one in found):
            found.append(snapshot)
    return found


def _explained(analysis: GroupAnalysis) -> Mapping[ConsumerId, tuple[str, ...]]:
    """Return the strategies that explain the partitions of each member with any."""
    owned: dict[ConsumerId, list[tuple[TopicPartition, ThreadId]]] = {}
    for tp, thread in analysis.owners.items():
        if thread in analysis.registered:
            owned.setdefault(analysis.registered[thread], []).append((tp, thread))
    return {
        consumer: tuple(
            label for label, by in analysis.candidates.items() if all(by.get(tp) == thread for tp, thread in has)
        )
        for consumer, has in owned.items()
    }


def _advertised(snapshot: GroupSnapshot) -> dict[ConsumerId, str]:
    """Return the strategy by which each member assigns, of those that advertise one.

    One that Scala members do not know is in effect only if all members advertise it, and ``range`` until then.
    """
    registered = {c: node.registration for c, node in snapshot.members.items() if node.registration is not None}
    names = {str(one.extra.get("strategy")) for one in registered.values()}
    found = {}
    for consumer, one in registered.items():
        name, release = one.extra.get("strategy"), one.extra.get(RELEASE_KEY)
        if name == "roundrobin":
            old = isinstance(release, str) and release.startswith("0.")
            found[consumer] = (ROUNDROBIN_OLD if old else ROUNDROBIN).label
        elif isinstance(name, str):
            found[consumer] = name if len(names) == 1 else RANGE.label
    return found


def _mixture(
    seen: Observations,
    best: str,
    fits: Mapping[ConsumerId, Sequence[str]],
    odd: Mapping[ConsumerId, Sequence[str]],
    *,
    releases: bool,
) -> Finding:
    snapshot = seen.latest
    told = [f"{c}: {' or '.join(labels)} ({_how_known(snapshot, c)})" for c, labels in sorted(odd.items())]
    others = [consumer for consumer in sorted(fits) if consumer not in odd]
    if releases:
        text = "roundrobin members of releases 0.x and 1.x are in one group"
        remedy = "run the same release everywhere, or use range; for members of this package set scala.compat.version"
    else:
        sides = {best: others}
        for consumer, labels in sorted(odd.items()):
            sides.setdefault(" or ".join(labels), []).append(consumer)
        text = "set one strategy: " + ", and ".join(f"{listed(who, 3)} have {label}" for label, who in sides.items())
        processes = (f"{one}{process_of(snapshot, one)}" for one in sorted(odd))
        remedy = f"set partition.assignment.strategy={best.partition(' ')[0]} for {listed(processes, 3)}, and restart"
        remedy += " each of these; until the last one has it, partitions stay without an owner"
    return Finding(
        Level.ERROR,
        f"{text}: they claim the same partitions, and leave others unowned",
        f"{best}: {listed(others, 3)}; odd ones: {listed(told, 3)}",
        snapshot.path("ids", min(odd)),
        remedy,
    )


def _how_known(snapshot: GroupSnapshot, consumer: ConsumerId) -> str:
    if consumer in _advertised(snapshot):
        return "it advertises that"
    owned = [tp for tp, owner in snapshot.owners.items() if owner.thread.rpartition("-")[0] == consumer]
    return f"it owns {partitions_text(owned)}" if owned else "it owned partitions by that before"


def idle_threads(seen: Observations) -> Iterator[Finding]:
    """Find members and threads that own nothing by the plan, because there are more threads than partitions."""
    snapshot = seen.latest
    if not snapshot.members or not seen.analysis.expected:
        return
    busy = set(seen.analysis.expected.values())
    idle = sorted(thread for thread in seen.analysis.registered if thread not in busy)
    if idle:
        members = sorted({seen.analysis.registered[thread] for thread in idle})
        working = {seen.analysis.registered.get(thread) for thread in busy}
        wholly = [consumer for consumer in members if consumer not in working]
        yield Finding(
            Level.NOTE,
            f"{len(idle)} of {counted(len(seen.analysis.registered), 'thread')} get nothing by the plan, which has"
            f" {counted(len(seen.analysis.expected), 'partition')}"
            + (f". Members without any: {len(wholly)}" if wholly else ""),
            listed(idle),
            snapshot.path("ids"),
            "more partitions, fewer streams, or keep them as spares",
        )
