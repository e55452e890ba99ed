"""The timeline of a group: events in the order of their transactions, and the rebalances that they form.

One snapshot tells the changes whose nodes still stand: the creation of the group, joins, claims, and the last commit
of each partition. The difference between two snapshots also tells what has vanished: leaves, releases, topics. The
order is that of ZooKeeper's transactions (zxid), so that wrong clocks do not matter. Pure; any thread.

The original logs each member's own part of a rebalance. Nothing in it shows the whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from zkconsumer.model import TopicPartition
from zkconsumer.operations.group_snapshot import GroupSnapshot
from zkconsumer.operations.timeline_events import (
    CAUSES,
    EventKind,
    TimelineEvent,
    left_before,
    standing,
    vanished,
)

__all__ = ["CAUSES", "EventKind", "OwnerMove", "Rebalance", "TimelineEvent", "cause_text", "events", "rebalances"]

QUIET = 60.0
"""Seconds. A claim so long after the events before it belongs to no change that the timeline knows."""
PRECISE = 0.25
"""Seconds. A time or a duration by our own clock that is known within this counts as known."""

_OF_A_REBALANCE = CAUSES | {EventKind.RELEASED, EventKind.CLAIMED}


@dataclass(frozen=True, slots=True)
class OwnerMove:
    """A partition that a rebalance moved. ``before`` is the thread that owned it; None: unknown, empty: nobody."""

    partition: TopicPartition
    before: str | None
    after: str


@dataclass(frozen=True, slots=True)
class Rebalance:
    """Changes of the group, and the releases and claims that answer them. ``causes`` is empty if none is known."""

    causes: tuple[TimelineEvent, ...] = ()
    releases: tuple[TimelineEvent, ...] = ()
    claims: tuple[TimelineEvent, ...] = ()
    moves: tuple[OwnerMove, ...] = ()

    @property
    def events(self) -> tuple[TimelineEvent, ...]:
        """All events of the rebalance: causes, then releases, then claims."""
        return (*self.causes, *self.releases, *self.claims)

    @property
    def began(self) -> int | None:
        """When the first cause happened, in milliseconds since 1970; None if unknown."""
        first = self.causes[0] if self.causes else None
        return None if first is None else first.at if first.at is not None else _close(first)

    @property
    def ended(self) -> int | None:
        """When the last claim was made, by ZooKeeper's clock; None without a claim."""
        return self.claims[-1].at if self.claims else None

    @property
    def last(self) -> str:
        """The thread that claimed last, empty without a claim."""
        return self.claims[-1].member if self.claims else ""

    @property
    def moved(self) -> tuple[OwnerMove, ...]:
        """The partitions that are known to have changed their owner."""
        return tuple(move for move in self.moves if move.before is not None and move.before != move.after)

    @property
    def duration(self) -> float | None:
        """Seconds from the first cause to the last owner node; None if a time is unknown or there is no claim."""
        if not self.causes or not self.claims:
            return None
        first, last = self.causes[0], self.claims[-1]
        if first.at is not None and last.at is not None:
            return max(0, last.at - first.at) / 1000
        if first.seen is None or last.seen_after is None or self.at_most is None:
            return None
        least = max(0, last.seen_after - first.seen) / 1000  # both by our clock, never one by each
        return self.at_most if self.at_most - least <= PRECISE else None

    @property
    def at_least(self) -> float | None:
        """Seconds from the first known time to the last claim: the least that the rebalance took."""
        times = [event.at for event in self.events if event.at is not None]
        return (max(times) - min(times)) / 1000 if self.claims and times else None

    @property
    def at_most(self) -> float | None:
        """Seconds from the look before the first cause to the one that saw the last claim, None if it has no bound."""
        if not self.causes or not self.claims:
            return None
        begin, end = self.causes[0].seen_after, self.claims[-1].seen
        return None if begin is None or end is None else max(0, end - begin) / 1000

    def document(self) -> dict[str, object]:
        """Return the rebalance for JSON; unknown values are null."""
        return {
            "cause": "; ".join(map(cause_text, self.causes)) or None,
            "causes": [event.document() for event in self.causes],
            "zxid": next((event.zxid for event in self.events if event.zxid is not None), None),
            "began": self.began,
            "ended": self.ended,
            "duration": self.duration,
            "at_least": self.at_least,
            "at_most": self.at_most,
            "claims": len(self.claims),
            "releases": len(self.releases),
            "moved": [
                {"topic": m.partition.topic, "partition": m.partition.partition, "before": m.before, "after": m.after}
                for m in self.moved
            ],
            "previous_owner_unknown": sum(move.before is None for move in self.moves),
            "last": self.last or None,
        }


def cause_text(event: TimelineEvent) -> str:
    """Return a cause in words: ``g_a joined``, ``a member left (unknown which)``."""
    if event.kind in (EventKind.JOINED, EventKind.LEFT, EventKind.REGISTRATION_CHANGED):
        who = event.member or "a member"
        return f"{who} {event.kind.value}" + ("" if event.member else " (unknown which)")
    return f"{event.kind.value}: {event.detail}" if event.detail else event.kind.value


def _close(event: TimelineEvent) -> int | None:
    """Return the time by our own clock if it is known well enough."""
    if event.seen is None or event.seen_after is None or event.seen - event.seen_after > PRECISE * 1000:
        return None
    return event.seen


def events(snapshots: Sequence[GroupSnapshot]) -> tuple[TimelineEvent, ...]:
    """Return the events of one group in the order of their transactions.

    Arguments: ``snapshots`` of one group, oldest first. An event without a known transaction stands where it is bound
    to lie. Of several commits of one partition between two snapshots only the last one is known.
    """
    found: dict[tuple[object, ...], tuple[int, int, int, TimelineEvent]] = {}
    era, count = 0, 0
    before: GroupSnapshot | None = None
    for snapshot in snapshots:
        fresh = []
        if before is not None and _set_back(before, snapshot):
            era += 1
            fresh.append(TimelineEvent(EventKind.DATA_SET_BACK, detail="ZooKeeper's data is older than before"))
            before = None
        fresh += standing(snapshot)
        fresh += vanished(before, snapshot) if before is not None else left_before(snapshot)
        for event in fresh:
            key: tuple[object, ...] = (era, event.kind, event.member, event.partition, event.zxid)
            if event.zxid is None:
                key = (count,)  # what two snapshots tell together is told once
            if key not in found:
                if before is not None:
                    event = replace(event, seen_after=before.taken, seen=snapshot.taken)
                count += 1
                found[key] = (era, _position(event, snapshot), count, event)
        before = snapshot
    return tuple(event for *_, event in sorted(found.values(), key=lambda one: one[:3]))


def _position(event: TimelineEvent, snapshot: GroupSnapshot) -> int:
    if event.kind is EventKind.DATA_SET_BACK:
        return 0
    return event.zxid if event.zxid is not None else event.before or snapshot.zxid


def _set_back(before: GroupSnapshot, snapshot: GroupSnapshot) -> bool:
    """Return whether ZooKeeper lost its data in between: its transactions never go back otherwise."""
    return 0 < snapshot.zxid < before.zxid


def rebalances(found: Sequence[TimelineEvent]) -> tuple[Rebalance, ...]:
    """Return the rebalances that these events form, oldest first.

    A change of the group begins a rebalance, unless the one before it has no claim yet. Releases and claims belong to
    the last change before them. Two cases differ: releases of a member that then leaves belong to its leave, and claims
    :data:`QUIET` seconds after all else form a rebalance without a known cause.
    """
    grouped: list[_Open] = []
    pending: list[TimelineEvent] = []  # releases after claims: of this rebalance, or of the next change
    for event in found:
        if event.kind not in _OF_A_REBALANCE:
            continue
        current = grouped[-1] if grouped else None
        if event.kind in CAUSES:
            if current is None or current.claims:
                grouped.append(current := _Open())
            current.add(current.causes, event)
            current.releases += pending
            pending = []
        elif event.kind is EventKind.RELEASED:
            (pending if current is None or current.claims else current.releases).append(event)
        else:
            if current is None or current.quiet_before(event):
                grouped.append(current := _Open())
            current.releases += pending
            pending = []
            current.add(current.claims, event)
    if pending:
        grouped.append(_Open(releases=pending))
    owners: dict[TopicPartition, str] = {}
    return tuple(one.close(owners) for one in grouped)


@dataclass(slots=True)
class _Open:
    """A rebalance while its events are collected."""

    causes: list[TimelineEvent] = field(default_factory=list)
    releases: list[TimelineEvent] = field(default_factory=list)
    claims: list[TimelineEvent] = field(default_factory=list)
    at: int | None = None
    seen: int | None = None

    def add(self, to: list[TimelineEvent], event: TimelineEvent) -> None:
        """Add a cause or a claim. ``at`` and ``seen`` are the latest times of all of them."""
        to.append(event)
        self.at = max((one for one in (self.at, event.at) if one is not None), default=None)
        self.seen = max((one for one in (self.seen, event.seen) if one is not None), default=None)

    def quiet_before(self, claim: TimelineEvent) -> bool:
        """Return whether a claim comes too late to belong to this rebalance. Unknown times part nothing."""
        for last, then in ((self.at, claim.at), (self.seen, claim.seen)):
            if last is not None and then is not None:
                return then - last > QUIET * 1000
        return False

    def close(self, owners: dict[TopicPartition, str]) -> Rebalance:
        """Return the rebalance. ``owners`` has the owners before the rebalance, and then the owners after it."""
        for release in self.releases:
            if release.partition is not None:
                owners[release.partition] = release.member
        moves: dict[TopicPartition, OwnerMove] = {}
        for claim in self.claims:
            if claim.partition is not None:
                known = moves.get(claim.partition)
                before = known.before if known is not None else owners.get(claim.partition)
                moves[claim.partition] = OwnerMove(claim.partition, before, claim.member)
        owners.update((move.partition, move.after) for move in moves.values())
        return Rebalance(tuple(self.causes), tuple(self.releases), tuple(self.claims), tuple(moves.values()))
