"""A connector in a group that the brokers coordinate: one suite, on a cluster in memory and on real brokers of 3.9.1
and 1.1.1.
"""

from __future__ import annotations

from collections.abc import Iterator
from threading import enumerate as threads
from time import monotonic
from typing import Any

import pytest

from tests.cluster.in_process import Reader
from tests.contract.coordinated import DEFAULTS, Place
from tests.internals import member_of
from tests.timing import eventually, scaled
from zkconsumer import Whitelist, ZookeeperConsumerConnector
from zkconsumer.errors import (
    BrokerUnavailableError,
    ConsumerRebalanceFailedException,
    InconsistentGroupProtocolError,
    RebalanceInProgressError,
)
from zkconsumer.kafka.cluster_metadata import TopicsSeen
from zkconsumer.kafka.group_channel import GroupChannel
from zkconsumer.member.connector_state import Phase
from zkconsumer.testing import FakeCluster

STRATEGIES = ["range", "cooperative-sticky", "average"]
REAL = [pytest.mark.cluster, pytest.mark.java]


@pytest.fixture(params=["fake-3.9", "fake-1.1", pytest.param("3.9.1", marks=REAL), pytest.param("1.1.1", marks=REAL)])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """A broker, and afterwards the look whether all threads have ended."""
    kind = str(request.param)
    before = set(threads())
    if kind.startswith("fake"):
        with FakeCluster(version=kind.removeprefix("fake-")) as cluster:
            made = Place("127.0.0.1", cluster.brokers[0].port, modern=cluster.rules.modern, fake=cluster)
            yield made
            made.close()
    else:
        target = request.getfixturevalue("started")(kind)
        connect = f"{request.getfixturevalue('zookeeper_server')}/groups-on-{kind}"
        made = Place(*target.address, modern=kind == "3.9.1", fake=None, connect=connect)
        yield made
        made.close()
    eventually(lambda: {t for t in threads() if t.name.startswith(made.group)} <= before, 5, "the end of all threads")


def read(connector: ZookeeperConsumerConnector, topic: str, **options: Any) -> Reader:
    return Reader(connector.create_message_streams({topic: 1})[topic][0], **options)


def owned(*connectors: ZookeeperConsumerConnector) -> list[int]:
    return [len(connector.assignment()) for connector in connectors]


def shared(count: int, *connectors: ZookeeperConsumerConnector) -> None:
    """Wait until the connectors share ``count`` partitions evenly."""
    each = count // len(connectors)
    eventually(lambda: owned(*connectors) == [each] * len(connectors), 15, f"{each} partitions each")


def consumed(*readers: Reader) -> list[tuple[int, int]]:
    return [at for reader in readers for at in reader.places]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_members_come_and_go_and_nothing_is_lost_or_repeated(place: Place, strategy: str) -> None:
    topic = place.topic(4)
    place.produce(topic, 400, 4)
    first = place.connector(partition_assignment_strategy=strategy)
    one = read(first, topic)
    one.wait_for(100)
    second = place.connector(partition_assignment_strategy=strategy)
    two = read(second, topic)
    shared(4, first, second)
    place.produce(topic, 400, 4)
    eventually(lambda: len(set(consumed(one, two))) == 800, 15, "all messages")
    second.shutdown(scaled(5))
    shared(4, first)
    place.produce(topic, 400, 4)
    eventually(lambda: len(set(consumed(one, two))) == 1200, 15, "all messages")
    assert len(consumed(one, two)) == 1200
    eventually(lambda: first.state.phase is Phase.OWNING, 5, "a state that follows")
    first.shutdown(scaled(5))
    place.await_state("Empty", 0)
    later = place.connector(partition_assignment_strategy=strategy)
    three = read(later, topic)
    place.produce(topic, 4, 4)
    assert {at[1] for at in consumed(three)} <= {300}
    three.wait_for(4)
    assert sorted(consumed(three)) == [(p, 300) for p in range(4)]


def test_what_stays_flows_on_under_the_cooperative_protocol(place: Place) -> None:
    topic = place.topic(4)
    place.produce(topic, 40, 4)
    first = place.connector(partition_assignment_strategy="cooperative-sticky")
    one = read(first, topic)
    one.wait_for(40)
    before = member_of(first).positions()
    second = place.connector(partition_assignment_strategy="cooperative-sticky")
    read(second, topic)
    shared(4, first, second)
    after = member_of(first).positions()
    assert len(after) == 2
    assert all(before[tp] is position for tp, position in after.items())


def test_after_a_clean_leave_the_others_have_everything_at_once(place: Place) -> None:
    """With all defaults, as users run it: they shall allow 0.5 s."""
    topic = place.topic(16)
    stays = place.connector(**DEFAULTS)
    read(stays, topic)
    took: list[float] = []
    for _ in range(5):
        leaves = place.connector(**DEFAULTS)
        read(leaves, topic)
        shared(16, stays, leaves)
        began = monotonic()
        leaves.shutdown()
        eventually(lambda: owned(stays) == [16], 60, "all partitions")
        took.append(monotonic() - began)
    times = ", ".join(f"{seconds:.3f}" for seconds in took)
    print(f"from the call of shutdown() until the other one had all 16 partitions: {times} s")
    assert min(took) < scaled(0.5)
    assert max(took) < scaled(2.5)  # the session would have lasted 45 s, a heartbeat of the Java consumer's 3 s


def test_a_leader_that_leaves_undecided_holds_up_nobody(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave between the answer to the join and the own SyncGroup, for which another member waits meanwhile."""
    topic = place.topic(2)
    raw, ours = place.raw(), place.connector(session_timeout_ms=60_000)
    read(ours, topic)
    closed: list[GroupChannel] = []
    close = GroupChannel.close
    monkeypatch.setattr(GroupChannel, "close", lambda channel: (closed.append(channel), close(channel)))
    monkeypatch.setattr(GroupChannel, "topics", lambda channel, *_: _hear_nothing(channel, closed))
    assert not raw.joins([topic]).result(scaled(20)).is_leader
    awaited = raw.syncs()
    place.await_state("CompletingRebalance", 2)
    began = monotonic()
    ours.shutdown(scaled(5))
    left = monotonic()
    with pytest.raises(RebalanceInProgressError):
        awaited.result(scaled(10))
    assert len(raw.joins([topic]).result(scaled(10)).members) == 1
    print(f"shutdown took {left - began:.3f} s, and {monotonic() - left:.3f} s later the join was complete")
    assert monotonic() - began < scaled(4)  # the session would last 60 s


def _hear_nothing(channel: GroupChannel, closed: list[GroupChannel]) -> TopicsSeen:
    """Wait as for an answer that never comes, until the connection is closed."""
    eventually(lambda: channel in closed, 60, "the end of a request that nobody answers")
    raise BrokerUnavailableError("closed")


# ---- the other causes of a rebalance


def test_topics_are_added_and_left_on_a_live_member(place: Place) -> None:
    topic, another = place.topic(2), place.topic(2)
    connector = place.connector()
    one = read(connector, topic)
    two = Reader(connector.add_topics({another: 1})[another][0])
    place.produce(topic, 10, 2)
    place.produce(another, 10, 2)
    one.wait_for(10)
    two.wait_for(10)
    connector.unsubscribe([topic])
    one.join()
    assert {tp.topic for tp in connector.assignment()} == {another}
    connector.unsubscribe([another])
    two.join()
    place.await_state("Empty", 0)
    assert connector.assignment() == frozenset()
    three = Reader(connector.add_topics({topic: 1})[topic][0])
    place.produce(topic, 10, 2)
    three.wait_for(10)
    assert sorted(consumed(one, three)) == [(p, o) for p in range(2) for o in range(10)]


def test_partitions_that_are_added_are_shared_too(place: Place) -> None:
    topic = place.topic(2)
    first, second = place.connector(), place.connector()
    read(first, topic)
    read(second, topic)
    shared(2, first, second)
    place.add_partitions(topic, 6)
    shared(6, first, second)


def test_topics_of_a_pattern_are_taken_and_deleted_ones_left(place: Place) -> None:
    name = place.group.replace("group", "matched")
    connector = place.connector()
    (stream,) = connector.create_message_streams_by_filter(Whitelist(f"{name}.*"))
    reader = Reader(stream)
    place.topic(2, f"{name}-a")
    eventually(lambda: owned(connector) == [2], 15, "the first topic")
    place.topic(2, f"{name}-b")
    eventually(lambda: owned(connector) == [4], 15, "the second topic")
    place.produce(f"{name}-b", 10, 2)
    reader.wait_for(10)
    place.delete_topic(f"{name}-a")
    eventually(lambda: {tp.topic for tp in connector.assignment()} == {f"{name}-b"}, 20, "the first topic's end")


# ---- losing the membership


def test_a_reader_that_stays_away_costs_the_membership(place: Place) -> None:
    topic = place.topic(2)
    place.produce(topic, 20, 2)
    slow = place.connector(max_poll_interval_ms=1000)
    held = read(slow, topic, hold_at=5)
    eventually(lambda: slow.state.phase is Phase.AWAY, 15, "the member to leave")
    # the group thread sets the phase first, then the reason
    eventually(lambda: "max.poll.interval.ms" in slow.state.detail, 15, "the reason")
    assert topic in slow.state.detail
    eventually(lambda: owned(slow) == [0], 15, "the release, which follows the reason")
    quick = place.connector()
    other = read(quick, topic)
    eventually(lambda: set(consumed(held, other)) == {(p, o) for p in range(2) for o in range(10)}, 15, "all")
    place.await_state("Stable", 1)
    held.go_on()
    shared(2, slow, quick)
    place.produce(topic, 20, 2)
    eventually(lambda: len(set(consumed(held, other))) == 40, 15, "all messages")
    assert len(consumed(held, other)) - 40 <= 1  # the message in hand


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_a_reader_that_stays_away_is_noticed_despite_rebalances(place: Place, strategy: str) -> None:
    """Each generation once began the count anew. If the group rebalanced more often than ``max.poll.interval.ms``, a
    hanging reader kept its partitions for ever.
    """
    topic = place.topic(4)
    place.produce(topic, 200, 4)
    limits = {"max_poll_interval_ms": 2000, "rebalance_drain_timeout_ms": 200}
    slow = place.connector(partition_assignment_strategy=strategy, **limits)
    held = read(slow, topic, hold_at=0)
    held.wait_for(1)

    def left_meanwhile() -> bool:
        other = place.connector(partition_assignment_strategy=strategy)
        other.create_message_streams({topic: 1})
        other.shutdown()
        state = slow.state  # one reading: the reason follows the phase within a moment
        return state.phase is Phase.AWAY and "max.poll.interval.ms" in state.detail

    eventually(left_meanwhile, 12, "the member to leave, and to say why")
    assert slow.state.rebalances > 1  # many more, unless the machine is busy
    held.go_on()
    shared(4, slow)


# ---- what does not go together


def test_a_joining_member_hears_of_an_unknown_strategy(place: Place) -> None:
    topic = place.topic(1)
    first = place.connector(partition_assignment_strategy="range")
    read(first, topic)
    second = place.connector(partition_assignment_strategy="roundrobin")
    with pytest.raises(InconsistentGroupProtocolError, match=r"no strategy of partition.assignment.strategy is known"):
        second.create_message_streams({topic: 1})
    eventually(lambda: owned(first) == [1], 10, "the partition")


def test_a_live_group_changes_its_strategy_and_back(place: Place) -> None:
    # Two rounds of restarts: the first adds the new strategy, the second removes the old strategy (KAFKA-8179).
    topic = place.topic(4)
    connectors = [place.connector(partition_assignment_strategy="range") for _ in range(2)]
    readers = [read(connector, topic) for connector in connectors]
    produced = 0
    for strategy in ("cooperative-sticky,range", "cooperative-sticky", "cooperative-sticky,range", "range"):
        for number in range(2):
            connectors[number].shutdown()
            connectors[number] = place.connector(partition_assignment_strategy=strategy)
            readers.append(read(connectors[number], topic))
            shared(4, *connectors)
            place.produce(topic, 40, 4)
            produced += 40
            eventually(lambda: len(set(consumed(*readers))) == produced, 15, "all messages")  # noqa: B023 (waited for)
        assert place.described().protocol == strategy.partition(",")[0]
    assert len(consumed(*readers)) == produced


def test_nobody_there_is_told_after_the_limit() -> None:
    connector = ZookeeperConsumerConnector(
        {
            "group.id": "g",
            "group.coordination": "kafka",
            "bootstrap.servers": "127.0.0.1:1",
            "session.timeout.ms": 500,
            "heartbeat.interval.ms": 100,
            "rebalance.backoff.ms": 100,
        }
    )
    with pytest.raises(ConsumerRebalanceFailedException, match=r"bootstrap.servers=127.0.0.1:1"):
        connector.create_message_streams({"t": 1})


def test_a_static_member_that_restarts_disturbs_nobody(place: Place) -> None:
    topic = place.topic(2)
    first = place.connector()
    read(first, topic)
    static = {"group_instance_id": "s", "session_timeout_ms": 10_000}
    if not place.modern:
        with pytest.raises(Exception, match=r"group\.instance\.id.*2\.3"):
            read(place.connector(**static), topic)
        return
    second = place.connector(**static)
    read(second, topic)
    shared(2, first, second)
    rebalances, mine = first.state.rebalances, second.assignment()
    second.shutdown(scaled(5))
    again = place.connector(**static)
    reader = read(again, topic)
    assert again.assignment() == mine
    assert first.state.rebalances == rebalances
    place.produce(topic, 2, 2)
    reader.wait_for(1)
