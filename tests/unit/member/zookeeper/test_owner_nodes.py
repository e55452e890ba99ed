"""Which owner nodes are ours, while the connection to ZooKeeper comes and goes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.offsets.acks import TP, Member, Server, soon
from zkconsumer.errors import RegistryError
from zkconsumer.testing.fake_zookeeper import FakeZooKeeper


def lose_connection(monkeypatch: pytest.MonkeyPatch, member: Member) -> None:
    """As kazoo does it: first of all there is no id of a session any more."""
    monkeypatch.setattr(type(member.session), "session_id", 0)


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
    stat = member.session.stat

    def lost_after(*arguments: Any) -> Any:
        answer = stat(*arguments)
        lose_connection(monkeypatch, member)
        return answer

    monkeypatch.setattr(member.session, "stat", lost_after)
    assert member.owner_nodes.standing([TP], soon()) == {TP}
