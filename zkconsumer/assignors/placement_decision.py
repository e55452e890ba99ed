"""The decisions of a member in a group whose assignment is a plan: follow, wait for, write or leave the plan.

With these strategies an assignment depends on the assignment before. Members that computed it alone, from reads at
different moments, would disagree for ever. So the oldest member, the planner, writes a plan with its inputs. Other
members follow the plan while they see the same inputs:

* The plan fits: follow it.
* It does not fit, or there is none: keep what is owned and claim nothing, for at most ``wait`` seconds. Then read the
  whole group again.
* No plan fits for longer: withdraw, which means no longer to advertise that this member reads plans. While a member
  does not advertise it, all use ``range``. After :data:`RETRY_S` the member advertises it again.

All members see the same registrations in the end. So they agree on the planner, and on whether ``range`` is in effect.
The owner nodes guard every partition meanwhile: members that act on different plans wait for each other, and no
partition has two owners.

A member with a ``group.instance.id`` that has left keeps its place in the plan for ``grace`` seconds by the planner's
clock. Another planner begins to count anew.

Pure: the caller gives the time. One thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from zkconsumer.assignors.lag_aware_placement import (
    NARROW_GAP,
    WIDE_GAP,
    PlanJudgement,
    even_load,
    growing_lags,
    is_uneven,
    rescues,
    smoothed,
)
from zkconsumer.assignors.sticky_placement import TopicThreads, fewest_moves
from zkconsumer.core.placement_plan import Loads, PlacementPlan, PlanInputs, Streams, consumer_of
from zkconsumer.model import LAG_AWARE, Assignment, ConsumerId, ThreadId, TopicPartition, thread_id, utf16_key

RETRY_S = 600.0
"""Seconds after which a member that withdrew tries again. Little moves then: a plan begins from the owners."""
LOOK_EVERY_S = 60.0
"""Seconds between two measurements of the loads."""
NEVER = float("inf")


class PlacementVerdict(Enum):
    """The action of a member in a round."""

    FOLLOW = "follow the plan"
    WAIT = "wait for a plan that fits"
    WITHDRAW = "no longer advertise that we read plans, so that all use range"


@dataclass(frozen=True, slots=True)
class SeenGroup:
    """The group as a member sees it. ``planner`` is the member whose registration is the oldest."""

    inputs: PlanInputs
    planner: ConsumerId


@dataclass(frozen=True, slots=True)
class PlacementDecision:
    """The decision of one round.

    ``plan`` is the plan to follow; with ``write`` the member must write it first. ``why`` says why there is none.
    ``again_at`` is when the member must decide again if nothing changes. ``reread``: the member must read the whole
    group again first, because its view may be old.
    """

    verdict: PlacementVerdict
    plan: PlacementPlan | None = None
    write: bool = False
    why: str = ""
    again_at: float = NEVER
    reread: bool = False


@dataclass(frozen=True, slots=True)
class Needed:
    """The reads that a planner needs before it decides: the owners of the partitions, and the loads."""

    owners: bool = False
    loads: bool = False


@dataclass(frozen=True, slots=True)
class Measured:
    """The results of these reads. ``loads`` is None if nothing was measured."""

    owners: Assignment = field(default_factory=dict)
    loads: Loads | None = None


class Placement:
    """The decisions of one member.

    Arguments: ``wait`` is how long it waits for a plan, ``grace`` how long it reserves the partitions of a member that
    has left (seconds).
    """

    def __init__(self, me: ConsumerId, *, wait: float, grace: float) -> None:
        self._me = me
        self._wait = wait
        self._grace = grace
        self._unfit_since: float | None = None
        self._reread = False
        self._absent_since: dict[ConsumerId, float] = {}
        self._loads: Loads = {}
        self._growing: frozenset[TopicPartition] = frozenset()
        self._judgement = PlanJudgement()
        self._next_look = 0.0
        self.withdrawn_until = 0.0
        """Until when this member does not advertise that it reads plans; 0: it does."""
        self._left = False
        """Whether this member has acted on another assignment than the plan since it last followed one."""

    def withdraw(self, now: float) -> None:
        """Note that this member withdraws."""
        self.withdrawn_until = now + RETRY_S
        self.leave()

    def returns(self, now: float) -> bool:
        """Return whether it is time to advertise again, and note that it is done."""
        due = 0.0 < self.withdrawn_until <= now
        if due:
            self.withdrawn_until = 0.0
        return due

    def leave(self) -> None:
        """Note that ``range`` decides, because a member does not advertise the strategy."""
        self._left = True
        self.restart_wait()

    def restart_wait(self) -> None:
        """Begin to wait anew: the member was away."""
        self._unfit_since, self._reread = None, False

    def needs(self, seen: SeenGroup, found: PlacementPlan | None, now: float) -> Needed:
        """Return the nodes that this member must read before a decision."""
        if seen.planner != self._me:
            return Needed()
        looks = seen.inputs.strategy == LAG_AWARE and now >= self._next_look
        return Needed(owners=self._left or found is None, loads=looks)

    def decide(
        self, seen: SeenGroup, found: PlacementPlan | None, now: float, measured: Measured = Measured()
    ) -> PlacementDecision:
        """Return the decision. ``found`` is the plan in the node, None if there is none that can be read."""
        fits = found is not None and found.inputs == seen.inputs
        if seen.planner == self._me:
            return self._lead(seen, found, now, measured)
        self._absent_since.clear()
        self._judgement = PlanJudgement()
        if fits:
            return self.followed(PlacementDecision(PlacementVerdict.FOLLOW, found))
        why = _misfit(found, seen)
        if self._unfit_since is None:
            self._unfit_since = now
        until = self._unfit_since + self._wait
        if now < until or not self._reread:
            self._reread = now >= until
            return PlacementDecision(PlacementVerdict.WAIT, why=why, again_at=max(now, until), reread=self._reread)
        return PlacementDecision(PlacementVerdict.WITHDRAW, why=why)

    def followed(self, decision: PlacementDecision) -> PlacementDecision:
        """Note that a plan is followed."""
        self._left = False
        self.restart_wait()
        return decision

    # ---- the planner

    def _lead(self, seen: SeenGroup, found: PlacementPlan | None, now: float, measured: Measured) -> PlacementDecision:
        reserved = self._reservations(seen.inputs, found, now)
        moves = self._judge(seen, found, now, measured)
        again_at = min([*(since + self._grace for c, since in self._absent_since.items() if c in reserved), NEVER])
        if seen.inputs.strategy == LAG_AWARE:
            again_at = min(again_at, self._next_look)
        if found is not None and found.inputs == seen.inputs and found.reserved == reserved and not moves:
            return self.followed(PlacementDecision(PlacementVerdict.FOLLOW, found, again_at=again_at))
        before = measured.owners if self._left or found is None else found.assignment
        assignment = self._assignment(seen.inputs, reserved, before, found, moves=moves)
        plan = PlacementPlan(seen.inputs, assignment, reserved, self._me)
        if found is not None and replace(found, planner=self._me) == plan:
            return self.followed(PlacementDecision(PlacementVerdict.FOLLOW, found, again_at=again_at))
        return PlacementDecision(PlacementVerdict.FOLLOW, plan, write=True, again_at=again_at)

    def _reservations(
        self, inputs: PlanInputs, found: PlacementPlan | None, now: float
    ) -> Mapping[ConsumerId, Streams]:
        """Return the members that have left and are waited for. Begin to count for new ones."""
        gone: dict[ConsumerId, Streams] = {}
        if found is not None and not self._left:
            gone = {c: found.inputs.streams[c] for c in found.inputs.lasting if c not in inputs.streams}
            gone |= {c: streams for c, streams in found.reserved.items() if c not in inputs.streams}
        self._absent_since = {c: self._absent_since.get(c, now) for c in gone}
        return {c: streams for c, streams in gone.items() if now < self._absent_since[c] + self._grace}

    def _judge(self, seen: SeenGroup, found: PlacementPlan | None, now: float, measured: Measured) -> bool:
        """Return whether a measurement asks for moves."""
        if seen.inputs.strategy != LAG_AWARE or measured.loads is None:
            return False
        self._growing = growing_lags(self._loads, measured.loads)
        self._loads, self._next_look = smoothed(self._loads, measured.loads), now + LOOK_EVERY_S
        if found is None or found.inputs != seen.inputs:
            return False
        threads = threads_by_topic(seen.inputs.streams)
        present = {t: [n for n in ns if TopicPartition(t, n) not in found.held_back] for t, ns in _numbers(seen)}
        barred, placed = self._judgement.barred, found.present
        uneven = all(is_uneven(threads, present, placed, one, barred) for one in (measured.loads, self._loads))
        return self._judgement.looked(uneven or bool(rescues(threads, placed, self._loads, self._growing, barred)))

    def _assignment(
        self,
        inputs: PlanInputs,
        reserved: Mapping[ConsumerId, Streams],
        before: Assignment,
        found: PlacementPlan | None,
        *,
        moves: bool,
    ) -> dict[TopicPartition, ThreadId]:
        """Return the assignment. Members that are waited for keep partitions and get none."""
        everybody = {**inputs.streams, **reserved}
        gap = NARROW_GAP if moves else None
        if found is None or everybody != {**found.inputs.streams, **found.reserved}:
            gap = WIDE_GAP
            self._judgement.changed()
        barred = self._judgement.barred

        def placed(members: Mapping[ConsumerId, Streams], numbers: Mapping[str, tuple[int, ...]]) -> Assignment:
            threads = threads_by_topic(members)
            if inputs.strategy == LAG_AWARE:
                return even_load(threads, numbers, before, self._loads, gap=gap, barred=barred)
            return fewest_moves(threads, numbers, before)

        wanted = {topic for streams in inputs.streams.values() for topic in streams}
        partitions = {topic: numbers for topic, numbers in inputs.partitions.items() if topic in wanted}
        assignment = dict(placed(everybody, partitions))
        waiting = {tp: thread for tp, thread in assignment.items() if consumer_of(thread) in reserved}
        kept = {tp: thread for tp, thread in waiting.items() if before.get(tp) == thread}
        if kept != waiting:
            rest = {t: tuple(n for n in ns if TopicPartition(t, n) not in kept) for t, ns in partitions.items()}
            assignment = {**kept, **placed(inputs.streams, rest)}
        if gap == NARROW_GAP:
            if assignment == before:
                threads, present = threads_by_topic(inputs.streams), {**assignment}
                for tp in waiting:
                    del present[tp]
                assignment |= rescues(threads, present, self._loads, self._growing, barred)
            self._judgement.moved(before, assignment, self._loads)
        return assignment


def threads_by_topic(members: Mapping[ConsumerId, Streams]) -> TopicThreads:
    """Return the threads of each topic, in the order of their members and numbers."""
    found: dict[str, list[ThreadId]] = {}
    for consumer in sorted(members, key=utf16_key):
        for topic, count in members[consumer].items():
            found.setdefault(topic, []).extend(thread_id(consumer, number) for number in range(count))
    return {topic: found[topic] for topic in sorted(found, key=utf16_key)}


def _numbers(seen: SeenGroup) -> list[tuple[str, tuple[int, ...]]]:
    return list(seen.inputs.partitions.items())


def _misfit(found: PlacementPlan | None, seen: SeenGroup) -> str:
    """Return in words why a plan does not fit the group."""
    if found is None:
        return f"there is no plan, which {seen.planner} should write"
    plan, now = found.inputs, seen.inputs
    missing, gone = sorted(now.streams.keys() - plan.streams.keys()), sorted(plan.streams.keys() - now.streams.keys())
    if plan.strategy != now.strategy:
        what = f"is for {plan.strategy}"
    elif missing:
        what = f"does not know {missing[0]}"
    elif gone:
        what = f"counts on {gone[0]}, which has left"
    elif plan.partitions != now.partitions:
        what = "has other partitions"
    else:
        what = "has other subscriptions"
    return f"the plan {what}; {seen.planner} should write another"
