"""Consumed messages, the time of commits, and the end of reading, on a real cluster.

A message is finished when the reader asks its stream for the next one. So a crash may repeat messages, and loses none.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from kazoo.client import KazooClient

from tests.cluster.conftest import NewTopic, owners_of
from tests.cluster.in_process import Reader, offsets_of
from tests.timing import eventually, scaled
from zkconsumer import ConsumerTimeoutException, KafkaStream, ZookeeperConsumerConnector
from zkconsumer.devcluster import DevCluster

NewConnector = Callable[..., ZookeeperConsumerConnector]
SECONDS = 15.0


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def only_stream(connector: ZookeeperConsumerConnector, topic: str) -> KafkaStream[Any, Any]:
    (stream,) = connector.create_message_streams({topic: 1})[topic]
    return stream


class Place:
    """A topic of one partition with messages, and a group that reads it."""

    def __init__(self, topic: str, group: str, zookeeper: KazooClient, produce: Callable[..., int]) -> None:
        self.topic, self.group, self.zookeeper, self._produce = topic, group, zookeeper, produce

    def put(self, *values: bytes) -> None:
        self._produce(self.topic, values, partitions=1)

    @property
    def committed(self) -> int | None:
        return offsets_of(self.zookeeper, self.group, self.topic).get(0)

    def store(self, offset: int) -> None:
        self.zookeeper.create(f"/consumers/{self.group}/offsets/{self.topic}/0", str(offset).encode(), makepath=True)


@pytest.fixture
def place(
    new_topic: NewTopic, new_group: Callable[[], str], zookeeper: KazooClient, produce: Callable[..., int]
) -> Place:
    made = Place(new_topic(1), new_group(), zookeeper, produce)
    made.put(*numbers(10))
    return made


# ---- what counts ----


def test_with_consumed_on_return_a_hand_out_counts(connector: NewConnector, place: Place) -> None:
    """With ``consumed.on.return`` a message counts as consumed when it is handed out."""
    member = connector(place.group, consumed_on="return", auto_commit_interval_ms=50)
    stream = only_stream(member, place.topic)
    for _ in range(3):
        stream.get(SECONDS)
    eventually(lambda: place.committed == 3, 5, "a commit beyond the message in hand")
    for _ in range(7):
        stream.get(SECONDS)
    eventually(lambda: place.committed == 10, 5, "a commit beyond the last message")
    with pytest.raises(ConsumerTimeoutException):
        stream.get(0.1)
    member.shutdown()
    assert place.committed == 10


# ---- the end ----


@pytest.mark.parametrize("fails", [False, True], ids=["it ends", "it fails"])
def test_leaving_with_counts_the_message_in_hand(connector: NewConnector, place: Place, *, fails: bool) -> None:
    """An exception leaves it unfinished."""
    with suppress(KeyError), connector(place.group) as member:
        for message in only_stream(member, place.topic):
            if message.offset == 4:
                if fails:
                    raise KeyError
                break
    assert place.committed == (4 if fails else 5)
    assert owners_of(place.zookeeper, place.group, place.topic) == {}
    assert place.zookeeper.get_children(f"/consumers/{place.group}/ids") == []


# ---- where to begin ----


@pytest.mark.parametrize("stored", [None, -1, 10_000])
@pytest.mark.parametrize("reset", ["smallest", "largest"])
def test_the_reset_policy_applies_without_a_valid_offset(
    connector: NewConnector, place: Place, reset: str, stored: int | None
) -> None:
    """An offset beyond the log's end belongs to an older, longer log. All messages are new, so reading starts at the
    beginning whatever the reset policy. The original starts at the end with ``largest``.
    """
    if stored is not None:
        place.store(stored)
    member = connector(place.group, auto_offset_reset=reset)
    reader = Reader(only_stream(member, place.topic))
    start = 0 if reset == "smallest" or stored == 10_000 else 10
    eventually(lambda: place.committed in (start, 10), 10, "the start is stored")
    place.put(b"new")
    got = reader.wait_for(11 - start)
    assert [m.offset for m in got] == list(range(start, 11))
    member.shutdown()
    assert place.committed == 11


@pytest.mark.parametrize(("reset", "start"), [("smallest", 5), ("largest", 10)])
def test_the_reset_policy_applies_to_a_deleted_offset(
    connector: NewConnector, cluster: DevCluster, place: Place, reset: str, start: int
) -> None:
    """The reset policy decides where to begin if the stored offset was deleted from the log."""
    from confluent_kafka import TopicPartition as Position
    from confluent_kafka.admin import AdminClient

    place.store(2)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    for deleted in admin.delete_records([Position(place.topic, 0, 5)]).values():
        assert deleted.result(scaled(10)).low_watermark == 5
    member = connector(place.group, auto_offset_reset=reset, auto_commit_interval_ms=50)
    reader = Reader(only_stream(member, place.topic))
    eventually(lambda: place.committed in (start, 10), 10, "the move to another offset")
    place.put(b"new")
    assert [m.offset for m in reader.wait_for(11 - start)] == list(range(start, 11))
