"""The topics of which a member may come to own something."""

from __future__ import annotations

import pytest

from zkconsumer.core.registration import BLACK_LIST, STATIC, WHITE_LIST, Registration
from zkconsumer.member.zookeeper.planner import GroupView, topics_of
from zkconsumer.model import ConsumerId

ME, OTHER = ConsumerId("g_me"), ConsumerId("g_other")


@pytest.mark.parametrize(
    ("pattern", "subscription", "topics"),
    [
        (STATIC, {"a": 1, "empty": 1, "gone": 1}, {"a"}),
        (STATIC, {}, set()),
        (WHITE_LIST, {"a|b|empty": 2}, {"a", "b"}),
        (BLACK_LIST, {"a": 1}, {"b"}),
    ],
)
def test_they_have_partitions_and_are_subscribed_to(
    pattern: str, subscription: dict[str, int], topics: set[str]
) -> None:
    names = ("__consumer_offsets", "a", "b", "empty")
    partitions = {"__consumer_offsets": (0,), "a": (0, 1), "b": (0,), "empty": ()}
    members = {ME: Registration(pattern, subscription), OTHER: Registration(STATIC, {"b": 1})}
    view = GroupView(members, partitions, names)
    assert topics_of(view, ME, exclude_internal_topics=True) == topics


def test_who_is_no_member_owns_nothing() -> None:
    assert topics_of(GroupView({}, {"a": (0,)}), ME, exclude_internal_topics=True) == frozenset()
