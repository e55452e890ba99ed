"""Exactly once into a database, on a real cluster: the documented examples, and a Scala member that joins."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from tests.cluster.conftest import NewTopic, owners_of, produce_in_transactions, produce_to
from tests.cluster.legacy_member import LegacyMember
from tests.cluster.run_example import run_example
from tests.databases import campaign
from tests.databases.places import on_sqlite
from tests.databases.postgres import server, why_none
from tests.documents import example
from tests.timing import eventually, scaled
from zkconsumer import DatabaseOffsets, OffsetStoreConflictError, SkippedRecordError, ZookeeperConsumerConnector
from zkconsumer.devcluster import DevCluster

KILLS = 5
WAIT_S = 30.0
without_server = pytest.mark.skipif(bool(why_none()), reason=why_none())


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgres", marks=without_server)])
def test_no_message_is_missing_when_the_example_is_killed(
    kind: str, cluster: DevCluster, new_topic: NewTopic, new_group: Callable[[], str], tmp_path: Path
) -> None:
    topic = new_topic(campaign.PARTITIONS)
    with server() if kind == "postgres" else nullcontext() as running:
        database = campaign.sqlite(tmp_path) if running is None else campaign.postgres(running.address)
        code = campaign.program(database, cluster, topic, new_group(), slow=0.1 if running else 0.0)
        made = campaign.campaign(cluster, topic, code, database, tmp_path, kills=KILLS, seed=1)
    assert (made.missing, made.surplus) == ([], []), made


def test_the_example_of_sqlite_ends_by_itself(cluster: DevCluster, new_topic: NewTopic, tmp_path: Path) -> None:
    """As a reader starts it for the first time. ``example("postgres")`` differs in its end alone."""
    topic = new_topic(4)
    produce_to(cluster.bootstrap_servers, topic, [b"%d" % number for number in range(100)], partitions=4)
    assert run_example(example("sqlite"), cluster, topic, tmp_path).splitlines()[-1] == "rows: 100"


class Application:
    """A member in this process that writes to SQLite."""

    def __init__(self, cluster: DevCluster, group: str, folder: Path) -> None:
        self.places = on_sqlite(folder / "x.db")
        self.store = DatabaseOffsets(self.places.connect)
        self.connector = ZookeeperConsumerConnector(
            zookeeper_connect=cluster.zookeeper_connect,
            group_id=group,
            auto_offset_reset="smallest",
            consumer_timeout_ms=int(scaled(WAIT_S) * 1000),
            isolation_level="read_committed",
            offset_store=self.store,
        )
        self.connection = self.places.connect()

    def take_in(self, message: Any) -> None:
        with self.connection:
            self.places.insert(self.connection, message.offset, message.partition)
            self.store.record(self.connection, message)

    def close(self) -> None:
        self.connection.close()
        self.connector.shutdown()


def test_a_scala_member_that_joins_gets_no_partition(
    cluster: DevCluster,
    legacy_member: Callable[..., LegacyMember],
    zookeeper: KazooClient,
    new_topic: NewTopic,
    new_group: Callable[[], str],
    tmp_path: Path,
) -> None:
    """It would consume what never reaches the database."""
    topic, group = new_topic(4), new_group()
    ours = Application(cluster, group, tmp_path)
    try:
        (stream,) = ours.connector.create_message_streams({topic: 1})[topic]
        produce_to(cluster.bootstrap_servers, topic, [b"%d" % number for number in range(8)], partitions=4)
        in_hand = stream.get(scaled(WAIT_S))
        owners = owners_of(zookeeper, group, topic)
        assert len(owners) == 4
        legacy_member("1.1.1", group, {topic: 1})
        eventually(lambda: "database" in str(ours.connector.state), WAIT_S, "the reason in the state")
        with pytest.raises(OffsetStoreConflictError):
            ours.take_in(in_hand)
        with pytest.raises(OffsetStoreConflictError):
            stream.take(9)
        assert owners_of(zookeeper, group, topic) == owners
        assert ours.places.written() == []
    finally:
        ours.close()


def test_markers_of_transactions_are_no_messages(
    cluster: DevCluster, new_topic: NewTopic, new_group: Callable[[], str], tmp_path: Path
) -> None:
    """They take offsets, and so do the messages of an aborted transaction."""
    topic = new_topic(1)
    ends = ("commit", "abort", "commit")
    produce_in_transactions(cluster.bootstrap_servers, topic, *((end, [b"x"] * 3) for end in ends))
    ours = Application(cluster, new_group(), tmp_path)
    try:
        (stream,) = ours.connector.create_message_streams({topic: 1})[topic]
        for _ in range(5):
            ours.take_in(stream.get(scaled(WAIT_S)))
        assert ours.places.written() == [0, 1, 2, 8, 9], "three messages, a marker, four offsets of the aborted, two"
        stream.get(scaled(WAIT_S))
        produce_to(cluster.bootstrap_servers, topic, [b"y"], partitions=1)
        with pytest.raises(SkippedRecordError, match="offset 10"):
            ours.take_in(stream.get(scaled(WAIT_S)))
    finally:
        with suppress(Exception):
            ours.close()
