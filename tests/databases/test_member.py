"""Members whose offsets are in a database, on a cluster in memory: zombies, strangers, and a database that is away."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from tests.databases.places import Places, on_sqlite
from tests.timing import eventually
from zkconsumer import (
    DatabaseOffsets,
    FencedRecordError,
    OffsetCommitError,
    OffsetStoreConflictError,
    SkippedRecordError,
    ZookeeperConsumerConnector,
)
from zkconsumer.errors import ConfigException, LogTruncatedError
from zkconsumer.testing import FakeCluster

GROUP, TOPIC = "g", "events"
OFFSET_NODE = f"/consumers/{GROUP}/offsets/{TOPIC}/0"
OWNER_NODE = f"/consumers/{GROUP}/owners/{TOPIC}/0"
STRANGER = f"/consumers/{GROUP}/ids/{GROUP}_scala"
SCALA = json.dumps({"version": 1, "subscription": {TOPIC: 1}, "pattern": "static", "timestamp": "1"}).encode()
WAIT_S = 20.0


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(zookeeper=True) as running:
        running.create_topic(TOPIC, 1)
        running.append(TOPIC, 0, [b"%d" % number for number in range(5)])
        yield running


class DatabaseMember:
    """A connector, the store, the stream, and the application's connection to the database."""

    def __init__(
        self,
        cluster: FakeCluster,
        places: Places,
        connect: Callable[[], Any] | None = None,
        name: str = "m",
        store: DatabaseOffsets | None = None,
    ) -> None:
        self.places = places
        self.store = store or DatabaseOffsets(connect or places.connect)
        self.connector = ZookeeperConsumerConnector(
            zookeeper_connect=cluster.zookeeper_connect,
            group_id=GROUP,
            consumer_id=name,
            auto_offset_reset="smallest",
            consumer_timeout_ms=int(WAIT_S * 1000),
            zookeeper_session_timeout_ms=6000,
            rebalance_drain_timeout_ms=200,
            offsets_channel_backoff_ms=100,
            offset_store=self.store,
        )
        self.connection = places.connect()

    def join(self) -> Any:
        (self.stream,) = self.connector.create_message_streams({TOPIC: 1})[TOPIC]
        return self.stream

    def take_in(self, message: Any) -> None:
        """Write and record one message."""
        try:
            self.places.insert(self.connection, message.offset)
            self.store.record(self.connection, message)
        except BaseException:
            self.connection.rollback()
            raise
        self.connection.commit()

    def take_next(self, count: int = 1) -> None:
        for _ in range(count):
            self.take_in(self.stream.get(WAIT_S))

    def close(self) -> None:
        self.connection.close()
        with suppress(OffsetCommitError):  # its last partitions were lost
            self.connector.shutdown()


@pytest.fixture
def member(cluster: FakeCluster) -> Iterator[Callable[..., DatabaseMember]]:
    made: list[DatabaseMember] = []

    def make(places: Places, **options: Any) -> DatabaseMember:
        made.append(DatabaseMember(cluster, places, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def sqlite(tmp_path: Any) -> Places:
    return on_sqlite(tmp_path / "x.db")


Make = Callable[..., DatabaseMember]


def expire_all(cluster: FakeCluster) -> None:
    """End all sessions."""
    assert cluster.zookeeper_server is not None
    cluster.zookeeper_server.expire()


def epoch(places: Places) -> int:
    """Return the epoch of the one partition in the table."""
    return int(places.query("SELECT max(epoch) FROM zkconsumer_offsets")[0][0])


def node_offset(cluster: FakeCluster) -> bytes:
    """Return the offset in ZooKeeper."""
    node = cluster.zookeeper.node(OFFSET_NODE)
    assert node is not None
    return node.data


def test_a_zombie_with_a_message_in_hand_cannot_write_it(places: Places, cluster: FakeCluster, member: Make) -> None:
    """It works for longer than it may: another member owns and consumes the partition meanwhile."""
    zombie = member(places, name="z")
    zombie.join()
    zombie.take_next(2)
    in_hand = zombie.stream.get(WAIT_S)
    heir = member(places, name="a")  # the first name gets the one partition
    heir.join()
    heir.take_next()
    with pytest.raises(FencedRecordError, match="g_a has claimed it since"):
        zombie.take_in(in_hand)
    heir.take_next(2)
    assert places.written() == [0, 1, 2, 3, 4]


def test_a_member_begins_at_the_table_and_not_at_the_node(sqlite: Places, cluster: FakeCluster, member: Make) -> None:
    first = member(sqlite)
    first.join()
    first.take_next(2)
    first.close()
    assert node_offset(cluster) == b"2"
    cluster.zookeeper.put(OFFSET_NODE, b"4")
    second = member(sqlite)
    second.join()
    second.take_next(3)
    assert sqlite.written() == [0, 1, 2, 3, 4]


def test_an_offset_set_in_zookeeper_moves_nothing(sqlite: Places, cluster: FakeCluster, member: Make) -> None:
    """The member writes its own offset over the foreign offset, so that monitors see the truth."""
    one = member(sqlite)
    one.join()
    one.take_next(2)
    cluster.zookeeper.put(OFFSET_NODE, b"0")

    def written_over() -> bool:
        with suppress(OffsetCommitError):
            one.connector.commit_offsets()
        return node_offset(cluster) == b"2"

    eventually(written_over, WAIT_S, "the member's own offset")
    one.take_next(3)
    assert sqlite.written() == [0, 1, 2, 3, 4]


def test_a_forgotten_message_is_noticed(sqlite: Places, cluster: FakeCluster, member: Make) -> None:
    one = member(sqlite)
    one.join()
    one.take_next()
    one.stream.get(WAIT_S)
    with pytest.raises(SkippedRecordError, match="the log has a message at offset 1"):
        one.take_next()
    assert sqlite.written() == [0]


def test_messages_deleted_by_retention_are_not_passed(sqlite: Places, cluster: FakeCluster, member: Make) -> None:
    with closing(sqlite.connect()) as connection:
        operator = DatabaseOffsets(sqlite.connect)
        operator.create_table(connection)
        operator.set_offset(connection, GROUP, TOPIC, 0, 1)
        connection.commit()
    cluster.truncate_before(TOPIC, 0, 3)
    one = member(sqlite)
    one.join()
    with pytest.raises(SkippedRecordError, match="log begins at offset 3"):
        one.take_next()


def test_a_topic_made_anew_is_not_taken_for_the_old(sqlite: Places, cluster: FakeCluster, member: Make) -> None:
    one = member(sqlite)
    one.join()
    one.take_next(5)
    cluster.recreate(TOPIC)
    cluster.append(TOPIC, 0, [b"new"])
    with pytest.raises(LogTruncatedError):
        one.stream.get(WAIT_S)


def test_a_shutdown_without_zookeeper_says_nothing_untrue(sqlite: Places, cluster: FakeCluster, member: Make) -> None:
    """The copy in ZooKeeper is not written. No message is consumed again for that."""
    one = member(sqlite)
    one.join()
    one.take_next(2)
    assert cluster.zookeeper_server is not None
    cluster.zookeeper_server.stop()
    one.connector.shutdown()
    assert sqlite.next_offset("events") == 2


# ---- members without the store


def test_a_member_joins_no_group_of_others(sqlite: Places, cluster: FakeCluster, member: Make) -> None:
    cluster.zookeeper.put(STRANGER, SCALA, ephemeral_owner=99)
    with pytest.raises(OffsetStoreConflictError, match="g_scala"):
        member(sqlite).join()
    assert set(cluster.zookeeper.tree(f"/consumers/{GROUP}/ids")) == {STRANGER}


def test_a_member_with_another_database_is_a_stranger(
    sqlite: Places, cluster: FakeCluster, member: Make, tmp_path: Path
) -> None:
    one = member(sqlite)
    one.join()
    with pytest.raises(OffsetStoreConflictError, match="give them the same database"):
        member(on_sqlite(tmp_path / "other.db"), name="n").join()
    one.take_next(5)


@pytest.mark.parametrize("content", [SCALA, b"garbage"])
def test_a_stranger_that_joins_stops_hand_out(
    sqlite: Places, cluster: FakeCluster, member: Make, content: bytes
) -> None:
    """It gets no partition, and nothing is written beside it."""
    one = member(sqlite)
    one.join()
    one.take_next(2)
    owner = cluster.zookeeper.node(OWNER_NODE)
    in_hand = one.stream.get(WAIT_S)
    cluster.zookeeper.put(STRANGER, content, ephemeral_owner=99)
    eventually(lambda: "g_scala" in str(one.connector.state), WAIT_S, "the reason in the state")
    with pytest.raises(OffsetStoreConflictError, match="g_scala"):
        one.take_in(in_hand)
    assert cluster.zookeeper.node(OWNER_NODE) == owner
    with pytest.raises(OffsetStoreConflictError, match="g_scala"):
        one.stream.take(9)
    cluster.zookeeper.remove(STRANGER)
    eventually(lambda: "g_scala" not in str(one.connector.state), WAIT_S, "the stranger is gone")
    one.take_in(in_hand)
    assert sqlite.written() == [0, 1, 2]


# ---- what cannot work


def test_a_refused_member_may_try_again_with_its_store(sqlite: Places, cluster: FakeCluster, member: Make) -> None:
    cluster.zookeeper.put(STRANGER, SCALA, ephemeral_owner=99)
    one = member(sqlite)
    with pytest.raises(OffsetStoreConflictError):
        one.join()
    cluster.zookeeper.remove(STRANGER)
    again = member(sqlite, store=one.store)
    again.join()
    again.take_next(5)


def test_a_database_away_at_the_claim_is_asked_again(sqlite: Places, cluster: FakeCluster, member: Make) -> None:
    away = Event()

    def connect() -> Any:
        if away.is_set():
            raise sqlite3.OperationalError("the database is away")
        return sqlite.connect()

    one = member(sqlite, connect=connect)
    one.join()
    one.take_next(2)
    away.set()
    expire_all(cluster)
    eventually(lambda: "the database is away" in str(one.connector.state), WAIT_S, "the reason in the state")
    away.clear()
    one.take_next(3)
    assert sqlite.written() == [0, 1, 2, 3, 4]


def test_a_store_that_cannot_close_costs_no_session(
    sqlite: Places, cluster: FakeCluster, member: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session stayed, and the member's nodes with it, until the process ended."""

    def close(store: DatabaseOffsets) -> None:
        raise OSError("the disk is full")

    one = member(sqlite)
    one.join()
    one.take_next(2)
    monkeypatch.setattr(DatabaseOffsets, "close", close)
    with pytest.raises(OSError, match="the disk is full"):
        one.connector.shutdown()
    assert cluster.zookeeper_server is not None
    assert cluster.zookeeper_server.sessions == []


def test_messages_finished_in_any_order_are_refused(sqlite: Places, cluster: FakeCluster, member: Make) -> None:
    one = member(sqlite)
    with pytest.raises(ConfigException, match="recorded in order"):
        one.connector.run(print, {TOPIC: 1}, concurrency=4)
