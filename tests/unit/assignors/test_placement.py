"""The decisions of members that follow a plan: who writes the plan, how long members wait, and what is reserved."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zkconsumer.assignors.lag_aware_placement import LOOKS
from zkconsumer.assignors.placement_decision import (
    LOOK_EVERY_S,
    NEVER,
    RETRY_S,
    Measured,
    Needed,
    Placement,
    PlacementDecision,
    PlacementVerdict,
    SeenGroup,
)
from zkconsumer.core.placement_plan import PartitionLoad, PlacementPlan, PlanInputs, decode_plan, encode_plan
from zkconsumer.model import LAG_AWARE, STICKY, Assignment, ConsumerId, ThreadId, TopicPartition

WAIT, GRACE = 10.0, 60.0


def seen(
    present: str, *, partitions: int = 12, lasting: Iterable[str] = (), strategy: str = STICKY, planner: str = ""
) -> SeenGroup:
    """A group whose members have names of one letter; the first in the text is the oldest."""
    streams: Mapping[ConsumerId, Mapping[str, int]] = {ConsumerId(name): {"t": 1} for name in present}
    last = frozenset(ConsumerId(name) for name in lasting if name in present)
    inputs = PlanInputs(strategy, streams, {"t": tuple(range(partitions))}, last)
    return SeenGroup(inputs, ConsumerId(planner or present[0]))


class Node:
    """The node of the plan, with its history."""

    def __init__(self) -> None:
        self.plan: PlacementPlan | None = None
        self.writes = 0

    def lead(
        self, member: Placement, group: SeenGroup, now: float = 0.0, measured: Measured | None = None
    ) -> PlacementDecision:
        """The planner decides and writes."""
        needed = member.needs(group, self.plan, now)
        if measured is None:
            measured = Measured(loads={} if needed.loads else None)
        decision = member.decide(group, self.plan, now, measured)
        if decision.write:
            assert decision.plan is not None
            self.plan = decode_plan(encode_plan(decision.plan))
            self.writes += 1
            member.followed(decision)
        return decision


def member(name: str, **limits: float) -> Placement:
    return Placement(ConsumerId(name), **{"wait": WAIT, "grace": GRACE, **limits})


def shares(plan: PlacementPlan | None) -> dict[str, int]:
    assert plan is not None
    found = dict.fromkeys([*plan.inputs.streams, *plan.reserved], 0)
    for thread in plan.assignment.values():
        found[ConsumerId(thread[:1])] += 1
    return {str(name): count for name, count in sorted(found.items())}


def moved(before: PlacementPlan | None, after: PlacementPlan | None) -> int:
    assert before is not None
    assert after is not None
    return sum(after.assignment.get(tp) != thread for tp, thread in before.assignment.items())


def test_the_oldest_writes_and_the_others_follow() -> None:
    node, a, b = Node(), member("a"), member("b")
    assert b.decide(seen("ab"), None, 0.0).verdict is PlacementVerdict.WAIT
    assert a.needs(seen("ab"), None, 0.0) == Needed(owners=True), "there was no plan: partitions may have owners"
    written = node.lead(a, seen("ab"))
    assert (written.verdict, written.write) == (PlacementVerdict.FOLLOW, True)
    followed = b.decide(seen("ab"), node.plan, 0.1)
    assert (followed.verdict, followed.write, followed.plan) == (PlacementVerdict.FOLLOW, False, node.plan)
    assert not node.lead(a, seen("ab"), 1.0).write, "a plan that fits is not written again"


def test_the_first_plan_begins_from_the_owners() -> None:
    owners: Assignment = {TopicPartition("t", n): ThreadId("b-0" if n < 6 else "a-0") for n in range(12)}
    decision = member("a").decide(seen("ab"), None, 0.0, Measured(owners))
    assert decision.plan is not None
    assert decision.plan.assignment == owners


def test_members_wait_for_a_plan_that_fits() -> None:
    node, a, b = Node(), member("a"), member("b")
    node.lead(a, seen("ab"))
    b.decide(seen("ab"), node.plan, 0.0)
    decision = b.decide(seen("abc"), node.plan, 5.0)
    assert decision.verdict is PlacementVerdict.WAIT
    assert decision.again_at == 15.0
    assert decision.why == "the plan does not know c; a should write another"
    assert b.decide(seen("abc"), node.plan, 14.9).verdict is PlacementVerdict.WAIT
    again = b.decide(seen("abc"), node.plan, 15.0)
    assert (again.verdict, again.reread, again.again_at) == (PlacementVerdict.WAIT, True, 15.0), (
        "its own view may be old"
    )
    assert b.decide(seen("abc"), node.plan, 15.1).verdict is PlacementVerdict.WITHDRAW
    b.withdraw(15.1)
    assert b.withdrawn_until == 15.1 + RETRY_S
    assert [b.returns(now) for now in (15.1 + RETRY_S - 1, 15.1 + RETRY_S, 15.1 + RETRY_S + 1)] == [False, True, False]
    assert b.decide(seen("abc"), node.plan, 700.0).verdict is PlacementVerdict.WAIT, "and waits as long the next time"
    node.lead(a, seen("abc"), 701.0)
    assert b.decide(seen("abc"), node.plan, 701.0).verdict is PlacementVerdict.FOLLOW


def test_time_away_is_no_waiting_time() -> None:
    b = member("b")
    b.decide(seen("ab"), None, 0.0)
    b.restart_wait()
    assert b.decide(seen("ab"), None, 100.0).verdict is PlacementVerdict.WAIT


@pytest.mark.parametrize(
    ("group", "why"),
    [
        (seen("abc"), "does not know c"),
        (seen("a"), "counts on b, which has left"),
        (seen("ab", partitions=13), "has other partitions"),
        (seen("ab", lasting="b"), "has other subscriptions"),
        (seen("ab", strategy=LAG_AWARE), "is for sticky"),
    ],
)
def test_each_input_must_fit(group: SeenGroup, why: str) -> None:
    node = Node()
    node.lead(member("a"), seen("ab"))
    x = member("x")
    decision = x.decide(group, node.plan, 0.0)
    assert decision.verdict is PlacementVerdict.WAIT
    assert why in decision.why


def test_a_plan_moves_no_more_than_it_must() -> None:
    node, a = Node(), member("a")
    node.lead(a, seen("abc"))
    first = node.plan
    node.lead(a, seen("abcd"))
    assert shares(node.plan) == {"a": 3, "b": 3, "c": 3, "d": 3}
    assert moved(first, node.plan) == 3
    before = node.plan
    node.lead(a, seen("acd"))
    assert shares(node.plan) == {"a": 4, "c": 4, "d": 4}
    assert moved(before, node.plan) == 3


def test_after_another_strategy_a_plan_begins_from_the_owners() -> None:
    node, a = Node(), member("a")
    node.lead(a, seen("ab"))
    a.leave()
    node.plan = None  # taken away while another strategy was in effect
    assert a.needs(seen("ab"), None, 1.0).owners
    owners: Assignment = {TopicPartition("t", n): ThreadId("b-0" if n < 6 else "a-0") for n in range(12)}
    node.lead(a, seen("ab"), 1.0, Measured(owners))
    assert node.plan is not None
    assert dict(node.plan.assignment) == owners
    assert not a.needs(seen("ab"), node.plan, 2.0).owners


def without_b(**limits: float) -> tuple[Node, Placement]:
    """A group of a, b and c whose lasting member b left after 5 s, and its planner a."""
    node, a = Node(), member("a", **limits)
    node.lead(a, seen("abc", lasting="b"))
    node.lead(a, seen("ac"), 5.0)
    return node, a


class TestReservations:
    """Members with a group.instance.id that have left."""

    def test_a_restart_moves_nothing(self) -> None:
        node, a = Node(), member("a")
        node.lead(a, seen("abc", lasting="abc"))
        first = node.plan
        left = node.lead(a, seen("ac", lasting="ac"), 5.0)
        assert left.again_at == 5.0 + GRACE
        assert node.plan is not None
        assert set(node.plan.held_back.values()) == {"b"}
        assert moved(first, node.plan) == 0
        node.lead(a, seen("acb", lasting="abc"), 40.0)
        assert moved(first, node.plan) == 0
        assert not node.plan.held_back
        assert node.writes == 3

    def test_after_the_grace_time_others_take_over(self) -> None:
        node, a = without_b()
        first = node.plan
        assert not node.lead(a, seen("ac"), 64.9).write
        ended = node.lead(a, seen("ac"), 65.0)
        assert ended.write
        assert ended.again_at == NEVER
        assert shares(node.plan) == {"a": 6, "c": 6}
        assert moved(first, node.plan) == 4
        assert not node.lead(a, seen("ac"), 66.0).write

    def test_a_member_that_returns_late_is_a_newcomer(self) -> None:
        node, a = without_b()
        node.lead(a, seen("ac"), 100.0)
        before = node.plan
        node.lead(a, seen("acb", lasting="b"), 101.0)
        assert shares(node.plan) == {"a": 4, "b": 4, "c": 4}
        assert moved(before, node.plan) == 4

    def test_another_planner_begins_to_count_anew(self) -> None:
        (node, _), c = without_b(), member("c")
        c.decide(seen("ac"), node.plan, 5.0)
        taken_over = node.lead(c, seen("c"), 50.0)
        assert taken_over.again_at == 50.0 + GRACE
        assert shares(node.plan) == {"b": 4, "c": 8}

    def test_the_planner_too_may_restart(self) -> None:
        node, a, b = Node(), member("a"), member("b")
        node.lead(a, seen("ab", lasting="ab"))
        first = node.plan
        b.decide(seen("ab", lasting="ab"), node.plan, 0.0)
        node.lead(b, seen("b", lasting="b"), 1.0)
        assert moved(first, node.plan) == 0
        node.lead(b, seen("ba", lasting="ab"), 2.0)
        assert moved(first, node.plan) == 0

    def test_newcomers_take_from_reserved_partitions_too(self) -> None:
        node, a = without_b()
        node.lead(a, seen("acd"), 6.0)
        assert shares(node.plan) == {"a": 3, "b": 3, "c": 3, "d": 3}

    def test_an_absent_member_gets_no_new_partition(self) -> None:
        node, a = without_b()
        node.lead(a, seen("ac", partitions=15), 6.0)
        assert shares(node.plan) == {"a": 6, "b": 4, "c": 5}
        node.lead(a, seen("acb", partitions=15, lasting="b"), 7.0)
        assert shares(node.plan) == {"a": 5, "b": 5, "c": 5}

    def test_without_grace_nothing_is_reserved(self) -> None:
        node, _ = without_b(grace=0.0)
        assert shares(node.plan) == {"a": 6, "c": 6}

    def test_another_strategy_meanwhile_ends_them(self) -> None:
        node, a = Node(), member("a")
        node.lead(a, seen("abc", lasting="b"))
        a.leave()
        owners: Assignment = {TopicPartition("t", n): ThreadId("c-0" if n < 6 else "a-0") for n in range(12)}
        node.lead(a, seen("ac"), 5.0, Measured(owners))
        assert node.plan is not None
        assert not node.plan.held_back
        assert node.plan.assignment == owners


class TestLagAware:
    """Measurements of the planner."""

    @staticmethod
    def loads(**rates: float) -> Measured:
        everything = [TopicPartition("t", n) for n in range(12)]
        return Measured(loads={tp: PartitionLoad(0, rates.get(f"p{tp.partition}", 10.0)) for tp in everything})

    def test_it_looks_now_and_then(self) -> None:
        node, a = Node(), member("a")
        group = seen("abc", strategy=LAG_AWARE)
        assert a.needs(group, None, 100.0) == Needed(owners=True, loads=True)
        decision = node.lead(a, group, 100.0)
        assert decision.again_at == 100.0 + LOOK_EVERY_S
        assert a.needs(group, node.plan, 100.0 + LOOK_EVERY_S - 1) == Needed()
        assert a.needs(group, node.plan, 100.0 + LOOK_EVERY_S) == Needed(loads=True)
        assert member("b").needs(group, node.plan, 1000.0) == Needed(), "only the planner looks"

    def test_what_lasts_moves_partitions_and_noise_does_not(self) -> None:
        node, a = Node(), member("a")
        group = seen("abc", strategy=LAG_AWARE)
        node.lead(a, group, 0.0, self.loads())
        first = node.plan
        hot = self.loads(p0=100.0, p3=100.0, p6=100.0)
        for now in range(60, 3000, 60):
            node.lead(a, group, float(now), hot if now % 180 else self.loads())
        assert node.plan == first, "two measurements in a row are noise"
        decisions = [node.lead(a, group, 3000.0 + 60 * n, hot).write for n in range(LOOKS + 1)]
        assert decisions.count(True) == 1
        assert node.plan is not None
        owners = [node.plan.assignment[TopicPartition("t", n)] for n in (0, 3, 6)]
        assert len(set(owners)) == 3, "each hot one has a thread of its own"

    def test_a_restart_moves_nothing(self) -> None:
        node, a = Node(), member("a")
        node.lead(a, seen("abc", strategy=LAG_AWARE, lasting="b"), 0.0, self.loads(p0=40.0))
        first = node.plan
        node.lead(a, seen("ac", strategy=LAG_AWARE), 5.0)
        assert moved(first, node.plan) == 0
        node.lead(a, seen("acb", strategy=LAG_AWARE, lasting="b"), 9.0)
        assert moved(first, node.plan) == 0


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_every_chain_of_changes_keeps_the_plan_whole(data: st.DataObject) -> None:
    """Any order of joins, leaves, returns and new planners: each plan is whole, and its live members are even."""
    node, now, alive = Node(), 0.0, list("ab")
    planners = {name: member(name) for name in "abcdef"}
    lasting = data.draw(st.sets(st.sampled_from("abcdef")))
    strategy = data.draw(st.sampled_from([STICKY, LAG_AWARE]))
    for _ in range(data.draw(st.integers(1, 12))):
        name = data.draw(st.sampled_from("abcdef"))
        if name not in alive:
            alive.append(name)
        elif len(alive) > 1:
            alive.remove(name)
        now += data.draw(st.sampled_from([0.1, 30.0, 100.0]))
        group = seen("".join(alive), lasting=lasting, strategy=strategy)
        decision = node.lead(planners[alive[0]], group, now)
        assert decision.verdict is PlacementVerdict.FOLLOW
        for other in alive[1:]:
            assert planners[other].decide(group, node.plan, now).verdict is PlacementVerdict.FOLLOW
        assert node.plan is not None
        counts = shares(node.plan)
        assert set(counts) <= set(alive) | lasting
        assert sum(counts.values()) == 12
        if strategy == STICKY and not node.plan.reserved:
            assert max(counts.values()) - min(counts.values()) <= 1
