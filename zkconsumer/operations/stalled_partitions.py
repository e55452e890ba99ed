"""Which owners stand still: messages wait, and the offset does not move. A fold over snapshots. Pure.

Any thread. A commit of the offset that was there before is no movement: members of releases before 0.8.2 write it again
at each interval, and members of this package at each claim. A note that changes is movement, because balanced members
finish messages beyond an offset that one message holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from zkconsumer.fetch.message_lookup import NO_MESSAGE
from zkconsumer.model import TopicPartition
from zkconsumer.operations.group_snapshot import GroupSnapshot, NoteSummary, lag_between
from zkconsumer.zookeeper import paths

STANDS_STILL_MS = 180_000
"""An owner that does not move its offset for so long stands still: three commit intervals of the original (60 s)."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The last known place of a partition's owner. Times are milliseconds since 1970.

    ``claim`` is the owner's thread and the transaction of its node. ``waiting`` is the first reading in a row at which
    this owner had this offset and messages to read; None if it had none. ``idle`` is the last reading at which
    it had none, or which saw another offset or owner; 0 if no reading was so. ``seen`` is the last reading of this
    place.
    """

    claim: tuple[str, int]
    offset: int
    note: NoteSummary | None
    waiting: int | None
    idle: int = 0
    seen: int = 0


def after(before: Mapping[TopicPartition, Progress], snapshot: GroupSnapshot) -> dict[TopicPartition, Progress]:
    """Return the progress of each owned partition after one more snapshot, which is the latest.

    A part that was not read leaves the progress as it was, because it neither proves nor disproves a movement.
    """
    unread = any(
        one.what.startswith(("ZooKeeper ", f"{paths.CONSUMERS}/{snapshot.group}/owners")) for one in snapshot.problems
    )
    found = dict(before) if unread else {}
    for tp, claim in _claims(snapshot).items():
        made = _next(before.get(tp), claim, tp, snapshot)
        if made is not None:
            found[tp] = made
    return found


def _next(old: Progress | None, claim: tuple[str, int], tp: TopicPartition, snapshot: GroupSnapshot) -> Progress | None:
    offset, note, lag = _place(snapshot, tp)
    if old is not None and old.seen > snapshot.taken:  # our clock was set back: nothing has waited since the future
        waiting = None if old.waiting is None else min(old.waiting, snapshot.taken)
        old = replace(old, waiting=waiting, idle=min(old.idle, snapshot.taken), seen=snapshot.taken)
    if offset is None:
        return old if old is not None and old.claim == claim else None
    if old is None or (old.claim, old.offset, old.note) != (claim, offset, note):
        # it moved after that reading, by our clock, whatever the clocks of ZooKeeper and of the producers say
        old = Progress(claim, offset, note, None, idle=0 if old is None else old.seen)
    waiting, idle = old.waiting, old.idle
    if lag == 0:
        waiting, idle = None, snapshot.taken
    elif lag is not None and waiting is None:
        waiting = snapshot.taken
    return Progress(old.claim, old.offset, old.note, waiting, idle, snapshot.taken)


def _place(snapshot: GroupSnapshot, tp: TopicPartition) -> tuple[int | None, NoteSummary | None, int | None]:
    """Return the offset of the owner, its note, and its lag.

    Members that the brokers coordinate commit to Kafka. An offset in ZooKeeper is one from before their migration.
    """
    stored = (snapshot.kafka_offsets or {}).get(tp) if snapshot.brokers_group is not None else None
    if not snapshot.members and stored is not None and stored.offset is not None:
        return stored.offset, stored.note, lag_between(stored.offset, snapshot.logs.get(tp), stored.note)
    return snapshot.committed(tp), snapshot.note(tp), snapshot.lag(tp)


def waiting_messages(snapshot: GroupSnapshot, tp: TopicPartition) -> int:
    """Return how many messages the owner of a partition has to read, 0 if that is unknown.

    Transaction markers count as lag, and nobody reads them: an owner before the last marker has nothing to read.
    """
    log = snapshot.logs.get(tp)
    if log is not None and log.message_time == NO_MESSAGE:
        return 0
    return _place(snapshot, tp)[2] or 0


def _claims(snapshot: GroupSnapshot) -> dict[TopicPartition, tuple[str, int]]:
    """Return the owner of each partition with the transaction of its node, 0 in a group that brokers coordinate."""
    found = {}
    if snapshot.brokers_group is not None and not snapshot.members:
        found = {
            tp: (member.member_id, 0) for member in snapshot.brokers_group.members for tp in member.assignment or ()
        }
    for tp, node in snapshot.owners.items():
        if node.thread:
            found[tp] = (node.thread, 0 if node.stat is None else node.stat.czxid)
    return found


def still_since(snapshot: GroupSnapshot, tp: TopicPartition, progress: Progress) -> int | None:
    """Return the latest time at which a partition can have begun to stand still; None if it moves, or nothing tells.

    One snapshot tells by the times of the commit, of the claim and of the next message. A reading at which nothing
    waited corrects the time of the message, which its producer chose. Several snapshots tell by themselves.
    """
    if progress.waiting is None:
        return None
    node, owner, log = snapshot.offsets.get(tp), snapshot.owners.get(tp), snapshot.logs.get(tp)
    written = node.stat.mtime if node is not None and node.offset is not None and node.stat is not None else None
    claimed = owner.stat.ctime if owner is not None and owner.stat is not None else None
    came = None if log is None else log.known_time
    known = [progress.waiting] if progress.waiting < snapshot.taken else []
    if written is not None and claimed is not None and came is not None:
        known.append(max(written, claimed, came, progress.idle))
    return min(known, default=None)


def may_stand_still(snapshot: GroupSnapshot, tp: TopicPartition, progress: Progress, *, by_brokers: bool) -> bool:
    """Return whether a partition may have stood still for long, and the snapshots lack the times that would show it.

    ``by_brokers``: the brokers coordinate the group, so that an offset in ZooKeeper is not that of the owner.
    """
    if progress.idle:
        return False  # an earlier look has seen it get on
    node, log, limit = snapshot.offsets.get(tp), snapshot.logs.get(tp), snapshot.taken - STANDS_STILL_MS
    written = node.stat.mtime if node is not None and node.stat is not None else None
    came = None if log is None else log.known_time
    if by_brokers and node is not None:
        written = came = None  # both times are of an offset that the members do not use
    if came is not None and came > snapshot.taken + STANDS_STILL_MS:
        came = None  # a producer's clock, or its unit, is wrong
    owner = snapshot.owners.get(tp)
    claimed = owner.stat.ctime if owner is not None and owner.stat is not None else None
    if written is not None and came is not None:
        return False
    return all(time is None or time <= limit for time in (written, came, claimed))
