"""The promises of every store of offsets (``zkconsumer.OffsetStore``).

The suite runs on our stores and on a store in memory, which is as simple as a user's own.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from tests.timing import eventually, scaled
from tests.unit.offsets.fakes import MemoryStore
from zkconsumer import OffsetStore, TopicPartition
from zkconsumer.devcluster import EmbeddedKafka
from zkconsumer.errors import CoordinatorUnavailableError, GroupError
from zkconsumer.kafka import BrokerChannel
from zkconsumer.kafka.coordinator_client import CoordinatorSearch
from zkconsumer.model import Endpoint
from zkconsumer.offsets.kafka_store import KafkaOffsets
from zkconsumer.offsets.zookeeper_store import ZooKeeperOffsets
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.testing import FakeZooKeeper
from zkconsumer.zookeeper import paths
from zkconsumer.zookeeper.broker_directory import registered_brokers
from zkconsumer.zookeeper.cluster_admin import Admin
from zkconsumer.zookeeper.session import Session

REAL = [pytest.mark.cluster, pytest.mark.java]
STORES = [
    "memory",
    "zookeeper-fake",
    pytest.param("zookeeper-real", marks=REAL),
    pytest.param("kafka-3.9.1", marks=REAL),
    pytest.param("kafka-1.1.1", marks=REAL),
    pytest.param("kafka-0.8.2.2", marks=REAL),
]
IN_TIME = scaled(10.0)
_numbers = itertools.count(1)

Make = Callable[[str], OffsetStore]
"""Makes a store of a group, each time another object on the same storage."""


def _session(address: str) -> Session:
    session = Session(address, timeout=6.0, on_change=lambda _: None)
    session.open(Deadline(IN_TIME))
    return session


def _on_kafka(address: str, version: str) -> Iterator[Make]:
    connect = f"{address}/offsets-on-{version}"
    # one partition of offsets, or that of another group may still be loaded when the first one's is
    with EmbeddedKafka(connect, version=version, properties={"offsets.topic.num.partitions": 1}) as broker:
        with Admin(connect) as admin:
            admin.create_topic("t", 3, deadline=Deadline(scaled(30)))
        session = _session(connect)

        def brokers(deadline: Deadline) -> list[Any]:
            return [node.endpoints[0] for node in registered_brokers(session, deadline)]

        def make(group: str) -> OffsetStore:
            def channel(endpoint: Endpoint) -> BrokerChannel:
                return BrokerChannel(endpoint, client_id="contract", socket_timeout=IN_TIME)

            return KafkaOffsets(CoordinatorSearch(group, brokers, channel, offsets_only=True))

        def ready() -> bool:
            store = make("g-0")
            try:  # the first request makes the cluster create its topic of offsets
                return not store.commit({TopicPartition("t", 2): 0}, IN_TIME)
            except (CoordinatorUnavailableError, GroupError):
                return False
            finally:
                store.close()

        eventually(ready, 60, f"a coordinator on {broker.version}")
        yield make
        session.close(Deadline(IN_TIME))


@pytest.fixture(scope="module", params=STORES)
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    kind, _, which = request.param.partition("-")
    if kind == "kafka":
        yield from _on_kafka(request.getfixturevalue("zookeeper_server"), which)
    elif kind == "memory":
        stored: dict[str, dict[TopicPartition, int]] = {}

        def in_memory(group: str) -> OffsetStore:
            store = MemoryStore()
            store.offsets = stored.setdefault(group, {})
            return store

        yield in_memory
    else:
        if which == "fake":
            session: Session = FakeZooKeeper().session()
            session.open(Deadline(IN_TIME))
        else:
            session = _session(request.getfixturevalue("zookeeper_server"))
        yield lambda group: ZooKeeperOffsets(session, group)
        session.close(Deadline(IN_TIME))


@pytest.fixture
def group() -> str:
    return f"contract-{next(_numbers)}"


def tps(*numbers: int) -> list[TopicPartition]:
    return [TopicPartition("t", number) for number in numbers]


def committed(store: OffsetStore, offsets: Mapping[TopicPartition, int]) -> None:
    assert not store.commit(offsets, IN_TIME)


def test_what_was_committed_is_fetched_also_by_another_member(make: Make, group: str) -> None:
    first, second = make(group), make(group)
    committed(first, dict(zip(tps(0, 2), (5, 0), strict=True)))
    first.close()
    assert second.fetch(tps(0, 1, 2), IN_TIME) == dict(zip(tps(0, 2), (5, 0), strict=True))
    second.close()


def test_the_last_commit_counts_also_a_smaller_one(make: Make, group: str) -> None:
    store = make(group)
    for offset in (5, 6, 3, 2**40):
        committed(store, dict.fromkeys(tps(1), offset))
        assert store.fetch(tps(1), IN_TIME) == dict.fromkeys(tps(1), offset)
    store.close()


def test_groups_do_not_see_each_other(make: Make, group: str) -> None:
    one, other = make(group), make(f"{group}-other")
    committed(one, dict.fromkeys(tps(0), 5))
    assert other.fetch(tps(0), IN_TIME) == {}
    one.close()
    other.close()


@pytest.mark.parametrize("which", ["fake", pytest.param("real", marks=REAL)])
def test_zookeeper_writes_the_unowned_only_while_they_are(
    which: str, group: str, request: pytest.FixtureRequest
) -> None:
    """The owner node is made and deleted again in the transaction, which is all that anybody ever sees of it."""
    if which == "fake":
        session: Session = FakeZooKeeper().session()
        session.open(Deadline(IN_TIME))
    else:
        session = _session(request.getfixturevalue("zookeeper_server"))
    store = ZooKeeperOffsets(session, group)
    committed(store, dict.fromkeys(tps(0, 1), 5))
    session.create(paths.owner(group, tps(0)[0]), b"somebody-0", Deadline(IN_TIME), ephemeral=True)
    failures = store.commit(dict.fromkeys(tps(0, 1), 6), IN_TIME)
    assert [(tp, str(e)) for tp, e in failures.items()] == [(tps(0)[0], "another member's owner node exists")]
    assert store.fetch(tps(0, 1), IN_TIME) == dict(zip(tps(0, 1), (5, 6), strict=True))
    assert session.children(paths.owner_topic(group, "t"), Deadline(IN_TIME)) == ("0",)
    session.close(Deadline(IN_TIME))
