"""One group: what is asked of it, decided by the table and done to its members.

Pure but for its own state: no thread, no clock, no socket. Whoever calls guards it (one lock a group) and says what
time it is; answers come back as deliveries, some of them to requests that came long before. Mirrors GroupMetadata of
Kafka's coordinator; the rounds themselves are in ``rebalance.py``.
"""

from __future__ import annotations

from zkconsumer.testing import group_states as errors
from zkconsumer.testing.group_members import (
    DueAnswer,
    GroupMember,
    GroupView,
    JoinAnswer,
    JoinRequest,
    MemberView,
    SyncAnswer,
    SyncRequest,
)
from zkconsumer.testing.group_rebalance import GroupRebalance
from zkconsumer.testing.group_states import GroupAction, GroupRequest, GroupState, TableEntry


class FakeGroup(GroupRebalance):
    """A group of consumers (or of anything else that speaks the protocol)."""

    # ---- requests ----

    def join(self, now: float, request: JoinRequest, ticket: object) -> list[DueAnswer]:
        """A member joins, for the first time or again. The answer may come with a later call."""
        self._run(now)
        is_new = not request.member_id
        step = self.rules.step(self.state, GroupRequest.JOIN_NEW if is_new else GroupRequest.JOIN)
        instance = request.instance_id if self.rules.modern else None
        if not self._has_room(request.member_id):
            self._forget(request.member_id)
            self._refuse(ticket, errors.GROUP_FULL, "")
        elif self.state is GroupState.DEAD:
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

    def sync(self, now: float, request: SyncRequest, ticket: object) -> list[DueAnswer]:
        """A member asks for its assignment; the leader brings everybody's."""
        self._run(now)
        step = self._checked(GroupRequest.SYNC, request.member_id, request.instance_id, request.generation)
        error = step.error
        named = (request.protocol_type or self.protocol_type, request.protocol or self.protocol)
        if not error and named != (self.protocol_type, self.protocol):
            error = errors.INCONSISTENT_PROTOCOL
        if error:
            self._out.append(DueAnswer(ticket, SyncAnswer(error)))
            return self._delivered()
        member = self.members[request.member_id]
        self._unsynced.discard(member.member_id)
        if step.action is GroupAction.ANSWER:
            self._out.append(DueAnswer(ticket, self._assigned(member)))
            self._renew(now, member)
        else:
            member.sync_ticket = ticket
            if self.leader == member.member_id:
                self._assign(now, request.assignment)
        return self._delivered()

    def heartbeat(self, now: float, member_id: str, instance_id: str | None, generation: int) -> int:
        """A member says that it lives. Returns the error code."""
        self._run(now)
        step = self._checked(GroupRequest.HEARTBEAT, member_id, instance_id, generation)
        if step.action is GroupAction.ANSWER:
            self._renew(now, self.members[member_id])
        return step.error

    def commit(self, now: float, member_id: str, instance_id: str | None, generation: int) -> int:
        """Whether offsets may be committed in this name; counts as a heartbeat. Returns the error code."""
        self._run(now)
        step = self._may_commit(member_id, instance_id, generation)
        if step.action is GroupAction.STORE and member_id in self.members:
            self._renew(now, self.members[member_id])
        return step.error

    def leave(self, now: float, member_id: str, instance_id: str | None) -> tuple[int, list[DueAnswer]]:
        """A member leaves, or an operator takes out a static one by its instance id alone.

        Returns: the error code, and what else is answered by that.
        """
        self._run(now)
        step = self.rules.step(self.state, GroupRequest.LEAVE)
        if step.action is GroupAction.REFUSE:
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
        step = self.rules.step(self.state, GroupRequest.DELETE)
        if step.action is GroupAction.DELETE:
            self._move(GroupState.DEAD, self.since)
        return step.error

    # ---- time ----

    def tick(self, now: float) -> list[DueAnswer]:
        """Let happen what is due."""
        self._run(now)
        return self._delivered()

    def expire(self, now: float, member_id: str) -> list[DueAnswer]:
        """End a member's session now, as if nothing had been heard of it. Raises KeyError for an unknown one."""
        self._run(now)
        self._remove(now, self.members[member_id], self.rules.step(self.state, GroupRequest.LEAVE))
        return self._delivered()

    def unload(self) -> list[DueAnswer]:
        """The group moves to another coordinator: those who wait are told to look for it."""
        for member in self.members.values():
            self._answer_join(member, JoinAnswer(errors.NOT_COORDINATOR, member.member_id, self._no_generation))
            self._answer_sync(member, SyncAnswer(errors.NOT_COORDINATOR))
        if self.state is not GroupState.DEAD:
            self._move(GroupState.DEAD, self.since)
        return self._delivered()

    def load(self, now: float, view: GroupView, members: list[GroupMember], since: float) -> None:
        """Become what was written down: Stable with these members, or Empty, ``since`` when it was so; the members'
        sessions begin anew.
        """
        self.state, self.since = (GroupState.STABLE if members else GroupState.EMPTY), since
        self.generation, self.leader = view.generation, view.leader or None
        self.protocol_type, self.protocol = view.protocol_type or None, view.protocol or None
        for member in members:
            self.members[member.member_id] = member
            self._renew(now, member)
        self.subscribed = self._subscribed()

    # ---- looking ----

    def view(self, *, everything: bool = True) -> GroupView:
        """The group as it stands; without ``everything`` no more than DescribeGroups tells."""
        stable = self.state is GroupState.STABLE
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

    def _checked(self, request: GroupRequest, member_id: str, instance_id: str | None, generation: int) -> TableEntry:
        """The table's line, after who asks was looked at."""
        step = self.rules.step(self.state, request)
        if self.state is GroupState.DEAD:
            return step
        error = self._stranger(member_id, instance_id)
        # before 3.9 a heartbeat that is refused in any case is refused whatever its generation
        if not error and generation != self.generation and not (step.error and self._forgiving(request)):
            error = errors.ILLEGAL_GENERATION
        return TableEntry(GroupAction.REFUSE, error) if error else step

    def _forgiving(self, request: GroupRequest) -> bool:
        return not self.rules.modern and self.state is GroupState.AWAITING and request is GroupRequest.HEARTBEAT

    def _may_commit(self, member_id: str, instance_id: str | None, generation: int) -> TableEntry:
        """A commit without a generation is a simple consumer's, which only an empty group takes."""
        step = self.rules.step(self.state, GroupRequest.COMMIT)
        if not self.rules.modern:
            if (generation < 0 and self.state is GroupState.EMPTY) or self.state is GroupState.AWAITING:
                return step
            return self._checked(GroupRequest.COMMIT, member_id, None, generation)
        if generation < 0 and self.state is GroupState.EMPTY:
            return step
        if generation >= 0 or member_id or instance_id is not None:
            return self._checked(GroupRequest.COMMIT, member_id, instance_id, generation)
        if self.state not in (GroupState.EMPTY, GroupState.DEAD):
            return TableEntry(GroupAction.REFUSE, errors.UNKNOWN_MEMBER)
        return step

    def _has_room(self, member_id: str) -> bool:
        if self.state in (GroupState.EMPTY, GroupState.DEAD):
            return True
        known = self.members.get(member_id)
        if self.state is GroupState.PREPARING:
            waiting = sum(member.join_ticket is not None for member in self.members.values())
            return (known is not None and known.join_ticket is not None) or waiting < self.rules.max_members
        return known is not None or len(self.members) < self.rules.max_members

    def _supports(self, request: JoinRequest) -> bool:
        if self.state is GroupState.EMPTY:
            return bool(request.protocol_type and request.protocols)
        common = self._common()
        return self.protocol_type == request.protocol_type and (
            not self.members or any(name in common for name, _ in request.protocols)
        )

    def _member_id(self, request: JoinRequest) -> str:
        name = request.instance_id if self.rules.modern and request.instance_id is not None else request.client_id
        return f"{name}-{self._new_id()}"

    # ---- joining ----

    def _add(self, now: float, request: JoinRequest, ticket: object) -> None:
        member = GroupMember(
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
        if self.state is GroupState.PREPARING:
            self._came_late = self.generation == 0
        else:
            self._prepare(now)

    def _rejoin(self, now: float, step: TableEntry, request: JoinRequest, ticket: object) -> None:
        member = self.members[request.member_id]
        changed = member.protocols != request.protocols
        leads, leader_rejoins = self.leader == member.member_id, GroupAction.REJOIN_IF_CHANGED_OR_LEADER
        if step.action is GroupAction.REFUSE:
            self._refuse(ticket, step.error, request.member_id)
        elif changed or step.action is GroupAction.REJOIN or (leads and step.action is leader_rejoins):
            member.protocols, member.join_ticket = request.protocols, ticket
            if self.rules.modern:
                member.session_timeout, member.rebalance_timeout = request.session_timeout, request.rebalance_timeout
            if self.state is not GroupState.PREPARING:
                self._prepare(now)
        else:
            self._out.append(DueAnswer(ticket, self._joined(member)))

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
        if self.state is GroupState.STABLE and self._elected() == self.protocol:
            self.stored += 1
            answer = self._joined(member)
            if request.skips_assignment:
                answer = answer._replace(skip_assignment=self.leader == member.member_id)
            else:  # it must not think that it leads, for nobody would take its assignment
                answer = answer._replace(leader=leader_before or "", members=())
            self._answer_join(member, answer)
        elif self.state is not GroupState.PREPARING:
            self._prepare(now)

    def _refuse(self, ticket: object, error: int, member_id: str) -> None:
        self._out.append(DueAnswer(ticket, JoinAnswer(error, member_id, self._no_generation)))
