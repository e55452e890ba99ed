"""A large message is held once while its user has it."""

from __future__ import annotations

from collections.abc import Iterator
from time import monotonic

import pytest

from tests.unit.kafka.sets import Batch, Written
from tests.unit.streams.bench import Bench, position
from tests.values import present
from zkconsumer.errors import ConsumerTimeoutException

SIZE = 270_000
VALUE = bytes(SIZE)


class World(Bench):
    """A stream of one partition, and the messages and bytes that the stream counts as consumed."""

    def __init__(self) -> None:
        self.counted: list[tuple[int, int]] = []
        super().__init__(capacity=10, count=lambda _, messages, size: self.counted.append((messages, size)))
        self.position = position()

    def put_values(self, offset: int, *values: bytes) -> int:
        """Deliver a chunk; returns its size."""
        records, end = Batch(records=[Written(value=value) for value in values]).encode(offset)
        self.queue.deliver(self.position, records, (offset, end), (), len(values))
        return len(records)


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.queue.close()


def test_a_large_message_in_hand_is_held_once(world: World) -> None:
    """Its stream held it twice: 200 slow streams took 447 MB more than their budget."""
    size = world.put_values(0, VALUE)
    message = next(world.stream)
    assert message.value == VALUE
    taken = present(world.queue.taken)
    assert taken.records == b""
    assert world.queue.held_bytes == SIZE
    with pytest.raises(ConsumerTimeoutException):
        next(world.stream)
    assert world.counted == [(1, size)]
    assert world.position.consumed == 1


def test_a_large_message_that_was_not_returned_is_fetched_again(world: World) -> None:
    world.put_values(0, VALUE)
    assert next(world.stream).offset == 0
    world.stream.return_last()
    with pytest.raises(ConsumerTimeoutException):
        next(world.stream)
    assert world.position.cursor.fetch_from == 0
    assert world.position.consumed == 0
    assert not world.position.held
    world.put_values(0, VALUE)
    assert next(world.stream).value == VALUE


@pytest.mark.parametrize("values", [(VALUE, VALUE), (b"small",)], ids=["two large ones", "a small one"])
def test_other_chunks_stay_until_they_are_read(world: World, values: tuple[bytes, ...]) -> None:
    size = world.put_values(0, *values)
    assert next(world.stream).offset == 0
    taken = present(world.queue.taken)
    assert len(taken.records) == size
    world.stream.return_last()
    assert [next(world.stream).offset for _ in values] == list(range(len(values)))


def test_a_large_message_is_kept_while_the_lease_is_closed(world: World) -> None:
    """Otherwise each look at it would fetch it again."""
    size = world.put_values(0, VALUE)
    world.lease.suspend()
    for _ in range(2):
        with pytest.raises(ConsumerTimeoutException):
            next(world.stream)
    taken = present(world.queue.taken)
    assert len(taken.records) == size
    assert world.position.cursor.fetch_from is None
    world.lease.renew(monotonic(), 3600.0)
    world.lease.resume(world.lease.epoch)
    assert next(world.stream).value == VALUE


def test_columns_after_a_large_message_go_on_behind_it(world: World) -> None:
    world.put_values(0, VALUE)
    world.put_values(1, b"next")
    assert next(world.stream).offset == 0
    batch = next(world.stream.batches())
    assert batch.column("offset").to_pylist() == [1]
