"""Which owner nodes are ours, while the connection to ZooKeeper comes and goes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.offsets.acks import GROUP, TP, Member, Server, soon
from zkconsumer.errors import RegistryError
from zkconsumer.ownership.partition_position import NONE_HELD
from zkconsumer.testing.fake_zookeeper import FakeZooKeeper
from zkconsumer.zookeeper import paths


def lose_connection(monkeypatch: pytest.MonkeyPatch, member: Member) -> None:
    """As kazoo does it: first of all there is no id of a session any more."""
    monkeypatch.setattr(type(member.session), "session_id", 0)


def lose_connection_after(monkeypatch: pytest.MonkeyPatch, member: Member, owner: object, name: str) -> None:
    """Lose the connection as this method returns."""
    method = getattr(owner, name)

    def lost_after(*arguments: Any) -> Any:
        answer = method(*arguments)
        lose_connection(monkeypatch, member)
        return answer

    monkeypatch.setattr(owner, name, lost_after)


def test_a_lost_connection_takes_no_owner_node_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """No node was taken for ours, and the member gave up all partitions with "their owner nodes are gone"."""
    member = Member(Server(FakeZooKeeper()))
    member.claim()
    assert member.owner_nodes.mine([TP], soon()) == {TP}
    lose_connection(monkeypatch, member)
    with pytest.raises(RegistryError):
        member.owner_nodes.mine([TP], soon())


def test_a_node_is_ours_if_the_connection_is_lost_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """A release whose answer was lost left its owner node behind, which nobody doubted any more."""
    member = Member(Server(FakeZooKeeper()))
    member.claim()
    lose_connection_after(monkeypatch, member, member.session, "stat")
    assert member.owner_nodes.standing([TP], soon()) == {TP}


def test_a_release_outlives_a_connection_lost_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    server = FakeZooKeeper()
    member = Member(Server(server))
    (position,) = member.claim()
    known = member.tracker.commit_last([position], commit=True, held=NONE_HELD, deadline=soon(), release=False)
    server.put(paths.offset(GROUP, TP), b"7")  # by somebody else, so the release with versions is refused
    lose_connection_after(monkeypatch, member, member.session, "stat")
    member.owner_nodes.release(known, soon())
    assert server.node(paths.owner(GROUP, TP)) is None
