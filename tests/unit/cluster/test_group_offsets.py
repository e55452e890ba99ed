"""A whole group's offsets in ZooKeeper, written from outside the group."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from unittest.mock import Mock

import pytest

from tests.unit.clusters import commit_from_outside
from zkconsumer.cluster.cluster_client import ClusterClient
from zkconsumer.cluster.group_offsets import BATCH, KafkaGroupOffsets, ZooKeeperGroupOffsets, batches
from zkconsumer.config import ConsumerConfig
from zkconsumer.core.offset_move_plan import MoveVerdict, Step, StoreEntry
from zkconsumer.kafka.cluster_metadata import ClusterSeen
from zkconsumer.kafka.group_channel import GroupChannel
from zkconsumer.model import TopicPartition
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.testing import FakeCluster
from zkconsumer.testing.fake_zookeeper import FakeZooKeeper
from zkconsumer.zookeeper.session import Session

T0, T1, T2 = (TopicPartition("t", n) for n in range(3))
OFFSETS = "/consumers/g/offsets/t"


@pytest.fixture
def server() -> FakeZooKeeper:
    return FakeZooKeeper()


@pytest.fixture
def session(server: FakeZooKeeper) -> Iterator[Session]:
    made = server.session()
    made.open(Deadline(5.0))
    yield made
    made.close(Deadline(5.0))


def write(tp: TopicPartition, offset: int) -> Step:
    return Step(tp, MoveVerdict.WRITE, after=StoreEntry(offset))


def test_all_offset_nodes_are_read_also_malformed_ones(server: FakeZooKeeper, session: Session) -> None:
    for name, data in {"0": b"5", "1": b"+7", "2": b"\xff?", "10": b"-1", "x": b"1", "007": b"1"}.items():
        server.put(f"{OFFSETS}/{name}", data)
    server.put("/consumers/g/offsets/u/3", b"9")
    held = ZooKeeperGroupOffsets(session, "g").read(Deadline(5.0))
    unreadable = held.pop(T2)
    assert (unreadable.offset, unreadable.text) == (None, "\udcff?")
    assert f"{OFFSETS}/2" in unreadable.problem
    assert held == {
        T0: StoreEntry(5, text="5"),
        T1: StoreEntry(7, text="+7"),
        TopicPartition("t", 10): StoreEntry(-1, text="-1"),
        TopicPartition("u", 3): StoreEntry(9, text="9"),
    }


def test_a_group_that_never_was_holds_nothing_and_has_no_members(session: Session) -> None:
    offsets = ZooKeeperGroupOffsets(session, "g")
    assert (offsets.read(Deadline(5.0)), offsets.members(Deadline(5.0))) == ({}, [])


def test_members_are_the_names_under_ids(server: FakeZooKeeper, session: Session) -> None:
    for name in ("g_b", "g_a"):
        server.put(f"/consumers/g/ids/{name}", b"unreadable", ephemeral_owner=7)
    assert ZooKeeperGroupOffsets(session, "g").members(Deadline(5.0)) == ["g_a", "g_b"]


def test_nodes_are_created_written_and_removed_without_a_trace(server: FakeZooKeeper, session: Session) -> None:
    server.put(f"{OFFSETS}/1", b"5")
    server.put(f"{OFFSETS}/2", b"5")
    offsets = ZooKeeperGroupOffsets(session, "g")
    offsets.read(Deadline(5.0))
    assert offsets.write([write(T0, 4), write(T1, 6), Step(T2, MoveVerdict.REMOVE)], Deadline(5.0)) == {}
    assert server.tree(OFFSETS) == {f"{OFFSETS}/0": b"4", f"{OFFSETS}/1": b"6"}
    assert server.tree("/consumers/g/owners/t") == {}


@pytest.mark.parametrize("data", [b"+5", b"\xff", b"", b"-1", b"17"])
def test_any_content_can_be_put_back(server: FakeZooKeeper, session: Session, data: bytes) -> None:
    server.put(f"{OFFSETS}/0", data)
    offsets = ZooKeeperGroupOffsets(session, "g")
    before = offsets.read(Deadline(5.0))[T0]
    assert offsets.write([write(T0, 99)], Deadline(5.0)) == {}
    offsets.read(Deadline(5.0))
    assert offsets.write([Step(T0, MoveVerdict.WRITE, after=before)], Deadline(5.0)) == {}
    assert server.tree(OFFSETS) == {f"{OFFSETS}/0": data}


def test_owned_or_changed_partitions_are_refused_and_others_done(server: FakeZooKeeper, session: Session) -> None:
    server.put(f"{OFFSETS}/1", b"5")
    offsets = ZooKeeperGroupOffsets(session, "g")
    offsets.read(Deadline(5.0))
    server.put("/consumers/g/owners/t/0", b"g_a-0", ephemeral_owner=7)
    server.put(f"{OFFSETS}/1", b"6")
    appeared = TopicPartition("t", 3)
    server.put(f"{OFFSETS}/3", b"8")
    refused = offsets.write([write(T0, 1), write(T1, 1), write(T2, 1), write(appeared, 1)], Deadline(5.0))
    assert refused == {
        T0: "somebody owns it",
        T1: "somebody wrote it meanwhile",
        appeared: "somebody wrote it meanwhile",
    }
    assert server.tree(OFFSETS) == {f"{OFFSETS}/1": b"6", f"{OFFSETS}/2": b"1", f"{OFFSETS}/3": b"8"}
    assert server.tree("/consumers/g/owners/t") == {"/consumers/g/owners/t/0": b"g_a-0"}


def test_what_vanished_meanwhile_is_not_made_anew(server: FakeZooKeeper, session: Session) -> None:
    server.put(f"{OFFSETS}/0", b"5")
    offsets = ZooKeeperGroupOffsets(session, "g")
    offsets.read(Deadline(5.0))
    server.remove(f"{OFFSETS}/0")
    assert offsets.write([write(T0, 6)], Deadline(5.0)) == {T0: "somebody wrote it meanwhile"}
    assert offsets.write([Step(T0, MoveVerdict.REMOVE)], Deadline(5.0)) == {T0: "somebody wrote it meanwhile"}


def test_an_old_broker_is_asked_for_all_that_zookeeper_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """The partitions were those of one broker's metadata, so offsets of others were taken for none."""
    with FakeCluster(zookeeper=True) as cluster:
        cluster.create_topic("t", 2)
        commit_from_outside(cluster, {T0: 5, T1: 7})
        monkeypatch.setattr(ClusterClient, "describe", Mock(return_value=ClusterSeen({}, {}, {})))
        monkeypatch.setattr(GroupChannel, "versions", {"OffsetFetch": 1}, raising=False)
        config = ConsumerConfig(zookeeper_connect=cluster.zookeeper_connect, group_id="g")
        with ClusterClient(config, 5.0) as client, closing(KafkaGroupOffsets(client, "g")) as offsets:
            held = offsets.read(Deadline(5.0))
    assert {tp: entry.offset for tp, entry in held.items()} == {T0: 5, T1: 7}


def test_pieces_cover_everything_once() -> None:
    steps = [write(TopicPartition("t", n), n) for n in range(2 * BATCH + 1)]
    pieces = list(batches(steps))
    assert [len(piece) for piece in pieces] == [BATCH, BATCH, 1]
    assert [step for piece in pieces for step in piece] == steps
