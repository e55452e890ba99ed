"""Three ZooKeepers elect a leader, go on without the leader, and take it back."""

from __future__ import annotations

import pytest
from kazoo.client import KazooClient

from tests.timing import eventually, scaled
from zkconsumer.devcluster import ZooKeeperEnsemble


def test_an_ensemble_survives_its_leader_and_takes_it_back() -> None:
    """An ensemble goes on without its leader and takes it back."""
    with ZooKeeperEnsemble(tick_ms=200) as ensemble:
        assert sorted(server.mode for server in ensemble.servers) == ["follower", "follower", "leader"]
        assert len(ensemble.connect.split(",")) == 3
        first = ensemble.leader
        client = KazooClient(ensemble.connect, timeout=4.0)
        client.start(timeout=scaled(20))
        try:
            client.create("/before", b"1")
            first.kill()
            second = ensemble.wait_for_leader()
            assert second is not first
            eventually(lambda: client.connected, 20, "another server")
            assert client.get("/before")[0] == b"1"
            client.create("/after", b"2")
            first.start()
            eventually(lambda: first.mode == "follower", 20, "the old leader as a follower")
            assert set(ensemble.followers) == set(ensemble.servers) - {second}
        finally:
            client.stop()
            client.close()
    assert ensemble.servers == ()
    with pytest.raises(RuntimeError, match="not started"):
        _ = ensemble.connect


def test_without_a_quorum_nobody_leads() -> None:
    with ZooKeeperEnsemble(tick_ms=200) as ensemble:
        for server in ensemble.servers[:2]:
            server.kill()
        eventually(lambda: not ensemble.servers[2].mode, 20, "a server alone that serves no more")
        with pytest.raises(RuntimeError, match="quorum"):
            _ = ensemble.leader
        ensemble.start()
        assert ensemble.leader in ensemble.servers
