"""Groups of ours on brokers and ZooKeepers of every age. Only the nodes tell the connector about the versions.

Each generation's servers are started once; ``test_brokers.py`` looks at single requests, here whole members work.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import pytest
from kazoo.client import KazooClient

from tests.cluster.conftest import owners_of, produce_in_transactions, produce_to, unique
from tests.cluster.in_process import Reader, client_of, connectors, offsets_of
from tests.internals import only_fetcher_of
from tests.timing import eventually, scaled
from zkconsumer import KafkaStream, MessageAndMetadata, Whitelist, ZookeeperConsumerConnector
from zkconsumer.devcluster import DevCluster
from zkconsumer.errors import MessageSizeTooLargeException

PARTITIONS = 2
BUNCH = 40
"""Messages that are written with one codec, to one topic."""
CODECS = ("none", "gzip", "snappy", "lz4")
OLD = {"api_version_request": False}


class Release(NamedTuple):
    """A release of Kafka.

    ``formats`` are the message formats that it keeps: the topic's ``message.format.version`` (None: the broker has no
    such choice) and the format's number.
    """

    kafka: str
    formats: tuple[tuple[str | None, int], ...]
    producer: Mapping[str, Any] = {}
    zstd: bool = False
    transactions: bool = True


GENERATIONS = [
    Release("0.8.2.2", ((None, 0),), {**OLD, "broker_version_fallback": "0.8.2.2"}, transactions=False),
    Release("0.10.2.2", (("0.9.0", 0), ("0.10.2", 1)), transactions=False),
    Release("1.1.1", (("0.9.0", 0), ("0.10.2", 1), ("1.1", 2))),
    Release("2.8.2", (("0.9.0", 0), ("0.10.2", 1), ("2.8", 2)), zstd=True),
    Release("3.9.1", ((None, 2),), zstd=True),
]


@pytest.fixture(scope="module", params=GENERATIONS, ids=lambda generation: generation.kafka)
def generation(request: pytest.FixtureRequest) -> Release:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def servers(released: Callable[[str], DevCluster], generation: Release) -> DevCluster:
    return released(generation.kafka)


@pytest.fixture
def nodes(servers: DevCluster) -> Iterator[KazooClient]:
    with client_of(servers.zookeeper_connect) as client:
        yield client


@pytest.fixture
def join(servers: DevCluster) -> Iterator[Callable[..., ZookeeperConsumerConnector]]:
    """Make members: ``join(group, **properties)``; all leave with the test."""
    with connectors({"zookeeper.connect": servers.zookeeper_connect}) as make:
        yield lambda group, **properties: make({"group.id": group}, **properties)


def read(stream: KafkaStream[Any, Any], count: int) -> list[MessageAndMetadata[Any, Any]]:
    return [stream.get(timeout=scaled(20)) for _ in range(count)]


def test_whatever_a_generation_can_write_is_read(
    generation: Release, servers: DevCluster, nodes: KazooClient, join: Callable[..., ZookeeperConsumerConnector]
) -> None:
    group, prefix = unique("group"), unique("written")
    expected = Counter[tuple[str, int, bytes | None]]()
    for release, number in generation.formats:
        topic = f"{prefix}.{number}"
        servers.create_topic(topic, PARTITIONS, {"message.format.version": release} if release else {})
        for codec in (*CODECS, "zstd") if generation.zstd and number == 2 else CODECS:
            values = [None if n == 3 else b"%s %d " % (codec.encode(), n) + b"x" * n for n in range(BUNCH)]
            produce_to(
                servers.bootstrap_servers,
                topic,
                values,
                partitions=PARTITIONS,
                key=lambda n: str(n),
                compression_codec=codec,
                **generation.producer,
            )
            expected.update((topic, n % PARTITIONS, value) for n, value in enumerate(values))
    with join(group) as connector:
        (stream,) = connector.create_message_streams_by_filter(Whitelist(rf"{prefix}\..*"))
        messages = read(stream, expected.total())
        assert Counter((m.topic, m.partition, m.value) for m in messages) == expected
        connector.commit_offsets()
    for release, number in generation.formats:
        topic = f"{prefix}.{number}"
        of_topic = [m for m in messages if m.topic == topic]
        each = len(of_topic) // PARTITIONS
        for partition in range(PARTITIONS):
            assert [m.offset for m in of_topic if m.partition == partition] == list(range(each)), (release, partition)
        assert {m.timestamp_type for m in of_topic} == {-1 if number == 0 else 0}
        assert all((m.timestamp > 1.5e12) == (number > 0) for m in of_topic)
        assert all(m.key is not None and m.headers == [] for m in of_topic)
        assert offsets_of(nodes, group, topic) == dict.fromkeys(range(PARTITIONS), each)


def test_two_members_survive_a_restart_of_the_broker(
    generation: Release, servers: DevCluster, nodes: KazooClient, join: Callable[..., ZookeeperConsumerConnector]
) -> None:
    """Two members share the partitions and survive a restart of the broker."""
    group, topic = unique("group"), unique("shared")
    servers.create_topic(topic, 4)

    def produce(start: int) -> None:
        values = [str(n) for n in range(start, start + BUNCH)]
        produce_to(servers.bootstrap_servers, topic, values, partitions=4, **generation.producer)

    first, second = join(group, consumer_id="a"), join(group, consumer_id="b")
    produce(0)
    readers = [Reader(first.create_message_streams({topic: 1})[topic][0])]
    readers[0].wait_for(BUNCH)
    readers.append(Reader(second.create_message_streams({topic: 1})[topic][0]))
    shares = {0: f"{group}_a-0", 1: f"{group}_a-0", 2: f"{group}_b-0", 3: f"{group}_b-0"}
    eventually(lambda: owners_of(nodes, group, topic) == shares, 20, "an even share")

    def all_read(count: int) -> bool:
        return all(r.error is None for r in readers) and sum(len(r.got) for r in readers) >= count

    produce(BUNCH)
    eventually(lambda: all_read(2 * BUNCH), 20, "what came after the second member")
    kept = {p: nodes.get(f"/consumers/{group}/owners/{topic}/{p}")[1].czxid for p in range(4)}
    servers.kafka.stop()
    servers.kafka.start()
    produce(2 * BUNCH)
    eventually(lambda: all_read(3 * BUNCH), 30, "what came after the restart")
    values = [int(m.value or b"") for r in readers for m in r.got]
    assert sorted(values) == list(range(3 * BUNCH)), "each message once"
    assert len(readers[1].got) == BUNCH, "half of what came after it joined"
    owned = {p: nodes.get(f"/consumers/{group}/owners/{topic}/{p}")[1].czxid for p in range(4)}
    assert owned == kept, "a broker that comes and goes is no reason to rebalance"
    second.shutdown()
    first.shutdown()
    assert offsets_of(nodes, group, topic) == dict.fromkeys(range(4), 3 * BUNCH // 4)


def test_headers_times_and_transactions_by_generation(
    generation: Release, servers: DevCluster, join: Callable[..., ZookeeperConsumerConnector]
) -> None:
    """Headers, timestamps and transactions work if the broker's generation has them."""
    from confluent_kafka import Producer

    if generation.formats[-1][1] == 0:
        pytest.skip(f"{generation.kafka} knows none of them")
    topic, other = unique("stamped"), unique("transactional")
    servers.create_topic(topic, 1, {"message.timestamp.type": "LogAppendTime"})
    servers.create_topic(other, 1)
    headers: list[tuple[str, str | bytes | None]] = (
        [("a", b"1"), ("a", None), ("\u00fc", b"")] if generation.transactions else []
    )
    producer = Producer({"bootstrap.servers": servers.bootstrap_servers, "log_level": 0})
    producer.produce(topic, b"v", timestamp=1_500_000_000_000, headers=headers)
    assert producer.flush(scaled(20)) == 0
    with join(unique("group")) as connector:
        (message,) = read(connector.create_message_streams({topic: 1})[topic][0], 1)
        assert (message.value, message.timestamp_type, message.headers) == (b"v", 1, headers)
        assert message.timestamp > 1_600_000_000_000
    if not generation.transactions:
        return
    committed, aborted = ([b"%s %d" % (ending, n) for n in range(3)] for ending in (b"commit", b"abort"))
    written = (("commit", committed), ("abort", aborted), ("commit", committed))
    produce_in_transactions(servers.bootstrap_servers, other, *written)
    for level, wanted in {"read_committed": committed * 2, "read_uncommitted": committed + aborted + committed}.items():
        with join(unique("group"), isolation_level=level) as connector:
            stream = connector.create_message_streams({other: 1})[other][0]
            assert [m.value for m in read(stream, len(wanted))] == wanted


def test_a_message_larger_than_the_fetch_size(
    generation: Release, servers: DevCluster, join: Callable[..., ZookeeperConsumerConnector]
) -> None:
    """KAFKA-160, KAFKA-994: such a message stopped its partition, first in an endless loop and later silently. Brokers
    before 0.10.1 send only the beginning of the message. Newer brokers send the whole message, whatever the fetch size.
    """
    topic = unique("large")
    servers.create_topic(topic, 1)
    values = [b"before", b"x" * 5000, b"after"]
    produce_to(servers.bootstrap_servers, topic, values, **generation.producer)
    with join(unique("group"), fetch_message_max_bytes=1000) as connector:
        stream = connector.create_message_streams({topic: 1})[topic][0]
        assert [m.value for m in read(stream, 3)] == values
    with join(unique("group"), fetch_message_max_bytes=1000, fetch_max_bytes=2000) as connector:
        stream = connector.create_message_streams({topic: 1})[topic][0]
        if generation.kafka != "0.8.2.2":
            assert [m.value for m in read(stream, 3)] == values
            return
        assert read(stream, 1)[0].value == b"before"
        with pytest.raises(MessageSizeTooLargeException, match=rf"{topic}-0 at offset 1: .*fetch\.max\.bytes"):
            read(stream, 1)
        assert stream.skip() == 2
        assert read(stream, 1)[0].value == b"after"


def test_fetch_sessions_are_kept_and_begun_again(
    generation: Release, servers: DevCluster, join: Callable[..., ZookeeperConsumerConnector]
) -> None:
    """KIP-227: from 1.1 on. A broker that has forgotten a session, or counts differently, is told everything again."""
    topic = unique("sessions")
    servers.create_topic(topic, PARTITIONS)
    connector = join(unique("group"))
    stream = connector.create_message_streams({topic: 1})[topic][0]
    count = 0

    def pass_some() -> None:
        nonlocal count
        produce_to(
            servers.bootstrap_servers, topic, [b"x"] * 4, partitions=PARTITIONS, **{**generation.producer, "acks": 1}
        )
        assert {(m.partition, m.offset) for m in read(stream, 4)} == {
            (p, n) for p in range(PARTITIONS) for n in (count, count + 1)
        }
        count += 2

    pass_some()
    fetcher, session = only_fetcher_of(connector)
    if generation.kafka < "1.1":
        assert not session.incremental
        pass_some()
        assert not session.incremental
        return
    eventually(lambda: session.incremental, 10, "a session")
    for spoil in ("id", "epoch"):
        was = session.id
        setattr(session, spoil, getattr(session, spoil) + 1000)
        pass_some()
        eventually(lambda before=was: session.incremental and session.id != before, 10, "another session")  # type: ignore[misc]
    pass_some()
    assert fetcher.partitions.trouble == ""
    assert connector.state.blocked == {}
