"""The rebalance of a fake group: members, pending joins and syncs, timeouts, and generations.

``fake_group`` handles the requests; this is the rest. The caller holds the group's lock and gives the time. Mirrors the
delayed operations of Kafka's coordinator. Differs on purpose: the caller asks ``due()`` for the next timeout, and
timeouts run in the order of time, however much time passes at once.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from zkconsumer.testing import group_states as errors
from zkconsumer.testing.group_states import (
    CONSUMERS,
    MOVES,
    CoordinatorGroupState,
    CoordinatorRules,
    DueAnswer,
    FakeGroupMember,
    GroupAction,
    GroupRequest,
    JoinAnswer,
    SyncAnswer,
    TableEntry,
    subscribed_topics,
)


@dataclass(slots=True)
class _JoinTime:
    """The time at which a join ends, None while no member joins.

    ``extension`` is the seconds by which the group's first join may still be delayed, None in later joins.
    ``came_late`` tells whether a member came since the delay began.
    """

    due: float | None = None
    extension: float | None = None
    came_late: bool = False


@dataclass(slots=True)
class _SyncTime:
    """The time at which the ``missing`` members are removed, which have not asked for their assignment yet."""

    due: float | None = None
    missing: set[str] = field(default_factory=set)


class GroupRebalance:
    """The members of one group and their present rebalance.

    ``stored`` counts the changes that the offsets topic has to hold. The coordinator writes the group when it changes.
    """

    def __init__(self, group_id: str, rules: CoordinatorRules) -> None:
        self.group_id = group_id
        self.rules = rules
        self.state = CoordinatorGroupState.EMPTY
        self.since = 0.0
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.leader: str | None = None
        self.subscribed: frozenset[str] | None = None
        """The topics of this generation's members, None if unknown."""
        self.members: dict[str, FakeGroupMember] = {}
        self.stored = 0
        self._pending: dict[str, float] = {}
        """Member ids that have not joined yet, with the time at which they expire."""
        self._join = _JoinTime()
        self._sync = _SyncTime()
        self._out: list[DueAnswer] = []

    # ---- time ----

    def due(self) -> float | None:
        """Return the time of the next timeout, or None."""
        times = [self._join.due, self._sync.due, *self._pending.values()]
        times += [member.deadline for member in self.members.values()]
        return min((time for time in times if time is not None), default=None)

    def _run(self, now: float) -> None:
        """Run the timeouts that are due, one by one, in the order of time."""
        while (at := self.due()) is not None and at <= now:
            if self._join.due == at:
                self._join_time(at)
            elif self._sync.due == at:
                self._sync_time(at)
            elif lapsed := [member_id for member_id, end in self._pending.items() if end == at]:
                for member_id in lapsed:
                    del self._pending[member_id]
                self._look(at)
            else:
                self._sessions_end(at)

    def _sync_time(self, now: float) -> None:
        """Remove the members that did not ask for their assignment in time."""
        self._sync.due = None
        if self._sync.missing and self.state in (CoordinatorGroupState.AWAITING, CoordinatorGroupState.STABLE):
            for member_id in self._sync.missing.copy():
                self._forget(member_id)
            self._prepare(now)

    def _sessions_end(self, now: float) -> None:
        for member in [member for member in self.members.values() if member.deadline == now]:
            member.deadline = None
            if not member.excused and member.member_id in self.members:
                self._remove(now, member, self.rules.step(self.state, GroupRequest.LEAVE))

    # ---- joining ----

    def _prepare(self, now: float) -> None:
        """Begin a rebalance: all members have to join again."""
        if self.state is CoordinatorGroupState.AWAITING:
            for member in self.members.values():
                member.assignment = b""
                if self._answer_sync(member, SyncAnswer(errors.REBALANCING)):
                    self._renew(now, member)
        self._sync = _SyncTime()
        longest = max((member.rebalance_timeout for member in self.members.values()), default=0.0)
        if self.state is CoordinatorGroupState.EMPTY:
            delay = self.rules.initial_delay
            self._join = _JoinTime(now + delay, max(longest - delay, 0.0))
        else:
            self._join = _JoinTime(now + longest)
        self._move(CoordinatorGroupState.PREPARING, now)
        self._look(now)

    def _look(self, now: float) -> None:
        """Complete the join if no member is missing. The group's first join always waits for its delay."""
        if self.state is not CoordinatorGroupState.PREPARING:
            return
        if self._join.extension is not None:
            if self._join.due is not None and self._join.due <= now:
                self._join_time(now)
        elif all(m.join_ticket is not None for m in self.members.values()) and not (
            self.rules.modern and self._pending
        ):
            self._complete(now)

    def _join_time(self, now: float) -> None:
        """End the time for joining, or extend it in the group's first join."""
        join = self._join
        if join.extension and join.came_late:
            delay = min(self.rules.initial_delay, join.extension)
            self._join = _JoinTime(now + delay, max(join.extension - delay, 0.0))
        else:
            self._complete(now)

    def _complete(self, now: float) -> None:
        """Begin the next generation with the members that have joined."""
        self._join = _JoinTime()
        for member in [m for m in self.members.values() if m.join_ticket is None]:
            if member.instance_id is None:  # a static member stays until its session ends
                self._forget(member.member_id)
        joined = [member for member in self.members.values() if member.join_ticket is not None]
        if self.members and not joined:
            self._join.due = now + max(member.rebalance_timeout for member in self.members.values())
            return
        self.generation += 1
        if not self.members:
            self.protocol = self.subscribed = None
            self._move(CoordinatorGroupState.EMPTY, now)
            self.stored += 1
            return
        if self.leader not in self.members or self.members[self.leader].join_ticket is None:
            self.leader = joined[0].member_id
        self.protocol = self._elected()
        self.subscribed = self._subscribed()
        self._move(CoordinatorGroupState.AWAITING, now)
        for member in self.members.values():
            self._answer_join(member, self._joined(member))
            self._renew(now, member)
            member.is_new = False
        if self.rules.modern:
            until = now + max(member.rebalance_timeout for member in self.members.values())
            self._sync = _SyncTime(until, set(self.members))

    def _joined(self, member: FakeGroupMember) -> JoinAnswer:
        """Return a member's JoinGroup response. Only the leader's lists all members."""
        protocol = self.protocol or ""
        leads = self.leader == member.member_id
        tell = leads and (self.state is not CoordinatorGroupState.STABLE or member.join_ticket is not None)
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
        self._move(CoordinatorGroupState.STABLE, now)

    def _assigned(self, member: FakeGroupMember) -> SyncAnswer:
        return SyncAnswer(errors.NONE, self.protocol_type, self.protocol, member.assignment)

    # ---- leaving, and sessions that end ----

    def _remove(self, now: float, member: FakeGroupMember, step: TableEntry) -> None:
        self._answer_join(member, JoinAnswer(errors.UNKNOWN_MEMBER, "", self._no_generation))
        self._answer_sync(member, SyncAnswer(errors.UNKNOWN_MEMBER))
        self._forget(member.member_id)
        if step.action is GroupAction.REMOVE_AND_REBALANCE:
            self._prepare(now)
        elif step.action is GroupAction.REMOVE_AND_LOOK:
            self._look(now)

    def _forget(self, member_id: str) -> None:
        self.members.pop(member_id, None)
        self._pending.pop(member_id, None)
        self._sync.missing.discard(member_id)
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)

    def _renew(self, now: float, member: FakeGroupMember) -> None:
        member.deadline = now + member.session_timeout

    # ---- votes ----

    def _common(self) -> set[str]:
        """Return the protocols that every member offers."""
        offers = [{name for name, _ in member.protocols} for member in self.members.values()]
        return set.intersection(*offers) if offers else set()

    def _elected(self) -> str:
        """Return the protocol with most votes. Each member votes for its first protocol that all offer."""
        common = self._common()
        votes = Counter(next(name for name, _ in m.protocols if name in common) for m in self.members.values())
        return votes.most_common(1)[0][0]

    def _subscribed(self) -> frozenset[str] | None:
        """Return the topics of all members, None if the subscription of any member cannot be decoded."""
        if self.protocol is None or self.protocol_type != CONSUMERS:
            return None
        topics: frozenset[str] = frozenset()
        for member in self.members.values():
            told = subscribed_topics(member.metadata(self.protocol))
            if told is None:
                return None
            topics |= told
        return topics

    # ---- answers ----

    @property
    def _no_generation(self) -> int:
        return -1 if self.rules.modern else 0

    def _answer_join(self, member: FakeGroupMember, answer: JoinAnswer) -> bool:
        ticket = member.join_ticket
        if ticket is None:
            return False
        member.join_ticket = None
        self._out.append(DueAnswer(ticket, answer))
        return True

    def _answer_sync(self, member: FakeGroupMember, answer: SyncAnswer) -> bool:
        ticket = member.sync_ticket
        if ticket is None:
            return False
        member.sync_ticket = None
        self._out.append(DueAnswer(ticket, answer))
        return True

    def _delivered(self) -> list[DueAnswer]:
        out, self._out = self._out, []
        return out

    def _move(self, state: CoordinatorGroupState, now: float) -> None:
        assert state in MOVES[self.state] or state is self.state is CoordinatorGroupState.PREPARING, (self.state, state)
        self.state, self.since = state, now
