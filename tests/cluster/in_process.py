"""Our connector inside the test's process: readers of streams, and a look at nodes and offsets from outside."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from time import time
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from tests.cluster.member_process import QUICK, Consumed
from tests.timing import eventually, scaled
from zkconsumer import ConsumerTimeoutException, KafkaStream, ZookeeperConsumerConnector
from zkconsumer.cluster.cluster_client import ClusterClient, command_config
from zkconsumer.operations.snapshot_reader import LiveSource


class Reader:
    """A reader of one stream on its own thread. It keeps the messages.

    It holds the message at offset ``hold_at`` until ``go_on()``. ``got`` contains a message from its hand-out on. The
    reader ends with its stream; ``error`` is the exception that ended it otherwise. After a timeout of the stream it
    goes on.
    """

    def __init__(self, stream: KafkaStream[Any, Any], *, hold_at: int | None = None) -> None:
        self.stream = stream
        self._hold_at = hold_at
        self.error: BaseException | None = None
        self._got: list[Consumed] = []
        self._may_go_on = threading.Event()
        self.thread = threading.Thread(target=self._run, name=f"reader-{stream.name}", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self._read()
        except BaseException as error:
            self.error = error

    def _read(self) -> None:
        while True:
            try:
                for m in self.stream:
                    self._got.append(Consumed(m.topic, m.partition, m.offset, m.key, m.value, time()))
                    if m.offset == self._hold_at:
                        self._may_go_on.wait()
                return
            except ConsumerTimeoutException:
                continue

    @property
    def got(self) -> list[Consumed]:
        """Return the messages so far."""
        return self._got.copy()

    @property
    def places(self) -> list[tuple[int, int]]:
        """Return (partition, offset) of the messages, in the order of hand-out."""
        return [(m.partition, m.offset) for m in self._got]

    def go_on(self) -> None:
        """Finish the message in hand and read on."""
        self._may_go_on.set()

    def wait_for(self, count: int, seconds: float = 20) -> list[Consumed]:
        """Wait until at least ``count`` messages were handed out."""
        eventually(lambda: self.error or len(self._got) >= count, seconds, f"{count} messages: {len(self._got)} so far")
        assert self.error is None, repr(self.error)
        return self.got

    def join(self, seconds: float = 10) -> None:
        """Wait for the end of the stream. Raise the error that ended it, if any."""
        self.thread.join(scaled(seconds))
        assert not self.thread.is_alive(), "the stream did not end"
        if self.error is not None:
            raise self.error


@contextmanager
def connectors(base: Mapping[str, object]) -> Iterator[Callable[..., ZookeeperConsumerConnector]]:
    """Give a function that makes connectors from ``base`` and more properties. All are shut down at the end."""
    made: list[ZookeeperConsumerConnector] = []

    def make(*properties: Mapping[str, object], **more: Any) -> ZookeeperConsumerConnector:
        given: dict[str, object] = {**QUICK, **base}
        for some in properties:
            given.update(some)
        made.append(ZookeeperConsumerConnector(given, **more))
        return made[-1]

    yield make
    for one in made:
        one.shutdown()


@contextmanager
def client_of(connect: str, timeout: float = 10.0) -> Iterator[KazooClient]:
    """Give a plain ZooKeeper client, independent of our code, whose session lasts ``timeout`` seconds."""
    client = KazooClient(connect, timeout=timeout)
    client.start(timeout=scaled(20.0))
    try:
        yield client
    finally:
        client.stop()
        client.close()


@contextmanager
def live_source(zookeeper: str | None, brokers: str | None = None, seconds: float = 10.0) -> Iterator[LiveSource]:
    """Give the source of group snapshots that commands use."""
    config, _ = command_config(zookeeper, brokers)
    with closing(LiveSource(ClusterClient(config, scaled(seconds)))) as source:
        yield source


def offsets_of(client: KazooClient, group: str, topic: str) -> dict[int, int]:
    """Return the offset nodes in ZooKeeper: partition -> committed offset."""
    try:
        names = client.get_children(f"/consumers/{group}/offsets/{topic}")
    except NoNodeError:
        return {}
    return {int(name): int(client.get(f"/consumers/{group}/offsets/{topic}/{name}")[0]) for name in names}


def kafka_offsets(bootstrap_servers: str, group: str, topic: str, partitions: int = 4) -> dict[int, int]:
    """Return partition -> committed offset as Kafka's own client reads it."""
    from confluent_kafka import Consumer
    from confluent_kafka import TopicPartition as Where

    client = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": group, "log_level": 0})
    try:
        answered = client.committed([Where(topic, p) for p in range(partitions)], timeout=scaled(10))
        return {where.partition: where.offset for where in answered if where.offset >= 0}
    finally:
        client.close()


def commit_to_kafka(bootstrap_servers: str, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
    """Commit offsets of (topic, partition) with Kafka's own client."""
    from confluent_kafka import Consumer
    from confluent_kafka import TopicPartition as Where

    client = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": group, "log_level": 0})
    try:
        client.commit(offsets=[Where(*place, offset) for place, offset in offsets.items()], asynchronous=False)
    finally:
        client.close()


def by_range(threads: Iterable[str], partitions: Iterable[int]) -> dict[int, str]:
    """Return the original's range assignment, computed independently of our code.

    The threads, in the order of Java's strings, take runs of the partitions. The first ones take one more if the
    division leaves a rest.
    """
    order = sorted(threads, key=lambda thread: thread.encode("utf-16-be"))
    left = sorted(partitions)
    owners: dict[int, str] = {}
    for number, thread in enumerate(order):
        share = -(-len(left) // (len(order) - number))
        for _ in range(share):
            owners[left.pop(0)] = thread
    return owners
