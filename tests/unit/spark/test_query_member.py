"""A query's member in a group that brokers coordinate, on the cluster in memory: what it keeps, and for how long."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from itertools import islice
from threading import Thread
from typing import Any, TypeVar

import pytest

from tests.timing import eventually
from tests.unit.clusters import cluster_with
from zkconsumer import KafkaStream, ZookeeperConsumerConnector
from zkconsumer.cluster.cluster_client import zookeeper_session
from zkconsumer.config import ConsumerConfig
from zkconsumer.core.registration import STATIC, Registration
from zkconsumer.errors import BrokerUnavailableError, ConsumerRebalanceFailedException, CoordinatorUnavailableError
from zkconsumer.model import TopicPartition
from zkconsumer.operations.group_snapshot import MemberNode
from zkconsumer.operations.group_view import MemberKind, member_kind
from zkconsumer.spark import membership
from zkconsumer.spark.coordinator_cluster import cluster_of
from zkconsumer.spark.membership import LiveMembership
from zkconsumer.spark.offset_ranges import Span
from zkconsumer.spark.options import Selection, parse
from zkconsumer.spark.query_member import stamped_query
from zkconsumer.testing import FakeCluster

T = TypeVar("T")
ALL = tuple(TopicPartition("t", number) for number in range(4))
STRATEGIES = ("range", "cooperative-sticky")
NewMember = Callable[..., LiveMembership]
NewConnector = Callable[..., ZookeeperConsumerConnector]

cluster = cluster_with({"t": [[b"x"] * 10] * 4}, brokers=2, zookeeper=False)


def common(cluster: FakeCluster, strategy: str) -> dict[str, str]:
    return {
        "group.coordination": "kafka",
        "bootstrap.servers": cluster.bootstrap_servers,
        "group.id": "g",
        "partition.assignment.strategy": strategy,
        "session.timeout.ms": "6000",
        "heartbeat.interval.ms": "100",
    }


@pytest.fixture
def new_member(cluster: FakeCluster) -> Iterator[NewMember]:
    made: list[LiveMembership] = []

    def make(strategy: str = "range", **options: str) -> LiveMembership:
        made.append(LiveMembership(parse({**common(cluster, strategy), "subscribe": "t", **options})))
        made[-1].join()
        return made[-1]

    yield make
    for member in made:
        member.leave()


@pytest.fixture
def new_connector(cluster: FakeCluster) -> Iterator[NewConnector]:
    made: list[ZookeeperConsumerConnector] = []

    def make(strategy: str = "range", **options: str) -> ZookeeperConsumerConnector:
        given = {**common(cluster, strategy), "auto.offset.reset": "smallest", "consumer.timeout.ms": "20000"}
        made.append(ZookeeperConsumerConnector({**given, **options}))
        return made[-1]

    yield make
    for connector in made:
        connector.shutdown()


def begin_a_batch(member: LiveMembership, end: int) -> dict[TopicPartition, Span]:
    """Plan what a query plans for its first batch."""
    assert member.claim(ALL, patient=True) == set(ALL)
    assert member.begin(dict.fromkeys(ALL, 0)) == set(ALL)
    batch = dict.fromkeys(ALL, Span(0, end))
    member.reserve(batch)
    return batch


def aside(work: Callable[[], T]) -> Future[T]:
    """Do it on a thread of its own."""
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except Exception as error:
            done.set_exception(error)

    Thread(target=run, name="aside", daemon=True).start()
    return done


def join(connector: ZookeeperConsumerConnector) -> Future[list[KafkaStream[Any, Any]]]:
    """Join on a thread of its own; the streams, once the group is complete."""
    return aside(lambda: connector.create_message_streams({"t": 1})["t"])


def await_heartbeats(cluster: FakeCluster, count: int) -> None:
    beats = len(cluster.requests_of("Heartbeat"))
    eventually(lambda: len(cluster.requests_of("Heartbeat")) > beats + count, 20, "heartbeats all the while")


def read(stream: KafkaStream[Any, Any], count: int) -> list[tuple[int, int]]:
    """The first so many messages, in the order of the logs."""
    return sorted((message.partition, message.offset) for message in islice(stream, count))


def test_a_query_alone_owns_commits_and_leaves(cluster: FakeCluster, new_member: NewMember) -> None:
    """It commits with its generation."""
    member = new_member()
    batch = begin_a_batch(member, 7)
    assert cluster.committed("g") == dict.fromkeys(ALL, 0)
    member.settle(batch)
    assert cluster.committed("g") == dict.fromkeys(ALL, 7)
    member.leave()
    assert cluster.group("g").state == "Empty"
    again = new_member()
    assert again.claim(ALL, patient=True) == set(ALL)
    assert again.committed(ALL) == dict.fromkeys(ALL, 7)  # and never the start that the options name


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_what_a_batch_reads_goes_to_others_when_it_has_ended(
    strategy: str, cluster: FakeCluster, new_member: NewMember, new_connector: NewConnector
) -> None:
    member = new_member(strategy)
    batch = begin_a_batch(member, 7)
    joined = join(connector := new_connector(strategy))
    eventually(lambda: any(one.revoked for one in member.member.group.positions().values()), 20, "a rebalance")
    await_heartbeats(cluster, 10)
    assert connector.state.owned == 0
    assert len(member.member.group.positions()) == 4
    member.settle(batch)
    eventually(lambda: member.claim(ALL, patient=True) and connector.state.owned == 2, 20, "both to have a half")
    mine = set(member.member.group.positions())
    assert read(joined.result(20)[0], 6) == sorted((tp.partition, n) for tp in set(ALL) - mine for n in range(7, 10))


def test_a_batch_longer_than_releaseafter_is_not_waited_for(
    cluster: FakeCluster, new_member: NewMember, new_connector: NewConnector
) -> None:
    member = new_member(releaseAfter="0.5")
    batch = begin_a_batch(member, 7)
    stream = join(new_connector()).result(20)[0]
    eventually(lambda: len(member.member.group.positions()) == 2, 20, "both to have a half")
    mine = set(member.member.group.positions())
    member.settle(batch)  # nothing is committed of partitions that another member owns by now
    assert member.claim(ALL, patient=False) == mine
    assert {tp: cluster.committed("g")[tp] for tp in mine} == dict.fromkeys(mine, 7)
    assert read(stream, 20) == [(tp.partition, n) for tp in sorted(set(ALL) - mine) for n in range(10)]


def test_a_batch_is_waited_for_within_the_rebalance_timeout(
    cluster: FakeCluster, new_member: NewMember, new_connector: NewConnector
) -> None:
    limit = {"max.poll.interval.ms": "1500"}
    member = new_member(**limit)
    begin_a_batch(member, 7)
    who = set(cluster.group("g").members)
    join(new_connector(**limit)).result(20)
    assert who < set(cluster.group("g").members)  # it was in time


def test_a_query_that_ends_during_a_batch_leaves_at_once(
    cluster: FakeCluster, new_member: NewMember, new_connector: NewConnector
) -> None:
    member = new_member()
    begin_a_batch(member, 7)
    joined = join(connector := new_connector())
    eventually(lambda: any(one.revoked for one in member.member.group.positions().values()), 20, "a rebalance")
    member.leave()
    stream = joined.result(20)[0]
    eventually(lambda: connector.state.owned == 4, 20, "the other one to own everything")
    # nothing of the batch was committed
    assert read(stream, 40) == [(tp.partition, n) for tp in ALL for n in range(10)]


def test_the_brokers_tell_what_there_is_to_read(cluster: FakeCluster, new_member: NewMember) -> None:
    cluster.create_topic("other", 1)
    given = {**common(cluster, "range"), "subscribePattern": "o.*|t"}
    options = parse({name: value for name, value in given.items() if name != "group.id"} | {"group.id": "none"})
    with cluster_of(options) as asked:
        found, missing = asked.partitions(options.selection)
        assert found == (TopicPartition("other", 0), *ALL)
        assert missing == ()
        assert asked.partitions(Selection(topics=("t", "absent"))) == (ALL, ("absent",))
        assert asked.partitions(Selection(partitions=(ALL[2],))) == ((ALL[2],), ())
        assert asked.log_ends(ALL) == dict.fromkeys(ALL, 10)
        cluster.move_leader("t", 0, 1 - asked.leaders(ALL)[ALL[0]].broker_id)
        assert asked.log_ends(ALL) == dict.fromkeys(ALL, 10)
        assert asked.committed("g", ALL) == {}
        member = new_member()
        member.settle(begin_a_batch(member, 7))
        assert asked.committed("g", ALL) == dict.fromkeys(ALL, 7)


def test_absent_brokers_are_reported_with_the_cause(cluster: FakeCluster) -> None:
    given = {"subscribe": "t", "socket.timeout.ms": "300", "fetch.wait.max.ms": "10"}
    options = parse({**common(cluster, "range"), **given})
    for broker in (0, 1):
        cluster.stop_broker(broker)
    with cluster_of(options) as asked, pytest.raises(BrokerUnavailableError, match="Connection refused"):
        asked.partitions(options.selection)


def test_available_now_waits_for_the_batch_of_another_query(cluster: FakeCluster, new_member: NewMember) -> None:
    """It does not end without any message meanwhile."""
    first = new_member("cooperative-sticky")
    batch = begin_a_batch(first, 7)
    second = new_member("cooperative-sticky")
    claimed = aside(lambda: second.claim(ALL, patient=True))
    await_heartbeats(cluster, 20)
    assert not claimed.done()
    first.settle(batch)
    first.claim(ALL, patient=False)
    mine = claimed.result(20)
    assert len(mine) == 2
    assert second.committed(ALL) == dict.fromkeys(mine, 7)


def test_a_joining_query_waits_as_long_as_the_group(cluster: FakeCluster, new_member: NewMember) -> None:
    """Another query's batch holds up the rebalance."""
    batch = begin_a_batch(first := new_member(), 7)
    quick = {"session.timeout.ms": "1000", "rebalance.backoff.ms": "100"}  # else joining takes 1.5 s at most
    joined = aside(lambda: new_member(**quick))
    await_heartbeats(cluster, 30)
    assert not joined.done()
    first.settle(batch)
    first.claim(ALL, patient=False)
    assert len(joined.result(20).claim(ALL, patient=True)) == 2


def test_a_coordinator_that_is_not_found_is_waited_for_briefly(cluster: FakeCluster) -> None:
    quick = {"session.timeout.ms": "1000", "rebalance.backoff.ms": "100", "max.poll.interval.ms": "60000"}
    member = LiveMembership(parse({**common(cluster, "range"), "subscribe": "t", **quick}))
    for broker in (0, 1):
        cluster.stop_broker(broker)
    try:
        with pytest.raises(ConsumerRebalanceFailedException, match=r"within 2 s: no broker of bootstrap.servers="):
            member.join()
    finally:
        member.leave()


def test_a_lost_membership_during_a_batch_costs_nothing(cluster: FakeCluster, new_member: NewMember) -> None:
    member = new_member()
    batch = begin_a_batch(member, 7)
    (former,) = cluster.group("g").members
    cluster.expire_member("g", former)
    eventually(lambda: cluster.group("g").state == "Stable", 20, "the query to join again")
    member.settle(batch)
    assert member.claim(ALL, patient=True) == set(ALL)
    assert former not in cluster.group("g").members
    assert member.committed(ALL) == cluster.committed("g") == dict.fromkeys(ALL, 7)


def test_brokers_are_found_by_zookeeper_where_no_server_is_named() -> None:
    with FakeCluster(2, zookeeper=True) as cluster:
        cluster.create_topic("t", 4)
        given = {**common(cluster, "range"), "zookeeper.connect": cluster.zookeeper_connect, "subscribe": "t"}
        options = parse({name: value for name, value in given.items() if name != "bootstrap.servers"})
        member = LiveMembership(options)
        try:
            member.join()
            with cluster_of(options) as asked:
                assert asked.partitions(options.selection) == (ALL, ())
                assert asked.leaders(ALL).keys() == set(ALL)
            assert member.claim(ALL, patient=True) == set(ALL)
            assert cluster.zookeeper.tree("/consumers") == {}
        finally:
            member.leave()


def test_the_last_query_in_zookeeper_comes_back_beside_bridges() -> None:
    with FakeCluster(2, zookeeper=True) as cluster:
        cluster.create_topic("t", 4)
        by_brokers = {**common(cluster, "range"), "zookeeper.connect": cluster.zookeeper_connect}
        del by_brokers["bootstrap.servers"]
        by_zookeeper = {"zookeeper.connect": cluster.zookeeper_connect, "group.id": "g"}
        bridge = ZookeeperConsumerConnector({**by_brokers, "group.migration": "true"})
        old = LiveMembership(parse({**by_zookeeper, "subscribe": "t"}))
        early, new = (LiveMembership(parse({**by_brokers, "subscribe": "t"})) for _ in range(2))
        try:
            old.join()
            bridge.create_message_streams({"t": 1})
            eventually(lambda: (len(old.claim(ALL, patient=False)), bridge.state.owned) == (2, 2), 20, "both to share")
            assert not cluster.group("g").members
            with pytest.raises(ConsumerRebalanceFailedException, match="members that ZooKeeper alone coordinates"):
                early.join()
            old.leave()
            eventually(lambda: len(cluster.group("g").members) == 1, 20, "the bridge to pass on to the brokers")
            new.join()
            eventually(lambda: (len(new.claim(ALL, patient=False)), bridge.state.owned) == (2, 2), 20, "both to share")
            assert len(cluster.group("g").members) == 2
        finally:
            for member in (old, early, new):
                member.leave()
            bridge.shutdown()


def test_available_now_outside_the_group_is_no_end(
    cluster: FakeCluster, new_member: NewMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The query does not end as if it had read everything."""
    monkeypatch.setattr(membership, "SETTLE_WITHIN", 0.3)
    member = new_member()
    for broker in (0, 1):
        cluster.stop_broker(broker)
    member.member.group.lease.lapse()  # as after a session timeout
    assert member.claim(ALL, patient=False) == frozenset()  # a batch may follow when the coordinator is back
    with pytest.raises(CoordinatorUnavailableError, match="nothing says that all is read"):
        member.claim(ALL, patient=True)


def test_a_query_is_marked_in_its_registration() -> None:
    """A tool that writes offsets refuses to reset a query, because a query goes on from its checkpoint."""
    config = ConsumerConfig({"zookeeper.connect": "127.0.0.1:2181", "group.id": "g"})
    session = zookeeper_session(config, lambda _: None)
    node = MemberNode(stamped_query(config, session, Registration(STATIC, {"t": 1})), None)
    assert member_kind(node) is MemberKind.SPARK
