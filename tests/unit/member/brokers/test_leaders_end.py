"""A leader that is stopped, or held up, before it has decided, on a cluster in memory."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import pytest

from tests.internals import member_of
from tests.timing import eventually, scaled
from zkconsumer import ZookeeperConsumerConnector
from zkconsumer.errors import OffsetCommitError
from zkconsumer.member.brokers.rebalancer import BrokersRebalancer
from zkconsumer.member.events import StopRequested
from zkconsumer.testing import FakeCluster


def member(cluster: FakeCluster, name: str, **more: Any) -> ZookeeperConsumerConnector:
    return ZookeeperConsumerConnector(
        group_coordination="kafka",
        bootstrap_servers=cluster.bootstrap_servers,
        group_id="g",
        client_id=name,
        partition_assignment_strategy="cooperative-sticky",
        **{"heartbeat_interval_ms": 100, "auto_offset_reset": "smallest", **more},
    )


def close(leader: ZookeeperConsumerConnector) -> None:
    with pytest.raises(OffsetCommitError, match="t-0 at 2"):  # what is in hand
        leader.shutdown(timeout=2.5)


def test_a_stopped_leader_decides_and_then_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    asked_to_stop, handle = threading.Event(), BrokersRebalancer.handle

    def told(self: BrokersRebalancer, event: object) -> None:
        handle(self, event)
        if isinstance(event, StopRequested):
            asked_to_stop.set()

    monkeypatch.setattr(BrokersRebalancer, "handle", told)
    with FakeCluster() as cluster:
        cluster.create_topic("t", 1)
        cluster.append("t", 0, [b"1", b"2", b"in hand"])
        leader, other = member(cluster, "leader"), member(cluster, "other")
        stream = leader.create_message_streams({"t": 1})["t"][0]
        assert [message.offset for message in itertools.islice(stream, 3)] == [0, 1, 2]
        with cluster.park("Metadata", at="request", client_id="leader") as parked:
            joining = threading.Thread(target=other.create_message_streams, args=({"t": 1},), name="joining")
            joining.start()
            parked.wait(scaled(30))
            assert cluster.group("g").state == "CompletingRebalance"
            closing = threading.Thread(target=close, args=(leader,), name="closing")
            closing.start()
            assert asked_to_stop.wait(scaled(10))
            parked.release()
        closing.join(scaled(30))
        assert cluster.committed("g") == {("t", 0): 2}
        eventually(lambda: other.state.owned == 1, 30, "the other one to own it")
        joining.join(scaled(30))
        other.shutdown()


@pytest.mark.tier("standard")
@pytest.mark.parametrize("version", ["3.9", "1.1"])
def test_an_undecided_leader_hands_out_only_while_it_is_a_member(version: str) -> None:
    """3.9 takes it out when its SyncGroup is late; up to 2.5 a heartbeat before that is answered and does not count."""
    with FakeCluster(version=version) as cluster:
        cluster.create_topic("t", 2)
        late: dict[str, Any] = {"session_timeout_ms": 2000, "heartbeat_interval_ms": 1500}
        if version == "3.9":
            late |= {"session_timeout_ms": 60_000, "max_poll_interval_ms": 2000}
        leader, other = member(cluster, "leader", **late), member(cluster, "other", **late)
        leader.create_message_streams({"t": 1})
        eventually(
            lambda: cluster.requests_of("Fetch", "leader"), 10, "the end of the search for the partitions' leader"
        )
        (name,) = cluster.group("g").members
        lease = member_of(leader).lease
        with cluster.park("Metadata", at="request", client_id="leader") as parked:
            joining = threading.Thread(target=other.create_message_streams, args=({"t": 1},), name="joining")
            joining.start()
            parked.wait(scaled(30))
            assert cluster.group("g").state == "CompletingRebalance"
            assert lease.valid  # what stays with it flows on
            assert leader.state.owned == 2
            eventually(lambda: name not in cluster.group("g").members, 30, "the coordinator to go on without it")
            assert not lease.valid
            parked.drop()
        joining.join(scaled(30))
        eventually(lambda: (leader.state.owned, other.state.owned) == (1, 1), 30, "a partition each")
        leader.shutdown()
        other.shutdown()
