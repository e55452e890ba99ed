"""A right that is missing at one node harms only the partitions and functions that need the node."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable

import pytest

from tests.concurrency.group import GROUP, SteppedMember, make_topic, new_server, offsets, settle, settled, tp
from zkconsumer.core.registration import WHITE_LIST, Registration
from zkconsumer.errors import NotPermittedError, OffsetCommitError
from zkconsumer.member.connector_state import Phase
from zkconsumer.model import ConsumerId
from zkconsumer.testing import FakeZooKeeper
from zkconsumer.zookeeper import paths

OTHER = "other"
SCALA_SESSION = 999
DIRECTORIES = [paths.owner_topic, paths.offset_topic]


@pytest.fixture
def server() -> FakeZooKeeper:
    return new_server(2, "t", OTHER)


@pytest.mark.parametrize("directory", DIRECTORIES)
def test_a_refused_directory_costs_its_topic_alone(
    server: FakeZooKeeper, directory: Callable[[str, str], str], caplog: pytest.LogCaptureFixture
) -> None:
    """The directories of all topics are made in one go, and the refusal of one failed each round: nothing was ever
    claimed, also not what another member left.
    """
    closed = directory(GROUP, OTHER)
    server.refuse(closed, "create")
    member = SteppedMember(server, "a")
    member.subscribe({"t": 1, OTHER: 1})
    settle([member], 40)
    state = member.rebalancer.state
    assert set(member.owned) == {tp(0), tp(1)}
    assert (state.phase, state.owned, state.wanted) == (Phase.WAITING, 2, 4)
    assert set(state.blocked) == {tp(0, OTHER), tp(1, OTHER)}
    assert all(reason.startswith(f"{closed}: not permitted since") for reason in state.blocked.values())
    assert [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR] == [
        f"partitions are not claimed: {closed}: not permitted"
    ]
    server.refuse(closed)
    settle([member], 40)
    assert len(member.owned) == 4
    assert member.rebalancer.state.phase is Phase.OWNING


def test_where_every_topic_is_refused_whoever_joins_is_told(server: FakeZooKeeper) -> None:
    server.refuse(paths.owner_topic(GROUP, "t"), "create")
    member = settled(server, "a")
    with pytest.raises(NotPermittedError, match=paths.owner_topic(GROUP, "t")):
        member.rebalancer.first_round.result(0)
    server.refuse(paths.owner_topic(GROUP, "t"))
    settle([member])
    assert len(member.owned) == 2


def test_whose_share_is_refused_stands_by_for_the_rest(server: FakeZooKeeper) -> None:
    """By range the second member gets only a partition of ``OTHER``, whose directory is refused."""
    make_topic(server, 1, "single")
    server.refuse(paths.owner_topic(GROUP, OTHER), "create")
    members = [SteppedMember(server, name) for name in "ab"]
    for member in members:
        member.subscribe({"single": 1, OTHER: 1})
    settle(members, 40)
    first, second = members
    assert (set(first.owned), set(second.owned)) == ({tp(0, "single")}, set())
    assert second.rebalancer.first_round.result(0) is None
    assert (second.rebalancer.state.phase, second.rebalancer.state.wanted) == (Phase.WAITING, 1)
    first.stop()
    settle([second])
    assert set(second.owned) == {tp(0, "single")}


def test_a_refused_offsets_directory_costs_its_topic_alone() -> None:
    """Offsets were deleted with their directories, of which one may not be made: those of the other topic, which were
    asked for together with it, could not be committed for ever.
    """
    server = new_server(2, "t", OTHER, offset=10)
    member = SteppedMember(server, "a")
    member.subscribe({"t": 1, OTHER: 1})
    settle([member])
    for owned in member.owned:
        member.finish(owned, 5)
    for topic in ("t", OTHER):
        server.remove(paths.offset_topic(GROUP, topic))
    server.refuse(paths.offset_topic(GROUP, OTHER), "create")
    with pytest.raises(OffsetCommitError):
        member.commit()
    settle([member], 40)
    assert set(member.owned) == {tp(0), tp(1)}
    assert paths.offset_topic(GROUP, OTHER) in str(member.rebalancer.state)
    member.commit()
    assert offsets(server) == {0: 15, 1: 15}


def registered(server: FakeZooKeeper, name: str, pattern: str, *topics: str) -> ConsumerId:
    """A member of the original, which does nothing."""
    consumer = ConsumerId(f"{GROUP}_{name}")
    node = {"version": 1, "subscription": dict.fromkeys(topics, 1), "pattern": pattern, "timestamp": "1"}
    server.put(paths.member(GROUP, consumer), json.dumps(node).encode(), ephemeral_owner=SCALA_SESSION)
    return consumer


def test_unlistable_owners_hide_those_of_no_other_topic(
    server: FakeZooKeeper, caplog: pytest.LogCaptureFixture
) -> None:
    """The look at all owners stopped there, so whoever had given up a later topic's partitions was never woken."""
    make_topic(server, 2, "aaa")
    scala = registered(server, "z", "static", "aaa", "t")
    member = settled(server, "a", patience=0.0)
    closed = paths.owner_topic(GROUP, "aaa")
    server.put(closed)
    server.refuse(closed, "read")
    for _ in range(3):
        member.schedule.reconcile_at = 0.0
        settle([member], 3)
    assert f"nobody owned t-1 for 0 s, which {scala}-0 should" in member.rebalancer.state.detail
    assert [r.getMessage() for r in caplog.records if "not known" in r.getMessage() and r.levelno > 10] == [
        f"the owners of a topic are not known: {closed}: not permitted"
    ]


def test_filters_stop_nobody_if_topics_may_not_be_listed(server: FakeZooKeeper) -> None:
    """Bug: a filter of one member made each round of the other members fail, which need no list of topics."""
    member = settled(server, "a")
    server.refuse(paths.TOPICS, "read")
    scala = registered(server, "z", "white_list", "t.*")
    settle([member])
    assert member.rebalancer.state.phase is Phase.OWNING
    assert f"unreadable: {paths.member(GROUP, scala)}" in member.rebalancer.state.detail
    server.put(paths.owner(GROUP, tp(2)), f"{scala}-0".encode(), ephemeral_owner=SCALA_SESSION)
    make_topic(server, 4)
    settle([member])
    assert {owned.partition for owned in member.owned} == {0, 1, 3}
    assert "left to unreadable members: t-2" in member.rebalancer.state.detail
    server.refuse(paths.TOPICS)
    member.schedule.reconcile_at = 0.0
    settle([member])
    assert {owned.partition for owned in member.owned} == {0, 1}


def test_a_member_by_filter_that_may_not_list_topics_says_so(server: FakeZooKeeper) -> None:
    server.refuse(paths.TOPICS, "read")
    member = SteppedMember(server, "a")
    member.membership.own.subscribed = Registration(WHITE_LIST, {"t.*": 1})
    member.membership.advertise()
    settle([member])
    with pytest.raises(NotPermittedError, match=paths.TOPICS):
        member.rebalancer.first_round.result(0)
