"""Subscribing to other topics, on a member that lives."""

from __future__ import annotations

import pytest

from tests.concurrency.group import (
    GROUP,
    TOPIC,
    SteppedMember,
    new_server,
    node_at,
    offsets,
    owners,
    settle,
    settled,
    tp,
)
from zkconsumer.testing import FakeZooKeeper
from zkconsumer.zookeeper import paths


@pytest.fixture
def server() -> FakeZooKeeper:
    return new_server(2, TOPIC, "other")


@pytest.fixture
def member(server: FakeZooKeeper) -> SteppedMember:
    server.put(paths.offset(GROUP, tp(0)), b"10")
    return settled(server, "a")


def test_topics_are_added_and_what_flows_flows_on(server: FakeZooKeeper, member: SteppedMember) -> None:
    before = dict(member.owned)
    node = server.node(member_path())
    done = member.subscribe({TOPIC: 1, "other": 2})
    settle([member])
    assert done.result(0) is None
    assert {**before} == {known: member.owned[known] for known in before}
    assert owners(server, "other") == {0: "g_a-0", 1: "g_a-1"}
    anew = server.node(member_path())
    assert node is not None
    assert anew is not None
    assert anew.czxid > node.czxid, "a new node: Scala members do not look into one that stays"
    assert anew.ephemeral_owner == node.ephemeral_owner
    assert b'"other":2' in anew.data


def member_path() -> str:
    return paths.member(GROUP, "g_a")


def test_the_others_never_see_the_group_without_us(server: FakeZooKeeper, member: SteppedMember) -> None:
    second = settled(server, "b", beside=[member])
    kept = dict(second.owned)
    member.subscribe({TOPIC: 1, "other": 1})
    settle([second, member])
    assert dict(second.owned) == kept
    assert owners(server, "other") == {0: "g_a-0", 1: "g_a-0"}


def test_an_unsubscribed_topic_is_committed_released_and_ended(server: FakeZooKeeper, member: SteppedMember) -> None:
    member.finish(tp(0), 5)
    done = member.subscribe({}, leaving=[TOPIC])
    settle([member])
    assert done.done()
    assert member.retired == [TOPIC]
    assert offsets(server) == {0: 15}
    assert owners(server) == {}
    assert not member.owned
    assert server.node(member_path()) is not None, "a member that owns nothing"


def test_a_change_of_topics_outlives_a_lost_answer_and_an_expiry(server: FakeZooKeeper, member: SteppedMember) -> None:
    done = member.subscribe({"other": 1}, leaving=[TOPIC])
    member.session.expire()
    settle([member])
    assert done.done()
    assert set(member.owned) == {tp(0, "other"), tp(1, "other")}
    node = node_at(server, member_path())
    assert b"other" in node.data


def test_a_topic_wanted_again_while_leaving_is_released_first(member: SteppedMember) -> None:
    before = dict(member.owned)
    left, again = member.subscribe({}, leaving=[TOPIC]), member.subscribe({TOPIC: 1})
    settle([member])
    assert left.done()
    assert again.done()
    assert member.retired == [TOPIC]
    assert member.owned.keys() == before.keys()
    assert all(old.revoked and member.owned[at] is not old for at, old in before.items()), "they flow into new streams"
