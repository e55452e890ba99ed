"""One member's part in its group, step by step on a ZooKeeper in memory."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest

from tests.concurrency.group import (
    GROUP,
    TOPIC,
    make_topic,
    node_at,
    offsets,
    owners,
    settle,
    settled,
    settled_group,
    tp,
)
from tests.concurrency.staging import unavailable
from tests.timing import scaled
from zkconsumer.errors import OffsetCommitError
from zkconsumer.member.connector_state import Phase
from zkconsumer.member.events import StartsResolved
from zkconsumer.offsets.commit_schedule import GivenOffset
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.testing import FakeZooKeeper
from zkconsumer.zookeeper import paths


def test_the_first_member_registers_and_owns_everything(server: FakeZooKeeper) -> None:
    member = settled(server, "a", streams=2)
    assert owners(server) == {0: "g_a-0", 1: "g_a-0", 2: "g_a-1", 3: "g_a-1"}
    assert server.tree(paths.ids(GROUP)) == {
        paths.member(GROUP, "g_a"): b'{"version":1,"subscription":{"t":2},"pattern":"static","timestamp":"1"}'
    }
    assert member.rebalancer.state.phase is Phase.OWNING
    assert member.rebalancer.first_round.done()


def test_a_second_member_takes_its_half(server: FakeZooKeeper) -> None:
    """The other half is not touched."""
    first = settled(server, "a")
    before = {n: server.node(paths.owner(GROUP, tp(n))) for n in range(2)}
    kept = {n: first.owned[tp(n)] for n in range(2)}
    settled(server, "b", beside=[first])
    assert owners(server) == {0: "g_a-0", 1: "g_a-0", 2: "g_b-0", 3: "g_b-0"}
    assert {n: server.node(paths.owner(GROUP, tp(n))) for n in range(2)} == before, "the same nodes, not new ones"
    assert {n: first.owned[tp(n)] for n in range(2)} == kept, "and the same positions"


def test_without_auto_commit_a_rebalance_commits_nothing(server: FakeZooKeeper) -> None:
    """KAFKA-919: the rebalance committed although auto commit was off."""
    server.put(paths.offset(GROUP, tp(3)), b"10")
    first = settled(server, "a", auto_commit=False)
    first.finish(tp(3), 5)
    second = settled(server, "b", auto_commit=False, beside=[first])
    assert second.owned[tp(3)].cursor.fetched == 10


@pytest.mark.parametrize("failing", [1, 2, 3])
def test_starts_committed_elsewhere_meanwhile_are_read_again(
    server: FakeZooKeeper, failing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The partitions never started: no second event came for them. After the first repair a failed read gave the
    partitions back and claimed them anew, which forgot a pause.
    """
    member = settled(server, "a")
    positions = list(member.owned.values())
    member.owned[tp(1)].paused = True
    member.committer.commit({}, Deadline(scaled(1.0)), {one.tp: GivenOffset.as_of_call(one, 17) for one in positions})
    really, reads = member.session.read, list[int]()

    def read(wanted: Sequence[str], *how: Any, **options: Any) -> Any:
        reads.append(len(wanted))
        if len(reads) == failing:
            unavailable()
        return really(wanted, *how, **options)

    monkeypatch.setattr(member.session, "read", read)
    member.events.put(StartsResolved(dict.fromkeys(positions, 42)))
    settle([member], 30)
    assert {tp: position.consumed for tp, position in member.owned.items()} == {tp(n): 17 for n in range(4)}
    assert reads[0] == 4, "all in one request"
    assert [n for n in range(4) if member.owned[tp(n)].paused] == [1]
    assert not any("release" in event for event, _ in member.delivery.log)


def test_a_blip_of_the_connection_changes_nothing(server: FakeZooKeeper) -> None:
    member = settled(server, "a")
    before, tree = dict(member.owned), server.tree("/consumers")
    phases = []
    for change in (member.session.suspend, member.session.resume):
        change()
        settle([member])
        phases.append(member.rebalancer.state.phase)
    assert phases == [Phase.SUSPENDED, Phase.OWNING]
    assert dict(member.owned) == before
    assert server.tree("/consumers") == tree


def test_a_member_never_adopts_nodes_of_its_former_session(server: FakeZooKeeper) -> None:
    """The original takes an owner node with its own thread id for its own, and loses it when the old session ends."""
    make = server.session()
    make.open(Deadline(5))
    make.ensure([paths.owner_topic(GROUP, TOPIC), paths.ids(GROUP)], Deadline(5))
    make.create(paths.owner(GROUP, tp(0)), b"g_a-0", Deadline(5), ephemeral=True)
    member = settled(server, "a")
    assert tp(0) not in member.owned
    assert member.rebalancer.state.phase is Phase.WAITING
    assert "t-0" in str(member.rebalancer.state)
    make.close(Deadline(5))
    settle([member])
    assert tp(0) in member.owned


@pytest.mark.parametrize("node", [paths.member(GROUP, "g_a"), paths.owner(GROUP, tp(1)), f"/consumers/{GROUP}"])
@pytest.mark.parametrize("content", [None, b"rubbish"])
def test_a_node_of_ours_is_made_again(server: FakeZooKeeper, node: str, content: bytes | None) -> None:
    """The original never registers again once its node is deleted, and keeps its owner nodes without fetching."""
    member = settled(server, "a")
    before = dict(member.owned)
    if content is None:
        server.remove(node)
    else:
        server.put(node, content)
    settle([member])
    registered = node_at(server, paths.member(GROUP, "g_a"))
    assert registered.data != b"rubbish"
    assert owners(server) == dict.fromkeys(range(4), "g_a-0")
    assert all(old.revoked == (member.owned[place] is not old) for place, old in before.items())
    assert member.delivery.flowing == dict(member.owned)


def test_a_foreign_offset_is_adopted_and_reported(server: FakeZooKeeper, caplog: pytest.LogCaptureFixture) -> None:
    server.put(paths.offset(GROUP, tp(0)), b"10")
    member = settled(server, "a")
    old = member.owned[tp(0)]
    server.put(paths.offset(GROUP, tp(0)), b"3")
    member.finish(tp(0), 5)
    with pytest.raises(OffsetCommitError, match="t-0 at 15"):
        member.commit()
    settle([member])
    assert old.revoked
    assert "somebody else set t-0 to 3 (we were at 15); going on there" in caplog.messages
    assert member.owned[tp(0)].cursor.fetched == 3
    assert offsets(server)[0] == 3
    member.finish(tp(0), 1)
    member.commit()
    assert offsets(server)[0] == 4


@pytest.mark.parametrize("content", [b"", b"abc", b" 5", b"99999999999999999999"])
def test_an_unreadable_offset_harms_only_its_partition(server: FakeZooKeeper, content: bytes) -> None:
    """It is not guessed."""
    server.put(paths.offset(GROUP, tp(2)), content)
    member = settled(server, "a")
    assert set(member.owned) == {tp(0), tp(1), tp(3)}
    assert paths.offset(GROUP, tp(2)) in str(member.rebalancer.state)
    server.put(paths.offset(GROUP, tp(2)), b"7")
    settle([member])
    assert member.owned[tp(2)].cursor.fetched == 7


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"{", b"\xff\xfe", b"x" * 1_000_000),
        *(b'{"pattern":"static","subscription":{"t":%d}}' % streams for streams in (0, 10**9)),
    ],
    ids=lambda content: repr(content[:50]),
)
def test_an_unreadable_member_harms_nobody_else(server: FakeZooKeeper, content: bytes) -> None:
    server.put(paths.member(GROUP, "g_bad"), content)
    member = settled(server, "a")
    before = dict(member.owned)
    assert len(before) == 4
    assert paths.member(GROUP, "g_bad") in str(member.rebalancer.state)
    server.put(paths.member(GROUP, "g_late"), content)
    settle([member])
    assert dict(member.owned) == before
    assert paths.member(GROUP, "g_late") in str(member.rebalancer.state)


@pytest.mark.parametrize("name", ["per%25cent", "..dots..", "sp ace", "uml\u00e4ut"])
def test_a_member_with_an_odd_name_is_one_of_the_group(server: FakeZooKeeper, name: str) -> None:
    node = b'{"version":1,"subscription":{"t":1},"pattern":"static","timestamp":"1"}'
    server.put(paths.member(GROUP, f"h_{name}"), node, ephemeral_owner=99)
    member = settled(server, "a")
    assert set(member.owned) == {tp(0), tp(1)}
    assert "unreadable" not in str(member.rebalancer.state)


def test_a_strangers_owner_node_keeps_only_its_partition(server: FakeZooKeeper) -> None:
    server.put(paths.owner(GROUP, tp(3)), b"tool")
    member = settled(server, "a")
    assert set(member.owned) == {tp(0), tp(1), tp(2)}
    assert "persistent" in str(member.rebalancer.state)
    server.remove(paths.owner(GROUP, tp(3)))
    settle([member])
    assert len(member.owned) == 4


@pytest.mark.parametrize("content", [b"\xff\xfe", b"[1]", b'{"version":"x"}', b"[" * 900_000])
def test_an_unreadable_topic_is_waited_for(server: FakeZooKeeper, content: bytes) -> None:
    """At the start, and while its partitions are consumed."""
    server.put(paths.topic(TOPIC), content)
    member = settled(server, "a")
    assert not member.owned
    assert re.search(r"waiting for topic t to|unreadable: /brokers/topics/t", str(member.rebalancer.state))
    make_topic(server, 4)
    settle([member])
    assert len(member.owned) == 4
    member.finish(tp(0), 5)
    server.put(paths.topic(TOPIC), content)
    settle([member])
    make_topic(server, 5)
    settle([member])
    assert len(member.owned) == 5


def test_a_deleted_topic_is_given_up_and_taken_when_it_is_back(server: FakeZooKeeper) -> None:
    member = settled(server, "a")
    server.remove(paths.topic(TOPIC))
    settle([member])
    assert not member.owned
    assert owners(server) == {}
    assert "waiting for topic t" in member.rebalancer.state.detail
    make_topic(server, 2)
    settle([member])
    assert len(member.owned) == 2


def test_a_leavers_partitions_are_looked_at_during_a_last_commit(
    server: FakeZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over a slow link each question that waits for another's answer counts."""
    make_topic(server, 8)
    _a, b, c = settled_group(server, "abc")
    for position in b.owned.values():
        position.start_at(5)
    asked: list[str] = []
    for kind in ("look", "transact", "stat"):
        original = getattr(b.session, kind)

        def noted(*arguments: Any, kind: str = kind, original: Any = original, **options: Any) -> Any:
            asked.append(kind)
            return original(*arguments, **options)

        monkeypatch.setattr(b.session, kind, noted)
    commit_last = b.committer.commit_last

    def waiting(*arguments: Any, **options: Any) -> Any:
        asked.append("waiting")
        options["meanwhile"]()
        options["meanwhile"]()
        asked.append("committed")
        return commit_last(*arguments, **options)

    monkeypatch.setattr(b.committer, "commit_last", waiting)
    c.stop()
    b.step(2)
    assert {owned.partition for owned in b.owned} == {4, 5, 6, 7}
    while_waiting = asked[asked.index("waiting") : asked.index("committed")]
    assert while_waiting == ["waiting", "look"]
    assert asked[asked.index("committed") :][:3] == ["committed", "transact", "transact"], "released, and claimed"


def test_what_was_seen_ahead_and_changed_is_not_believed(
    server: FakeZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_topic(server, 8)
    server.put(paths.offset(GROUP, tp(7)), b"5")
    _a, b, c = settled_group(server, "abc")
    commit_last = b.committer.commit_last

    def waiting(*arguments: Any, **options: Any) -> Any:
        options["meanwhile"]()
        server.put(paths.owner(GROUP, tp(6)), b"stranger", ephemeral_owner=77)
        server.put(paths.offset(GROUP, tp(7)), b"4711")
        return commit_last(*arguments, **options)

    monkeypatch.setattr(b.committer, "commit_last", waiting)
    c.stop()
    b.step(2)
    assert tp(6) not in b.owned
    assert b.owned[tp(7)].consumed == 4711
    assert tp(6) in b.rebalancer.state.blocked
