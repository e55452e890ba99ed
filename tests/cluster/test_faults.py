"""Faults of servers, sessions and members on a real cluster: no message is lost, and shutdowns are bounded."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from time import monotonic
from typing import Any

import pytest
from kazoo.client import KazooClient

from tests.cluster.conftest import NewTopic, owners_of, produce_to, unique
from tests.cluster.in_process import Reader, by_range, offsets_of
from tests.cluster.member_process import QUICK
from tests.cluster.our_member import OurMember
from tests.internals import kazoo_client_of, session_of
from tests.sessions import end_session
from tests.timing import eventually, scaled
from zkconsumer import ConsumerTimeoutException, OffsetCommitError, ZookeeperConsumerConnector
from zkconsumer.devcluster import DevCluster
from zkconsumer.zookeeper.cluster_admin import Admin

NewConnector = Callable[..., ZookeeperConsumerConnector]


@pytest.fixture(scope="module")
def own() -> Iterator[DevCluster]:
    """A cluster of two brokers to mistreat, which every test leaves complete."""
    with DevCluster(tick_ms=500, brokers=2, broker_properties={"zookeeper.session.timeout.ms": 2000}) as made:
        yield made


@contextmanager
def joined(cluster: DevCluster, group: str, topic: str, **more: Any) -> Iterator[tuple[Any, Reader]]:
    settings = {**QUICK, "zookeeper.connect": cluster.zookeeper_connect, "group.id": group, **more}
    with ZookeeperConsumerConnector(settings) as member:
        yield member, Reader(member.create_message_streams({topic: 1})[topic][0])


@contextmanager
def at_the_end(action: Callable[[], object]) -> Iterator[None]:
    try:
        yield
    finally:
        action()


def values(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


def client_id_of(member: ZookeeperConsumerConnector) -> tuple[int, bytes]:
    """The session's id and password, with which another client can take the session over and end it."""
    return kazoo_client_of(session_of(member)).client_id  # type: ignore[no-any-return]


# ---- sessions ----


def test_a_member_registers_again_after_an_expired_session(
    cluster: DevCluster,
    new_topic: NewTopic,
    new_group: Callable[[], str],
    produce: Callable[..., int],
    zookeeper: KazooClient,
) -> None:
    """After its session has expired, a member registers again and loses no message."""
    topic, group = new_topic(3), new_group()
    with joined(cluster, group, topic) as (member, reader):
        produce(topic, values(300), partitions=3)
        reader.wait_for(300)
        for round_ in range(1, 4):
            before = zookeeper.exists(f"/consumers/{group}/ids/{member.consumer_id}").ephemeralOwner
            end_session(cluster.zookeeper_connect, client_id_of(member))
            produce(topic, values(300), partitions=3)

            def registered_anew(before: int = before) -> bool:
                stat = zookeeper.exists(f"/consumers/{group}/ids/{member.consumer_id}")
                return stat is not None and stat.ephemeralOwner != before

            eventually(registered_anew, 15, "a new registration")
            expected = {(p, o) for p in range(3) for o in range(100 * (round_ + 1))}
            eventually(lambda e=expected: set(reader.places) >= e, 15, "everything")  # type: ignore[misc]
            eventually(lambda: owners_of(zookeeper, group, topic).keys() == {0, 1, 2}, 5, "ownership")
        assert reader.error is None
        in_order = [o for p, o in reader.places if p == 0]
        assert all(after <= before + 1 for before, after in pairwise(in_order)), "no gaps"
    assert offsets_of(zookeeper, group, topic) == dict.fromkeys(range(3), 400)


def test_a_message_in_hand_at_the_expiry_is_not_skipped(
    cluster: DevCluster,
    new_topic: NewTopic,
    new_group: Callable[[], str],
    produce: Callable[..., int],
    zookeeper: KazooClient,
) -> None:
    """A message in the user's hand when the session expires is not skipped."""
    topic, group = new_topic(1), new_group()
    produce(topic, values(20), partitions=1)
    settings = {**QUICK, "zookeeper.connect": cluster.zookeeper_connect, "group.id": group}
    with ZookeeperConsumerConnector(settings) as member:
        reader = Reader(member.create_message_streams({topic: 1})[topic][0], hold_at=5)
        reader.wait_for(6)
        eventually(lambda: offsets_of(zookeeper, group, topic) == {0: 5}, 5, "a commit")
        identity = client_id_of(member)
        end_session(cluster.zookeeper_connect, identity)
        eventually(lambda: member.assignment() and client_id_of(member) != identity, 15, "another session")
        assert offsets_of(zookeeper, group, topic) == {0: 5}
        reader.go_on()
        reader.wait_for(20)
        assert [m.offset for m in reader.got] in ([*range(6), *range(5, 20)], list(range(20)))


def test_a_frozen_member_does_not_touch_lost_partitions(
    our_member: Callable[..., OurMember],
    new_topic: NewTopic,
    new_group: Callable[[], str],
    produce: Callable[..., int],
    zookeeper: KazooClient,
) -> None:
    """A frozen member neither hands out nor commits messages of partitions that others own by then."""
    topic, group = new_topic(4), new_group()
    quick = {"zookeeper.session.timeout.ms": 1500, "auto.commit.interval.ms": 50}
    produce(topic, values(2000), partitions=4)
    frozen = our_member(group, {topic: 1}, pause_ms=2, properties={**quick, "consumer.id": "frozen"})
    frozen.wait_messages(100)
    frozen.suspend()
    other = our_member(group, {topic: 1}, properties={**quick, "consumer.id": "other"})
    eventually(lambda: set(owners_of(zookeeper, group, topic).values()) == {f"{group}_other-0"}, 15, "a successor")
    eventually(lambda: set(offsets_of(zookeeper, group, topic).values()) == {500}, 15, "the successor's commits")
    handed_out = len(frozen.messages)
    committed = offsets_of(zookeeper, group, topic)
    frozen.resume()
    threads = [f"{group}_frozen-0", f"{group}_other-0"]
    eventually(lambda: owners_of(zookeeper, group, topic) == by_range(threads, range(4)), 15, "a share of each")
    produce(topic, values(400), partitions=4)
    all_of_it = {(p, o) for p in range(4) for o in range(600)}

    def everything() -> bool:
        return {(m.partition, m.offset) for m in [*frozen.messages, *other.messages]} >= all_of_it

    eventually(everything, 15, "every message")
    now = offsets_of(zookeeper, group, topic)
    assert all(now[p] >= committed[p] for p in committed), "never taken back"
    late = {(m.partition, m.offset) for m in frozen.messages[handed_out + 2 :]}
    early = {(m.partition, m.offset) for m in other.messages if m.offset < 500}
    assert not late & early, "at most what was in hand or on its way out when it froze"


# ---- brokers ----


def test_a_broker_that_dies_and_comes_back_costs_no_message(own: DevCluster) -> None:
    topic = unique("one-broker")
    with Admin(own.zookeeper_connect) as admin:
        admin.create_topic(topic, assignment={0: [1], 1: [1]})
    with joined(own, unique("group"), topic) as (member, reader):
        produce_to(own.bootstrap_servers, topic, values(100), partitions=2)
        reader.wait_for(100)
        own.brokers[1].kill()
        with at_the_end(own.brokers[1].start):
            eventually(
                lambda: "leader" in str(member.state) or "broker" in str(member.state), 15, "word of the trouble"
            )
            assert member.assignment(), "a broker's death is no rebalance"
        produce_to(own.bootstrap_servers, topic, values(100, 100), partitions=2)
        got = reader.wait_for(200)
        assert sorted(int(m.value or b"") for m in got) == list(range(200)), "once each"
        eventually(lambda: "leader" not in str(member.state), 5, "a state without trouble")
        assert member.state.rebalances <= 3


def test_when_a_leader_changes_reading_goes_on_with_the_next(own: DevCluster) -> None:
    topic = unique("two-brokers")
    with Admin(own.zookeeper_connect) as admin:
        admin.create_topic(topic, assignment={0: [0, 1], 1: [1, 0]})
    with joined(own, unique("group"), topic) as (_, reader):
        sent = produce_to(own.bootstrap_servers, topic, values(100), partitions=2, acks="all")
        reader.wait_for(sent)
        own.brokers[1].stop()
        with at_the_end(own.brokers[1].start):
            sent += produce_to(own.bootstrap_servers, topic, values(100, sent), partitions=2, acks="all")
            reader.wait_for(sent)
        with Admin(own.zookeeper_connect) as admin:
            eventually(lambda: admin.leader(topic, 1) is not None, 10, "a leader")
        sent += produce_to(own.bootstrap_servers, topic, values(100, sent), partitions=2, acks="all")
        got = reader.wait_for(sent)
        assert sorted(int(m.value or b"") for m in got) == list(range(sent)), "once each"


def test_a_silent_broker_does_not_hold_up_shutdown(own: DevCluster) -> None:
    topic = unique("silent")
    with Admin(own.zookeeper_connect) as admin:
        admin.create_topic(topic, assignment={0: [1]})
    produce_to(own.bootstrap_servers, topic, values(10), partitions=1)
    group = unique("group")
    with joined(own, group, topic) as (member, reader):
        reader.wait_for(10)
        own.brokers[1].suspend()
        with at_the_end(own.brokers[1].resume):
            begin = monotonic()
            member.shutdown()
            assert monotonic() - begin < scaled(3)
            reader.join(2)
        client = KazooClient(own.zookeeper_connect)
        client.start(timeout=scaled(10))
        with at_the_end(client.close), at_the_end(client.stop):
            assert offsets_of(client, group, topic) == {0: 10}


# ---- ZooKeeper ----


def test_a_restart_of_zookeeper_costs_no_message(own: DevCluster) -> None:
    topic, group = unique("restart"), unique("group")
    own.create_topic(topic, 2)
    with joined(own, group, topic, **{"zookeeper.session.timeout.ms": 8_000}) as (member, reader):
        produce_to(own.bootstrap_servers, topic, values(100), partitions=2)
        reader.wait_for(100)
        own.zookeeper.kill()
        with at_the_end(own.zookeeper.start):
            eventually(lambda: "suspended" in str(member.state), 10, "a suspended member")
        eventually(lambda: "owning 2 of 2" in str(member.state), 20, "a member in order")
        produce_to(own.bootstrap_servers, topic, values(100, 100), partitions=2)
        got = reader.wait_for(200)
        assert sorted({int(m.value or b"") for m in got}) == list(range(200))


def test_a_silent_zookeeper_stops_hand_out_and_bounds_shutdown(own: DevCluster) -> None:
    """While ZooKeeper is silent no message is handed out, and the shutdown is bounded."""
    topic, group = unique("silence"), unique("group")
    own.create_topic(topic, 1)
    produce_to(own.bootstrap_servers, topic, values(100), partitions=1)
    settings = {**QUICK, "zookeeper.connect": own.zookeeper_connect, "group.id": group}
    settings |= {"zookeeper.session.timeout.ms": "2000", "auto.commit.interval.ms": "50"}
    member = ZookeeperConsumerConnector(settings)
    with member:
        stream = member.create_message_streams({topic: 1})[topic][0]
        assert [stream.get(10).offset for _ in range(3)] == [0, 1, 2]
        own.zookeeper.suspend()
        with at_the_end(own.zookeeper.resume):
            handed_out: list[int] = []

            def silent() -> bool:
                try:
                    handed_out.append(stream.get(0.5).offset)
                except ConsumerTimeoutException:
                    return True
                threading.Event().wait(0.1)
                return False

            reading = threading.Thread(target=lambda: eventually(silent, 15, "the end of the lease"))
            reading.start()
            reading.join(scaled(2.0) + 3)
            assert handed_out, "before the lease ends, reading goes on"
            assert handed_out == list(range(3, 3 + len(handed_out)))
            assert len(handed_out) < 60
            seen = len(handed_out)
            begin = monotonic()
            with pytest.raises(OffsetCommitError, match=f"not committed: {topic}-0 at"):
                member.shutdown()
            assert monotonic() - begin < scaled(6.5)
            reading.join(scaled(5))
            assert not reading.is_alive()
            assert len(handed_out) <= seen + 1
    client = KazooClient(own.zookeeper_connect)
    client.start(timeout=scaled(10))
    with at_the_end(client.close), at_the_end(client.stop):
        eventually(lambda: owners_of(client, group, topic) == {}, 10, "the end of the old session")
        committed = offsets_of(client, group, topic)[0]
        assert committed <= 3 + seen
    with joined(own, group, topic) as (_, reader):
        eventually(lambda: {o for _, o in reader.places} == set(range(committed, 100)), 15, "the rest")
