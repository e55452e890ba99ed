"""Members that share their partitions on a real cluster: more workers than partitions, in order by key."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Callable
from time import sleep
from typing import Any

import pytest
from kazoo.client import KazooClient

from tests.timing import eventually, scaled
from zkconsumer import ZookeeperConsumerConnector
from zkconsumer.errors import ConfigException

SHARING = {"share_partitions": True, "auto_offset_reset": "smallest", "auto_commit_interval_ms": 300}
PARTITIONS = 3


class Handlers:
    """What the handlers of all members do: they note who has which key, and may be held until so many are in hand."""

    def __init__(self, hold: int = 0) -> None:
        self.lock = threading.Lock()
        self.in_hand: dict[tuple[int, bytes], str] = {}
        self.handled: dict[tuple[int, bytes], list[int]] = defaultdict(list)
        self.by: Counter[str] = Counter()
        self.most = 0
        self.wrong: list[str] = []
        self.go = threading.Event()
        self._hold = hold

    def of(self, name: str) -> Callable[[Any], None]:
        def handle(message: Any) -> None:
            place = message.partition, message.key
            with self.lock:
                if place in self.in_hand:
                    self.wrong.append(f"{name} and {self.in_hand[place]} have {place} at once")
                self.in_hand[place] = name
                self.most = max(self.most, len(self.in_hand))
                if self.most >= self._hold:
                    self.go.set()
            self.go.wait(scaled(60))
            sleep(0.002)
            with self.lock:
                self.in_hand.pop(place, None)
                self.handled[place].append(message.offset)
                self.by[name] += 1

        return handle

    @property
    def count(self) -> int:
        with self.lock:
            return sum(len(offsets) for offsets in self.handled.values())


class Runs:
    """Members that run in threads of this process."""

    def __init__(self, connector: Callable[..., ZookeeperConsumerConnector], topic: str, group: str) -> None:
        self._connector = connector
        self._topic = topic
        self._group = group
        self.errors: list[BaseException] = []
        self.members: dict[str, ZookeeperConsumerConnector] = {}
        self._threads: list[threading.Thread] = []

    def start(self, name: str, handlers: Handlers, concurrency: int = 10) -> ZookeeperConsumerConnector:
        made = self._connector(self._group, consumer_id=name, **SHARING)

        def run() -> None:
            try:
                made.run(handlers.of(name), self._topic, concurrency=concurrency, order="key")
            except BaseException as error:
                self.errors.append(error)

        thread = threading.Thread(target=run, name=f"run-{name}", daemon=True)
        thread.start()
        self._threads.append(thread)
        self.members[name] = made
        return made

    def stop(self) -> None:
        for member in self.members.values():
            member.shutdown()
        for thread in self._threads:
            thread.join(scaled(20))
        assert not self.errors, self.errors


def committed(zookeeper: KazooClient, group: str, topic: str) -> int:
    """Return the sum of the committed offsets."""
    parent = f"/consumers/{group}/offsets/{topic}"
    return sum(int(zookeeper.get(f"{parent}/{name}")[0]) for name in zookeeper.get_children(parent))


@pytest.fixture
def runs(
    connector: Callable[..., ZookeeperConsumerConnector], new_topic: Any, new_group: Callable[[], str]
) -> Callable[[], tuple[Runs, str, str]]:
    def make() -> tuple[Runs, str, str]:
        topic, group = new_topic(PARTITIONS), new_group()
        return Runs(connector, topic, group), topic, group

    return make


def test_four_members_of_ten_have_forty_messages_in_hand(
    runs: Callable[[], tuple[Runs, str, str]], produce: Any, zookeeper: KazooClient
) -> None:
    """Three partitions keep forty workers busy. One member leaves in order, and nothing is handled twice or lost."""
    made, topic, group = runs()
    total = 4000
    produce(topic, (str(n) for n in range(total)), partitions=PARTITIONS, key=lambda n: f"k{n // PARTITIONS % 400}")
    handlers = Handlers(hold=40)
    for name in "abcd":
        made.start(name, handlers)
    eventually(handlers.go.is_set, 30, lambda: f"forty in hand, there were {handlers.most}")
    eventually(lambda: handlers.count > total // 2, 30, "half of the messages")
    made.members["d"].shutdown()
    eventually(lambda: handlers.count >= total, 30, lambda: f"all messages, there are {handlers.count} {made.errors}")
    eventually(
        lambda: committed(zookeeper, group, topic) == total,
        20,
        lambda: f"everything committed: {committed(zookeeper, group, topic)}, {handlers.count} handled",
    )
    made.stop()
    assert not handlers.wrong
    assert handlers.by.keys() == set("abcd")
    for offsets in handlers.handled.values():
        assert offsets == sorted(set(offsets))


def test_sharing_needs_an_order_that_can_be_shared(connector: Callable[..., ZookeeperConsumerConnector]) -> None:
    made = connector("g", **SHARING)
    with pytest.raises(ConfigException, match="order='partition'"):
        made.run(print, "t", concurrency=4, order="partition")
