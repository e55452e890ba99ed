"""The timeline of a group: events in the order of their transactions, and the rebalances that they form.

One snapshot tells the changes whose nodes still stand: the creation of the group, joins, claims, and the last commit
of each partition. The difference between two snapshots also tells what has vanished: leaves, releases, topics. The
order is that of ZooKeeper's transactions (zxid), so that wrong clocks do not matter. Pure; any thread.

The original logs each member's own part of a rebalance. Nothing in it shows the whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from zkconsumer.model import TopicPartition
from zkconsumer.operations.group_snapshot import GroupSnapshot, MemberNode, NodeStat, OwnerNode

LONGEST = 300
"""The most characters of an event's detail, and of the thread in an owner node. The rest is cut off."""


class EventKind(Enum):
    """The kinds of events; the value is the word in the output."""

    GROUP_CREATED = "group created"
    GROUP_DELETED = "group deleted"
    JOINED = "joined"
    REGISTRATION_CHANGED = "registration changed"
    LEFT = "left"
    UNSEEN = "not seen"
    TOPIC_CREATED = "topic created"
    TOPIC_DELETED = "topic deleted"
    PARTITIONS_CHANGED = "partitions changed"
    RELEASED = "released"
    CLAIMED = "claimed"
    COMMITTED = "committed"
    OFFSET_DELETED = "offset deleted"
    DATA_SET_BACK = "data set back"
    SESSION_LOST = "connection lost"
    SESSION_BACK = "connection back"


CAUSES = frozenset(
    {
        *(EventKind.JOINED, EventKind.REGISTRATION_CHANGED, EventKind.LEFT, EventKind.UNSEEN),
        *(EventKind.TOPIC_CREATED, EventKind.TOPIC_DELETED, EventKind.PARTITIONS_CHANGED),
    }
)
"""The kinds of events after which a group rebalances."""


@dataclass(frozen=True, slots=True)
class TimelineEvent:
    """A change of the group.

    ``zxid`` is the transaction that made it. None: unknown, but after the transaction ``after`` and not after
    ``before`` (0: no bound is known). ``at`` is its time by ZooKeeper's clock, None if unknown. By our own clock it
    was after ``seen_after`` and not after ``seen``; None: no snapshot shows the group before it. All times are
    milliseconds since 1970. ``member`` is a consumer id, for claims and releases a thread id, empty if unknown.
    """

    kind: EventKind
    zxid: int | None = None
    at: int | None = None
    member: str = ""
    partition: TopicPartition | None = None
    detail: str = ""
    after: int = 0
    before: int = 0
    seen_after: int | None = None
    seen: int | None = None

    def document(self) -> dict[str, object]:
        """Return the event for JSON; unknown values are null."""
        return {
            "event": self.kind.value,
            "zxid": self.zxid,
            "after_zxid": self.after or None,
            "before_zxid": self.before or None,
            "time": self.at,
            "seen_after": self.seen_after,
            "seen": self.seen,
            "member": self.member or None,
            "topic": self.partition.topic if self.partition else None,
            "partition": self.partition.partition if self.partition else None,
            "detail": self.detail or None,
        }


def standing(snapshot: GroupSnapshot) -> Iterator[TimelineEvent]:
    """Yield the events whose nodes stand."""
    node = snapshot.group_node
    if node is not None:
        yield TimelineEvent(EventKind.GROUP_CREATED, node.czxid, node.ctime)
    for consumer, member in snapshot.members.items():
        if (stat := member.stat) is None:
            continue
        topics = member.registration.subscription if member.registration is not None else {}
        detail = _short(", ".join(f"{topic} x {streams}" for topic, streams in topics.items()) or member.problem)
        yield TimelineEvent(EventKind.JOINED, stat.czxid, stat.ctime, consumer, detail=detail)
        if stat.mzxid != stat.czxid:
            yield TimelineEvent(EventKind.REGISTRATION_CHANGED, stat.mzxid, stat.mtime, consumer, detail=detail)
    for partition, owner in snapshot.owners.items():
        if (stat := owner.stat) is not None:
            detail = owner.problem or ("a persistent node: it outlives its session" if not stat.ephemeral_owner else "")
            yield TimelineEvent(EventKind.CLAIMED, stat.czxid, stat.ctime, _short(owner.thread), partition, detail)
    for partition, offset in snapshot.offsets.items():
        if (stat := offset.stat) is not None:
            what = offset.problem if offset.offset is None else f"offset {offset.offset}"
            yield TimelineEvent(
                EventKind.COMMITTED, stat.mzxid, stat.mtime, "", partition, f"{what}, version {stat.version}"
            )


def _short(text: str) -> str:
    """Return a text of at most :data:`LONGEST` characters: a node may hold 1 MB of anything."""
    return text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."


def left_before(snapshot: GroupSnapshot) -> Iterator[TimelineEvent]:
    """Yield the last leave before the first snapshot, if its transaction is the last change under ``ids``."""
    zxid = _last_leave(snapshot)
    if zxid is not None:
        yield TimelineEvent(EventKind.LEFT, zxid, detail="unknown which member, and when")


def _last_leave(snapshot: GroupSnapshot) -> int | None:
    """Return the transaction of the last change under ``ids``, if it was a leave; None if it was not, or is unknown."""
    node = snapshot.ids_node
    stats = [member.stat for member in snapshot.members.values()]
    if node is None or None in stats or not _all_members(snapshot) or node.pzxid <= node.czxid:
        return None
    return None if node.pzxid in {stat.czxid for stat in stats if stat is not None} else node.pzxid


def _all_members(snapshot: GroupSnapshot) -> bool:
    """Return whether the stat of ``ids`` counts just the members of the snapshot, none that came or left meanwhile."""
    return snapshot.ids_node is not None and snapshot.ids_node.children == len(snapshot.members)


def vanished(before: GroupSnapshot, now: GroupSnapshot) -> Iterator[TimelineEvent]:
    """Yield what two snapshots tell together: leaves, releases, topics, deleted offsets, the brokers' members."""
    if _readable(before) and _readable(now):
        yield from _leaves(before, now)
        yield from _releases(before, now)
        yield from _deleted(before, now)
    yield from _topics(before, now)
    yield from _brokers_changes(before, now)


def _readable(snapshot: GroupSnapshot) -> bool:
    """Return whether ZooKeeper answered to the end: what does not stand in the snapshot was missing then."""
    return not any(not problem.what.startswith("/") and "ZooKeeper" in problem.what for problem in snapshot.problems)


def _unread(snapshot: GroupSnapshot, path: str) -> bool:
    """Return whether a node below ``/consumers/<group>`` could not be read."""
    whole = f"/consumers/{snapshot.group}/{path}/"
    return any(problem.what and whole.startswith(problem.what.rstrip("/") + "/") for problem in snapshot.problems)


def _leaves(before: GroupSnapshot, now: GroupSnapshot) -> Iterator[TimelineEvent]:
    if _unread(now, "ids"):
        return
    gone = [name for name, member in before.members.items() if _gone(member.stat, now.members.get(name))]
    last, unseen = _last_leave(now), _unseen_changes(before, now, len(gone))
    if last is not None and last <= before.zxid:
        last = None
    for name in gone:
        again = now.members.get(name)
        bound = last or now.zxid
        if again is not None and again.stat is not None:  # came back under its name, in another session
            bound = again.stat.czxid - 1
        exact = last if len(gone) == 1 and not unseen and bound == last else None
        yield TimelineEvent(EventKind.LEFT, exact, member=name, after=before.zxid, before=bound)
    if unseen:
        detail = f"{unseen} more joins and leaves between two looks"
        yield TimelineEvent(EventKind.UNSEEN, detail=detail, after=before.zxid, before=last or now.zxid)


def _gone(old: NodeStat | None, now: MemberNode | OwnerNode | None) -> bool:
    """Return whether a node is missing, or another one stands in its place."""
    if now is None:
        return True
    return old is not None and now.stat is not None and now.stat.czxid != old.czxid


def _unseen_changes(before: GroupSnapshot, now: GroupSnapshot, left: int) -> int:
    """Return how many joins and leaves neither snapshot shows: ``ids`` counts the changes of its children."""
    old, new = before.ids_node, now.ids_node
    if old is None or new is None or old.czxid != new.czxid or not (_all_members(before) and _all_members(now)):
        return 0
    known = {member.stat.czxid for member in before.members.values() if member.stat is not None}
    joined = sum(member.stat is not None and member.stat.czxid not in known for member in now.members.values())
    return max(0, new.cversion - old.cversion - joined - left)


def _releases(before: GroupSnapshot, now: GroupSnapshot) -> Iterator[TimelineEvent]:
    for partition, owner in before.owners.items():
        claim = now.owners.get(partition)
        if not _gone(owner.stat, claim):
            continue
        if claim is None and _unread(now, f"owners/{partition.topic}/{partition.partition}"):
            continue
        bound = now.zxid
        if claim is not None and claim.stat is not None:
            bound = claim.stat.czxid - 1
        yield TimelineEvent(EventKind.RELEASED, None, None, _short(owner.thread), partition, "", before.zxid, bound)


def _deleted(before: GroupSnapshot, now: GroupSnapshot) -> Iterator[TimelineEvent]:
    for partition in sorted(before.offsets.keys() - now.offsets.keys()):
        if not _unread(now, f"offsets/{partition.topic}/{partition.partition}"):
            yield TimelineEvent(EventKind.OFFSET_DELETED, partition=partition, after=before.zxid, before=now.zxid)
    old, new = before.group_node, now.group_node
    if old is not None and (new is None or new.czxid != old.czxid) and not _unread(now, ""):
        bound = now.zxid if new is None else new.czxid - 1
        yield TimelineEvent(EventKind.GROUP_DELETED, after=before.zxid, before=bound)


def _topics(before: GroupSnapshot, now: GroupSnapshot) -> Iterator[TimelineEvent]:
    """Yield what happened to the topics that both snapshots asked about, or that came or went in between."""
    for topic in sorted(before.topics.keys() | now.topics.keys()):
        old, new = before.topics.get(topic), now.topics.get(topic)
        if (old is not None and old.problem) or (new is not None and new.problem):
            continue
        claims = [
            owner.stat.czxid
            for partition, owner in now.owners.items()
            if partition.topic == topic and partition not in before.owners and owner.stat is not None
        ]
        after, bound = before.zxid, min(claims, default=now.zxid + 1) - 1
        count = 0 if new is None else len(new.partitions)
        if new is None:
            yield TimelineEvent(EventKind.TOPIC_DELETED, detail=topic, after=before.zxid, before=now.zxid)
        elif old is None or old.created != new.created:
            if new.created is None or new.created < before.taken:
                continue  # an older topic that the group began to consume
            detail = f"{topic}, {count} partitions"
            yield TimelineEvent(EventKind.TOPIC_CREATED, None, new.created, detail=detail, after=after, before=bound)
        elif old.partitions != new.partitions:
            detail = f"{topic}, {len(old.partitions)} to {count} partitions"
            yield TimelineEvent(EventKind.PARTITIONS_CHANGED, detail=detail, after=after, before=bound)


def _brokers_changes(before: GroupSnapshot, now: GroupSnapshot) -> Iterator[TimelineEvent]:
    """Yield the changes of a group that the brokers coordinate. They know no transactions."""
    if before.brokers_group is None or now.brokers_group is None:
        return
    old = {member.member_id: member for member in before.brokers_group.members}
    new = {member.member_id: member for member in now.brokers_group.members}
    for name in sorted(old.keys() - new.keys()):
        yield TimelineEvent(EventKind.LEFT, member=name)
    for name in sorted(new.keys() - old.keys()):
        yield TimelineEvent(EventKind.JOINED, member=name, detail=f"{new[name].client_id} {new[name].host}")
    had = {tp: name for name, member in old.items() for tp in member.assignment or ()}
    has = {tp: name for name, member in new.items() for tp in member.assignment or ()}
    for partition in sorted(had):
        if has.get(partition) != had[partition]:
            yield TimelineEvent(EventKind.RELEASED, None, None, had[partition], partition)
    for partition in sorted(has):
        if had.get(partition) != has[partition]:
            yield TimelineEvent(EventKind.CLAIMED, None, None, has[partition], partition)


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
