"""A broker that advertises an unknown host name, and a log that was damaged on disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from tests.cluster.conftest import TICK_MS, produce_to, unique
from tests.cluster.in_process import Reader, connectors
from tests.timing import eventually, scaled
from zkconsumer import ConsumerTimeoutException, ZookeeperConsumerConnector
from zkconsumer.devcluster import EmbeddedKafka, EmbeddedZooKeeper
from zkconsumer.devcluster.server_process import free_port
from zkconsumer.errors import InvalidMessageException
from zkconsumer.kafka.record_batch import read_head
from zkconsumer.zookeeper.cluster_admin import Admin

UNREACHABLE = "broker.invalid"
BUNCH, BUNCHES = 10, 4
"""Messages that are written together, and how often; the third bunch is damaged."""


class Hidden(NamedTuple):
    """A broker behind a tunnel, so to say: its clients are told a name that is valid elsewhere."""

    zookeeper: str
    broker: EmbeddedKafka
    inside: str


@pytest.fixture(scope="module")
def hidden() -> Iterator[Hidden]:
    port, inside = free_port(), free_port()
    properties = {
        "listeners": f"PLAINTEXT://127.0.0.1:{port},INSIDE://127.0.0.1:{inside}",
        "advertised.listeners": f"PLAINTEXT://{UNREACHABLE}:{port},INSIDE://127.0.0.1:{inside}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,INSIDE:PLAINTEXT",
        "inter.broker.listener.name": "INSIDE",
        "log.index.interval.bytes": 1,
    }
    with (
        EmbeddedZooKeeper(tick_ms=TICK_MS) as zookeeper,
        EmbeddedKafka(zookeeper.connect, properties=properties, port=port) as broker,
    ):
        yield Hidden(zookeeper.connect, broker, f"127.0.0.1:{inside}")


@pytest.fixture
def join(hidden: Hidden) -> Iterator[Callable[..., ZookeeperConsumerConnector]]:
    """Make members: ``join(**properties)``; all leave with the test."""
    with connectors({"zookeeper.connect": hidden.zookeeper}) as make:
        yield lambda **properties: make({"group.id": unique("group")}, **properties)


def test_the_address_map_reaches_a_broker_with_an_unknown_name(
    hidden: Hidden, join: Callable[..., ZookeeperConsumerConnector]
) -> None:
    """The address map reaches a broker whose advertised name is unknown here."""
    topic = unique("hidden")
    with Admin(hidden.zookeeper) as admin:
        admin.create_topic(topic, 2)
    produce_to(hidden.inside, topic, [str(n) for n in range(20)], partitions=2)
    lost = join(socket_timeout_ms=2000)
    stream = lost.create_message_streams({topic: 1})[topic][0]
    eventually(lambda: UNREACHABLE in str(lost.state), 20, "the address that cannot be reached, named in the state")
    with pytest.raises(ConsumerTimeoutException):
        stream.get(timeout=0)
    found = join(broker_address_map=f"{UNREACHABLE}=127.0.0.1")
    reader = Reader(found.create_message_streams({topic: 1})[topic][0])
    assert sorted(int(m.value or b"") for m in reader.wait_for(20)) == list(range(20))


class Damage(NamedTuple):
    """Messages from ``first`` to before ``after`` are damaged."""

    topic: str
    first: int
    after: int


def batches(log: bytes) -> Iterator[tuple[int, int, int, int]]:
    """(first offset, next offset, start, end) of each batch in a log file."""
    at = 0
    while (head := read_head(log, at)) is not None:
        yield head[0], head[1], at, head[2]
        at = head[2]


def damaged(broker: EmbeddedKafka, topic: str, what: str) -> Damage:
    path = broker.directory / "data" / f"{topic}-0" / f"{0:020}.log"
    log = bytearray(path.read_bytes())
    first, after, start, end = next(batch for batch in batches(bytes(log)) if batch[1] > 2 * BUNCH)
    if what == "content":
        log[end - 20] ^= 0xFF
    else:
        log[start + 8 : start + 12] = b"\x00\x00\x00\x01"  # the size of the batch
    path.write_bytes(log)
    return Damage(topic, first, after)


@pytest.fixture(scope="module")
def damages(hidden: Hidden) -> dict[str, Damage]:
    topics = {what: unique(what) for what in ("content", "head")}
    with Admin(hidden.zookeeper) as admin:
        for topic in topics.values():
            admin.create_topic(topic, 1)
    for topic in topics.values():
        for n in range(BUNCHES):
            produce_to(hidden.inside, topic, [b"%d" % n * 100] * BUNCH)
    hidden.broker.stop()
    done = {what: damaged(hidden.broker, topic, what) for what, topic in topics.items()}
    hidden.broker.start()
    return done


@pytest.mark.parametrize(
    ("what", "reason"), [("content", "the checksum of a batch is wrong"), ("head", "broker 0 cannot read it")]
)
def test_a_damaged_log_is_named_at_each_ask_and_can_be_skipped(
    what: str, reason: str, damages: dict[str, Damage], join: Callable[..., ZookeeperConsumerConnector]
) -> None:
    topic, first, after = damages[what]
    connector = join(broker_address_map=f"{UNREACHABLE}=127.0.0.1")
    stream = connector.create_message_streams({topic: 1})[topic][0]
    assert [stream.get(timeout=scaled(20)).offset for _ in range(first)] == list(range(first))
    for _ in range(2):
        with pytest.raises(InvalidMessageException, match=f"{topic}-0 at offset {first}: {reason}") as caught:
            stream.get(timeout=scaled(20))
    assert caught.value.offset == first
    assert stream.skip() == (after if what == "content" else first + 1)
    if what == "content":
        assert stream.get(timeout=scaled(20)).offset == after
    else:
        with pytest.raises(InvalidMessageException, match=f"at offset {first + 1}"):
            stream.get(timeout=scaled(20))
