"""Recreated topics: deleted and made again while a group has offsets of them in ZooKeeper."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from threading import Thread
from typing import Any

import pytest

from tests.timing import eventually, scaled
from tests.unit.fetch.member_stream import TP, add, away, reading, take
from zkconsumer import Retry, ZookeeperConsumerConnector
from zkconsumer.core.message_pointers import PointerKind, decode_pointers
from zkconsumer.errors import LogTruncatedError
from zkconsumer.testing import FakeCluster

OFFSET = "/consumers/g/offsets/t/0"


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(zookeeper=True) as cluster:
        cluster.create_topic("t")
        add(cluster, "abcd")
        cluster.zookeeper.put(OFFSET, b"2")
        yield cluster


def stored(cluster: FakeCluster) -> bytes:
    return cluster.zookeeper.tree("/consumers/g/offsets")[OFFSET]


def test_an_offset_that_was_written_since_is_believed(cluster: FakeCluster) -> None:
    """As by an operator."""
    cluster.recreate("t")
    add(cluster, "ABCDEF")
    cluster.zookeeper.put(OFFSET, b"3")
    with reading(cluster) as (_, stream):
        assert take(stream, 1) == [(3, "D")]


def test_what_was_deleted_of_a_topic_made_anew_is_left_out(cluster: FakeCluster) -> None:
    """``auto.offset.reset=largest`` would leave out all of it."""
    cluster.recreate("t")
    add(cluster, "ABCDEF")
    cluster.truncate_before("t", 0, 3)
    with reading(cluster) as (_, stream):
        assert take(stream, 3) == [(3, "D"), (4, "E"), (5, "F")]


def test_the_last_offset_of_a_deleted_topic_is_not_committed(cluster: FakeCluster) -> None:
    """The topic may have been made anew by then, and the offset would look like one of it."""
    with reading(cluster, auto_commit_enable=True) as (connector, stream):
        assert take(stream, 2) == [(2, "c"), (3, "d")]
        cluster.delete_topic("t")
        eventually(lambda: connector.state.owned == 0, 10, "the partition to be released")
        assert stored(cluster) == b"2"
        cluster.create_topic("t")
        add(cluster, "ABCDEF")
        assert take(stream, 6) == list(enumerate("ABCDEF"))


def test_the_policy_raises_at_the_claim_until_a_seek(cluster: FakeCluster) -> None:
    cluster.recreate("t")
    add(cluster, "ABCDEF")
    with reading(cluster, log_truncation_policy="raise") as (connector, stream):
        for _ in range(2):
            with pytest.raises(LogTruncatedError, match="made anew; it was read up to offset 2") as raised:
                stream.get(timeout=scaled(10))
        assert (raised.value.partition, raised.value.diverges) == (TP, 0)
        assert "made anew" in connector.state.detail
        connector.seek(TP, 1)
        assert take(stream, 2) == [(1, "B"), (2, "C")]
        connector.commit_offsets()
        assert stored(cluster) == b"3"


def test_the_policy_raises_under_an_owner_until_a_seek(cluster: FakeCluster) -> None:
    with reading(cluster, log_truncation_policy="raise") as (connector, stream):
        take(stream, 2)
        with away(cluster):
            cluster.recreate("t")
            add(cluster, "ABCDEF")
            eventually(lambda: "made anew" in connector.state.detail, 10, "it to be seen")
        with pytest.raises(LogTruncatedError, match="made anew; it was read up to offset 3"):
            stream.get(timeout=scaled(10))
        connector.seek(TP, 0)
        assert take(stream, 2) == [(0, "A"), (1, "B")]


POINTERS = "/consumers/g/parked/t/0"


@contextmanager
def balanced(cluster: FakeCluster, storage: str) -> Iterator[list[tuple[int, str]]]:
    """Run a balanced member, whose handler fails for small letters from c on. Yields what it handled."""
    handled: list[tuple[int, str]] = []

    def handle(message: Any) -> None:
        value = message.value.decode()
        if value in "cd":
            raise ValueError("small")
        handled.append((message.offset, value))

    config: dict[str, Any] = {"zookeeper.connect": cluster.zookeeper_connect, "group.id": "g"}
    config |= {"auto.offset.reset": "smallest"}
    config |= {"auto.commit.interval.ms": 100, "refresh.leader.backoff.ms": 20, "offsets.storage": storage}
    connector = ZookeeperConsumerConnector(config)
    retry = Retry(attempts=5, delays=[3600], park_after=1)
    run = Thread(target=lambda: connector.run(handle, "t", concurrency=1, order="none", retry=retry))
    run.start()
    try:
        yield handled
    finally:
        connector.shutdown()
        run.join(scaled(20))


def pointers(cluster: FakeCluster) -> list[tuple[int, PointerKind, bool]]:
    node = cluster.zookeeper.node(POINTERS)
    found = {} if node is None else decode_pointers(node.data)
    return [(one.offset, one.kind, one.lost_ms > 0) for one in found.values()]


LOST = [(2, PointerKind.DEAD, True), (3, PointerKind.DEAD, True)]


@pytest.mark.parametrize("storage", ["zookeeper", "kafka"])
@pytest.mark.parametrize("owned", [True, False])
def test_parked_messages_of_a_deleted_topic_are_dead_letters(cluster: FakeCluster, storage: str, owned: bool) -> None:
    """Bug: the messages were dropped, or later messages without keys were taken for them."""
    cluster.zookeeper.remove(OFFSET)
    with ExitStack() as members:
        handled = members.enter_context(balanced(cluster, storage))
        eventually(lambda: len(pointers(cluster)) == 2, 20, "c and d to be parked")
        if not owned:
            members.pop_all().close()
        with away(cluster):
            cluster.recreate("t")
            add(cluster, "ABCDE")
            if owned:
                eventually(lambda: pointers(cluster) == LOST, 20, lambda: f"dead letters: {pointers(cluster)}")
        if not owned:
            handled = members.enter_context(balanced(cluster, storage))
        eventually(lambda: handled[-1:] == [(4, "E")], 20, lambda: f"the new messages: {handled}")
    assert sorted(one for one in handled if one[1].isupper()) == list(enumerate("ABCDE"))
    assert pointers(cluster) == LOST, "after the messages with their offsets"
