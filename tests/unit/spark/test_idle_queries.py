"""An idle query asks ZooKeeper nothing, and sees each change all the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import monotonic
from typing import Any

import pytest

from tests.faults.proxy import Proxy
from tests.timing import eventually
from zkconsumer.errors import BrokerUnavailableError, RegistryUnavailableError
from zkconsumer.model import TopicPartition
from zkconsumer.spark import zookeeper_cluster as cluster_module
from zkconsumer.spark.coordinator_cluster import cluster_of
from zkconsumer.spark.options import Selection, parse
from zkconsumer.spark.streaming_query import QueryRun
from zkconsumer.spark.zookeeper_cluster import ZooKeeperQueryCluster
from zkconsumer.testing import FakeCluster

TRIGGERS = 100
PINGS = 2
"""Pings and looks at the lease a second, of two sessions that end after 6 s of silence."""
A, B = TopicPartition("t", 0), TopicPartition("t", 1)
BY_NAME = Selection(topics=("t",))


@pytest.fixture
def kafka() -> Iterator[FakeCluster]:
    with FakeCluster(2, zookeeper=True) as made:
        yield made


@pytest.fixture
def link(kafka: FakeCluster) -> Iterator[Proxy]:
    """The way to ZooKeeper, on which requests are counted."""
    host, port = kafka.zookeeper_connect.split(":")
    with Proxy((host, int(port))) as proxy:
        yield proxy


def options(link: Proxy, **more: str) -> dict[str, str]:
    given = {"zookeeper.connect": link.address, "group.id": "g", "subscribe": "t", "startingOffsets": "earliest"}
    return {**given, "refresh.leader.backoff.ms": "10", **more}


@pytest.mark.parametrize("partitions", [1, 16, 128])
@pytest.mark.parametrize("membership", ["member", "none"])
def test_an_idle_trigger_asks_zookeeper_nothing(
    membership: str, partitions: int, kafka: FakeCluster, link: Proxy
) -> None:
    """Each trigger read a node for each partition and three more: 417 packets a second."""
    kafka.create_topic("t", partitions)
    for number in range(partitions):
        kafka.append("t", number, [b"x"])
    parsed = parse(options(link, membership=membership))
    run = QueryRun(parsed, cluster_of(parsed))
    run.open()
    try:
        done: dict[str, Any] = {}
        while (end := run.latest(done, None)) != done:
            done = end
        asked, began = link.requests, monotonic()
        for _ in range(TRIGGERS):
            assert run.latest(done, None) == done
        assert link.requests - asked <= PINGS * (monotonic() - began + 1)
        kafka.append("t", partitions - 1, [b"x"])
        assert run.latest(done, None) != done
    finally:
        run.close()


# ---- what changes is seen


@pytest.fixture
def asking(kafka: FakeCluster, link: Proxy) -> Iterator[ZooKeeperQueryCluster]:
    """The cluster as a query asks it, after a first look at a topic of two partitions, the members and the leaders."""
    kafka.create_topic("t", 2)
    kafka.append("t", 0, [b"x"] * 3)
    kafka.append("t", 1, [b"x"] * 4)
    with cluster_of(parse(options(link))) as made:
        assert isinstance(made, ZooKeeperQueryCluster)
        assert made.partitions(BY_NAME) == ((A, B), ())
        assert made.log_ends([A, B]) == {A: 3, B: 4}
        assert made.live_members("g") == ()
        yield made


def quiet(link: Proxy, ask: Callable[[], object]) -> object:
    """Ask, and see that ZooKeeper was asked nothing."""
    asked = link.requests
    answer = ask()
    assert link.requests <= asked + PINGS
    return answer


def test_a_leader_that_moves_is_found_without_an_error(
    kafka: FakeCluster, asking: ZooKeeperQueryCluster, link: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    before = asking.leaders([A])
    kafka.move_leader("t", 0, 1 - before[A].broker_id)
    eventually(lambda: asking.leaders([A]) != before, 10, "the watch")
    kafka.append("t", 0, [b"x"])
    assert quiet(link, lambda: asking.log_ends([A, B])) == {A: 4, B: 4}
    assert not caplog.records


def test_a_broker_that_registers_anew_is_found(kafka: FakeCluster, asking: ZooKeeperQueryCluster) -> None:
    where = asking.leaders([A])[A].broker_id
    kafka.stop_broker(where)
    eventually(lambda: asking.leaders([A])[A].broker_id != where, 10, "the other broker")
    kafka.start_broker(where)
    kafka.move_leader("t", 0, where)
    eventually(lambda: asking.leaders([A])[A].broker_id == where, 10, "the broker that came back")
    assert asking.log_ends([A, B]) == {A: 3, B: 4}


def test_topics_and_partitions_that_come_and_go_are_seen(kafka: FakeCluster, asking: ZooKeeperQueryCluster) -> None:
    kafka.add_partitions("t", 3)
    third = TopicPartition("t", 2)
    eventually(lambda: asking.partitions(BY_NAME)[0] == (A, B, third), 10, "the third partition")
    assert asking.log_ends([third]) == {third: 0}
    kafka.delete_topic("t")
    eventually(lambda: asking.partitions(BY_NAME) == ((), ("t",)), 10, "the end of the topic")
    kafka.create_topic("t", 1)
    eventually(lambda: asking.partitions(BY_NAME) == ((A,), ()), 10, "the new topic")


def test_a_topic_of_a_pattern_that_comes_later_is_seen(
    kafka: FakeCluster, asking: ZooKeeperQueryCluster, link: Proxy
) -> None:
    given = options(link, subscribePattern="t.*")
    del given["subscribe"]
    pattern = parse(given).selection
    assert asking.partitions(pattern) == ((A, B), ())
    kafka.create_topic("t2", 1)
    eventually(lambda: len(asking.partitions(pattern)[0]) == 3, 10, "the new topic")
    assert len(quiet(link, lambda: asking.partitions(pattern))[0]) == 3  # type: ignore[index]


def test_a_member_that_joins_is_seen(kafka: FakeCluster, asking: ZooKeeperQueryCluster) -> None:
    kafka.zookeeper.put("/consumers/g/ids/somebody", b"{}")
    eventually(lambda: asking.live_members("g") == ("somebody",), 10, "the member")
    kafka.zookeeper.remove("/consumers/g/ids/somebody")
    eventually(lambda: asking.live_members("g") == (), 10, "its end")


@pytest.mark.parametrize("ends", [False, True])
def test_what_changes_while_the_link_is_down_is_seen(
    ends: bool, kafka: FakeCluster, asking: ZooKeeperQueryCluster, link: Proxy
) -> None:
    """Watches do not survive their connection, so nothing that was read over it is believed any longer."""
    assert kafka.zookeeper_server is not None
    link.drop()
    eventually(lambda: not asking.session().connected, 10, "the loss of the connection")
    kafka.add_partitions("t", 3)
    kafka.move_leader("t", 0, 1 - asking.seen_leaders([A])[A].broker_id)
    if ends:
        kafka.zookeeper_server.expire()
    link.carry()
    third = TopicPartition("t", 2)
    assert asking.partitions(BY_NAME) == ((A, B, third), ())
    assert asking.log_ends([A, B, third]) == {A: 3, B: 4, third: 0}


def test_nothing_is_believed_while_zookeeper_is_away(
    asking: ZooKeeperQueryCluster, link: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a query would go on for ever, and nothing could tell it that its topic is gone."""
    monkeypatch.setattr("zkconsumer.spark.query_cluster._REGISTRY_TIMEOUT", 0.0)
    monkeypatch.setattr(type(asking.session()), "timeout", 0.0)
    link.drop()
    eventually(lambda: not asking.session().connected, 10, "the loss of the connection")
    with pytest.raises(RegistryUnavailableError):
        asking.partitions(BY_NAME)


def test_a_brokers_answer_makes_up_for_a_lost_watch(
    kafka: FakeCluster, asking: ZooKeeperQueryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking.nodes.cache, "_stale_nodes", Deaf())  # type: ignore[union-attr]
    where = asking.leaders([A])[A].broker_id
    kafka.move_leader("t", 0, 1 - where)
    assert asking.leaders([A])[A].broker_id == where
    assert asking.log_ends([A, B]) == {A: 3, B: 4}
    assert asking.leaders([A])[A].broker_id == 1 - where


def test_a_partition_nobody_leads_is_looked_for_again(
    kafka: FakeCluster, asking: ZooKeeperQueryCluster, link: Proxy
) -> None:
    kafka.move_leader("t", 0, -1)
    eventually(lambda: asking.leaders([A]) == {}, 10, "the watch")
    asked = link.requests
    with (
        cluster_of(parse(options(link, **{"socket.timeout.ms": "600"}))) as impatient,
        pytest.raises(BrokerUnavailableError, match="t-0 has no leader"),
    ):
        impatient.log_ends([A])
    assert link.requests - asked > 5, "its leader is read again at each try"


def test_after_some_minutes_all_is_read_again(
    kafka: FakeCluster, asking: ZooKeeperQueryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A watch that was lost without the connection would hide a change for ever."""
    now = monotonic()
    monkeypatch.setattr(asking.nodes.cache, "_stale_nodes", Deaf())  # type: ignore[union-attr]
    kafka.add_partitions("t", 3)
    assert len(asking.partitions(BY_NAME)[0]) == 2
    monkeypatch.setattr(cluster_module, "monotonic", lambda: now + cluster_module.BELIEVED + 1)
    assert len(asking.partitions(BY_NAME)[0]) == 3


def test_a_topic_said_to_be_gone_is_asked_for(
    kafka: FakeCluster, asking: ZooKeeperQueryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker denies a partition before the watch has told of its end."""
    monkeypatch.setattr(asking.nodes.cache, "_stale_nodes", Deaf())  # type: ignore[union-attr]
    kafka.delete_topic("t")
    assert asking.partitions(BY_NAME) == ((A, B), ())
    assert asking.gone([A, B]) == {A, B}


class Deaf(set[str]):
    """A set of stale nodes that no watch can add to."""

    def add(self, element: str) -> None:
        del element
