"""The past of a group, told by snapshots: each change as an event. Pure; any thread.

One snapshot tells the changes whose nodes still stand, and two tell what has vanished in between.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
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
        EventKind.JOINED,
        EventKind.REGISTRATION_CHANGED,
        EventKind.LEFT,
        EventKind.UNSEEN,
        EventKind.TOPIC_CREATED,
        EventKind.TOPIC_DELETED,
        EventKind.PARTITIONS_CHANGED,
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
