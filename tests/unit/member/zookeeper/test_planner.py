"""Tables for the planner: what a member releases, keeps and claims, and which assignments it refuses."""

from __future__ import annotations

from collections.abc import Mapping
from unittest.mock import Mock

import pytest

from zkconsumer.assignors.assignor import AssignmentError
from zkconsumer.core.registration import BLACK_LIST, STATIC, WHITE_LIST, Registration
from zkconsumer.member.zookeeper.claim_plan import (
    GroupView,
    MemberPlan,
    differing_subscriptions,
    plan,
    possible,
    threads_of,
    topics_of,
    topics_wanted,
)
from zkconsumer.model import Assignment, ConsumerId, ThreadId, TopicPartition

ME, OTHER = ConsumerId("g_me"), ConsumerId("g_other")
MINE_0, MINE_1, THEIRS = ThreadId("g_me-0"), ThreadId("g_me-1"), ThreadId("g_other-0")

Owned = dict[int, ThreadId]
"""Partitions of the topic ``a`` and their threads."""


def of_a(owned: Mapping[int, ThreadId]) -> dict[TopicPartition, ThreadId]:
    return {TopicPartition("a", number): thread for number, thread in owned.items()}


def view(kept: Owned | None = None) -> GroupView:
    """A group for the topic ``a`` of four partitions: this member has two threads, the second member has one."""
    members = {ME: Registration(STATIC, {"a": 2}), OTHER: Registration(STATIC, {"a": 1, "b": 1})}
    return GroupView(members, {"a": (0, 1, 2, 3), "b": (0,)}, kept=of_a(kept or {}))


def planned(seen: GroupView, owned: Owned, assigned: Assignment) -> MemberPlan:
    return plan(seen, ME, of_a(owned), lambda _view, _threads: assigned)


@pytest.mark.parametrize(
    ("owned", "assigned", "release", "keep", "claim"),
    [
        pytest.param({}, {}, [], [], {}, id="nothing owned, nothing assigned"),
        pytest.param({}, {1: MINE_0, 0: MINE_1}, [], [], {0: MINE_1, 1: MINE_0}, id="first claim"),
        pytest.param({0: MINE_0}, {0: MINE_0}, [], [0], {}, id="no change"),
        pytest.param({0: MINE_0, 1: MINE_0}, {0: MINE_0, 1: THEIRS}, [1], [0], {}, id="one goes to the other member"),
        pytest.param({0: MINE_0}, {0: MINE_0, 1: MINE_0}, [], [0], {1: MINE_0}, id="one more"),
        pytest.param({0: MINE_0}, {0: MINE_1}, [0], [], {0: MINE_1}, id="to another thread of this member"),
        pytest.param({1: MINE_0, 0: MINE_1}, {}, [0, 1], [], {}, id="nothing assigned any more"),
        pytest.param({0: MINE_0, 9: MINE_0}, {0: MINE_0}, [9], [0], {}, id="an owned partition that is gone"),
        pytest.param({}, {0: THEIRS}, [], [], {}, id="all for the other member"),
    ],
)
def test_a_plan_changes_only_what_differs(
    owned: Owned, assigned: Owned, release: list[int], keep: list[int], claim: Owned
) -> None:
    """A partition that stays with its thread is kept and never touched: the original releases and claims it again."""
    made = planned(view(), owned, of_a(assigned))
    assert [tp.partition for tp in made.release] == release
    assert [tp.partition for tp in made.keep] == keep
    assert list(made.claim.items()) == list(of_a(claim).items())
    assert made.assignment == of_a(assigned)
    assert made.wanted == len(keep) + len(claim)


@pytest.mark.parametrize(
    ("kept", "owned", "assigned", "release", "keep", "claim"),
    [
        pytest.param({0: THEIRS}, {}, {0: MINE_0}, [], [], {}, id="an unreadable member's partition is not claimed"),
        pytest.param({0: THEIRS}, {0: MINE_0}, {0: MINE_0}, [0], [], {}, id="nor kept"),
        pytest.param({1: THEIRS}, {}, {0: MINE_0}, [], [], {0: MINE_0}, id="the rest is"),
    ],
)
def test_partitions_of_unreadable_members_stay_theirs(
    kept: Owned, owned: Owned, assigned: Owned, release: list[int], keep: list[int], claim: Owned
) -> None:
    """An unreadable member still owns its partitions. Otherwise two members would claim them."""
    made = planned(view(kept), owned, of_a(assigned))
    assert [tp.partition for tp in made.release] == release
    assert [tp.partition for tp in made.keep] == keep
    assert made.claim == of_a(claim)
    assert made.assignment == of_a(assigned | kept)


IMPOSSIBLE = [
    pytest.param(TopicPartition("a", 4), MINE_0, "a-4 does not exist", id="no such partition"),
    pytest.param(TopicPartition("gone", 0), MINE_0, "gone-0 does not exist", id="no such topic"),
    pytest.param(TopicPartition("b", 0), MINE_0, "takes no part in b", id="a topic of the other member"),
    pytest.param(TopicPartition("a", 0), ThreadId("g_me-2"), "takes no part in a", id="a thread too many"),
    pytest.param(TopicPartition("a", 0), ThreadId("g_me-00"), "takes no part in a", id="a number written otherwise"),
    pytest.param(TopicPartition("a", 0), ThreadId("g_me--1"), "takes no part in a", id="a negative number"),
    pytest.param(TopicPartition("a", 0), ThreadId("g_me-x"), "takes no part in a", id="no number"),
    pytest.param(TopicPartition("a", 0), ThreadId("g_gone-0"), "takes no part in a", id="no such member"),
    pytest.param(TopicPartition("a", 0), ThreadId("nonsense"), "takes no part in a", id="no thread id"),
]


@pytest.mark.parametrize(("partition", "thread", "reason"), IMPOSSIBLE)
def test_an_impossible_assignment_is_refused(partition: TopicPartition, thread: ThreadId, reason: str) -> None:
    """A strategy of the user may return anything. A claim for it would wait for a stream that does not exist."""
    with pytest.raises(AssignmentError, match=reason):
        planned(view(), {}, {partition: thread})


@pytest.mark.parametrize(("partition", "thread", "reason"), IMPOSSIBLE)
def test_the_possible_part_of_an_assignment_remains(partition: TopicPartition, thread: ThreadId, reason: str) -> None:
    """A failing strategy leaves the assignment in force, less the partitions and threads that are gone since."""
    del reason
    good: Assignment = {TopicPartition("a", 1): MINE_1, TopicPartition("b", 0): THEIRS}
    threads = threads_of(view(), exclude_internal_topics=True)
    assert possible({partition: thread, **good}, view(), threads) == good


def test_a_failure_of_the_strategy_surfaces() -> None:
    with pytest.raises(ZeroDivisionError):
        plan(view(), ME, {}, Mock(side_effect=ZeroDivisionError))


def test_a_stranger_to_the_group_releases_everything() -> None:
    """A member whose node is gone owns no threads, so that its partitions go."""
    seen = GroupView({OTHER: Registration(STATIC, {"a": 1})}, {"a": (0,)})
    made = planned(seen, {0: MINE_0}, of_a({0: THEIRS}))
    assert (made.release, made.keep, made.claim) == ((TopicPartition("a", 0),), (), {})


def test_threads_of_expressions_cover_the_topics_that_exist() -> None:
    members = {ME: Registration(WHITE_LIST, {"a|gone|__.*": 2}), OTHER: Registration(STATIC, {"new": 1})}
    seen = GroupView(members, {}, ("__consumer_offsets", "a", "b"))
    threads = threads_of(seen, exclude_internal_topics=True)
    assert threads == {ME: {"a": (MINE_0, MINE_1)}, OTHER: {"new": (THEIRS,)}}
    assert topics_wanted(threads) == {"a", "new"}
    assert topics_wanted(threads_of(seen, exclude_internal_topics=False)) == {"__consumer_offsets", "a", "new"}


@pytest.mark.parametrize(
    ("pattern", "subscription", "topics"),
    [
        (STATIC, {"a": 1, "empty": 1, "gone": 1}, {"a"}),
        (STATIC, {}, set()),
        (WHITE_LIST, {"a|b|empty": 2}, {"a", "b"}),
        (BLACK_LIST, {"a": 1}, {"b"}),
    ],
)
def test_a_members_topics_have_partitions_and_are_subscribed(
    pattern: str, subscription: dict[str, int], topics: set[str]
) -> None:
    names = ("__consumer_offsets", "a", "b", "empty")
    partitions = {"__consumer_offsets": (0,), "a": (0, 1), "b": (0,), "empty": ()}
    members = {ME: Registration(pattern, subscription), OTHER: Registration(STATIC, {"b": 1})}
    assert topics_of(GroupView(members, partitions, names), ME, exclude_internal_topics=True) == topics


def test_a_stranger_to_the_group_has_no_topics() -> None:
    assert topics_of(GroupView({}, {"a": (0,)}), ME, exclude_internal_topics=True) == frozenset()


@pytest.mark.parametrize(
    ("mine", "theirs", "difference"),
    [
        pytest.param(Registration(STATIC, {"a": 1}), Registration(STATIC, {"a": 1}), None, id="equal"),
        pytest.param(
            Registration(STATIC, {"a": 1}), Registration(STATIC, {"a": 4}), None, id="numbers of streams differ"
        ),
        pytest.param(Registration(STATIC, {"a": 1}), Registration(STATIC, {}), None, id="nothing subscribed"),
        pytest.param(
            Registration(STATIC, {"b": 1, "a": 1}),
            Registration(STATIC, {"a": 1}),
            "g_me to static a, b and g_other to static a",
            id="topics",
        ),
        pytest.param(
            Registration(WHITE_LIST, {"a": 1}),
            Registration(STATIC, {"a": 1}),
            "g_me to white_list a and g_other to static a",
            id="kinds",
        ),
    ],
)
def test_differing_subscriptions_are_named(mine: Registration, theirs: Registration, difference: str | None) -> None:
    said = differing_subscriptions(GroupView({ME: mine, OTHER: theirs}, {}))
    assert said == (difference and f"the members of this group subscribe differently: {difference}")
