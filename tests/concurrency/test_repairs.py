"""Foreign changes of a group's nodes at the worst moment, and the member's repairs."""

from __future__ import annotations

import logging
import re

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
    tp,
)
from tests.concurrency.staging import after, before, unavailable
from tests.simulated_clock import Simulation
from tests.timing import eventually, scaled
from zkconsumer.errors import OffsetCommitError
from zkconsumer.member.connector_state import Phase
from zkconsumer.member.events import StopRequested
from zkconsumer.member.zookeeper import group_registration as registration
from zkconsumer.member.zookeeper.state_machine import State
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.testing import FakeZooKeeper
from zkconsumer.zookeeper import paths
from zkconsumer.zookeeper.node_values import NodeEvent, NodeEventKind

FOREIGN = b'{"version":1,"subscription":{"t":1},"pattern":"static","timestamp":"1"}'


def own(partition: int) -> str:
    return paths.owner(GROUP, tp(partition))


@pytest.fixture
def server() -> FakeZooKeeper:
    return new_server(4, offset=10)


def reconciled(member: SteppedMember) -> None:
    member.schedule.reconcile_at = 0.0
    settle([member])


# ---- the look at everything, every rebalance.interval.ms ----


def test_a_waiting_member_reconciles_all_the_same(clock: Simulation, server: FakeZooKeeper) -> None:
    """Every round put the reconciliation off, and a member that waits for a partition has a round every other second.
    While a foreign process held one partition, the member found no lost watch and no operator's rewind.
    """
    server.put(own(3), b"stranger")
    member = settled(server, "a", interval=20.0)
    assert member.coordinator.phase is State.WAITING
    server.put(paths.offset(GROUP, tp(0)), b"3")
    for _ in range(15):
        clock.now += 2.0
        member.step()
    assert member.owned[tp(0)].consumed == 3


def foreign(number: int) -> str:
    return paths.member(GROUP, f"{GROUP}_z{number:02}")


def test_a_reconciliation_reads_few_registrations_in_turn(server: FakeZooKeeper) -> None:
    """Every member read those of all others, every time: members times members requests."""
    most = 3 * registration.DOUBTED - 1
    nothing = FOREIGN.replace(b'"t":1', b"")
    for number in range(most):
        server.put(foreign(number), nothing, ephemeral_owner=5)
    member = settled(server, "a")
    server.operations.clear()
    reconciled(member)
    # beside them: our own, the topic, our owner nodes, and the versions of our offset nodes
    assert server.operations["read"] <= registration.DOUBTED + 1 + 1 + 4 + 4
    member.session.lose_watches(foreign(most - 1))
    server.put(foreign(most - 1), FOREIGN)
    for _ in range(3):
        reconciled(member)
    assert set(member.owned) == {tp(0), tp(1)}


@pytest.mark.parametrize("lost", ["the members", "our registration", "an owner node of ours", "the topic"])
def test_a_lost_watch_is_made_up_for_by_the_next_reconciliation(server: FakeZooKeeper, lost: str) -> None:
    member = settled(server, "a")
    mine = paths.member(GROUP, member.consumer)
    member.session.lose_watches(paths.ids(GROUP), mine, own(3), paths.topic("t"))
    if lost == "the members":
        server.put(foreign(0), FOREIGN, ephemeral_owner=5)
    elif lost == "our registration":
        server.put(mine, b"garbage")
    elif lost == "an owner node of ours":
        server.remove(own(3))
    else:
        make_topic(server, 5)
    settle([member])
    assert len(member.owned) == 4
    reconciled(member)
    assert len(member.owned) == {"the members": 2, "the topic": 5}.get(lost, 4)
    assert len(owners(server)) == len(member.owned)
    assert server.tree(paths.ids(GROUP))[mine] != b"garbage"


# ---- owner nodes ----


@pytest.mark.parametrize("whose", ["our registration", "an owner node"])
def test_a_deletion_that_is_told_late_is_not_believed(
    server: FakeZooKeeper, caplog: pytest.LogCaptureFixture, whose: str
) -> None:
    """Watches report on another thread than responses. The member deleted and created its registration in one
    transaction, and heard of the deletion when the node existed again. The member took the node for gone, failed to
    create the node, took the existing node for a foreign one, and began again.
    """
    member = settled(server, "a")
    path = paths.member(GROUP, member.consumer) if whose == "our registration" else own(3)
    before = node_at(server, path)
    member.cache._fired(NodeEvent(NodeEventKind.DELETED, path))
    rebalances = member.rebalancer.state.rebalances
    settle([member])
    assert server.node(path) == before
    assert member.rebalancer.state.rebalances <= rebalances + 1
    assert len(member.owned) == 4
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


def test_a_release_between_claim_and_watch_is_seen_at_once(server: FakeZooKeeper) -> None:
    """No watch tells of it: it was made after the first look, and gone before the second."""
    member = SteppedMember(server, "a", backoff_max=1000.0)
    before(member.session, "transact", lambda: server.put(own(3), b"x", ephemeral_owner=99))
    after(member.coordinator.rounds.owner_nodes, "claim", lambda: server.remove(own(3)))
    settle([member])
    assert set(owners(server)) == {0, 1, 2, 3}


def test_a_refused_release_keeps_nothing_else_from_moving(
    server: FakeZooKeeper, caplog: pytest.LogCaptureFixture
) -> None:
    """Every round failed at it, for ever: no other partition was claimed or released any more."""
    make_topic(server, 2, "other")
    first = settled(server, "a")
    server.refuse(own(3), "delete")
    second = settled(server, "b", beside=[first])
    first.subscribe({"t": 1, "other": 1})
    settle([first, second])
    assert set(second.owned) == {tp(2)}
    assert {tp(0, "other"), tp(1, "other")} <= set(first.owned)
    assert f"t-3, held by {first.consumer}-0 (session 0x1)" in str(second.rebalancer.state)
    assert caplog.text.count("t-3 cannot be released") == 1


def test_a_hostile_owner_node_fills_neither_state_nor_log(server: FakeZooKeeper) -> None:
    server.put(own(2), b"x" * 1_000_000)
    server.put(own(3), b"two\nlines\x00")
    member = settled(server, "a")
    text = str(member.rebalancer.state)
    assert len(text) < 1000
    assert "\n" not in text
    assert r"two\nlines\x00" in text


# ---- registrations ----


def test_of_two_with_one_id_at_the_same_moment_one_waits(server: FakeZooKeeper) -> None:
    """Bug: the second member took the first member's registration for its own, and took the partitions."""
    member = SteppedMember(server, "a")
    mine = paths.member(GROUP, member.consumer)
    before(member.session, "create", lambda: server.put(mine, FOREIGN, ephemeral_owner=777))
    settle([member])
    assert (dict(member.owned), owners(server)) == ({}, {})
    assert re.search(f"{mine} is held by session 0x309: .* \\(since [0-9:]{{8}}\\)", str(member.rebalancer.state))
    server.remove(mine)
    settle([member])
    assert len(member.owned) == 4


def test_who_cannot_register_gives_up_what_it_owns(server: FakeZooKeeper) -> None:
    """An operator deletes our node, and another process with our consumer.id creates its own before us. The group then
    assigns our partitions to others. We released nothing, because no round of ours got that far.
    """
    member = settled(server, "a")
    member.finish(tp(3), 2)
    mine = paths.member(GROUP, member.consumer)
    server.remove(mine)
    server.put(mine, FOREIGN, ephemeral_owner=777)
    settle([member])
    assert (dict(member.owned), owners(server), offsets(server)[3]) == ({}, {}, 12)
    other = settled(server, "b", beside=[member])
    assert set(other.owned) == {tp(2), tp(3)}
    server.remove(mine)
    settle([member, other])
    assert set(member.owned) == {tp(0), tp(1)}


@pytest.mark.parametrize("way", ["create", "transact"])
def test_an_overwritten_registration_without_answer_is_made_anew(server: FakeZooKeeper, way: str) -> None:
    """The member did not know its own text, and took the foreign number of streams for its own."""
    member = SteppedMember(server, "a")
    if way == "transact":
        settle([member])
        member.subscribe({"t": 1})

    def lost() -> None:
        server.put(paths.member(GROUP, member.consumer), FOREIGN.replace(b'"t":1', b'"t":5'))
        unavailable()

    after(member.session, way, lost)
    settle([member])
    assert set(owners(server).values()) == {f"{member.consumer}-0"}


def test_unreadable_members_fill_neither_state_nor_log(server: FakeZooKeeper, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(1000):
        server.put(paths.member(GROUP, f"{GROUP}_bad{number:04}"), b"")
    member = SteppedMember(server, "a")
    with caplog.at_level(logging.INFO):
        settle([member])
    assert len(member.owned) == 4
    text = str(member.rebalancer.state)
    assert f"{GROUP}_bad0000" in text
    assert "and 992 more" in text
    assert len(text) < 1000
    assert len(caplog.records) < 30


# ---- what a member says of itself ----


def test_the_state_says_what_a_member_waits_for_and_since_when(
    server: FakeZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    def says() -> str:
        return str(member.rebalancer.state)

    server.put(own(3), b"g_z-0", ephemeral_owner=0x1F)
    member = SteppedMember(server, "a")
    assert says() == "starting"
    settle([member])
    waiting = r"owning 3 of 4 partitions; waiting for t-3, held by g_z-0 \(session 0x1f\) since [0-9:]{8}"
    assert re.fullmatch(waiting, says())
    before = says()
    monkeypatch.setattr("time.strftime", lambda _: "later")
    settle([member])
    assert says() == before, "since it was first seen"
    server.remove(own(3))
    settle([member])
    assert says() == "owning 4 of 4 partitions"
    member.session.suspend()
    member.step()
    assert says() == "suspended"
    member.session.lease.lapse()
    member.step()
    assert says().startswith("suspended")
    member.session.expire_unnoticed()
    member.session.resume()
    with monkeypatch.context() as patch:
        patch.setattr(member.session, "children", unavailable)
        member.step(3)
    assert re.match(r"failed because staged \(since later\); tried again, owning 0 of 4 partitions", says())
    settle([member])
    assert says() == "owning 4 of 4 partitions"
    server.put("/consumers/g/ids/g_bad", b"{", ephemeral_owner=0x1F)
    settle([member])
    assert says() == "owning 4 of 4 partitions; unreadable: /consumers/g/ids/g_bad"
    member.stop()
    assert says() == "closed"


# ---- what may not be read ----


def test_a_member_whose_node_we_may_not_read_harms_nobody(server: FakeZooKeeper) -> None:
    """Every round failed at it: ZooKeeper's refusal of one node was taken for one of all."""
    foreign = paths.member(GROUP, f"{GROUP}_z")
    server.put(foreign, FOREIGN, ephemeral_owner=5)
    server.put(own(1), f"{GROUP}_z-0".encode(), ephemeral_owner=5)
    server.refuse(foreign, "read")
    member = settled(server, "a")
    assert set(member.owned) == {tp(0), tp(2), tp(3)}
    assert foreign in str(member.rebalancer.state)
    assert "left to unreadable members: t-1" in str(member.rebalancer.state)


def test_lost_rights_to_an_offset_stop_its_partition_only(server: FakeZooKeeper) -> None:
    """The rights are taken away while the partition is consumed."""
    member = settled(server, "a")
    before = {n: member.owned[tp(n)] for n in (0, 1, 3)}
    server.refuse(paths.offset(GROUP, tp(2)), "read", "write")
    member.finish(tp(2), 1)
    member.finish(tp(3), 1)
    with pytest.raises(OffsetCommitError, match="t-2 at 11"):
        member.commit()
    reconciled(member)
    assert {tp.partition: position for tp, position in member.owned.items()} == before
    assert offsets(server)[3] == 11
    server.refuse(paths.offset(GROUP, tp(2)))
    settle([member])
    assert member.owned[tp(2)].consumed == 10


def test_a_topic_or_owner_that_we_may_not_read_harms_only_itself(server: FakeZooKeeper) -> None:
    make_topic(server, 2, "other")
    server.put(own(3), b"x", ephemeral_owner=5)
    server.refuse(paths.topic("other"), "read")
    server.refuse(own(3), "read")
    member = settled(server, "a")
    member.subscribe({"t": 1, "other": 1})
    settle([member])
    assert set(member.owned) == {tp(0), tp(1), tp(2)}
    assert paths.topic("other") in str(member.rebalancer.state)
    assert "t-3, held by a node that ZooKeeper does not let us read since" in str(member.rebalancer.state)


# ---- offsets ----


@pytest.mark.parametrize("conflict", ["adopt", "overwrite", "raise"])
def test_offsets_whose_directory_was_deleted_are_made_again(server: FakeZooKeeper, conflict: str) -> None:
    """``ConsumerGroupCommand --delete --topic`` does that. A transaction makes no parents, so no commit of an owner
    succeeded any more.
    """
    member = settled(server, "a", conflict=conflict)
    member.finish(tp(0), 5)
    server.remove(paths.offset_topic(GROUP, "t"))
    reconciled(member)
    if conflict == "raise":
        assert tp(0) in member.delivery.failed
        member.seek({tp(n): 15 for n in range(4)})
        settle([member])
    for _ in range(3):
        try:
            member.commit()
        except OffsetCommitError:
            settle([member])
    assert offsets(server)[0] == 15
    member.stop()
    assert offsets(server)[0] == 15


# ---- the end ----


def test_a_failing_step_of_leaving_still_ends_the_thread(server: FakeZooKeeper) -> None:
    """It was tried again for ever, by a thread that nobody could end."""
    member = settled(server, "a")

    def broken() -> None:
        raise KeyError("a mistake of ours")

    member.delivery.end = broken  # type: ignore[method-assign]
    member.rebalancer.thread.start()
    member.events.put(StopRequested())
    assert member.rebalancer.join(Deadline(scaled(20)))
    assert owners(server) == {}


def test_a_round_that_fails_unexpectedly_shows_in_the_state(
    server: FakeZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It went on saying "owning 4 of 4 partitions", however often its rounds failed."""
    member = settled(server, "a", backoff=0.01, backoff_max=0.05)

    def broken(*_: object) -> None:
        raise ValueError("a mistake of ours")

    monkeypatch.setattr(member.strategy, "plan", broken)
    member.rebalancer.thread.start()
    make_topic(server, 6)
    try:
        eventually(lambda: member.rebalancer.state.phase is Phase.FAILED, 20, "the failure to show")
        assert "failed because ValueError: a mistake of ours (since" in str(member.rebalancer.state)
        assert "tried again, owning 4 of 4 partitions" in str(member.rebalancer.state)
        monkeypatch.undo()
        eventually(lambda: len(member.owned) == 6, 20, "a round that goes well")
        eventually(lambda: str(member.rebalancer.state) == "owning 6 of 6 partitions", 20, "the trouble to be over")
    finally:
        member.events.put(StopRequested())
        assert member.rebalancer.join(Deadline(scaled(20)))
