"""A group that was left in a bad state by somebody else is brought back, or the trouble is told."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from tests.concurrency.group import (
    GROUP,
    SteppedMember,
    new_server,
    node_at,
    offsets,
    owners,
    settle,
    settled,
    settled_group,
    tp,
)
from zkconsumer.errors import OffsetConflictError
from zkconsumer.ownership.partition_position import PartitionPosition
from zkconsumer.runtime.deadline import Deadline
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


# ---- offsets that somebody else wrote ----


def test_raising_stops_the_partition_until_somebody_seeks(server: FakeZooKeeper) -> None:
    member = settled(server, "a", conflict="raise")
    member.finish(tp(0), 5)
    member.finish(tp(1), 5)
    server.put(paths.offset(GROUP, tp(0)), b"3")
    with pytest.raises(Exception, match="t-0"):
        member.commit()
    settle([member])
    error = member.delivery.failed[tp(0)]
    assert isinstance(error, OffsetConflictError)
    assert (error.partition, error.ours, error.theirs) == (tp(0), 15, 3)
    assert "connector.seek(" in str(error)
    assert str(member.rebalancer.state).endswith(str(error)), "an operator sees it although nobody asks the stream"
    assert set(member.delivery.flowing) == {tp(1), tp(2), tp(3)}
    assert tp(0) in member.owned
    member.commit()
    assert offsets(server)[0] == 3
    assert member.seek({tp(0): 7}) is not None
    settle([member])
    member.commit()
    assert (offsets(server)[0], member.delivery.flowing[tp(0)].cursor.fetched) == (7, 7)
    assert "somebody else" not in str(member.rebalancer.state)


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


@pytest.mark.parametrize("ends", ["expires", "stands still", "is taken over by another client"])
def test_a_member_whose_session_ends_has_its_share_again(server: FakeZooKeeper, ends: str) -> None:
    """At rest the group is assigned as before, and each member fetches what it owns."""
    members = settled_group(server, "ab")
    session = members[1].session
    if ends == "expires":
        session.expire()
    elif ends == "stands still":
        session.freeze()
        settle(members)
        assert owners(server) == dict.fromkeys(range(4), "g_a-0")
        session.suspend()
        session.resume()
    else:
        session.contest()
        settle(members)
        session.expire_former()
    settle(members, 20)
    assert owners(server) == {0: "g_a-0", 1: "g_a-0", 2: "g_b-0", 3: "g_b-0"}
    assert all(node_at(server, paths.owner(GROUP, at)).ephemeral_owner == session.session_id for at in (tp(2), tp(3)))
    for member in members:
        assert member.delivery.flowing == dict(member.owned)


def test_a_lost_connection_event_is_found_by_the_reconciliation(server: FakeZooKeeper) -> None:
    member = settled(server, "a")
    member.session.suspend()
    member.step()
    member.session.resume()
    member.events.get_nowait()
    member.schedule.reconcile_at = 0.0
    settle([member])
    assert member.session.lease.valid


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
