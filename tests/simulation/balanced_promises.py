"""The observer of balanced members: it sees each handler begin and end, and reads notes, pointers and loans.

Beside what :mod:`tests.simulation.promises` checks:

- An offset, or the note beside it, passes a message only if it was finished, parked, or declared dead.
- A pointer goes when its message was finished, and a dead letter had used up its attempts, or was rejected.
- A key (with ``order="partition"`` a partition) has one handler at a time, and its messages come in order.
- A handler begins while its member owns the partition, or has the slot on loan.
- A message that was finished comes again only if its member died or lost its session before that was stored.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.simulation.promises import Observer, Watched
from tests.simulation.scheduler import world
from zkconsumer.balance.dispatcher import Dispatcher
from zkconsumer.balance.sharing.loan_format import decode_loan, decode_report
from zkconsumer.core.finished_note import FinishedNote, decode_note
from zkconsumer.core.key_slots import ALL_SLOTS, slot_of_key, slot_of_offset, slots_in
from zkconsumer.core.message_pointers import PointerKind, decode_pointers
from zkconsumer.model import TopicPartition
from zkconsumer.zookeeper import paths

if TYPE_CHECKING:
    from tests.simulation.members import Member

SOON = 7.0  # seconds in which a borrower knows that the owner has gone: the end of its lease at the latest


@dataclass(eq=False)
class Handling:
    """A message in a handler: ``call`` tells the handler's calls apart, ``as_owner`` whether it is of an owner's stay.

    The owner node does not tell that. A borrower that becomes the owner goes on with its loan until its own stay
    begins, however long its threads need for that, and repeats what it has in hand then.
    """

    member: Member
    session: int
    tp: TopicPartition
    message: Any
    offset: int
    call: object
    began: float
    as_owner: bool

    @property
    def lives(self) -> bool:
        """Whether the member still has the session in which the handler began."""
        return self.member.process.alive and session_of(self.member) == self.session != 0


@dataclass
class Fates:
    """What became of the messages of one partition.

    ``hand`` are those in handlers; ``handled`` were finished by a handler, or buried by the application; ``known`` is
    what was stored when the present owner began, and ``note`` what is stored now; ``done`` says of each finished
    message in which ownership it was finished, and by whom. ``stay`` is that of the newest loan, ``stay_since`` then.
    """

    keys: list[bytes | None] = field(default_factory=list)
    hand: list[Handling] = field(default_factory=list)
    failures: dict[int, int] = field(default_factory=dict)
    given_up: set[int] = field(default_factory=set)
    handled: set[int] = field(default_factory=set)
    parked: set[int] = field(default_factory=set)
    dead: set[int] = field(default_factory=set)
    done: dict[int, tuple[float, Handling]] = field(default_factory=dict)
    stay: str = ""
    stay_since: float = -1.0
    note: FinishedNote | None = None
    known: FinishedNote | None = None
    sought_at: float = -1.0
    seen_at: tuple[int, int] = (-1, -1)
    lent: dict[str, int] = field(default_factory=dict)
    lent_since: dict[str, float] = field(default_factory=dict)
    lent_until: dict[str, dict[int, tuple[float, float]]] = field(default_factory=dict)


def session_of(member: Member) -> int:
    """Return the id of the member's session as the server knows it, 0 if it has ended."""
    session = member.session
    return 0 if session is None else session.session_id


class BalancedObserver(Observer):
    """Watches one group of balanced members. ``order`` is that of their runs, ``drain`` is in seconds.

    ``calm``: the faults have ended, and handlers finish everything.
    """

    order, drain, calm = "key", 1.0, False

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.fates = {tp: Fates() for tp in self.partitions}
        self.begun_at: dict[tuple[str, TopicPartition, int], float] = {}
        self.members: list[Any] = []
        self._watch_dispatchers()

    def _watch_dispatchers(self) -> None:
        """Note when a worker asks whether it may begin: what happens after the answer cannot stop it."""
        asks = Dispatcher.may_start

        def may_start(dispatcher: Dispatcher, work: Any) -> bool:
            asked = world().now
            begins = asks(dispatcher, work)
            if begins:
                self.begun_at[world().current.process.name, work.partition.position.tp, work.offset] = asked
            return begins

        setattr(Dispatcher, "may_start", may_start)  # noqa: B010 - it is replaced on purpose

    # ---- what is stored

    def passed(self, tp: TopicPartition) -> Collection[int]:
        return self.fates[tp].parked

    def look(self) -> None:
        """Look at the pointers first, which count from the transaction on that moves the offset."""
        for tp in self.partitions:
            self._look_at_pointers(tp, self.fates[tp])
        super().look()
        for tp in self.partitions:
            self._look_at_note(tp)
            self._look_at_loans(tp)

    def _look_at_pointers(self, tp: TopicPartition, fates: Fates) -> None:
        node = self._zookeeper.node(paths.pointers(self._group, tp))
        if node is None or node.mzxid == fates.seen_at[0]:
            return
        fates.seen_at = node.mzxid, fates.seen_at[1]
        pointers = decode_pointers(node.data)
        parked = {offset for offset, one in pointers.items() if one.kind is PointerKind.PARKED}
        dead = {offset for offset, one in pointers.items() if one.kind is PointerKind.DEAD}
        world().note(f"pointers of {tp}: {sorted(parked)} parked, {len(dead)} dead")
        for offset in sorted((fates.parked | fates.dead) - parked - dead):
            if offset not in fates.handled:
                self.broke(f"{tp}: the pointer of {offset} is gone, and nobody finished the message")
        for offset in sorted(dead - fates.dead):
            if offset not in fates.given_up:
                self.broke(f"{tp}: {offset} was declared dead, and was neither rejected nor tried to the end")
            self.finished(tp, offset)
        fates.parked, fates.dead = parked, dead
        if max(len(parked), len(dead)) > 1000:
            self.broke(f"{tp} has {len(parked)} parked messages and {len(dead)} dead letters")

    def _look_at_note(self, tp: TopicPartition) -> None:
        node = self._zookeeper.node(paths.ack(self._group, tp))
        offset = self._zookeeper.node(paths.offset(self._group, tp))
        fates = self.fates[tp]
        if offset is None or offset.mzxid == fates.seen_at[1]:
            return
        fates.seen_at = fates.seen_at[0], offset.mzxid
        # whoever writes the offset alone makes the note void
        note = decode_note(node.data) if node is not None and node.mzxid == offset.mzxid else None
        self._noted(tp, note if note is not None and note.base == int(offset.data) else None)

    def _noted(self, tp: TopicPartition, note: FinishedNote | None) -> None:
        seen, fates = self.partitions[tp], self.fates[tp]
        fates.note = note
        if note is None:
            return
        for offset in range(note.base, len(fates.keys)):
            known = seen.is_finished(offset) or offset in fates.parked
            if not known and note.covers(offset, self.slot(tp, offset)):
                self.broke(f"{tp}: the note says that {offset} is finished, but nobody finished it")

    def slot(self, tp: TopicPartition, offset: int) -> int:
        key = self.fates[tp].keys[offset]
        return slot_of_key(key) if key is not None and self.order == "key" else slot_of_offset(offset)

    # ---- owners and loans

    def note_owner(self, tp: TopicPartition, seen: Watched, name: str | None) -> None:
        super().note_owner(tp, seen, name)
        if name is not None:
            self.fates[tp].known = self.fates[tp].note

    def _look_at_loans(self, tp: TopicPartition) -> None:
        fates, owner = self.fates[tp], self._zookeeper.node(paths.owner(self._group, tp))
        for member in self.members:
            name = member.consumer
            node = self._zookeeper.node(paths.loan(self._group, tp, name)) if name else None
            if node is None and name not in fates.lent:
                continue
            loan = None if node is None else decode_loan(node.data)
            own = self._zookeeper.node(paths.member(self._group, name))
            in_session = loan is not None and own is not None and own.ephemeral_owner == loan.borrower_session
            with_owner = loan is not None and owner is not None and owner.ephemeral_owner == loan.lender_session
            lent = loan.lent if loan is not None and in_session and with_owner else 0
            gone = fates.lent.get(name, 0) & ~lent
            if lent & ~fates.lent.get(name, 0):
                fates.lent_since[name] = world().now
            fates.lent[name] = lent
            if loan is not None and lent and loan.stay != fates.stay:
                fates.stay, fates.stay_since = loan.stay, world().now
            if gone:
                end = max(world().now, self._leases.get(name, 0.0)), float("inf")
                if in_session and not with_owner:
                    end = max(end[0], member.process.frozen_until) + SOON, world().stood(member.process)
                fates.lent_until.setdefault(name, {}).update(dict.fromkeys(slots_in(gone & ALL_SLOTS), end))

    def _reported_stay(self, tp: TopicPartition, name: str) -> str:
        """Return the stay that a borrower's report names, empty if it has not reported to the present owner.

        A borrower that was the owner itself for a moment forgets what it had not reported.
        """
        node = self._zookeeper.node(f"{paths.loan(self._group, tp, name)}/report")
        owner = self._zookeeper.node(paths.owner(self._group, tp))
        return "" if node is None or owner is None or node.mzxid < owner.czxid else decode_report(node.data).stay

    def _borrows(self, tp: TopicPartition, member: Member, offset: int, asked: float) -> bool:
        """Return whether a member has the message on loan, or cannot know yet that the owner has gone: its threads may
        stand still. The next owner of ours leaves the slots to it.
        """
        fates, slot, name = self.fates[tp], self.slot(tp, offset), member.consumer
        until, stood = fates.lent_until.get(name, {}).get(slot, (0.0, float("inf")))
        late = max(0.0, world().stood(member.process) - stood)
        began, ended = self._zookeeper.silent
        if until - SOON <= ended and began <= until:  # it cannot look while there is no quorum
            until = max(until, ended + SOON)
        return bool(fates.lent.get(name, 0) >> slot & 1) or until + late >= asked

    # ---- handlers

    def begun(self, member: Member, messages: Sequence[Any]) -> list[Handling]:
        """A handler of a member begins with these messages."""
        call, made = object(), []
        for message in messages:
            tp, offset = TopicPartition(message.topic, message.partition), message.offset
            asked, name = self.begun_at.pop((member.name, tp, offset), world().now), member.consumer
            borrowed = self._borrows(tp, member, offset, asked)  # perhaps still, as the next owner
            if borrowed:
                self.partitions[tp].handed += 1
                world().note(f"handed {tp} {offset}, which is on loan")
            else:
                self.handed(name, tp, offset, asked)
            as_owner = message.work.part.partition.own
            handling = Handling(member, session_of(member), tp, message, offset, call, asked, as_owner)
            if self.fates[tp].keys[offset] != message.key:
                self.broke(f"{tp}: {offset} was handed out with the key {message.key!r} of another message")
            if message.attempt > self.fates[tp].failures.get(offset, 0) + 1:
                self.broke(f"{tp}: {offset} is at attempt {message.attempt}, which is more than have failed")
            if handling.lives:
                self._check_alone(handling)
                self._check_order(handling)
                self._check_repeated(handling)
            self.fates[tp].hand.append(handling)
            made.append(handling)
        return made

    def _check_alone(self, new: Handling) -> None:
        fates, seen, line = self.fates[new.tp], self.partitions[new.tp], self._line(new)
        fates.hand = [one for one in fates.hand if one.lives]
        for one in fates.hand:
            if one.call is new.call:
                continue
            # a seek reads the log again from its place, and not only once what is in hand has ended
            same = one.offset == new.offset and one.began > fates.sought_at if line is None else line == self._line(one)
            # and perhaps came back
            left = seen.owner != one.member.consumer or seen.owned[seen.owner].began > one.began
            late = one.as_owner and left and one.began + self.drain <= world().now
            if same and not late:
                has = f"while {one.member.name} has {one.offset} of its key"
                self.broke(f"{new.tp}: {new.member.name} begins {new.offset}, {has}")

    def _line(self, handling: Handling) -> bytes | None:
        """Return what only one handler may have: a key, or the whole partition."""
        return b"" if self.order == "partition" else handling.message.key if self.order == "key" else None

    def _check_order(self, new: Handling) -> None:
        fates, seen, line = self.fates[new.tp], self.partitions[new.tp], self._line(new)
        if line is None:
            return
        together = {one.offset for one in fates.hand if one.call is new.call}
        for offset in range(seen.below, new.offset):
            open_one = not seen.is_finished(offset) and offset not in fates.given_up and offset not in together
            if open_one and (line == b"" or fates.keys[offset] == line):
                self.broke(f"{new.tp}: {new.offset} begins before {offset}, which comes first")

    def _check_repeated(self, new: Handling) -> None:
        tp, fates, seen, offset = new.tp, self.fates[new.tp], self.partitions[new.tp], new.offset
        if not seen.is_finished(offset) or offset in fates.parked:
            return
        owned = seen.owned[seen.owner].began if seen.owner is not None else -1.0
        ownership, by = fates.done.get(offset, (-2.0, new))
        if fates.known is not None and fates.known.covers(offset, self.slot(tp, offset)):
            self.broke(f"{tp}: {offset} comes again, though it was stored as finished when its owner began")
        elif not by.as_owner and max(fates.sought_at, fates.stay_since) > owned and by.began < fates.stay_since + SOON:
            # a seek ends the stay, or an owner does that finds no note of the committed offset, as after a seek
            world().note(f"{tp}: {offset} was finished in a loan of a stay that has ended")
        elif ownership == owned and by.lives:
            self.broke(f"{tp}: {offset} comes again, though {by.member.name} has finished it in this ownership")

    def buried(self, tp: TopicPartition, offset: int) -> None:
        self.finished(tp, offset)
        self.fates[tp].handled.add(offset)

    def ended(self, handling: Handling, outcome: str) -> None:
        """A handler is about to end: the message is ``done``, has ``failed``, is ``given up``, or comes ``again``."""
        tp, offset, name, fates = handling.tp, handling.offset, handling.member.consumer, self.fates[handling.tp]
        world().note(f"{outcome} {tp} {offset}")
        if outcome in {"failed", "given up"}:
            fates.failures[offset] = fates.failures.get(offset, 0) + 1
        if outcome == "given up":
            fates.given_up.add(offset)
        elif outcome == "done":
            self.finished(tp, offset)
            owner = self.partitions[tp].owner
            owned = -1.0 if owner is None else self.partitions[tp].owned[owner].began
            fates.handled.add(offset)
            # Outcomes of an earlier ownership count no more. A borrower that becomes the owner has not reported them.
            lent_since = fates.lent_since.get(name, 0.0)
            # a loan from before a seek ends when the borrower learns of the seek; what is finished in it comes again
            told = self._reported_stay(tp, name) == fates.stay
            counts = handling.as_owner or (owner != name and lent_since > fates.sought_at and told)
            if counts and handling.began >= max(owned, fates.sought_at):
                fates.done[offset] = owned, handling
        if handling in fates.hand:
            fates.hand.remove(handling)

    def sought(self, member: str, tp: TopicPartition, offset: int) -> None:
        """A member is about to read from another offset: what is before it is skipped by name."""
        super().sought(member, tp, offset)
        fates, seen = self.fates[tp], self.partitions[tp]
        seen.finished.update(range(seen.below, offset))
        world().note(f"seek {tp} {offset}")
        # the note of before is void, also for the next owner if the new place is the committed offset
        fates.done, fates.known, fates.note, fates.sought_at = {}, None, None, float("inf")

    def seek_over(self, tp: TopicPartition) -> None:
        self.fates[tp].sought_at = world().now
