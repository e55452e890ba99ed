"""The real cluster that all tests of a session share, and the fixtures for it.

Every test uses its own topics and groups (``new_topic``, ``new_group``). A test that stops, kills or suspends a server
starts its own servers.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import pytest
from kazoo.client import KazooClient

from tests.cluster.in_process import client_of
from tests.cluster.legacy_member import LegacyMember
from tests.cluster.member_process import QUICK
from tests.cluster.operator_commands import OperatorCommands
from tests.cluster.our_member import OurMember
from tests.timing import eventually, scaled
from zkconsumer import OffsetCommitError, ZookeeperConsumerConnector
from zkconsumer.devcluster import DevCluster, JavaNotFoundError, java

TICK_MS = 500  # sessions may then be as short as a second
_FLUSH_S = 30.0
_numbers = itertools.count(1)


@pytest.fixture(scope="session", autouse=True)
def _java() -> None:
    try:
        java()
    except JavaNotFoundError as missing:
        pytest.skip(f"these tests start ZooKeeper and Kafka, which need Java: {missing}")


@pytest.fixture(scope="session")
def cluster() -> Iterator[DevCluster]:
    """ZooKeeper with ticks of 500 ms and a Kafka 3.9.1 broker, up for the whole session."""
    # Half a minute after its start a broker deletes messages with times of years ago, as some tests produce them.
    with DevCluster(tick_ms=TICK_MS, broker_properties={"log.retention.ms": "-1"}) as shared:
        yield shared


ZOOKEEPERS = {"0.8.2.2": "3.4.6", "0.9.0.1": "3.4.6", "0.10.2.2": "3.4.9", "1.1.1": "3.4.10", "2.8.2": "3.8.4"}
"""Kafka releases, each with a ZooKeeper of its time. Newer ones use the default ZooKeeper."""
EAGER = "3.9.1"
"""The release whose broker makes each topic that a client asks for, unless the client forbids it."""


@pytest.fixture(scope="session")
def released() -> Iterator[Callable[[str], DevCluster]]:
    """``released(version)``: a cluster of that Kafka release, up for the rest of the session.

    A test may restart its broker. A broker that did not come back is started again for the next test.
    """
    with ExitStack() as stack:

        @cache
        def made(version: str) -> DevCluster:
            cluster = DevCluster(
                kafka_version=version,
                zookeeper_version=ZOOKEEPERS.get(version),
                tick_ms=TICK_MS,
                broker_properties={"auto.create.topics.enable": str(version == EAGER).lower()},
            )
            return stack.enter_context(cluster)

        yield lambda version: made(version).start()


def unique(prefix: str) -> str:
    """Return a name that no other test uses, even in another test process on the same cluster."""
    return f"{prefix}-{os.getpid()}-{next(_numbers)}"


class NewTopic(Protocol):
    def __call__(
        self, partitions: int = 1, *, prefix: str = "topic", config: Mapping[str, str] | None = None
    ) -> str: ...


@pytest.fixture
def new_topic(cluster: DevCluster) -> NewTopic:
    """Create a topic with a new name and return the name."""

    def create(partitions: int = 1, *, prefix: str = "topic", config: Mapping[str, str] | None = None) -> str:
        name = unique(prefix)
        cluster.create_topic(name, partitions, config)
        return name

    return create


@pytest.fixture
def new_group() -> Callable[[], str]:
    """Return new group ids."""
    return lambda: unique("group")


def produce_to(
    bootstrap_servers: str,
    topic: str,
    values: Iterable[bytes | str | None],
    *,
    partitions: int | None = None,
    key: Callable[[int], bytes | str | None] | None = None,
    **config: object,
) -> int:
    """Write messages and wait until all are acknowledged. Return their number.

    Arguments: with ``partitions``, message n goes to partition n modulo this, else the key or the producer decides;
    ``key`` of message n; ``config`` of the producer, with underscores.
    """
    from confluent_kafka import Producer

    failures: list[object] = []

    def delivered(error: object, _: object) -> None:
        if error is not None:
            failures.append(error)

    producer = Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "linger.ms": 5,
            "log_level": 0,
            **{name.replace("_", "."): value for name, value in config.items()},
        }
    )
    if partitions is not None:  # a partition that was just made is refused until the broker has heard of it
        within = scaled(20)
        eventually(lambda: len(producer.list_topics(topic, within).topics[topic].partitions) >= partitions, 20, topic)
    count = 0
    for number, value in enumerate(values):
        where: dict[str, Any] = {} if partitions is None else {"partition": number % partitions}
        while True:
            try:
                producer.produce(topic, value, key(number) if key else None, on_delivery=delivered, **where)
                break
            except BufferError:
                producer.poll(0.1)
        count += 1
    left = producer.flush(scaled(_FLUSH_S))
    assert not failures, failures[:3]
    assert left == 0, f"{left} messages were not acknowledged in time"
    return count


def produce_in_transactions(bootstrap_servers: str, topic: str, *transactions: tuple[str, Sequence[bytes]]) -> None:
    """Write messages to partition 0 in transactions, each with its end, "commit" or "abort"."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap_servers, "transactional.id": topic, "log_level": 0})
    producer.init_transactions(scaled(_FLUSH_S))
    for end, values in transactions:
        producer.begin_transaction()
        for value in values:
            producer.produce(topic, value, partition=0)
        producer.flush(scaled(_FLUSH_S))  # else an abort sends nothing
        getattr(producer, f"{end}_transaction")(scaled(_FLUSH_S))


@pytest.fixture
def produce(cluster: DevCluster) -> Callable[..., int]:
    """``produce(topic, values, partitions=None, key=None)`` on the shared cluster; see ``produce_to``."""
    return lambda topic, values, **options: produce_to(cluster.bootstrap_servers, topic, values, **options)


@pytest.fixture
def zookeeper(cluster: DevCluster) -> Iterator[KazooClient]:
    """A plain ZooKeeper client on the shared cluster, independent of our code."""
    with client_of(cluster.zookeeper_connect) as client:
        yield client


def owners_of(client: KazooClient, group: str, topic: str) -> dict[int, str]:
    """Return the owner nodes in ZooKeeper: partition -> thread id."""
    from kazoo.exceptions import NoNodeError

    found = {}
    try:
        for partition in client.get_children(f"/consumers/{group}/owners/{topic}"):
            try:
                found[int(partition)] = client.get(f"/consumers/{group}/owners/{topic}/{partition}")[0].decode()
            except NoNodeError:  # released meanwhile
                continue
    except NoNodeError:
        return {}
    return found


@pytest.fixture
def commands(
    cluster: DevCluster, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> OperatorCommands:
    """Run commands on the shared cluster, in a folder of the test's own: ``commands("doctor", group, ...)``."""
    monkeypatch.chdir(tmp_path)
    return OperatorCommands(cluster, capsys)


@pytest.fixture
def legacy_member(cluster: DevCluster) -> Iterator[Callable[..., LegacyMember]]:
    """Start members of the original connector: ``legacy_member(version, group, topics, ...)``.

    They are not ready yet (``wait_ready``), so that several can start at once. All end with the test.
    """
    with ExitStack() as stack:

        def start(version: str, group: str, topics: Mapping[str, int] | None = None, **options: Any) -> LegacyMember:
            member = LegacyMember(version, cluster.zookeeper_connect, group, topics, **options)
            return stack.enter_context(closing(member)).start()

        yield start


@pytest.fixture
def our_member(cluster: DevCluster) -> Iterator[Callable[..., OurMember]]:
    """Start members of our connector, each in its own process: ``our_member(group, topics, ...)``.

    They are not ready yet. All end with the test.
    """
    with ExitStack() as stack:

        def start(group: str, topics: Mapping[str, int] | None = None, **options: Any) -> OurMember:
            return stack.enter_context(closing(OurMember(cluster.zookeeper_connect, group, topics, **options))).start()

        yield start


@pytest.fixture
def connector(cluster: DevCluster) -> Iterator[Callable[..., ZookeeperConsumerConnector]]:
    """Make connectors in this process: ``connector(group, **properties)`` with underscores; all end with the test."""
    made: list[ZookeeperConsumerConnector] = []

    def make(group: str, **properties: Any) -> ZookeeperConsumerConnector:
        given = {name.replace("_", "."): value for name, value in properties.items()}
        base = {"zookeeper.connect": cluster.zookeeper_connect, "group.id": group}
        made.append(ZookeeperConsumerConnector({**QUICK, **base, **given}))
        return made[-1]

    yield make
    for one in made:
        with suppress(OffsetCommitError):  # tests leave messages in the hands of threads that have ended
            one.shutdown()
