"""The broker channel against real brokers of every generation that registers in ZooKeeper."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest

from tests.cluster.conftest import EAGER, NewTopic, produce_to, unique
from tests.cluster.in_process import client_of
from tests.timing import eventually, scaled
from zkconsumer.devcluster import DevCluster
from zkconsumer.kafka import BrokerChannel, FetchPosition, FetchRequest, PartitionResponse, batches, error_codes
from zkconsumer.kafka.fetched_batches import epochs_in, extent
from zkconsumer.model import Endpoint, TopicPartition
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.zookeeper import paths
from zkconsumer.zookeeper.node_codecs import decode_broker


class BrokerFeatures(NamedTuple):
    """A broker, and its expected request versions."""

    kafka: str
    node: int  # the version of its node in ZooKeeper
    fetch: int
    offsets: int
    metadata: int
    producer: Mapping[str, Any] = {}


def _old(release: str) -> dict[str, Any]:
    return {"api_version_request": False, "broker_version_fallback": release}


GENERATIONS = [
    BrokerFeatures("0.8.2.2", 1, 0, 0, 0, _old("0.8.2.2")),
    BrokerFeatures("0.9.0.1", 2, 1, 0, 0, _old("0.9.0.1")),
    BrokerFeatures("0.10.2.2", 4, 3, 1, 2),
    BrokerFeatures("1.1.1", 4, 7, 2, 5),
    BrokerFeatures("2.8.2", 5, 11, 3, 5),
    BrokerFeatures("3.9.1", 5, 11, 3, 5),
]


def soon() -> Deadline:
    return Deadline(scaled(20))


def registered(cluster: DevCluster) -> Endpoint:
    """The broker's endpoint in ZooKeeper."""
    path = paths.broker(0)
    with client_of(cluster.zookeeper_connect) as client:
        return decode_broker(client.get(path)[0], path).endpoints[0]


@contextmanager
def connected(endpoint: Endpoint, timeout: float = 20) -> Iterator[BrokerChannel]:
    channel = BrokerChannel(endpoint, client_id="test", socket_timeout=scaled(timeout))
    try:
        channel.connect(soon())
        yield channel
    finally:
        channel.close()


def fetch(channel: BrokerChannel, topic: str, offset: int) -> PartitionResponse:
    request = FetchRequest([FetchPosition(topic, 0, offset, 1 << 20)], 0.1, 1, 1 << 25)
    (partition,) = channel.receive_fetch(channel.send_fetch(request, soon()), soon()).partitions
    return partition


def read(channel: BrokerChannel, topic: str, end: int) -> list[Any]:
    """Return all records of partition 0 before ``end``."""
    where, offset, records = TopicPartition(topic, 0), 0, list[Any]()
    deadline = soon()
    while offset < end and not deadline.expired:
        answer = fetch(channel, topic, offset)
        assert answer.error == error_codes.NONE
        reach = extent(answer.records, where, offset)
        for batch in batches(answer.records, check_crc=True, where=where, fetch_offset=offset):
            records += batch
            offset = batch.next_offset
        assert offset == (reach.next_offset or offset)
    assert offset >= end, f"read up to {offset} of {end} in time"
    return records


def led(channel: BrokerChannel, topic: str) -> bool:
    return TopicPartition(topic, 0) in channel.metadata([topic], soon()).leaders


@pytest.fixture(scope="module", params=GENERATIONS, ids=lambda generation: generation.kafka)
def generation(request: pytest.FixtureRequest) -> BrokerFeatures:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def old_or_new(released: Callable[[str], DevCluster], generation: BrokerFeatures) -> DevCluster:
    return released(generation.kafka)


class TestEveryGeneration:
    def test_versions_follow_the_broker(self, old_or_new: DevCluster, generation: BrokerFeatures) -> None:
        endpoint = registered(old_or_new)
        assert endpoint.generation == generation.node
        with connected(endpoint) as channel:
            asked = {
                "ApiVersions": 0,
                "Fetch": generation.fetch,
                "ListOffsets": generation.offsets,
                "Metadata": generation.metadata,
            }
            assert {name: version for name, version in channel.versions.items() if name in asked} == asked

    def test_offsets_and_errors(self, old_or_new: DevCluster, generation: BrokerFeatures) -> None:
        topic = unique("offsets")
        where, elsewhere = TopicPartition(topic, 0), TopicPartition("no.such.topic", 0)
        old_or_new.create_topic(topic, 1)
        with connected(registered(old_or_new)) as channel:
            eventually(lambda: led(channel, topic), 20, "a leader")
            produce_to(old_or_new.bootstrap_servers, topic, [b"x"] * 5, **generation.producer)
            listed = {time: channel.list_offsets({where: time, elsewhere: time}, soon()) for time in (-1, -2)}
            assert [listed[time][where][::2] for time in (-1, -2)] == [(5, 0), (0, 0)]
            assert listed[-1][elsewhere].error == error_codes.UNKNOWN_TOPIC_OR_PARTITION
            assert [record.value for record in read(channel, topic, 5)] == [b"x"] * 5
            assert fetch(channel, topic, 99).error == error_codes.OFFSET_OUT_OF_RANGE
            assert fetch(channel, topic, 5)[2:7] == (0, 5, 0 if generation.fetch >= 5 else -1, (), b"")
            # a segment ended after it everywhere, so that the oldest brokers tell nothing by themselves
            early = channel.list_offsets({where: 1_000_000, elsewhere: 1_000_000}, soon())
            assert early[where][::2] == (0, 0)
            assert (early[where].timestamp > 1.5e12) == (generation.offsets >= 1)
            assert early[elsewhere].error == error_codes.UNKNOWN_TOPIC_OR_PARTITION
            told = channel.metadata([topic, "no.such.topic"], soon())
            assert told.errors["no.such.topic"] == error_codes.UNKNOWN_TOPIC_OR_PARTITION
            assert told.leaders == {where: 0}

    def test_where_a_leader_epoch_ends(self, old_or_new: DevCluster, generation: BrokerFeatures) -> None:
        """Brokers from 0.11 on answer it, and their batches carry their epochs."""
        topic = unique("epochs")
        where = TopicPartition(topic, 0)
        old_or_new.create_topic(topic, 1)
        with connected(registered(old_or_new)) as channel:
            eventually(lambda: led(channel, topic), 20, "a leader")
            produce_to(old_or_new.bootstrap_servers, topic, [b"x"] * 5, **generation.producer)
            told = {epoch: channel.epoch_ends({where: epoch}, soon()) for epoch in (0, 1)}
            if generation.fetch < 4:
                assert told == {0: {}, 1: {}}
                return
            assert (told[0][where].error, told[0][where].end.offset) == (0, 5)
            assert (told[1][where].error, told[1][where].end.offset) == (0, -1), "no such epoch yet"
            assert epochs_in(fetch(channel, topic, 0).records, 0, 0) == ((0, 0),)


def test_offsets_by_time(cluster: DevCluster, new_topic: NewTopic) -> None:
    from confluent_kafka import Producer

    topic = new_topic()
    where = TopicPartition(topic, 0)
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    for n in range(10):
        producer.produce(topic, b"x", timestamp=1_700_000_000_000 + 1000 * n)
    assert producer.flush(scaled(20)) == 0
    with connected(registered(cluster)) as channel:
        listed = channel.list_offsets({where: 1_700_000_004_500}, soon())[where]
        assert listed == (5, 1_700_000_005_000, 0)
        assert channel.list_offsets({where: 1_800_000_000_000}, soon())[where] == (-1, -1, 0)


def test_a_question_for_a_topic_does_not_create_it(released: Callable[[str], DevCluster]) -> None:
    with connected(registered(released(EAGER))) as channel:
        for _ in range(2):
            told = channel.metadata(["never.made"], soon())
            assert told.errors == {"never.made": error_codes.UNKNOWN_TOPIC_OR_PARTITION}
