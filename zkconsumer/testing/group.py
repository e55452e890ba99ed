"""One group: performs what the table decides, and keeps its members, their sessions and the rebalance under way.

Pure but for its own state: no thread, no clock, no socket. Whoever calls guards it (one lock a group) and says what
time it is; answers come back as deliveries, some of them to requests that came long before. Mirrors GroupMetadata and
the delayed operations of Kafka's coordinator. Differs on purpose: what falls due is found by asking ``due()``, and
happens in the order of time however much of it passes at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from zkconsumer.testing import coordinator as errors
from zkconsumer.testing.coordinator import MOVES, Action, Request, Rules, State, Step
from zkconsumer.testing.members import (
    Delivery,
    GroupView,
    JoinAnswer,
    JoinRequest,
    Member,
    MemberView,
    SyncAnswer,
    SyncRequest,
)


class Group:
    """A group of consumers (or of anything else that speaks the protocol).

    Arguments: ``new_id`` makes the unique part of member ids. ``stored`` counts how often the group became worth
    writing down: the performer writes it when that changes.
    """

    def __init__(self, group_id: str, rules: Rules, new_id: Callable[[], str]) -> None:
        self.group_id = group_id
        self.rules = rules
        self.state = State.EMPTY
        self.since = 0.0
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.leader: str | None = None
        self.members: dict[str, Member] = {}
        self.stored = 0
        self._new_id = new_id
        self._pending: dict[str, float] = {}
        """Ids that were given out and have not joined, with the end of their time."""
        self._unsynced: set[str] = set()
        self._join_due: float | None = None
        self._join_extension: float | None = None
        """Seconds by which the first join of all may still be put off, None in any other."""
        self._came_late = False
        self._sync_due: float | None = None
        self._out: list[Delivery] = []

    # ---- requests ----

    def join(self, now: float, request: JoinRequest, ticket: object) -> list[Delivery]:
        """A member joins, for the first time or again. The answer may come with a later call."""
        self._run(now)
        is_new = not request.member_id
        step = self.rules.step(self.state, Request.JOIN_NEW if is_new else Request.JOIN)
        instance = request.instance_id if self.rules.modern else None
        if not self._has_room(request.member_id):
            self._forget(request.member_id)
            self._refuse(ticket, errors.GROUP_FULL, "")
        elif self.state is State.DEAD:
            self._refuse(ticket, step.error, request.member_id)
        elif not self._supports(request):
            self._refuse(ticket, errors.INCONSISTENT_PROTOCOL, request.member_id)
        elif is_new and instance is not None and (old := self._of_instance(instance)) is not None:
            self._replace(now, old, request, ticket)
        elif is_new and instance is None and request.needs_member_id and self.rules.modern:
            member_id = self._member_id(request)
            self._pending[member_id] = now + request.session_timeout
            self._refuse(ticket, errors.MEMBER_ID_REQUIRED, member_id)
        elif is_new or request.member_id in self._pending:
            self._add(now, request._replace(member_id=request.member_id or self._member_id(request)), ticket)
        elif error := self._stranger(request.member_id, instance):
            self._refuse(ticket, error, request.member_id)
        else:
            self._rejoin(now, step, request, ticket)
        self._look(now)
        return self._delivered()

    def sync(self, now: float, request: SyncRequest, ticket: object) -> list[Delivery]:
        """A member asks for its assignment; the leader brings everybody's."""
        self._run(now)
        step = self._checked(Request.SYNC, request.member_id, request.instance_id, request.generation)
        error = step.error
        named = (request.protocol_type or self.protocol_type, request.protocol or self.protocol)
        if not error and named != (self.protocol_type, self.protocol):
            error = errors.INCONSISTENT_PROTOCOL
        if error:
            self._out.append(Delivery(ticket, SyncAnswer(error)))
            return self._delivered()
        member = self.members[request.member_id]
        self._unsynced.discard(member.member_id)
        if step.action is Action.ANSWER:
            self._out.append(Delivery(ticket, self._assigned(member)))
            self._renew(now, member)
        else:
            member.sync_ticket = ticket
            if self.leader == member.member_id:
                self._assign(now, request.assignment)
        return self._delivered()

    def heartbeat(self, now: float, member_id: str, instance_id: str | None, generation: int) -> int:
        """A member says that it lives. Returns the error code."""
        self._run(now)
        step = self._checked(Request.HEARTBEAT, member_id, instance_id, generation)
        if step.action is Action.ANSWER:
            self._renew(now, self.members[member_id])
        return step.error

    def commit(self, now: float, member_id: str, instance_id: str | None, generation: int) -> int:
        """Whether offsets may be committed in this name; counts as a heartbeat. Returns the error code."""
        self._run(now)
        step = self._may_commit(member_id, instance_id, generation)
        if step.action is Action.STORE and member_id in self.members:
            self._renew(now, self.members[member_id])
        return step.error

    def leave(self, now: float, member_id: str, instance_id: str | None) -> tuple[int, list[Delivery]]:
        """A member leaves, or an operator takes out a static one by its instance id alone.

        Returns: the error code, and what else is answered by that.
        """
        self._run(now)
        step = self.rules.step(self.state, Request.LEAVE)
        if step.action is Action.REFUSE:
            return step.error, self._delivered()
        if not member_id:
            member_id = (self._of_instance(instance_id) or "") if instance_id is not None else ""
        if member_id in self._pending:
            del self._pending[member_id]
            self._look(now)
            return errors.NONE, self._delivered()
        error = self._stranger(member_id, instance_id)
        if not error:
            self._remove(now, self.members[member_id], step)
        return error, self._delivered()

    def delete(self) -> int:
        """Delete the group, which needs to be empty. Returns the error code."""
        step = self.rules.step(self.state, Request.DELETE)
        if step.action is Action.DELETE:
            self._move(State.DEAD, self.since)
        return step.error

    # ---- time ----

    def due(self) -> float | None:
        """When something happens by itself, None where nothing will."""
        times = [self._join_due, self._sync_due, *self._pending.values()]
        times += [member.deadline for member in self.members.values()]
        return min((time for time in times if time is not None), default=None)

    def tick(self, now: float) -> list[Delivery]:
        """Let happen what is due."""
        self._run(now)
        return self._delivered()

    def expire(self, now: float, member_id: str) -> list[Delivery]:
        """End a member's session now, as if nothing had been heard of it. Raises KeyError for an unknown one."""
        self._run(now)
        self._remove(now, self.members[member_id], self.rules.step(self.state, Request.LEAVE))
        return self._delivered()

    def unload(self) -> list[Delivery]:
        """The group moves to another coordinator: those who wait are told to look for it."""
        for member in self.members.values():
            self._answer_join(member, JoinAnswer(errors.NOT_COORDINATOR, member.member_id, self._no_generation))
            self._answer_sync(member, SyncAnswer(errors.NOT_COORDINATOR))
        if self.state is not State.DEAD:
            self._move(State.DEAD, self.since)
        return self._delivered()

    def load(self, now: float, view: GroupView, members: list[Member]) -> None:
        """Become what was written down: Stable with these members, or Empty; their sessions begin anew."""
        self.state, self.since = (State.STABLE if members else State.EMPTY), now
        self.generation, self.leader = view.generation, view.leader or None
        self.protocol_type, self.protocol = view.protocol_type or None, view.protocol or None
        for member in members:
            self.members[member.member_id] = member
            self._renew(now, member)

    # ---- looking ----

    def view(self, *, everything: bool = True) -> GroupView:
        """The group as it stands; without ``everything`` no more than DescribeGroups tells."""
        stable = self.state is State.STABLE
        told = self.protocol if self.protocol is not None and (stable or everything) else None
        members = {
            member.member_id: MemberView(
                member.member_id,
                member.instance_id,
                member.client_id,
                member.client_host,
                dict(member.protocols).get(told, b"") if told is not None else b"",
                member.assignment if stable or everything else b"",
                member.join_ticket is not None,
                member.sync_ticket is not None,
            )
            for member in self.members.values()
        }
        return GroupView(
            self.group_id,
            self.state.value,
            self.generation,
            self.protocol_type or "",
            told or "",
            self.leader or "",
            members,
        )

    # ---- who may ----

    def _of_instance(self, instance_id: str) -> str | None:
        return next((m.member_id for m in self.members.values() if m.instance_id == instance_id), None)

    def _stranger(self, member_id: str, instance_id: str | None) -> int:
        """The error for a member id that is not (any more) that of a member."""
        if instance_id is not None and self.rules.modern:
            current = self._of_instance(instance_id)
            if current is not None and current != member_id:
                return errors.FENCED_INSTANCE
            if current is None:
                return errors.UNKNOWN_MEMBER
        return errors.NONE if member_id in self.members else errors.UNKNOWN_MEMBER

    def _checked(self, request: Request, member_id: str, instance_id: str | None, generation: int) -> Step:
        """The table's line, after who asks was looked at."""
        step = self.rules.step(self.state, request)
        if self.state is State.DEAD:
            return step
        error = self._stranger(member_id, instance_id)
        # before 3.9 a heartbeat that is refused in any case is refused whatever its generation
        if not error and generation != self.generation and not (step.error and self._forgiving(request)):
            error = errors.ILLEGAL_GENERATION
        return Step(Action.REFUSE, error) if error else step

    def _forgiving(self, request: Request) -> bool:
        return not self.rules.modern and self.state is State.AWAITING and request is Request.HEARTBEAT

    def _may_commit(self, member_id: str, instance_id: str | None, generation: int) -> Step:
        """A commit without a generation is a simple consumer's, which only an empty group takes."""
        step = self.rules.step(self.state, Request.COMMIT)
        if not self.rules.modern:
            if (generation < 0 and self.state is State.EMPTY) or self.state is State.AWAITING:
                return step
            return self._checked(Request.COMMIT, member_id, None, generation)
        if generation < 0 and self.state is State.EMPTY:
            return step
        if generation >= 0 or member_id or instance_id is not None:
            return self._checked(Request.COMMIT, member_id, instance_id, generation)
        if self.state not in (State.EMPTY, State.DEAD):
            return Step(Action.REFUSE, errors.UNKNOWN_MEMBER)
        return step

    def _has_room(self, member_id: str) -> bool:
        if self.state in (State.EMPTY, State.DEAD):
            return True
        known = self.members.get(member_id)
        if self.state is State.PREPARING:
            waiting = sum(member.join_ticket is not None for member in self.members.values())
            return (known is not None and known.join_ticket is not None) or waiting < self.rules.max_members
        return known is not None or len(self.members) < self.rules.max_members

    def _supports(self, request: JoinRequest) -> bool:
        if self.state is State.EMPTY:
            return bool(request.protocol_type and request.protocols)
        common = self._common()
        return self.protocol_type == request.protocol_type and (
            not self.members or any(name in common for name, _ in request.protocols)
        )

    def _common(self) -> set[str]:
        """The protocols that every member offers."""
        offers = [{name for name, _ in member.protocols} for member in self.members.values()]
        return set.intersection(*offers) if offers else set()

    def _elected(self) -> str:
        """The protocol with most votes, each member voting for the first of its own that all can do."""
        common = self._common()
        votes = Counter(next(name for name, _ in m.protocols if name in common) for m in self.members.values())
        return votes.most_common(1)[0][0]

    def _member_id(self, request: JoinRequest) -> str:
        name = request.instance_id if self.rules.modern and request.instance_id is not None else request.client_id
        return f"{name}-{self._new_id()}"

    # ---- joining ----

    def _add(self, now: float, request: JoinRequest, ticket: object) -> None:
        member = Member(
            request.member_id,
            request.instance_id if self.rules.modern else None,
            request.client_id,
            request.client_host,
            request.session_timeout,
            request.rebalance_timeout,
            request.protocol_type,
            request.protocols,
            join_ticket=ticket,
            deadline=now + self.rules.new_member_timeout if self.rules.modern else None,
        )
        self._pending.pop(member.member_id, None)
        if not self.members:
            self.protocol_type = member.protocol_type
        self.members[member.member_id] = member
        if self.leader is None:
            self.leader = member.member_id
        if self.state is State.PREPARING:
            self._came_late = self.generation == 0
        else:
            self._prepare(now)

    def _rejoin(self, now: float, step: Step, request: JoinRequest, ticket: object) -> None:
        member = self.members[request.member_id]
        changed = member.protocols != request.protocols
        leads = self.leader == member.member_id
        if step.action is Action.REFUSE:
            self._refuse(ticket, step.error, request.member_id)
        elif step.action is Action.REJOIN or changed or (step.action is Action.REJOIN_IF_CHANGED_OR_LEADER and leads):
            member.protocols, member.join_ticket = request.protocols, ticket
            if self.rules.modern:
                member.session_timeout, member.rebalance_timeout = request.session_timeout, request.rebalance_timeout
            if self.state is not State.PREPARING:
                self._prepare(now)
        else:
            self._out.append(Delivery(ticket, self._joined(member)))

    def _replace(self, now: float, old_id: str, request: JoinRequest, ticket: object) -> None:
        """A static member came back without its id: it takes the place of what it was, which is fenced off."""
        member = self.members.pop(old_id)
        self._answer_join(member, JoinAnswer(errors.FENCED_INSTANCE, old_id))
        self._answer_sync(member, SyncAnswer(errors.FENCED_INSTANCE))
        leader_before = self.leader
        member.member_id = self._member_id(request)
        self.members[member.member_id] = member
        if self.leader == old_id:
            self.leader = member.member_id
        if old_id in self._unsynced:
            self._unsynced.discard(old_id)
            self._unsynced.add(member.member_id)
        member.protocols, member.join_ticket = request.protocols, ticket
        member.session_timeout, member.rebalance_timeout = request.session_timeout, request.rebalance_timeout
        self._renew(now, member)
        if self.state is State.STABLE and self._elected() == self.protocol:
            self.stored += 1
            answer = self._joined(member)
            if request.skips_assignment:
                answer = answer._replace(skip_assignment=self.leader == member.member_id)
            else:  # it must not think that it leads, for nobody would take its assignment
                answer = answer._replace(leader=leader_before or "", members=())
            self._answer_join(member, answer)
        elif self.state is not State.PREPARING:
            self._prepare(now)

    def _prepare(self, now: float) -> None:
        """Call everybody to join again."""
        if self.state is State.AWAITING:
            for member in self.members.values():
                member.assignment = b""
                if self._answer_sync(member, SyncAnswer(errors.REBALANCING)):
                    self._renew(now, member)
        self._unsynced.clear()
        self._sync_due = None
        longest = max((member.rebalance_timeout for member in self.members.values()), default=0.0)
        if self.state is State.EMPTY:
            self._join_due = now + self.rules.initial_delay
            self._join_extension = max(longest - self.rules.initial_delay, 0.0)
            self._came_late = False
        else:
            self._join_due, self._join_extension = now + longest, None
        self._move(State.PREPARING, now)
        self._look(now)

    def _look(self, now: float) -> None:
        """Complete the join if nobody is missing; the first of all waits for its time in any case."""
        if self.state is not State.PREPARING:
            return
        if self._join_extension is not None:
            if self._join_due is not None and self._join_due <= now:
                self._join_time(now)
        elif all(m.join_ticket is not None for m in self.members.values()) and not (
            self.rules.modern and self._pending
        ):
            self._complete(now)

    def _join_time(self, now: float) -> None:
        """The time for joining is over."""
        if self._join_extension and self._came_late:
            self._came_late = False
            delay = min(self.rules.initial_delay, self._join_extension)
            self._join_due, self._join_extension = now + delay, max(self._join_extension - delay, 0.0)
        else:
            self._complete(now)

    def _complete(self, now: float) -> None:
        """The next generation begins, with those who have joined."""
        self._join_due = self._join_extension = None
        for member in [m for m in self.members.values() if m.join_ticket is None]:
            if member.instance_id is None:  # a static one stays until its session ends
                self._forget(member.member_id)
        joined = [member for member in self.members.values() if member.join_ticket is not None]
        if self.members and not joined:
            self._join_due = now + max(member.rebalance_timeout for member in self.members.values())
            return
        self.generation += 1
        if not self.members:
            self.protocol = None
            self._move(State.EMPTY, now)
            self.stored += 1
            return
        if self.leader not in self.members or self.members[self.leader].join_ticket is None:
            self.leader = joined[0].member_id
        self.protocol = self._elected()
        self._move(State.AWAITING, now)
        for member in self.members.values():
            self._answer_join(member, self._joined(member))
            self._renew(now, member)
            member.is_new = False
        if self.rules.modern:
            self._unsynced = set(self.members)
            self._sync_due = now + max(member.rebalance_timeout for member in self.members.values())

    def _joined(self, member: Member) -> JoinAnswer:
        """What a member is told of the generation, the leader about everybody."""
        protocol = self.protocol or ""
        leads = self.leader == member.member_id
        tell = leads and (self.state is not State.STABLE or member.join_ticket is not None)
        members = tuple((m.member_id, m.instance_id, m.metadata(protocol)) for m in self.members.values())
        return JoinAnswer(
            errors.NONE,
            member.member_id,
            self.generation,
            self.protocol_type,
            self.protocol,
            self.leader or "",
            members if tell else (),
        )

    # ---- assigning ----

    def _assign(self, now: float, assignment: dict[str, bytes]) -> None:
        self.stored += 1
        for member in self.members.values():
            member.assignment = assignment.get(member.member_id, b"")
            if self._answer_sync(member, self._assigned(member)):
                self._renew(now, member)
        self._move(State.STABLE, now)

    def _assigned(self, member: Member) -> SyncAnswer:
        return SyncAnswer(errors.NONE, self.protocol_type, self.protocol, member.assignment)

    # ---- leaving, and sessions that end ----

    def _remove(self, now: float, member: Member, step: Step) -> None:
        self._answer_join(member, JoinAnswer(errors.UNKNOWN_MEMBER, "", self._no_generation))
        self._answer_sync(member, SyncAnswer(errors.UNKNOWN_MEMBER))
        self._forget(member.member_id)
        if step.action is Action.REMOVE_AND_REBALANCE:
            self._prepare(now)
        elif step.action is Action.REMOVE_AND_LOOK:
            self._look(now)

    def _forget(self, member_id: str) -> None:
        self.members.pop(member_id, None)
        self._pending.pop(member_id, None)
        self._unsynced.discard(member_id)
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)

    def _run(self, now: float) -> None:
        """Let happen, one by one and in the order of time, what is due."""
        while (at := self.due()) is not None and at <= now:
            if self._join_due == at:
                self._join_time(at)
            elif self._sync_due == at:
                self._sync_time(at)
            elif lapsed := [member_id for member_id, end in self._pending.items() if end == at]:
                for member_id in lapsed:
                    del self._pending[member_id]
                self._look(at)
            else:
                self._sessions_end(at)

    def _sync_time(self, now: float) -> None:
        """Who has not asked for its assignment in time is taken for dead."""
        self._sync_due = None
        if self._unsynced and self.state in (State.AWAITING, State.STABLE):
            for member_id in self._unsynced.copy():
                self._forget(member_id)
            self._prepare(now)

    def _sessions_end(self, now: float) -> None:
        for member in [member for member in self.members.values() if member.deadline == now]:
            member.deadline = None
            if not member.excused and member.member_id in self.members:
                self._remove(now, member, self.rules.step(self.state, Request.LEAVE))

    def _renew(self, now: float, member: Member) -> None:
        member.deadline = now + member.session_timeout

    # ---- answers ----

    @property
    def _no_generation(self) -> int:
        return -1 if self.rules.modern else 0

    def _refuse(self, ticket: object, error: int, member_id: str) -> None:
        self._out.append(Delivery(ticket, JoinAnswer(error, member_id, self._no_generation)))

    def _answer_join(self, member: Member, answer: JoinAnswer) -> bool:
        ticket = member.join_ticket
        if ticket is None:
            return False
        member.join_ticket = None
        self._out.append(Delivery(ticket, answer))
        return True

    def _answer_sync(self, member: Member, answer: SyncAnswer) -> bool:
        ticket = member.sync_ticket
        if ticket is None:
            return False
        member.sync_ticket = None
        self._out.append(Delivery(ticket, answer))
        return True

    def _delivered(self) -> list[Delivery]:
        out, self._out = self._out, []
        return out

    def _move(self, state: State, now: float) -> None:
        assert state in MOVES[self.state] or state is self.state is State.PREPARING, (self.state, state)
        self.state, self.since = state, now
