"""One fake group: handles its requests by the table in ``group_states``.

No thread, no clock, no socket. The caller holds the group's lock and gives the time. A method returns the answers that
are due now, also those to earlier requests that waited. Mirrors GroupMetadata of Kafka's coordinator.
``group_rebalance`` holds the rebalance itself.
"""

from __future__ import annotations

from uuid import uuid4

from zkconsumer.testing import group_states as errors
from zkconsumer.testing.group_rebalance import GroupRebalance
from zkconsumer.testing.group_states import (
    CoordinatorGroupState,
    DueAnswer,
    FakeGroupMember,
    FakeGroupView,
    GroupAction,
    GroupRequest,
    JoinAnswer,
    JoinRequest,
    MemberView,
    SyncAnswer,
    SyncRequest,
    TableEntry,
)


class FakeGroup(GroupRebalance):
    """A group of consumers, or of other members that use the group protocol."""

    # ---- requests ----

    def join(self, now: float, request: JoinRequest, ticket: object) -> list[DueAnswer]:
        """Handle a JoinGroup. The answer may come with a later call."""
        self._run(now)
        is_new = not request.member_id
        step = self.rules.step(self.state, GroupRequest.JOIN_NEW if is_new else GroupRequest.JOIN)
        instance = request.instance_id if self.rules.modern else None
        if not self._has_room(request.member_id):
            self._forget(request.member_id)
            self._refuse(ticket, errors.GROUP_FULL, "")
        elif self.state is CoordinatorGroupState.DEAD:
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
        """Handle a SyncGroup. The leader's request brings the assignment of all members."""
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
        self._sync.missing.discard(member.member_id)
        if step.action is GroupAction.ANSWER:
            self._out.append(DueAnswer(ticket, self._assigned(member)))
            self._renew(now, member)
        else:
            member.sync_ticket = ticket
            if self.leader == member.member_id:
                self._assign(now, request.assignment)
        return self._delivered()

    def heartbeat(self, now: float, member_id: str, instance_id: str | None, generation: int) -> int:
        """Handle a Heartbeat. Return the error code."""
        self._run(now)
        step = self._checked(GroupRequest.HEARTBEAT, member_id, instance_id, generation)
        if step.action is GroupAction.ANSWER:
            self._renew(now, self.members[member_id])
        return step.error

    def commit(self, now: float, member_id: str, instance_id: str | None, generation: int) -> int:
        """Check whether this member may commit, and count the commit as a heartbeat. Return the error code."""
        self._run(now)
        step = self._may_commit(member_id, instance_id, generation)
        if step.action is GroupAction.STORE and member_id in self.members:
            self._renew(now, self.members[member_id])
        return step.error

    def leave(self, now: float, member_id: str, instance_id: str | None) -> tuple[int, list[DueAnswer]]:
        """Handle a LeaveGroup: a member leaves, or an operator removes a static member by its instance id alone.

        Return the error code and the answers that are due now.
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
        """Delete the group if it is empty. Return the error code."""
        step = self.rules.step(self.state, GroupRequest.DELETE)
        if step.action is GroupAction.DELETE:
            self._move(CoordinatorGroupState.DEAD, self.since)
        return step.error

    # ---- time ----

    def tick(self, now: float) -> list[DueAnswer]:
        """Run the timeouts that are due."""
        self._run(now)
        return self._delivered()

    def expire(self, now: float, member_id: str) -> list[DueAnswer]:
        """End a member's session now, as if its heartbeats were missing. Raises KeyError for an unknown member."""
        self._run(now)
        self._remove(now, self.members[member_id], self.rules.step(self.state, GroupRequest.LEAVE))
        return self._delivered()

    def unload(self) -> list[DueAnswer]:
        """Give the group up to another coordinator. Waiting members are told to search for it."""
        for member in self.members.values():
            self._answer_join(member, JoinAnswer(errors.NOT_COORDINATOR, member.member_id, self._no_generation))
            self._answer_sync(member, SyncAnswer(errors.NOT_COORDINATOR))
        if self.state is not CoordinatorGroupState.DEAD:
            self._move(CoordinatorGroupState.DEAD, self.since)
        return self._delivered()

    def load(self, now: float, view: FakeGroupView, members: list[FakeGroupMember], since: float) -> None:
        """Load a group's stored state: Stable with these members, or Empty. The members' sessions begin again.

        ``since`` is the time at which the group entered that state.
        """
        self.state, self.since = (CoordinatorGroupState.STABLE if members else CoordinatorGroupState.EMPTY), since
        self.generation, self.leader = view.generation, view.leader or None
        self.protocol_type, self.protocol = view.protocol_type or None, view.protocol or None
        for member in members:
            self.members[member.member_id] = member
            self._renew(now, member)
        self.subscribed = self._subscribed()

    # ---- looking ----

    def view(self, *, everything: bool = True) -> FakeGroupView:
        """Return the present state. Without ``everything`` it holds only the fields that DescribeGroups shows."""
        stable = self.state is CoordinatorGroupState.STABLE
        told = self.protocol if self.protocol is not None and (stable or everything) else None
        members = {
            member.member_id: MemberView(
                member.member_id,
                member.instance_id,
                member.client_id,
                member.client_host,
                dict(member.protocols).get(told, b"") if told is not None else b"",
                member.assignment if stable or everything else b"",
            )
            for member in self.members.values()
        }
        return FakeGroupView(
            self.group_id,
            self.state.value,
            self.generation,
            self.protocol_type or "",
            told or "",
            self.leader or "",
            members,
        )

    # ---- permission ----

    def _of_instance(self, instance_id: str) -> str | None:
        return next((m.member_id for m in self.members.values() if m.instance_id == instance_id), None)

    def _stranger(self, member_id: str, instance_id: str | None) -> int:
        """Return the error for a member id that is not, or no longer, in the group."""
        if instance_id is not None and self.rules.modern:
            current = self._of_instance(instance_id)
            if current is not None and current != member_id:
                return errors.FENCED_INSTANCE
            if current is None:
                return errors.UNKNOWN_MEMBER
        return errors.NONE if member_id in self.members else errors.UNKNOWN_MEMBER

    def _checked(self, request: GroupRequest, member_id: str, instance_id: str | None, generation: int) -> TableEntry:
        """Return the table's entry, after checking the member and its generation."""
        step = self.rules.step(self.state, request)
        if self.state is CoordinatorGroupState.DEAD:
            return step
        error = self._stranger(member_id, instance_id)
        # before 3.9 a heartbeat in this state gets the table's error, whatever its generation
        if not error and generation != self.generation and not (step.error and self._forgiving(request)):
            error = errors.ILLEGAL_GENERATION
        return TableEntry(GroupAction.REFUSE, error) if error else step

    def _forgiving(self, request: GroupRequest) -> bool:
        return (
            not self.rules.modern and self.state is CoordinatorGroupState.AWAITING and request is GroupRequest.HEARTBEAT
        )

    def _may_commit(self, member_id: str, instance_id: str | None, generation: int) -> TableEntry:
        """Check a commit. Only an empty group accepts one without a generation, which a simple consumer sends."""
        step = self.rules.step(self.state, GroupRequest.COMMIT)
        if not self.rules.modern:
            if (
                generation < 0 and self.state is CoordinatorGroupState.EMPTY
            ) or self.state is CoordinatorGroupState.AWAITING:
                return step
            return self._checked(GroupRequest.COMMIT, member_id, None, generation)
        if generation < 0 and self.state is CoordinatorGroupState.EMPTY:
            return step
        if generation >= 0 or member_id or instance_id is not None:
            return self._checked(GroupRequest.COMMIT, member_id, instance_id, generation)
        if self.state not in (CoordinatorGroupState.EMPTY, CoordinatorGroupState.DEAD):
            return TableEntry(GroupAction.REFUSE, errors.UNKNOWN_MEMBER)
        return step

    def _has_room(self, member_id: str) -> bool:
        if self.state in (CoordinatorGroupState.EMPTY, CoordinatorGroupState.DEAD):
            return True
        known = self.members.get(member_id)
        if self.state is CoordinatorGroupState.PREPARING:
            waiting = sum(member.join_ticket is not None for member in self.members.values())
            return (known is not None and known.join_ticket is not None) or waiting < self.rules.max_members
        return known is not None or len(self.members) < self.rules.max_members

    def _supports(self, request: JoinRequest) -> bool:
        if self.state is CoordinatorGroupState.EMPTY:
            return bool(request.protocol_type and request.protocols)
        common = self._common()
        return self.protocol_type == request.protocol_type and (
            not self.members or any(name in common for name, _ in request.protocols)
        )

    def _member_id(self, request: JoinRequest) -> str:
        name = request.instance_id if self.rules.modern and request.instance_id is not None else request.client_id
        return f"{name}-{uuid4()}"

    # ---- joining ----

    def _add(self, now: float, request: JoinRequest, ticket: object) -> None:
        modern = self.rules.modern
        known = request if modern else request._replace(instance_id=None)
        deadline = now + self.rules.new_member_timeout if modern else None
        member = FakeGroupMember(*known[:8], join_ticket=ticket, deadline=deadline)
        self._pending.pop(member.member_id, None)
        if not self.members:
            self.protocol_type = member.protocol_type
        self.members[member.member_id] = member
        if self.leader is None:
            self.leader = member.member_id
        if self.state is CoordinatorGroupState.PREPARING:
            self._join.came_late = self.generation == 0
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
            if self.state is not CoordinatorGroupState.PREPARING:
                self._prepare(now)
        else:
            self._out.append(DueAnswer(ticket, self._joined(member)))

    def _replace(self, now: float, old_id: str, request: JoinRequest, ticket: object) -> None:
        """Replace a static member that came back without its id. The old member id is fenced."""
        member = self.members.pop(old_id)
        self._answer_join(member, JoinAnswer(errors.FENCED_INSTANCE, old_id))
        self._answer_sync(member, SyncAnswer(errors.FENCED_INSTANCE))
        leader_before = self.leader
        member.member_id = self._member_id(request)
        self.members[member.member_id] = member
        if self.leader == old_id:
            self.leader = member.member_id
        if old_id in self._sync.missing:
            self._sync.missing.discard(old_id)
            self._sync.missing.add(member.member_id)
        member.protocols, member.join_ticket = request.protocols, ticket
        member.session_timeout, member.rebalance_timeout = request.session_timeout, request.rebalance_timeout
        self._renew(now, member)
        if self.state is CoordinatorGroupState.STABLE and self._elected() == self.protocol:
            self.stored += 1
            answer = self._joined(member)
            if request.skips_assignment:
                answer = answer._replace(skip_assignment=self.leader == member.member_id)
            else:  # the member must not believe that it leads, because the group would not use its assignment
                answer = answer._replace(leader=leader_before or "", members=())
            self._answer_join(member, answer)
        elif self.state is not CoordinatorGroupState.PREPARING:
            self._prepare(now)

    def _refuse(self, ticket: object, error: int, member_id: str) -> None:
        self._out.append(DueAnswer(ticket, JoinAnswer(error, member_id, self._no_generation)))
