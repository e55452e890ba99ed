"""Sharing members on a cluster in memory: the runs of members end and begin again, while other runs go on."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from tests.timing import eventually, scaled
from zkconsumer import ZookeeperConsumerConnector
from zkconsumer.errors import OffsetCommitError
from zkconsumer.testing import FakeCluster

EACH = 60
WITHIN = 30.0


class Member:
    """A connector, and the run of it that is under way."""

    def __init__(self, connector: ZookeeperConsumerConnector, name: str, handlers: Handlers) -> None:
        self.connector, self.name, self._handlers = connector, name, handlers
        self.thread: threading.Thread | None = None
        self.errors: list[BaseException] = []

    def run(self, **options: Any) -> None:
        topics = "events" if self.thread is None else None  # the streams are there in a later run

        def call() -> None:
            try:
                self.connector.run(self._handlers.of(self.name), topics, **{"concurrency": 4, **options})
            except BaseException as error:
                self.errors.append(error)

        self.thread = threading.Thread(target=call, name=f"run-{self.name}", daemon=True)
        self.thread.start()

    def join(self) -> None:
        assert self.thread is not None
        self.thread.join(scaled(WITHIN))
        assert not self.thread.is_alive(), str(self.connector.state)
        assert not self.errors, self.errors


class Handlers:
    """The handlers of all members, which note the member of each message and wait for ``go``."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.go = threading.Event()
        self.in_hand: dict[tuple[int, bytes], str] = {}
        self.begun: Counter[tuple[int, int]] = Counter()
        self.by: Counter[str] = Counter()
        self.together: list[str] = []

    def of(self, name: str) -> Callable[[Any], None]:
        def handle(message: Any) -> None:
            key = message.partition, message.key
            with self.lock:
                if key in self.in_hand:
                    self.together.append(f"{name} and {self.in_hand[key]} have {key} at once")
                self.in_hand[key] = name
            self.go.wait(scaled(WITHIN))
            with self.lock:
                self.in_hand.pop(key, None)
                self.begun[message.partition, message.offset] += 1
                self.by[name] += 1

        return handle

    def of_member(self, name: str) -> set[tuple[int, bytes]]:
        with self.lock:
            return {key for key, who in self.in_hand.items() if who == name}

    def forget(self, name: str) -> None:
        with self.lock:
            self.in_hand = {key: who for key, who in self.in_hand.items() if who != name}

    def busy(self) -> set[str]:
        with self.lock:
            return set(self.in_hand.values())


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(zookeeper=True) as made:
        made.create_topic("events", 1)
        add(made)
        yield made


def add(cluster: FakeCluster, many: int = EACH) -> None:
    cluster.append("events", 0, [b"v"] * many, [b"%d" % number for number in range(many)])


@pytest.fixture
def handlers() -> Iterator[Handlers]:
    made = Handlers()
    yield made
    made.go.set()


Join = Callable[..., Member]


@pytest.fixture
def join(cluster: FakeCluster, handlers: Handlers) -> Iterator[Join]:
    made: list[Member] = []

    def make(name: str, **properties: Any) -> Member:
        base = {
            "zookeeper.connect": cluster.zookeeper_connect,
            "group.id": "g",
            "consumer.id": name,
            "auto.offset.reset": "smallest",
            "auto.commit.interval.ms": 100,
            "share.partitions": "true",
        }
        made.append(Member(ZookeeperConsumerConnector(base | properties), name, handlers))
        return made[-1]

    yield make
    handlers.go.set()
    for one in made:
        one.connector.shutdown()
        if one.thread is not None:
            one.thread.join(scaled(WITHIN))


def share(handlers: Handlers, other: Member) -> None:
    """Begin another run once the owner is at work, and wait until both are."""
    eventually(lambda: handlers.busy() == {"a"}, WITHIN, "work of the owner")
    other.run()
    eventually(lambda: handlers.busy() == {"a", "b"}, WITHIN, "work of both")


def committed(cluster: FakeCluster) -> int:
    return int(cluster.zookeeper.tree("/consumers/g/offsets/events").get("/consumers/g/offsets/events/0", b"0"))


def loans(cluster: FakeCluster) -> list[str]:
    return [path for path in cluster.zookeeper.tree("/consumers/g") if "/loans/events/0/" in path]


@pytest.mark.parametrize("order", ["key", "partition"])
def test_an_owner_that_does_not_share_takes_loans_back(
    cluster: FakeCluster, join: Join, handlers: Handlers, order: str
) -> None:
    """The owner dies with loans. The next one does not share, and yet begins no key that a borrower has in hand.

    With another order there are no slots to wait for: the loan is void, and gone before anything is committed.
    """
    owner, other, borrower = join("a"), join("b", **{"share.partitions": "false"}), join("c")
    owner.run()
    eventually(lambda: handlers.busy() == {"a"}, WITHIN, "work of the owner")
    other.run(order=order)
    borrower.run()
    eventually(
        lambda: [len(handlers.of_member(name)) for name in "ac"] == [4, 4],
        WITHIN,
        "all that owner and borrower handle at once",
    )
    handlers.forget("a")
    with suppress(OffsetCommitError):
        owner.connector.shutdown(1.0)  # its session ends, with its handlers still at work
    eventually(lambda: "b" in handlers.busy(), WITHIN, lambda: f"work of the next owner: {other.connector.state}")
    if order == "key":
        assert len(handlers.of_member("c")) == 4
        assert not handlers.together
    handlers.go.set()
    eventually(lambda: committed(cluster) == EACH, WITHIN, lambda: f"all committed: {other.connector.state}")
    eventually(lambda: not loans(cluster), WITHIN, "no loans")
    assert handlers.begun.keys() == {(0, offset) for offset in range(EACH)}


@pytest.mark.parametrize("anew", [False, True])
def test_a_log_is_cut_short_while_slots_are_on_loan(
    cluster: FakeCluster, join: Join, handlers: Handlers, anew: bool
) -> None:
    """Owner and borrower go back to that place, and the borrower's run goes on."""
    owner, other = join("a"), join("b")
    owner.run()
    share(handlers, other)
    handlers.go.set()
    add(cluster)
    eventually(lambda: committed(cluster) == 2 * EACH, WITHIN, "the old log is handled")
    handlers.begun.clear()
    handlers.by.clear()
    if anew:
        cluster.recreate("events")
    else:
        cluster.truncate("events", 0, EACH)
    first, many = (0, 3 * EACH // 2) if anew else (EACH, EACH // 2)
    add(cluster, many)
    eventually(
        lambda: committed(cluster) == first + many,
        WITHIN,
        lambda: f"the new log is handled: {owner.connector.state}, {other.connector.state}",
    )
    assert handlers.by.keys() == {"a", "b"}
    assert handlers.begun.keys() == {(0, first + number) for number in range(many)}
