"""Runs that park messages and bury them, over a ZooKeeper and a broker in memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest

from tests.balanced_run import running
from tests.timing import eventually, scaled
from zkconsumer import cli
from zkconsumer.balance import failed_messages
from zkconsumer.balance.outcomes import Reject
from zkconsumer.balance.retry_policy import Retry
from zkconsumer.core.message_pointers import Pointer, PointerKind, decode_pointers
from zkconsumer.ownership import balanced_ledger
from zkconsumer.testing import FakeCluster

MESSAGES = 30
SOON = Retry(delays=[0.05], jitter=0, park_after=1, attempts=4)
MUCH_LATER = Retry(delays=[3600], jitter=0)


class World:
    """One partition ``t-0`` whose messages have the keys a, b and c in turn, and a group."""

    def __init__(self, cluster: FakeCluster, group: str) -> None:
        self.cluster = cluster
        self.group = group
        self.handled: list[tuple[int, int]] = []
        self.fails: Callable[[Any], object] = lambda _: None

    def handler(self, message: Any) -> object:
        self.handled.append((message.offset, message.attempt))
        return self.fails(message)

    def running(self, retry: Retry, **options: Any) -> AbstractContextManager[object]:
        properties = {"group.id": self.group, "auto.commit.interval.ms": "100"}
        given = {"order": "key", "retry": retry, "failure_limit": None, **options}
        return running(self.cluster, self.handler, properties=properties, **given)

    def committed(self) -> int:
        node = self.cluster.zookeeper.node(f"/consumers/{self.group}/offsets/t/0")
        return int(node.data) if node is not None else -1

    def pointers(self) -> dict[int, Pointer]:
        node = self.cluster.zookeeper.node(f"/consumers/{self.group}/parked/t/0")
        return decode_pointers(node.data) if node is not None else {}

    def kinds(self) -> dict[int, PointerKind]:
        return {one.offset: one.kind for one in self.pointers().values()}

    def dead(self, verb: str, *arguments: str) -> int:
        where = ["--zookeeper", self.cluster.zookeeper_connect, "--timeout", str(int(scaled(10) * 1000))]
        return cli.main(["dead", verb, self.group, *arguments, *where])


@pytest.fixture(scope="module")
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(zookeeper=True) as made:
        made.create_topic("t", 1)
        fill(made)
        yield made


def fill(cluster: FakeCluster) -> None:
    cluster.append("t", 0, [b"%d" % n for n in range(MESSAGES)], [b"abc"[n % 3 :][:1] for n in range(MESSAGES)])


@pytest.fixture
def world(cluster: FakeCluster, request: pytest.FixtureRequest) -> World:
    return World(cluster, f"g-{request.node.name}"[:60])


def failing(offset: int, times: int) -> Callable[[Any], None]:
    """Return a handler that fails so many times at one message."""

    def handler(message: Any) -> None:
        if message.offset == offset and message.attempt <= times:
            raise TimeoutError("the server is away")

    return handler


def test_next_owner_goes_on_with_parked_messages(world: World) -> None:
    world.fails = failing(4, 1)
    with world.running(MUCH_LATER):
        eventually(lambda: len(world.kinds()) == 9 and world.committed() == MESSAGES, 10, "the parked messages")
    world.handled.clear()
    with world.running(MUCH_LATER):
        assert world.dead("replay", "--all", "--parked", "--execute") == 0
        eventually(lambda: not world.pointers(), 10, "the parked messages to be finished")
    assert world.handled == [(4, 2), *((offset, 1) for offset in range(7, MESSAGES, 3))]


@pytest.mark.tier("standard")
def test_rejected_message_is_kept_and_can_be_replayed(world: World) -> None:
    world.fails = lambda message: Reject("no such account") if message.offset == 5 else None
    with world.running(SOON):
        eventually(lambda: world.committed() == MESSAGES and bool(world.kinds()), 10, "the dead letter")
        assert world.kinds() == {5: PointerKind.DEAD}
        assert world.pointers()[5].reason == "no such account"
        world.fails = lambda _: None
        assert world.dead("replay", "--all", "--execute") == 0
        eventually(lambda: not world.pointers(), 10, "the dead letter to be handled")
    assert [attempt for offset, attempt in world.handled if offset == 5] == [1, 1]
    assert len(world.handled) == MESSAGES + 1


@pytest.mark.tier("standard")
def test_dropped_message_frees_its_key(world: World, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    world.fails = failing(4, 1)
    with world.running(MUCH_LATER):
        eventually(lambda: len(world.kinds()) == 9 and world.committed() == MESSAGES, 10, "the parked messages")
        assert world.dead("drop", "--topic", "t:0", "--offset", "4", "--parked", "--execute") == 0
        eventually(lambda: not world.pointers(), 10, "what was parked behind it")
    assert [offset for offset, _ in world.handled].count(4) == 1
    assert {offset for offset, _ in world.handled} == set(range(MESSAGES))


@pytest.mark.tier("standard")
@pytest.mark.parametrize("batch", [1, 7])
def test_order_of_keys_survives_a_full_node(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, batch: int) -> None:
    """Every third message fails twice, and only eight can be parked: some wait in lanes, others as pointers."""
    for module in (balanced_ledger, failed_messages):
        monkeypatch.setattr(module, "MOST_POINTERS", 8)
    monkeypatch.setattr(failed_messages, "ROOM_AGAIN", 6)
    world = World(cluster, f"full-{batch}")
    done: list[int] = []
    lock = threading.Lock()

    def handle(messages: Any) -> None:
        for message in messages if batch > 1 else [messages]:
            if message.offset % 3 != 1 and message.offset % 4 == 0 and message.attempt < 3:
                raise TimeoutError("the server is away")
        with lock:
            done.extend(message.offset for message in (messages if batch > 1 else [messages]))

    world.handler = handle  # type: ignore[assignment, method-assign]
    with world.running(Retry(delays=[0.02], jitter=0, park_after=1), batch=batch):
        eventually(
            lambda: world.committed() == MESSAGES and not world.pointers(),
            20,
            lambda: f"all messages; base {world.committed()}, {world.kinds()}, done {sorted(done)}",
        )
    assert set(done) == set(range(MESSAGES))
    for key in range(3):
        of_key = [offset for offset in done if offset % 3 == key]
        assert of_key == sorted(of_key)
