"""Checks of balanced members: their notes, their pointers to parked messages and dead letters, and their loans.

Pure; any thread.
"""

from __future__ import annotations

from collections.abc import Iterator

from zkconsumer.core.message_pointers import LOST, MOST_POINTERS
from zkconsumer.core.registration import AdvertisedShare, advertised_share
from zkconsumer.model import ConsumerId, TopicPartition
from zkconsumer.operations.doctor.findings import (
    Finding,
    Level,
    Observations,
    counted,
    listed,
    our_command,
    partitions_text,
    seconds,
    unknown,
    why_no_nodes,
)
from zkconsumer.operations.group_snapshot import GroupSnapshot, LoanNode, NoteSummary, PointedMessage, PointersNode
from zkconsumer.operations.group_view import MemberKind, member_kind

NEARLY_FULL = MOST_POINTERS * 4 // 5
"""Pointers of one kind from which on a partition is reported, before it is full and stops."""
OVERDUE_MS = 600_000
"""A parked message so long after its next attempt was due has no member that looks after it."""
HELD_BEYOND = 1000
"""Finished messages beyond a base that make its holder worth a look: all of them are repeated if the note is lost."""
HELD_MS = 600_000
"""A message that has failed for so long and still holds the base is one that does not get parked."""
NEAR_START = 20
"""A pointer in the first so-many-th part of its log is the next that retention deletes."""
SOON_MS = 6 * 3_600_000
"""Retention that reaches a pointer within this time, as fast as it was between two snapshots, is reported."""
_OURS = (MemberKind.ZKCONSUMER, MemberKind.BRIDGE)


def parked_without_member(seen: Observations) -> Iterator[Finding]:
    """Find parked messages that no member will handle: none of ours is there, or none looks after them."""
    snapshot = seen.latest
    parked = _parked(snapshot)
    if not parked:
        return
    unread = why_no_nodes(snapshot, "ids")
    ours = [name for name, node in snapshot.members.items() if member_kind(node) in _OURS]
    number, where = sum(parked.values()), snapshot.path("parked", *min(parked))
    start = "start a member of this package with run(..., concurrency=...), or export them: "
    start += our_command(snapshot, "dead", "export", snapshot.group, "--parked", "--to", "FILE")
    if not ours and not unread:
        level = Level.ERROR if snapshot.members else Level.WARN
        others = "only other members are" if snapshot.members else "no member is"
        text = f"{counted(number, 'parked message')} wait, and {others} in the group: nobody handles them"
        yield Finding(level, text, f"partitions {partitions_text(parked)}", where, start)
        return
    if unread:
        yield unknown(f"whether a member of this package is in the group: {unread}")
    late = {tp: snapshot.taken - due for tp in parked if (due := snapshot.pointers[tp].due_ms) > 0}
    overdue = {tp: age for tp, age in late.items() if age > OVERDUE_MS and tp in snapshot.owners}
    if overdue:
        text = f"parked messages of {counted(len(overdue), 'partition')} are overdue: their owners do not handle them"
        evidence = f"due {seconds(max(overdue.values()))} ago; partitions {partitions_text(overdue)}"
        remedy = "let the owners run with concurrency=, and look at connector.state of each owner"
        yield Finding(Level.WARN, text, evidence, snapshot.path("parked", *min(overdue)), remedy)


def parked_beside_scala(seen: Observations) -> Iterator[Finding]:
    """Find parked messages of partitions that Scala members own: these do not see them."""
    snapshot = seen.latest
    kinds = {name: member_kind(node) for name, node in snapshot.members.items()}
    scala = sorted(name for name, kind in kinds.items() if kind is MemberKind.SCALA)
    if not scala or not any(kind in _OURS for kind in kinds.values()):
        return  # without members of ours it is the matter of parked-without-member
    owned = {tp: ConsumerId(node.thread.rpartition("-")[0]) for tp, node in snapshot.owners.items()}
    parked = _parked(snapshot)
    theirs = [tp for tp in parked if kinds.get(owned.get(tp, ConsumerId(""))) is MemberKind.SCALA]
    if theirs:
        text = f"Scala members own {counted(len(theirs), 'partition')} with parked messages: they wait until a member"
        text += " of this package owns the partition again"
        number = sum(parked[tp] for tp in theirs)
        evidence = f"{counted(number, 'parked message')} of {partitions_text(theirs)}; Scala: {listed(scala, 3)}"
        remedy = "replace the Scala members, or use Retry(park_after=...) so large that nothing is parked"
        yield Finding(Level.WARN, text, evidence, snapshot.path("parked", *theirs[0]), remedy)
    elif parked:
        text = "Scala members are in a group that parks messages: a partition that moves to one of them leaves its"
        text += " parked messages behind"
        yield Finding(Level.NOTE, text, f"{counted(sum(parked.values()), 'parked message')}; Scala: {listed(scala, 3)}")


def full_pointers(seen: Observations) -> Iterator[Finding]:
    """Find partitions with nearly as many pointers as they may have, and nodes of pointers that cannot be read."""
    snapshot = seen.latest
    for tp, node in sorted(snapshot.pointers.items()):
        path = snapshot.path("parked", *tp)
        if node.parked is None or node.dead is None:
            yield _unreadable_pointers(snapshot, tp, node)
            continue
        for number, kind, remedy in (
            (node.parked, "parked message", "find out why they fail: " + _dead(snapshot, "list", "--parked")),
            (node.dead, "dead letter", "replay or drop them: " + _dead(snapshot, "drop", "--all")),
        ):
            if number >= NEARLY_FULL:
                full = number >= MOST_POINTERS
                text = f"{tp} has {counted(number, kind)} of at most {MOST_POINTERS}" + (
                    ": at the next one the partition stops" if full else ""
                )
                evidence = f"{node.stat.length} bytes" if node.stat is not None else ""
                yield Finding(Level.ERROR if full else Level.WARN, text, evidence, path, remedy)


def _unreadable_pointers(snapshot: GroupSnapshot, tp: TopicPartition, node: PointersNode) -> Finding:
    path = snapshot.path("parked", *tp)
    if node.stat is None:
        return unknown(f"the pointers of {tp} were not read: {node.problem}", node=path)
    return Finding(
        Level.ERROR,
        f"the pointers of {tp} cannot be read: members do not overwrite them, and can park nothing there",
        f"{node.problem}; {node.stat.length} bytes",
        path,
        "a later release may have written them: use that one. Otherwise save the node's content, then delete the node",
    )


def dead_letters(seen: Observations) -> Iterator[Finding]:
    """Count the dead letters that wait for somebody."""
    snapshot = seen.latest
    dead = {tp: node.dead for tp, node in snapshot.pointers.items() if node.dead}
    if dead:
        first = min(dead)
        example = snapshot.pointers[first].first(dead=True)
        evidence = f"partitions {partitions_text(dead)}"
        if example is not None:
            evidence += f"; {first} at offset {example.offset}: {_why(example)}"
        text = f"{counted(sum(dead.values()), 'dead letter')} wait: messages that were given up"
        remedy = "look at them, then replay or drop them: " + _dead(snapshot, "list")
        yield Finding(Level.WARN, text, evidence, snapshot.path("parked", *first), remedy)


def held_bases(seen: Observations) -> Iterator[Finding]:
    """Find bases that a single message holds although much beyond it is finished."""
    snapshot = seen.latest
    earlier = next((one for one in seen.earlier if one.acks or one.kafka_offsets), None)
    for tp in sorted({*snapshot.acks, *(snapshot.kafka_offsets or ())}):
        note = snapshot.note(tp)
        if note is None or not note.finished:
            continue
        failing = next((one for one in note.failing if one.offset == note.base), None)
        long = failing is not None and 0 < failing.first_ms < snapshot.taken - HELD_MS
        before = None if earlier is None else earlier.note(tp)
        stays = before is not None and before.base == note.base and note.finished - before.finished >= HELD_BEYOND
        if note.finished < HELD_BEYOND and not long:
            continue
        text = f"the offset of {tp} is held at {note.base:,} while {note.finished:,} messages beyond it are finished"
        evidence = f"{note.unfinished:,} unfinished before offset {note.end:,}"
        if failing is not None:
            evidence += f"; offset {failing.offset:,} has failed {counted(failing.failed, 'time')}"
            evidence += f", first {seconds(snapshot.taken - failing.first_ms)} ago" if failing.first_ms else ""
        remedy = "look at connector.state of the owner: a handler that does not return, or park_after too large"
        yield Finding(Level.WARN if long or stays else Level.NOTE, text, evidence, snapshot.path("acks", *tp), remedy)


def void_notes(seen: Observations) -> Iterator[Finding]:
    """Find notes that do not count because somebody else wrote the offset, and ones that cannot be read."""
    snapshot = seen.latest
    for tp, node in sorted(snapshot.acks.items()):
        path, offset = snapshot.path("acks", *tp), snapshot.offsets.get(tp)
        if node.stat is None:
            yield unknown(f"the note of {tp} was not read: {node.problem}", node=path)
        elif node.note is None:
            text = f"the note of {tp} cannot be read: what is finished beyond the offset will be consumed again"
            yield Finding(Level.WARN, text, f"{node.problem}; {node.stat.length} bytes", path)
        elif offset is None or offset.stat is None or offset.offset is None:
            if node.note.finished:
                text = f"the note of {tp} has no offset that it belongs to: it does not count"
                yield Finding(Level.NOTE, text, f"base {node.note.base:,}", path)
        elif node.stat.mzxid < offset.stat.mzxid and (again := _repeated(offset.offset, node.note)):
            yield Finding(
                Level.WARN,
                f"somebody else wrote the offset of {tp}: its note does not count, and about {again:,} messages that"
                " were finished will be consumed again",
                f"offset {offset.offset:,} of transaction {offset.stat.mzxid:#x}; note of {node.stat.mzxid:#x} with"
                f" base {node.note.base:,}",
                path,
                "nothing is lost. Scala members and operators' resets do this; otherwise look who writes offsets",
            )


def _repeated(offset: int, note: NoteSummary) -> int:
    """Return about how many finished messages an offset makes come again. 0 if the note has nothing beyond it.

    A note is not rewritten once everything before an offset is finished. So one that ends there is no finding.
    """
    return max(0, min(note.finished, note.end - max(offset, note.base)))


def lost_loans(seen: Observations) -> Iterator[Finding]:
    """Find loans whose borrower or lender is gone, and ones that cannot be read."""
    snapshot = seen.latest
    for tp, loans in sorted(snapshot.loans.items()):
        for borrower, loan in sorted(loans.items()):
            path = snapshot.path("loans", *tp, borrower)
            if loan.stat is None:
                yield unknown(f"the loan of {tp} to {borrower} was not read: {loan.problem}", node=path)
            elif loan.problem:
                text = f"the loan of {tp} to {borrower} cannot be read: its slots may not be handled"
                yield Finding(Level.WARN, text, loan.problem, path, "restart the owner of the partition")
            elif loan.slots:
                yield from _lost_loan(snapshot, tp, borrower, loan, path)


def _lost_loan(
    snapshot: GroupSnapshot, tp: TopicPartition, borrower: ConsumerId, loan: LoanNode, path: str
) -> Iterator[Finding]:
    owner = snapshot.owners.get(tp)
    slots = f"{loan.slots} slots, loan number {loan.number}"
    young = loan.stat is not None and snapshot.taken - loan.stat.mtime < _PATIENCE_MS
    level = Level.NOTE if young else Level.WARN
    if borrower not in snapshot.members:
        if why := why_no_nodes(snapshot, "ids"):
            yield unknown(f"whether {borrower} is in the group: {why}", node=path)
            return
        text = f"{borrower} has slots of {tp} on loan and is not in the group: the owner has not taken them back"
        remedy = "look again in a minute; then restart the owner of the partition"
        yield Finding(level, text, slots, path, remedy)
    if owner is None or owner.stat is None:
        if why := why_no_nodes(snapshot, "owners") or (owner.problem if owner is not None else ""):
            yield unknown(f"who owns {tp}: {why}", node=path)
            return
        text, held = f"nobody owns {tp}, so the loan to {borrower} does not count", "no owner node"
    elif owner.stat.ephemeral_owner != loan.session:
        text = f"the lender of slots of {tp} to {borrower} is not the owner any more: the loan does not count"
        held = f"owner node of session {owner.stat.ephemeral_owner:#x}, lender {loan.session or 0:#x}"
    else:
        return
    remedy = "the next owner that shares takes the slots over; a Scala owner consumes them itself"
    yield Finding(level, text, f"{slots}; {held}", path, remedy)


_PATIENCE_MS = 60_000
"""A loan that was written within this time may just be changing hands."""


def pointers_and_retention(seen: Observations) -> Iterator[Finding]:
    """Find pointers to messages that retention has deleted, or is about to delete."""
    snapshot = seen.latest
    for tp, node in sorted(snapshot.pointers.items()):
        firsts = (node.first(dead=False), node.first(dead=True))
        waiting = [one for one in firsts if one is not None and not one.reason.startswith(LOST)]
        if not waiting:
            continue
        first, path = min(waiting, key=lambda one: one.offset), snapshot.path("parked", *tp)
        log = snapshot.logs.get(tp)
        if log is None or log.start is None:
            why = "" if log is None or not log.problem else f": {log.problem}"
            yield unknown(f"whether the messages of the pointers of {tp} are still there{why}", node=path)
            continue
        gone = [one for one in node.listed if one.offset < log.start]
        if gone:
            text = f"retention has deleted {counted(len(gone), 'message')} of {tp} that waited as parked or dead"
            if len(gone) == len(node.listed) and (node.parked or 0) + (node.dead or 0) > len(gone):
                text = text.replace("deleted ", "deleted at least ")
            evidence = f"offset {gone[0].offset:,}, log from {log.start:,}"
            offsets = ",".join(str(one.offset) for one in gone)
            where = ("--topic", f"{tp.topic}:{tp.partition}", "--offset", offsets)
            remedy = "drop the pointers: " + _dead(snapshot, "drop", "--parked", *where)
            yield Finding(Level.ERROR, text, evidence, path, remedy)
        elif near := _nearness(seen, tp, first.offset):
            text = f"retention is about to delete the message at offset {first.offset:,} of {tp}, which is"
            text += " a dead letter" if first.dead else " parked"
            remedy = "export it, or raise retention.ms of the topic: " + _dead(
                snapshot, "export", "--parked", "--to", "FILE"
            )
            yield Finding(Level.WARN, text, near, path, remedy)


def _nearness(seen: Observations, tp: TopicPartition, offset: int) -> str:
    """Return in words how near an offset is to the start of its log; empty if it is not.

    Two snapshots tell how fast the start moves. One alone tells the place in the log: message times are not in it.
    """
    log = seen.latest.logs[tp]
    start, end = log.start or 0, log.end
    before = next(
        (one for one in seen.earlier if (old := one.logs.get(tp)) is not None and old.start is not None), None
    )
    if before is not None:
        moved, span = start - (before.logs[tp].start or 0), seen.latest.taken - before.taken
        if moved <= 0 or span <= 0:
            return ""
        left = (offset - start) * span / moved
        return f"log from {start:,}, which moves to it within {seconds(left)}" if left < SOON_MS else ""
    if end is None or start == 0 or (offset - start) * NEAR_START >= end - start:
        return ""  # a log that begins at 0 has not lost anything yet
    return f"log {start:,}..{end:,}: {offset - start:,} messages from its start; when they were written is unknown"


def mixed_sharing(seen: Observations) -> Iterator[Finding]:
    """Find owners that lend nothing beside members that want slots, and members that share in different orders."""
    snapshot = seen.latest
    shares: dict[ConsumerId, AdvertisedShare] = {}
    for name, node in snapshot.members.items():
        share = None if node.registration is None else advertised_share(node.registration)
        if share is not None:
            shares[name] = share
    if not shares:
        return
    path = snapshot.path("ids")
    owned = {tp: ConsumerId(node.thread.rpartition("-")[0]) for tp, node in snapshot.owners.items() if node.thread}
    closed = sorted(tp for tp, owner in owned.items() if owner in snapshot.members and owner not in shares)
    if closed:
        text = f"{counted(len(closed), 'partition')} cannot be shared: their owners do not have share.partitions=true"
        owners = sorted({owned[tp] for tp in closed})
        evidence = f"{partitions_text(closed)} of {listed(owners, 3)}; {counted(len(shares), 'member')} share"
        yield Finding(Level.NOTE, text, evidence, path, "set share.partitions=true on every member, one by one")
    orders = {one.order for one in shares.values()}
    if len(orders) > 1:
        by_order = "; ".join(
            f"{order}: {listed(sorted(n for n in shares if shares[n].order == order), 2)}" for order in sorted(orders)
        )
        text = "members share with different values of order: slots are lent only between members of one order"
        yield Finding(Level.WARN, text, by_order, path, "call run with the same order= in all members")


# ---- texts


def _parked(snapshot: GroupSnapshot) -> dict[TopicPartition, int]:
    return {tp: node.parked for tp, node in sorted(snapshot.pointers.items()) if node.parked}


def _why(one: PointedMessage) -> str:
    return f"{counted(one.attempts, 'attempt')}, {one.reason or 'no reason given'}"


def _dead(snapshot: GroupSnapshot, verb: str, *more: str) -> str:
    return our_command(snapshot, "dead", verb, snapshot.group, *more)
