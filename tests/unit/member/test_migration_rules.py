"""The rules by which a group moves from ZooKeeper to the brokers, or back."""

from __future__ import annotations

from typing import Any

import pytest

from zkconsumer.core.registration import STATIC, Registration
from zkconsumer.member.migration_rules import (
    assigned_by_brokers,
    brokers_coordinate,
    brokers_only_members,
    non_bridges,
    still_assignable,
)
from zkconsumer.member.zookeeper.claim_plan import GroupView, threads_of
from zkconsumer.model import ConsumerId, TopicPartition, thread_id

ME, OTHER = ConsumerId("g_me"), ConsumerId("g_other")
BRIDGE = Registration(STATIC, {"t": 2}, extra={"coordination": "kafka"})
OLD = Registration(STATIC, {"t": 1}, extra={"coordination": "zookeeper"})


def view(other: Registration = BRIDGE, **more: Any) -> GroupView:
    return GroupView({ME: BRIDGE, OTHER: other}, {"t": (0, 1, 2)}, **more)


def test_whoever_does_not_say_so_or_cannot_be_read_is_no_bridge() -> None:
    assert non_bridges(view()) == []
    assert non_bridges(view(OLD)) == [OTHER]
    assert non_bridges(view(Registration(STATIC, {"t": 1}))) == [OTHER]
    unreadable = {"/consumers/g/ids/g_odd": "no JSON", "/brokers/topics/t": "no JSON"}
    assert non_bridges(view(unreadable=unreadable)) == ["g_odd"]


@pytest.mark.parametrize(
    ("others", "joined", "may_leave", "brokers"),
    [
        ([], False, False, True),
        (["old"], False, False, False),
        (["old"], True, False, True),
        (["old"], True, True, False),
    ],
)
def test_brokers_coordinate_bridges_alone(others: list[str], joined: bool, may_leave: bool, brokers: bool) -> None:
    assert brokers_coordinate(others, joined=joined, may_leave=lambda: may_leave) is brokers


def test_our_share_is_the_assigned_part_known_to_zookeeper() -> None:
    """A partition counts if the brokers assigned it to a stream of ours and the ZooKeeper view has the partition."""
    threads = threads_of(view(), exclude_internal_topics=True)
    given = {("t", 0): 1, ("t", 9): 0, ("t", 1): 2, ("unknown", 0): 0}
    streams = {TopicPartition(*tp): number for tp, number in given.items()}
    assert assigned_by_brokers(streams, ME, view(), threads) == {TopicPartition("t", 0): thread_id(ME, 1)}


def test_what_is_owned_is_kept_where_it_still_can_be() -> None:
    threads = threads_of(view(), exclude_internal_topics=True)
    owned = {
        TopicPartition("t", 0): thread_id(ME, 1),
        TopicPartition("t", 1): thread_id(ME, 2),
        TopicPartition("t", 9): thread_id(ME, 0),
        TopicPartition("gone", 0): thread_id(ME, 0),
    }
    assert still_assignable(owned, ME, view(), threads) == {TopicPartition("t", 0): thread_id(ME, 1)}


def test_a_broker_member_unknown_to_zookeeper_is_native() -> None:
    """A member of the bridge has the same consumer id in both groups."""
    assert brokers_only_members(["g_me", "java", "java", "g_other"], [ME, OTHER]) == ["java"]
