"""A group that was left in a bad state by somebody else is brought back, or the trouble is told."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from tests.concurrency.group import (
    GROUP,
    SteppedMember,
    make_topic,
    new_server,
    node_at,
    offsets,
    owners,
    settle,
    settled,
    settled_group,
    tp,
)
from tests.concurrency.staging import after, fail, unavailable
from tests.simulated_clock import Simulation
from zkconsumer.core.partition_position import PartitionPosition
from zkconsumer.deadline import Deadline
from zkconsumer.errors import OffsetConflictError
from zkconsumer.member.connector_state import Phase
from zkconsumer.member.events import LookAgain
from zkconsumer.testing import FakeZooKeeper
from zkconsumer.zookeeper import paths

SCALA = f"{GROUP}_z"
SCALA_NODE = json.dumps({"version": 1, "subscription": {"t": 1}, "pattern": "static", "timestamp": "1"}).encode()
SCALA_SESSION = 999


@pytest.fixture
def server() -> FakeZooKeeper:
    return new_server(4, offset=10)


def czxid(server: FakeZooKeeper, member: SteppedMember) -> int:
    return node_at(server, paths.member(GROUP, member.consumer)).czxid


def join_as_scala(server: FakeZooKeeper, content: bytes = SCALA_NODE) -> None:
    server.put(paths.member(GROUP, SCALA), content, ephemeral_owner=SCALA_SESSION)


def own_as_scala(server: FakeZooKeeper, *partitions: int) -> None:
    for partition in partitions:
        server.put(paths.owner(GROUP, tp(partition)), f"{SCALA}-0".encode(), ephemeral_owner=SCALA_SESSION)


# ---- partitions that nobody owns ----


def test_our_id_node_made_anew_wakes_a_stuck_scala_member(server: FakeZooKeeper) -> None:
    """It claims only when it hears of a change under ``ids``; ours must never be absent from there meanwhile."""
    member = settled(server, "a", patience=0.0)
    before = czxid(server, member)
    join_as_scala(server)
    settle([member], rounds=2)
    assert set(owners(server)) == {0, 1}
    settle([member], rounds=3)
    assert czxid(server, member) > before
    assert "nobody owned t-2, t-3" in member.rebalancer.state.detail
    assert f"{SCALA}-0 should" in member.rebalancer.state.detail
    own_as_scala(server, 2, 3)
    member.schedule.reconcile_at = 0.0
    settle([member])
    assert "nobody" not in member.rebalancer.state.detail


def test_who_takes_what_we_gave_up_in_time_is_not_disturbed(server: FakeZooKeeper) -> None:
    member = settled(server, "a", patience=0.0)
    before = czxid(server, member)
    join_as_scala(server)
    member.step()
    own_as_scala(server, 2, 3)
    settle([member])
    assert (czxid(server, member), member.rebalancer.state.detail) == (before, "")


def test_the_reconciliation_finds_a_partition_without_owner(server: FakeZooKeeper) -> None:
    """The member that gave it up is gone, and no watch tells the others."""
    join_as_scala(server)
    member = SteppedMember(server, "a", patience=0.0)
    settle([member], rounds=2)
    before = czxid(server, member)
    assert set(owners(server)) == {0, 1}
    member.schedule.reconcile_at = 0.0
    settle([member], rounds=3)
    assert czxid(server, member) > before


def given_up(server: FakeZooKeeper) -> SteppedMember:
    """A member that gave two partitions to a Scala member, which does not take them; not looked at yet."""
    member = settled(server, "a", patience=0.0)
    join_as_scala(server)
    member.step()
    assert set(owners(server)) == {0, 1}
    return member


@pytest.mark.parametrize("what", ["look", "waking"])
def test_whoever_gave_up_is_woken_also_after_tries_that_failed(server: FakeZooKeeper, what: str) -> None:
    """Three looks without an answer were counted as three times that it was woken, which is the most there may be."""
    member = given_up(server)
    before = czxid(server, member)
    target, method = (member.coordinator.orphaned, "look_up_owners") if what == "look" else (member.membership, "renew")
    failed = fail(target, method, 5)
    settle([member], rounds=5)
    assert (len(failed), czxid(server, member)) == (5, before)
    settle([member], rounds=5)
    assert czxid(server, member) > before


def test_the_state_names_no_owner_only_after_a_look(server: FakeZooKeeper) -> None:
    """They had been taken in time, and nobody could be asked."""
    member = given_up(server)
    own_as_scala(server, 2, 3)
    fail(member.coordinator.orphaned, "look_up_owners", 1000)
    settle([member], rounds=5)
    member.events.put(LookAgain("a test"))
    settle([member], rounds=2)
    assert "nobody" not in member.rebalancer.state.detail


# ---- members that cannot be read ----


def test_threads_of_an_unreadable_member_keep_their_partitions(server: FakeZooKeeper) -> None:
    member = settled(server, "a")
    join_as_scala(server)
    member.step()
    own_as_scala(server, 2, 3)
    settle([member])
    server.put(paths.member(GROUP, SCALA), b'{"version":')
    server.remove(paths.owner(GROUP, tp(3)))
    settle([member])
    # t-3 it does not own any more; t-2 it does, and nobody waits for it
    assert set(member.owned) == {tp(0), tp(1), tp(3)}
    state = member.rebalancer.state
    assert (state.phase, state.wanted, state.blocked) == (Phase.OWNING, 3, {})
    assert "left to unreadable members: t-2" in state.detail
    server.remove(paths.owner(GROUP, tp(2)))
    settle([member])
    assert len(member.owned) == 4


# ---- offsets that somebody else wrote ----


@pytest.fixture
def conflicted(server: FakeZooKeeper, request: pytest.FixtureRequest) -> SteppedMember:
    member = settled(server, "a", conflict=request.param)
    member.finish(tp(0), 5)
    member.finish(tp(1), 5)
    server.put(paths.offset(GROUP, tp(0)), b"3")
    with pytest.raises(Exception, match="t-0"):
        member.commit()
    settle([member])
    return member


@pytest.mark.parametrize("conflicted", ["raise"], indirect=True)
def test_raising_stops_the_partition_until_somebody_seeks(server: FakeZooKeeper, conflicted: SteppedMember) -> None:
    error = conflicted.delivery.failed[tp(0)]
    assert isinstance(error, OffsetConflictError)
    assert (error.partition, error.ours, error.theirs) == (tp(0), 15, 3)
    assert "connector.seek(" in str(error)
    assert str(conflicted.rebalancer.state).endswith(str(error)), "an operator sees it although nobody asks the stream"
    assert set(conflicted.delivery.flowing) == {tp(1), tp(2), tp(3)}
    assert tp(0) in conflicted.owned
    conflicted.commit()
    assert offsets(server)[0] == 3
    assert conflicted.seek({tp(0): 7}) is not None
    settle([conflicted])
    conflicted.commit()
    assert (offsets(server)[0], conflicted.delivery.flowing[tp(0)].fetched) == (7, 7)
    assert "somebody else" not in str(conflicted.rebalancer.state)


@pytest.mark.parametrize("conflicted", ["raise"], indirect=True)
def test_a_stopped_partition_is_released_at_the_foreign_offset(
    server: FakeZooKeeper, conflicted: SteppedMember
) -> None:
    """It is released with the offset that somebody else wrote."""
    conflicted.stop()
    assert (offsets(server)[0], owners(server), str(conflicted.rebalancer.state)) == (3, {}, "closed")


# ---- newer events ----


# ---- what was done to our nodes, and what faults left behind ----


def test_a_foreign_owner_node_is_never_deleted(server: FakeZooKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if the node was ours a moment ago."""
    member = settled(server, "a")
    member.session.suspend()
    member.step()
    member.session.lease.lapse()
    member.step()
    member.session.resume()
    own, delete = paths.owner(GROUP, tp(0)), member.session.delete

    def raced(path: str, deadline: Deadline, version: int = -1) -> bool:
        node = server.node(own)
        if path == own and node is not None and node.ephemeral_owner == member.session.session_id:
            server.remove(own)
            own_as_scala(server, 0)
        return delete(path, deadline, version)

    monkeypatch.setattr(member.session, "delete", raced)
    settle([member])
    assert owners(server)[0] == f"{SCALA}-0"


def test_a_lost_connection_event_is_found_by_the_reconciliation(server: FakeZooKeeper) -> None:
    member = settled(server, "a")
    member.session.suspend()
    member.step()
    member.session.resume()
    member.events.get_nowait()
    member.schedule.reconcile_at = 0.0
    settle([member])
    assert member.session.lease.valid


@pytest.mark.parametrize("fault", ["the answer is lost", "newer events"])
def test_what_an_unfinished_round_gave_up_is_looked_after(server: FakeZooKeeper, fault: str) -> None:
    member = SteppedMember(server, "a")
    make_topic(server, 2, "other")
    settle([member])
    member.subscribe({"t": 1, "other": 1})
    join_as_scala(server)
    if fault == "newer events":
        after(member.delivery, "revoke", lambda: member.events.put(LookAgain("newer")))
    else:
        after(member.coordinator.rounds.owner_nodes, "release", unavailable)
    settle([member])
    assert {tp(2), tp(3)} == set(member.coordinator.orphaned.handovers.due(1e12))


def look_now(member: SteppedMember) -> None:
    for known in member.coordinator.orphaned.handovers._open.values():
        known.look_at = 0.0
    settle([member], 3)


def test_nobody_is_woken_for_ever_where_that_does_not_help(server: FakeZooKeeper) -> None:
    """A persistent node under ``ids``, left by some tool: nobody stands behind it, and each waking makes every Scala
    member of the group stop and start over.
    """
    member = settled(server, "a")
    server.put(paths.member(GROUP, SCALA), SCALA_NODE)
    settle([member])
    made = [czxid(server, member)]
    for _ in range(10):
        look_now(member)
        made.append(czxid(server, member))
    assert len(set(made)) == 1 + 3


def test_a_waking_counts_even_if_the_next_look_fails(server: FakeZooKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    member = settled(server, "a")
    server.put(paths.member(GROUP, SCALA), SCALA_NODE)
    settle([member])

    made = [czxid(server, member)]
    for _ in range(10):
        with monkeypatch.context() as patch:
            patch.setattr(member.membership, "_after_registering", unavailable)
            look_now(member)
        made.append(czxid(server, member))
    assert len(set(made)) == 1 + 3


def test_members_of_ours_are_not_woken(server: FakeZooKeeper) -> None:
    """They watch owner nodes and never stop trying; here one waits for an offset that cannot be read."""
    member = settled(server, "a")
    server.put(paths.offset(GROUP, tp(3)), b"rubbish")
    settle([member, SteppedMember(server, "b", extra={"zkconsumer": "1"})])
    before = czxid(server, member)
    look_now(member)
    assert set(owners(server)) == {0, 1, 2}
    assert czxid(server, member) == before


@pytest.mark.parametrize("dual", [False, True])
def test_a_rewritten_registration_makes_a_member_follow(server: FakeZooKeeper, *, dual: bool) -> None:
    """A command that resets offsets tells the owner so. It sees by the offset node's version that the owner follows."""
    member = settled(server, "a", dual=dual)
    offset, registration = paths.offset(GROUP, tp(0)), paths.member(GROUP, member.consumer)
    server.put(offset, b"3")
    reset, before = node_at(server, offset), node_at(server, registration)
    server.put(registration, before.data, ephemeral_owner=before.ephemeral_owner)
    settle([member])
    assert member.owned[tp(0)].consumed == 3
    confirmed, after = server.node(offset), server.node(registration)
    assert confirmed is not None
    assert (confirmed.data, confirmed.version) == (b"3", reset.version + 1)
    assert after is not None
    assert after.czxid == before.czxid, "it is not registered anew, which would be a rebalance"


def test_a_drain_renews_the_lease_of_what_stays(server: FakeZooKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lease of all lapsed in a drain, or a last commit, that took longer than the session's timeout."""
    member = settled(server, "a", drain=60.0)
    position, slices, touches = member.owned[tp(3)], [], []
    position.held_until = 11  # one message of it is in the user's hands
    touch = member.session.touch

    def waited(_: Sequence[PartitionPosition], limit: Deadline) -> None:
        slices.append(limit.remaining() or 0.0)
        if len(slices) == 5:
            position.held_until = -1

    def touched() -> None:
        touches.append(len(slices))
        touch()

    monkeypatch.setattr(member.delivery, "wait", waited)
    monkeypatch.setattr(member.session, "touch", touched)
    join_as_scala(server)
    settle([member])
    assert len(slices) == 5
    assert max(slices) <= server.session_timeout / 6
    assert set(range(1, 5)) <= set(touches)


# ---- connections on which nothing is answered ----


def reconnect(member: SteppedMember, *, answers: bool) -> None:
    if member.session.connected:
        member.session.suspend()
        member.step()
    if not answers:
        member.session.lease.lapse(member.session.timeout + 1.0)
    member.session.resume()
    member.step()


def test_a_session_that_outlives_an_outage_is_kept(server: FakeZooKeeper) -> None:
    member = settled(server, "a")
    before = member.session.session_id
    for _ in range(6):
        reconnect(member, answers=False)
        settle([member])
    assert member.session.session_id == before
    assert len(member.owned) == 4


def test_a_session_is_given_up_if_its_connection_stays_silent(
    clock: Simulation, server: FakeZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looked like owning, handed out nothing, and its requests kept the session alive until somebody reconnected."""
    member, other = settled_group(server, "ab")
    before = member.session.session_id
    monkeypatch.setattr(member.session, "touch", lambda: None)
    member.session.lease.lapse()
    for _ in range(10):
        clock.now += server.session_timeout / 5
        member.step()
    assert member.session.session_id != before
    monkeypatch.undo()
    settle([member, other])
    assert set(member.owned) == {tp(0), tp(1)}
    assert set(other.owned) == {tp(2), tp(3)}
