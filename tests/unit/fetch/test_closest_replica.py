"""Reading from the follower that the leader names for ``client.rack`` (KIP-392), on a cluster in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from struct import pack
from typing import Any

import pytest

from tests.timing import eventually
from tests.unit.fetch.member_stream import TP, Stream, add, reading, take
from zkconsumer import ZookeeperConsumerConnector
from zkconsumer.fetch import fetcher, fetcher_manager, replica_choice
from zkconsumer.testing import FakeCluster, topic_request_handlers

LEADER, NEAR, OTHER = 0, 1, 2
OFFSET_NOT_AVAILABLE = 78


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(brokers=3, zookeeper=True) as made:
        made.create_topic("t")
        made.add_follower("t", 0, NEAR, rack="b")
        yield made


@contextmanager
def following(cluster: FakeCluster, **more: Any) -> Iterator[tuple[ZookeeperConsumerConnector, Stream]]:
    """A member in rack b that has read message a, from the follower."""
    with reading(cluster, client_rack="b", **{"auto_offset_reset": "smallest", **more}) as (connector, stream):
        assert eventually(lambda: connector.state.followers, 10, "the follower")
        add(cluster, "a")
        assert take(stream, 1) == [(0, "a")]
        eventually(lambda: connector.state.followers == {TP: NEAR}, 10, "the follower")
        yield connector, stream


def read_from(cluster: FakeCluster, since: int = 0) -> list[int]:
    """The brokers that were asked for messages, without repetitions in a row."""
    brokers = [one.broker for one in cluster.requests_of("Fetch")[since:]]
    return [broker for number, broker in enumerate(brokers) if number == 0 or brokers[number - 1] != broker]


def test_messages_come_from_the_follower_in_our_rack(cluster: FakeCluster) -> None:
    with following(cluster) as (connector, stream):
        add(cluster, "bcd")
        assert take(stream, 3) == [(1, "b"), (2, "c"), (3, "d")]
        assert read_from(cluster) == [LEADER, NEAR]
        assert "reading 1 partitions from followers: broker 1" in str(connector.state)


@pytest.mark.parametrize("rack", ["", "elsewhere"])
def test_without_a_follower_in_our_rack_the_leader_is_read(cluster: FakeCluster, rack: str) -> None:
    add(cluster, "ab")
    with reading(cluster, client_rack=rack, auto_offset_reset="smallest") as (connector, stream):
        assert take(stream, 2) == [(0, "a"), (1, "b")]
        assert (read_from(cluster), connector.state.followers) == ([LEADER], {})


def test_a_former_leader_is_not_read_without_a_rack(cluster: FakeCluster) -> None:
    """As a follower it would answer a request of the newest version."""
    add(cluster, "a")
    with reading(cluster, auto_offset_reset="smallest") as (_, stream):
        assert take(stream, 1) == [(0, "a")]
        cluster.move_leader("t", 0, to=OTHER)
        eventually(lambda: read_from(cluster) == [LEADER, OTHER], 10, "the new leader")
        add(cluster, "b")
        assert take(stream, 1) == [(1, "b")]


def test_a_former_leader_is_left_after_a_followers_failure(cluster: FakeCluster) -> None:
    with following(cluster) as (_, stream):
        dismissed(cluster)
        eventually(lambda: read_from(cluster) == [LEADER, NEAR, LEADER], 10, "the leader")
        cluster.move_leader("t", 0, to=OTHER)
        eventually(lambda: read_from(cluster)[-1] == OTHER, 10, "the new leader")
        add(cluster, "b")
        assert take(stream, 1) == [(1, "b")]


def test_a_broker_of_an_older_version_leaves_the_rack_out() -> None:
    with FakeCluster(brokers=2, version="1.1", zookeeper=True) as cluster:
        cluster.create_topic("t")
        cluster.add_follower("t", 0, NEAR, rack="b")
        add(cluster, "ab")
        with reading(cluster, client_rack="b", auto_offset_reset="smallest") as (_, stream):
            assert take(stream, 2) == [(0, "a"), (1, "b")]
            assert read_from(cluster) == [LEADER]


def cut_off(cluster: FakeCluster) -> None:
    cluster.stop_broker(NEAR)


def behind(cluster: FakeCluster) -> None:
    """The follower has lost the offset: out of range there, and in the middle of the leader's log."""
    cluster.add_follower("t", 0, NEAR, rack="b", end=0)


def dismissed(cluster: FakeCluster) -> None:
    cluster.remove_follower("t", 0, NEAR)


def unavailable(cluster: FakeCluster) -> None:
    cluster.fail("Fetch", OFFSET_NOT_AVAILABLE, broker=NEAR)


def unreadable(cluster: FakeCluster) -> None:
    cluster.answer("Fetch", b"no response", broker=NEAR)


def led_by_another(cluster: FakeCluster) -> None:
    """The next batch has another leader epoch, about which only the leader is asked."""
    cluster.move_leader("t", 0, to=OTHER)


def naming_another(cluster: FakeCluster) -> None:
    cluster.move_leader("t", 0, to=NEAR)
    cluster.remove_follower("t", 0, NEAR)
    cluster.add_follower("t", 0, OTHER, rack="b")


def damaged(cluster: FakeCluster) -> None:
    def spoil(real: bytes) -> bytes:
        return real[:-1] + bytes([real[-1] ^ 0xFF]) if real.endswith(b"\0") and b"payload" in real else real

    cluster.answer("Fetch", spoil, times=10_000, broker=NEAR)


def endless(cluster: FakeCluster) -> None:
    """The follower says that the next message is larger than any fetch."""

    def spoil(real: bytes) -> bytes:
        at = real.rfind(pack(">q", 1), 0, max(0, real.find(b"payload 1"))) + 8
        return real if at < 8 else real[:at] + pack(">i", 0x70000000) + real[at + 4 :]

    cluster.answer("Fetch", spoil, times=10_000, broker=NEAR)


@pytest.mark.parametrize(
    "fail",
    [cut_off, behind, dismissed, unavailable, unreadable, led_by_another, naming_another, damaged, endless],
    ids=lambda fail: str(fail.__name__),
)
@pytest.mark.parametrize("reset", ["smallest", "largest"])
def test_when_a_follower_fails_the_leader_is_asked(
    cluster: FakeCluster, fail: Callable[[FakeCluster], None], reset: str
) -> None:
    with following(cluster, corrupt_message_policy="skip", auto_offset_reset=reset) as (connector, stream):
        fail(cluster)
        for value in (b"payload 1", b"payload 2", b"payload 3"):
            cluster.append("t", 0, [value])
        assert take(stream, 3) == [(1, "payload 1"), (2, "payload 2"), (3, "payload 3")]
        assert read_from(cluster)[:2] == [LEADER, NEAR]
        eventually(lambda: connector.state.followers == {}, 10, "the leader")
        assert stream.queue.skipped == 0
        assert not cluster.requests_of("ListOffsets", "g")[1:], "no reset"


def test_after_a_failure_the_follower_is_tried_again(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_choice, "LEADER_STAYS", 0.05)
    monkeypatch.setattr(fetcher, "LOOK_EVERY", 0.02)
    with following(cluster) as (connector, stream):
        unavailable(cluster)
        add(cluster, "b")
        assert take(stream, 1) == [(1, "b")]
        eventually(lambda: connector.state.followers == {TP: NEAR}, 10, "the follower again")
        add(cluster, "c")
        assert take(stream, 1) == [(2, "c")]


def test_the_leader_names_a_follower_anew_after_a_time(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_choice, "REPLICA_STAYS", 0.05)
    monkeypatch.setattr(fetcher, "LOOK_EVERY", 0.02)
    with following(cluster) as (connector, stream):
        cluster.add_follower("t", 0, NEAR, rack="elsewhere")
        cluster.add_follower("t", 0, OTHER, rack="b")
        eventually(lambda: connector.state.followers == {TP: OTHER}, 10, "the other follower")
        add(cluster, "b")
        assert take(stream, 1) == [(1, "b")]


def test_a_follower_that_is_not_registered_is_not_waited_for(cluster: FakeCluster) -> None:
    cluster.remove_follower("t", 0, NEAR)
    cluster.add_follower("t", 0, 7, rack="b")
    add(cluster, "ab")
    with reading(cluster, client_rack="b", auto_offset_reset="smallest") as (_, stream):
        assert take(stream, 2) == [(0, "a"), (1, "b")]


def test_the_lag_counts_to_the_end_at_the_leader(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The follower has two messages of five, and says that its log ends there."""
    monkeypatch.setattr(fetcher_manager, "REPORT_EVERY", 0.1)
    cluster.add_follower("t", 0, NEAR, rack="b", end=2)
    add(cluster, "abc")
    with reading(cluster, client_rack="b", auto_offset_reset="smallest") as (connector, stream):
        assert take(stream, 2) == [(0, "a"), (1, "b")]
        assert connector.lag()[TP] == 2  # with the message in hand, by the leader's answer before the follower's
        add(cluster, "de")
        eventually(lambda: connector.lag()[TP] == 4, 10, "the log end of the leader")
        assert connector.state.followers == {TP: NEAR}
        cluster.add_follower("t", 0, NEAR, rack="b")
        assert take(stream, 3) == [(2, "c"), (3, "d"), (4, "e")]


def test_the_lag_grows_while_a_follower_stands_still(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a fetch session such a follower does not name the partition. Here it does not answer at all."""
    monkeypatch.setattr(fetcher_manager, "REPORT_EVERY", 0.1)
    cluster.add_follower("t", 0, NEAR, rack="b", end=1)
    with following(cluster, fetch_wait_max_ms=60_000, socket_timeout_ms=70_000) as (connector, _):
        add(cluster, "bc")
        eventually(lambda: connector.lag()[TP] == 3, 10, "the log end of the leader")
        assert connector.state.followers == {TP: NEAR}


def test_a_leader_that_does_not_tell_log_ends_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetcher_manager, "REPORT_EVERY", 0.1)
    with FakeCluster(brokers=3, zookeeper=True) as cluster:
        cluster.create_topic("t", 2)
        for number, leader in enumerate((OTHER, LEADER)):
            cluster.move_leader("t", number, to=leader)
            cluster.add_follower("t", number, NEAR, rack="b", end=1)
            cluster.append("t", number, [b"a"])
        with reading(cluster, client_rack="b", auto_offset_reset="smallest") as (connector, _):
            eventually(lambda: len(connector.state.followers) == 2, 10, "the followers")
            cluster.answer("ListOffsets", b"no response", times=10_000, broker=LEADER)
            add(cluster, "bc")
            eventually(lambda: connector.lag()[TP] == 3, 10, "the log end of the other leader")


def test_what_a_follower_has_damaged_is_not_skipped_later(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """It waits in the stream, and its partition is at the leader again when it is read."""
    with following(cluster, corrupt_message_policy="skip") as (connector, stream):
        damaged(cluster)
        cluster.append("t", 0, [b"payload 1"])
        eventually(lambda: len(stream.queue), 10, "the damaged chunk")
        cluster.stop_broker(NEAR)
        eventually(lambda: connector.state.followers == {}, 10, "the leader")
        cluster.append("t", 0, [b"payload 2"])
        assert take(stream, 2) == [(1, "payload 1"), (2, "payload 2")]
        assert stream.queue.skipped == 0
        assert "a follower sent it, so the leader is asked" in caplog.text


def test_a_leader_that_names_itself_is_read(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_request_handlers, "read_replica", lambda log, rack, _: log.leader if rack else -1)
    add(cluster, "ab")
    with reading(cluster, client_rack="b", auto_offset_reset="smallest") as (_, stream):
        assert take(stream, 2) == [(0, "a"), (1, "b")]


def test_a_seek_asks_the_leader_first(cluster: FakeCluster) -> None:
    with following(cluster) as (connector, stream):
        add(cluster, "bc")
        assert take(stream, 2) == [(1, "b"), (2, "c")]
        before = len(cluster.requests_of("Fetch"))
        connector.seek(TP, 0)
        assert take(stream, 3) == [(0, "a"), (1, "b"), (2, "c")]
        assert LEADER in read_from(cluster, before)


def test_a_shorter_log_is_found_by_the_leader(cluster: FakeCluster) -> None:
    """The log loses its end in an unclean election. Nothing behind the cut is skipped."""
    with following(cluster) as (_, stream):
        add(cluster, "bcd")
        assert take(stream, 3) == [(1, "b"), (2, "c"), (3, "d")]
        cluster.truncate("t", 0, 2)
        add(cluster, "xyz")
        assert take(stream, 3) == [(2, "x"), (3, "y"), (4, "z")]
