"""A member that the brokers coordinate, while they fail: a silent coordinator, one that moves, refusals, a lost answer.

On a cluster in memory, whose answers can be parked and whose brokers stopped.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from threading import Thread
from time import monotonic

import pytest

from tests.cluster.in_process import Reader
from tests.contract.coordinated import Place
from tests.timing import eventually, scaled
from tests.unit.clusters import cluster_with
from zkconsumer import ZookeeperConsumerConnector
from zkconsumer.errors import BrokerResponseError, ConsumerTimeoutException, FencedInstanceIdError
from zkconsumer.member.connector_state import Phase
from zkconsumer.testing import FakeCluster

cluster = cluster_with({}, brokers=2, zookeeper=False)


@pytest.fixture
def place(cluster: FakeCluster) -> Iterator[Place]:
    made = Place("127.0.0.1", cluster.brokers[0].port, modern=True, fake=cluster)
    made.bootstrap = cluster.bootstrap_servers
    yield made
    made.close()


def stop(cluster: FakeCluster) -> None:
    for broker in (0, 1):
        cluster.stop_broker(broker)


def start(cluster: FakeCluster) -> None:
    for broker in (0, 1):
        cluster.start_broker(broker)


def owns(connector: ZookeeperConsumerConnector) -> bool:
    return connector.state.phase is Phase.OWNING and not connector.state.detail


@pytest.fixture
def topic(place: Place) -> str:
    """A topic of one partition."""
    return place.topic(1)


def test_nothing_is_handed_out_after_a_silent_session_timeout(topic: str, place: Place, cluster: FakeCluster) -> None:
    place.produce(topic, 3, 1)
    connector = place.connector(session_timeout_ms=600)
    stream = connector.create_message_streams({topic: 1})[topic][0]
    eventually(lambda: len(stream.queue) == 1, 10, "what is fetched")
    stop(cluster)
    eventually(lambda: connector.state.phase is Phase.SUSPENDED, 10, "the end of the lease")
    with pytest.raises(ConsumerTimeoutException):
        stream.get(0.5)
    assert len(connector.assignment()) == 1
    start(cluster)
    assert [stream.get(scaled(20)).offset for _ in range(3)] == [0, 1, 2]


def test_a_loading_coordinator_proves_no_membership(topic: str, place: Place, cluster: FakeCluster) -> None:
    """It answers each heartbeat with success. A member that had been removed handed out messages of others."""
    place.produce(topic, 3, 1)
    connector = place.connector(session_timeout_ms=600)
    stream = connector.create_message_streams({topic: 1})[topic][0]
    eventually(lambda: len(stream.queue) == 1, 10, "what is fetched")
    stop(cluster)
    eventually(lambda: connector.state.phase is Phase.SUSPENDED, 10, "the end of the lease")
    cluster.move_coordinator(place.group, to=0, loading=True)
    asked = len(cluster.requests_of("Heartbeat"))
    start(cluster)
    cluster.move_coordinator(place.group, to=0, loading=True)
    eventually(lambda: len(cluster.requests_of("Heartbeat")) > asked + 3, 10, "heartbeats while it loads")
    with pytest.raises(ConsumerTimeoutException):
        stream.get(0.5)
    cluster.finish_loading(place.group)
    assert [stream.get(scaled(20)).offset for _ in range(3)] == [0, 1, 2]


def test_a_moved_coordinator_is_found_and_nothing_is_repeated(place: Place, cluster: FakeCluster) -> None:
    topic = place.topic(2)
    place.produce(topic, 20, 2)
    connector = place.connector()
    reader = Reader(connector.create_message_streams({topic: 1})[topic][0])
    reader.wait_for(20)
    rebalances = connector.state.rebalances
    cluster.move_coordinator(place.group, to=1 - (cluster.coordinator(place.group) or 0))
    place.produce(topic, 20, 2)
    reader.wait_for(40)
    asked = len(cluster.requests_of("Heartbeat"))
    eventually(lambda: len(cluster.requests_of("Heartbeat")) > asked + 2, 10, "heartbeats at the new place")
    assert connector.state.rebalances == rebalances
    connector.commit_offsets(timeout=scaled(10))
    assert len(set(reader.places)) == len(reader.places) == 40


def test_the_trouble_of_a_coordinator_ends_when_it_is_back(place: Place, cluster: FakeCluster) -> None:
    connector = place.connector(session_timeout_ms=30_000, auto_commit_enable=False)
    connector.create_message_streams({place.topic(1): 1})
    rebalances = connector.state.rebalances
    stop(cluster)
    eventually(lambda: "the coordinator of group" in connector.state.detail, 20, "a word about it")
    start(cluster)
    eventually(lambda: not connector.state.detail, 20, "no word about it")
    assert connector.state.rebalances == rebalances


@pytest.mark.parametrize("silent", [False, True], ids=["dead", "silent"])
def test_a_shutdown_waits_for_no_coordinator(topic: str, place: Place, cluster: FakeCluster, silent: bool) -> None:
    connector = place.connector()
    connector.create_message_streams({topic: 1})
    with cluster.park("LeaveGroup", at="request") if silent else nullcontext():
        if not silent:
            stop(cluster)
        began = monotonic()
        connector.shutdown()
        assert monotonic() - began < scaled(4)
    if not silent:
        start(cluster)


def test_what_only_an_operator_can_cure_is_raised_to_who_joins(topic: str, place: Place, cluster: FakeCluster) -> None:
    cluster.fail("JoinGroup", 30, times=100)
    with pytest.raises(BrokerResponseError, match="GROUP_AUTHORIZATION_FAILED"):
        place.connector().create_message_streams({topic: 1})


def test_readers_hear_of_a_trouble_for_operators_until_its_end(topic: str, place: Place, cluster: FakeCluster) -> None:
    """A trouble that only an operator can cure is raised to readers until it is cured."""
    connector = place.connector()
    stream = connector.create_message_streams({topic: 1})[topic][0]
    cluster.fail("Heartbeat", 30, times=1)
    cluster.fail("JoinGroup", 30, times=2)
    with pytest.raises(BrokerResponseError, match="GROUP_AUTHORIZATION_FAILED"):
        stream.get(scaled(10))
    assert "GROUP_AUTHORIZATION_FAILED" in connector.state.detail
    eventually(lambda: owns(connector), 20, "the way back")
    place.produce(topic, 1, 1)
    assert stream.get(scaled(10)).offset == 0


@pytest.mark.parametrize("api", ["FindCoordinator", "JoinGroup", "SyncGroup", "OffsetFetch", "Heartbeat"])
@pytest.mark.parametrize("code", [14, 15, 16])
def test_a_failure_that_passes_is_waited_for(
    topic: str, place: Place, cluster: FakeCluster, api: str, code: int
) -> None:
    place.produce(topic, 3, 1)
    cluster.fail(api, code, times=2)
    connector = place.connector()
    stream = connector.create_message_streams({topic: 1})[topic][0]
    assert [stream.get(scaled(10)).offset for _ in range(3)] == [0, 1, 2]
    eventually(lambda: connector.state.phase is Phase.OWNING and len(connector.assignment()) == 1, 10, "the membership")


@pytest.mark.parametrize("api", ["JoinGroup", "SyncGroup"])
@pytest.mark.parametrize("code", [22, 25, 27])
def test_a_generation_that_went_on_without_us_is_joined_anew(
    topic: str, place: Place, cluster: FakeCluster, api: str, code: int
) -> None:
    place.produce(topic, 3, 1)
    cluster.fail(api, code, times=1)
    stream = place.connector().create_message_streams({topic: 1})[topic][0]
    assert [stream.get(scaled(10)).offset for _ in range(3)] == [0, 1, 2]


def test_the_older_process_of_one_instance_id_stops_and_says_why(topic: str, place: Place) -> None:
    first = place.connector(group_instance_id="i")
    stream = first.create_message_streams({topic: 1})[topic][0]
    second = place.connector(group_instance_id="i")
    second.create_message_streams({topic: 1})
    with pytest.raises(FencedInstanceIdError, match=r"another process has joined as the same group.instance.id"):
        stream.get(scaled(10))
    assert first.state.phase is Phase.FAILED
    assert len(second.assignment()) == 1


def test_a_start_is_stored_before_messages_are_handed_out(topic: str, place: Place, cluster: FakeCluster) -> None:
    """Else "largest" would skip what came between a crash and the first commit."""
    place.produce(topic, 5, 1)
    connector = place.connector(auto_offset_reset="largest", auto_commit_enable=False)
    stream = connector.create_message_streams({topic: 1})[topic][0]
    eventually(lambda: cluster.committed(place.group) == {(topic, 0): 5}, 10, "the start")
    place.produce(topic, 1, 1)
    assert stream.get(scaled(10)).offset == 5


def test_who_is_not_known_time_and_again_backs_off(topic: str, place: Place, cluster: FakeCluster) -> None:
    cluster.fail("JoinGroup", 25, times=6)
    connector = place.connector()
    starting = Thread(target=lambda: connector.create_message_streams({topic: 1}))
    starting.start()
    eventually(lambda: "UNKNOWN_MEMBER_ID" in connector.state.detail, 10, "a pause, and a word why")
    eventually(lambda: owns(connector), 30, "the membership")
    starting.join(scaled(20))


@pytest.mark.parametrize(("api", "code"), [("JoinGroup", 27), ("SyncGroup", 27), ("JoinGroup", 79)])
def test_who_is_sent_back_to_join_time_and_again_backs_off(
    topic: str, place: Place, cluster: FakeCluster, api: str, code: int
) -> None:
    """A coordinator that answers nothing but "join again" was asked thousands of times a second."""
    cluster.fail(api, code, times=8)
    connector = place.connector()
    began = monotonic()
    connector.create_message_streams({topic: 1})
    assert monotonic() - began > 0.8 * (0.1 + 0.2 + 0.4 + 0.8)
    eventually(lambda: owns(connector), 10, "the membership")
    assert 8 < len(cluster.requests_of(api)) <= 10


@pytest.mark.parametrize("moves", [True, False])
def test_a_leaving_member_finds_a_moved_coordinator(place: Place, cluster: FakeCluster, moves: bool) -> None:
    """Else the others wait for the end of a session that nobody keeps up."""
    topic = place.topic(2)
    given = {"session_timeout_ms": 60_000, "heartbeat_interval_ms": 100}
    first, second = place.connector(**given), place.connector(**{**given, "heartbeat_interval_ms": 59_000})
    first.create_message_streams({topic: 1})
    second.create_message_streams({topic: 1})
    eventually(lambda: [len(one.assignment()) for one in (first, second)] == [1, 1], 10, "a partition each")
    if moves:
        cluster.move_coordinator(place.group, to=1 - (cluster.coordinator(place.group) or 0))
        second.shutdown()
    else:
        with cluster.park("LeaveGroup", at="request") as parked:
            stopping = Thread(target=second.shutdown)
            stopping.start()
            parked.wait(scaled(10))
            parked.drop()
        stopping.join(scaled(10))
    eventually(lambda: len(first.assignment()) == 2, 20, "both partitions")
