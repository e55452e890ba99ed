"""The fetcher detects truncated logs, and those of topics made anew."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.timing import eventually, scaled
from tests.unit.fetch.member_stream import TP, Stream, add, away, reading, take
from tests.unit.fetch.one_partition import OnePartition
from tests.unit.kafka.sets import Batch, Written
from zkconsumer import ZookeeperConsumerConnector
from zkconsumer.errors import LogTruncatedError
from zkconsumer.kafka import error_codes
from zkconsumer.model import LATEST
from zkconsumer.testing import FakeCluster

REFUSED = 31  # CLUSTER_AUTHORIZATION_FAILED: up to 2.0 only brokers may ask for epochs, where rights are checked
LATER = 6  # NOT_LEADER_OR_FOLLOWER
EVERY_TIME = 10**6
NONE = (LATER, 0)


@pytest.fixture(params=["3.9", "1.1"])
def cluster(request: pytest.FixtureRequest) -> Iterator[FakeCluster]:
    with FakeCluster(zookeeper=True, version=request.param) as cluster:
        cluster.create_topic("t")
        cluster.zookeeper.put("/consumers/g/offsets/t/0", b"0")
        add(cluster, "abcdef")
        yield cluster


@pytest.mark.parametrize(
    ("refusals", "length", "written", "read"),
    [
        (NONE, 2, "CD", [(2, "C"), (3, "D")]),
        (NONE, 2, "CDEFGH", list(enumerate("CDEFGH", 2))),
        ((REFUSED, EVERY_TIME), 2, "CD", [(0, "a"), (1, "b"), (2, "C"), (3, "D")]),
        ((LATER, 3), 2, "CDEFGH", [(2, "C")]),
        (NONE, 0, "ABCDEFGH", list(enumerate("ABCDEFGH"))),
    ],
    ids=[
        "never from its end",
        "it has the fetched offset again",
        "without epochs from its start",
        "once its epochs are told",
        "nothing is left, as where a disk was lost",
    ],
)
def test_a_truncated_log_is_read_from_the_last_common_offset(
    cluster: FakeCluster, refusals: tuple[int, int], length: int, written: str, read: list[tuple[int, str]]
) -> None:
    with reading(cluster) as (_, stream):
        take(stream, 6)
        cluster.fail("OffsetForLeaderEpoch", *refusals)
        with away(cluster):
            cluster.truncate("t", 0, length)
            add(cluster, written)
        assert take(stream, len(read)) == read


def test_a_shorter_log_is_read_from_its_start_by_the_next_owner(cluster: FakeCluster) -> None:
    """The offset in ZooKeeper has no epoch beside it."""
    cluster.zookeeper.put("/consumers/g/offsets/t/0", b"6")
    cluster.truncate("t", 0, 2)
    add(cluster, "CD")
    with reading(cluster) as (_, stream):
        assert take(stream, 4) == [(0, "a"), (1, "b"), (2, "C"), (3, "D")]


@pytest.mark.parametrize("tells", [True, False])
def test_a_new_leader_with_the_same_log_changes_nothing(cluster: FakeCluster, tells: bool) -> None:
    """The member believes the new leader, with or without the leader's epochs."""
    if not tells:
        cluster.fail("OffsetForLeaderEpoch", REFUSED, EVERY_TIME)
    with reading(cluster) as (_, stream):
        take(stream, 6)
        with away(cluster):
            pass
        add(cluster, "gh")
        assert take(stream, 2) == [(6, "g"), (7, "h")]


@pytest.mark.parametrize("taken", [True, False])
def test_a_shorter_old_format_log_is_not_read_from_its_end(*, taken: bool) -> None:
    """It has no epochs, and what was read was not committed: ``largest`` skipped what was written since."""
    it = OnePartition(reset_to=LATEST)
    it.listed, it.log_start = (0, 6), 0

    def log(offset: int, _: int) -> bytes | int:
        end = it.listed[1]
        if offset > end:
            return error_codes.OFFSET_OUT_OF_RANGE
        return Batch([Written()] * (end - offset), magic=1).encode(offset)[0] if offset < end else b""

    with it.fetching(log) as fetcher:
        fetcher.step()
        if taken:
            assert it.read() == [0, 1, 2, 3, 4, 5]
        it.listed = (0, 4)
        fetcher.step()
        fetcher.step()
        assert it.read() == ([0, 1, 2, 3] if taken else [0, 1, 2, 3, 4, 5, 0, 1, 2, 3])


def test_what_is_queued_is_handed_out_before_going_back(cluster: FakeCluster) -> None:
    """The queued messages were once in the log. A reader would have got them a moment before the truncation."""
    with reading(cluster) as (connector, stream):
        assert take(stream, 1) == [(0, "a")]
        eventually(lambda: asked(cluster)[-1] == 6, 10, "all to be fetched")
        with away(cluster):
            cluster.truncate("t", 0, 2)
            add(cluster, "CD")
        eventually(lambda: asked(cluster)[-1] == 4, 10, "the truncated log to be fetched")
        seen = take(stream, 7)
        assert seen == [(1, "b"), (2, "c"), (3, "d"), (4, "e"), (5, "f"), (2, "C"), (3, "D")]
        connector.commit_offsets()
    assert cluster.zookeeper.tree("/consumers/g/offsets/t")["/consumers/g/offsets/t/0"] == b"4"


def asked(cluster: FakeCluster) -> list[int]:
    """The offsets that were asked for."""
    topics = [topic for request in cluster.requests_of("Fetch") for topic in request.body["topics"]]
    return [partition["fetch_offset"] for topic in topics for partition in topic["partitions"]]


def test_a_paused_partition_goes_back_when_it_is_resumed(cluster: FakeCluster) -> None:
    with reading(cluster) as (connector, stream):
        take(stream, 6)
        connector.pause([TP])
        with away(cluster):
            cluster.truncate("t", 0, 2)
            add(cluster, "CDEFGH")
        connector.resume([TP])
        assert take(stream, 2) == [(2, "C"), (3, "D")]


def test_a_seek_beyond_the_end_goes_by_auto_offset_reset(cluster: FakeCluster) -> None:
    """Nothing was ever read there, so nothing was lost."""
    with reading(cluster) as (connector, stream):
        take(stream, 6)
        connector.seek(TP, 100)
        eventually(lambda: asked(cluster)[-2:] == [100, 6], 10, "the log's end to be asked for")
        add(cluster, "g")
        assert take(stream, 1) == [(6, "g")]


@pytest.mark.parametrize("grown", ["CD", "CDEFGH"])
def test_the_policy_raises_until_a_seek(cluster: FakeCluster, grown: str) -> None:
    with reading(cluster, log_truncation_policy="raise") as (connector, stream):
        take(stream, 6)
        with away(cluster):
            cluster.truncate("t", 0, 2)
            add(cluster, grown)
        for _ in range(2):
            with pytest.raises(LogTruncatedError, match="its log was truncated; it was read up to offset 6") as raised:
                stream.get(timeout=scaled(10))
        assert (raised.value.partition, raised.value.reached, raised.value.diverges) == (TP, 6, 2)
        assert "its log was truncated" in connector.state.detail
        with pytest.raises(ValueError, match="nothing to skip"):
            stream.skip()
        connector.seek(TP, raised.value.diverges)
        assert take(stream, 2) == [(2, "C"), (3, "D")]
        eventually(lambda: not connector.state.detail, 10, "the state to be well again")


def test_a_broker_that_refuses_every_offset_is_asked_seldom(caplog: pytest.LogCaptureFixture) -> None:
    """Where the reset offset was refused too, it was asked 800 times a second."""
    caplog.set_level(logging.INFO)
    with FakeCluster(zookeeper=True) as cluster:
        cluster.create_topic("t")
        add(cluster, "abc")
        cluster.zookeeper.put("/consumers/g/offsets/t/0", b"9")
        cluster.fail("Fetch", 1, EVERY_TIME)
        with reading(cluster) as (connector, _):
            eventually(lambda: len(cluster.requests_of("Fetch")) >= 3, 20, "the third try")
            assert "refuses" in connector.state.detail or "out of range" in connector.state.detail
            before = len(cluster.requests)
            with pytest.raises(AssertionError):
                eventually(lambda: len(cluster.requests) > before + 20, 1.5, "requests")
    assert len(caplog.records) < 60


@pytest.mark.parametrize("grown", ["CD", "CDEFGHIJ"])
def test_an_offset_in_kafka_is_stored_with_its_epoch(grown: str) -> None:
    """The epoch tells the next owner that the log was truncated meanwhile, however long the log has become."""
    with FakeCluster(2) as cluster:
        cluster.create_topic("t")
        add(cluster, "abcdef")
        properties = {"bootstrap.servers": cluster.bootstrap_servers, "auto.offset.reset": "smallest"}
        with coordinated(properties) as (connector, stream):
            take(stream, 6)
            connector.commit_offsets()
        cluster.truncate("t", 0, 2)
        add(cluster, grown)
        with coordinated({**properties, "auto.offset.reset": "largest"}) as (connector, stream):
            assert take(stream, len(grown)) == list(enumerate(grown, 2))
            connector.commit_offsets()
        assert cluster.committed("g") == {("t", 0): 2 + len(grown)}
        stored = cluster.requests_of("OffsetCommit")[-1].body["topics"][0]["partitions"][0]
        assert stored["committed_leader_epoch"] == 1


@contextmanager
def coordinated(properties: dict[str, Any]) -> Iterator[tuple[ZookeeperConsumerConnector, Stream]]:
    config = {"group.id": "g", "group.coordination": "kafka", "auto.commit.enable": False, **properties}
    with ZookeeperConsumerConnector(config) as connector:
        yield connector, connector.create_message_streams({"t": 1})["t"][0]
