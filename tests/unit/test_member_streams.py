"""Where streams stand whose readers do something else, and what counts as coming back to one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from tests.streams import new_stream, valid_lease
from tests.unit.streams.bench import record_batch
from zkconsumer import KafkaStream, MergedStreams
from zkconsumer.core.poll_watchdog import Place, StreamKey
from zkconsumer.errors import ConsumerTimeoutException, InvalidMessageException
from zkconsumer.model import ConsumerId, ThreadId, TopicPartition
from zkconsumer.ownership.partition_position import PartitionPosition
from zkconsumer.streams.member_streams import ANY_TOPIC, MemberStreams
from zkconsumer.streams.stream_queue import StreamQueue

KEY: StreamKey = (ANY_TOPIC, 0)


class House:
    """Two streams over all topics."""

    def __init__(self) -> None:
        self.lease = valid_lease()
        self.delivery = MemberStreams(ConsumerId("g_c"), self.lease)
        self.streams: list[KafkaStream[Any, Any]] = [
            new_stream(f"g_c-{n}", StreamQueue(9, lambda: None), self.lease, timeout=0.0) for n in range(2)
        ]
        self.delivery.add(ANY_TOPIC, self.streams)

    def put(self, number: int, *, partition: int = 0, records: bytes = b"") -> PartitionPosition:
        """Three messages for a stream."""
        position = PartitionPosition(TopicPartition("t", partition), ThreadId(f"g_c-{number}"), 0)
        self.streams[number].queue.deliver(position, records or record_batch(0, 3), (0, 3), ())
        return position

    def place(self, number: int = 0) -> Place:
        return self.delivery.places()[ANY_TOPIC, number]

    def try_to_read(self, number: int = 0) -> None:
        with suppress(ConsumerTimeoutException, InvalidMessageException):
            self.streams[number].get(0.0)


@pytest.fixture
def house() -> Iterator[House]:
    made = House()
    yield made
    made.delivery.end()


def test_messages_in_hand_and_untaken_ones_are_waited_for(house: House) -> None:
    assert not house.place().to_read
    house.put(0)
    assert house.place()[:4] == (TopicPartition("t", 0), 0, 0, False)
    assert house.place().to_read
    house.try_to_read()
    assert house.place().in_hand
    assert house.place().to_read


def test_a_revoked_message_is_not_waited_for_alone(house: House) -> None:
    position = house.put(0)
    house.try_to_read()
    before = house.place()
    house.delivery.revoke([position])
    assert not house.place().to_read
    house.put(0, partition=1)
    assert house.place() == before
    assert not house.delivery.came_back(KEY, before)
    house.try_to_read()
    assert before.left(house.place())
    assert house.delivery.came_back(KEY, before)


def test_a_stream_is_retired_as_its_positions_are_revoked(house: House) -> None:
    """A shutdown has a list of the positions, and topics may be left before it comes to each of them."""
    gone, kept = house.put(0), house.put(1, partition=1)
    house.delivery.retire(house.streams[:1])
    house.delivery.revoke([gone, kept])
    house.try_to_read(1)
    assert not house.place(1).in_hand


def test_untaken_messages_come_and_go_without_a_reader(house: House) -> None:
    position = house.put(0)
    before = house.place()
    house.delivery.revoke([position])
    house.put(0, partition=1)
    assert house.place().partition == TopicPartition("t", 1)
    assert not before.left(house.place())
    assert not house.delivery.came_back(KEY, before)


@pytest.mark.parametrize("why", ["nothing is there", "no lease", "it cannot be read"])
def test_who_asks_in_vain_has_come_back(house: House, why: str) -> None:
    if why != "nothing is there":
        house.put(0, records=b"\0" * 80 if why == "it cannot be read" else b"")
    if why == "no lease":
        house.lease.void()
    house.try_to_read()
    before = house.place()
    house.try_to_read()
    assert before.left(house.place())
    assert house.delivery.came_back(KEY, before)


def test_a_merged_reader_comes_back_to_all_its_streams(house: House) -> None:
    merged = MergedStreams(lambda: house.streams, timeout=0.0)
    house.put(0)
    merged.get(0.0)
    house.put(1, partition=1)
    before = house.place(1)
    while merged.get(0.0).partition == 0:
        pass
    house.put(0, partition=2)
    assert before.left(house.place(1))
    before = house.place(0)
    while merged.get(0.0).partition == 1:
        pass
    assert before.left(house.place(0))


def test_streams_may_be_added_while_others_are_retired(house: House) -> None:
    """An application's thread added topics while the group's thread looked through the table of streams."""

    class Retired(list[KafkaStream[Any, Any]]):
        def __contains__(self, stream: object) -> bool:
            house.delivery.add(f"other-{len(house.delivery.streams())}", [house.streams[1]])
            return super().__contains__(stream)

    house.delivery.retire(Retired(house.streams[:1]))
    assert house.streams[0].queue.closed
    assert all(stream is house.streams[1] for _, _, stream in house.delivery.streams())
