"""A compressed batch that becomes larger than allowed is corrupt, and what is decompressed counts as memory in use."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.streams import new_stream, valid_lease
from tests.unit.kafka.record_writer import ZSTD
from tests.unit.kafka.sets import WHERE, Batch, MessageSet, Written
from zkconsumer import KafkaStream
from zkconsumer.config import ConsumerConfig
from zkconsumer.errors import ConsumerTimeoutException, InvalidMessageException
from zkconsumer.model import ThreadId
from zkconsumer.ownership.partition_position import PartitionPosition
from zkconsumer.streams.byte_budget import QueueBudget
from zkconsumer.streams.stream_queue import StreamQueue

SMALL = Batch([Written()] * 3, codec=ZSTD)
LARGE = Batch([Written(value=bytes(1000))] * 4, codec=ZSTD)
BUDGET = 1 << 20


class Filled:
    """A stream with one chunk of three batches, of which the middle one is large."""

    def __init__(self, *, skip: bool = False, largest: int = 2000) -> None:
        lease = valid_lease()
        self.budget = QueueBudget(BUDGET)
        self.queue = StreamQueue(2, lambda: None, self.budget)
        self.stream: KafkaStream[bytes, bytes] = new_stream(
            "s", self.queue, lease, timeout=0.0, skip_corrupt=skip, largest_batch=largest
        )
        self.position = PartitionPosition(WHERE, ThreadId("g_c-0"), 0)
        self.queue.deliver(self.position, MessageSet([SMALL, LARGE, SMALL]).data, (0, 10), (), 10)


def by_message(stream: KafkaStream[bytes, bytes]) -> list[int]:
    return [stream.get(timeout=0).offset]


def by_column(stream: KafkaStream[bytes, bytes]) -> list[int]:
    offsets: list[int] = next(stream.batches()).column("offset").to_pylist()
    return offsets


Read = Callable[[KafkaStream[bytes, bytes]], list[int]]


def go_on(read: Read, stream: KafkaStream[bytes, bytes], seen: list[int]) -> None:
    while True:
        seen += read(stream)


def all_of(read: Read, stream: KafkaStream[bytes, bytes]) -> list[int]:
    seen: list[int] = []
    with pytest.raises(ConsumerTimeoutException):
        go_on(read, stream, seen)
    return seen


@pytest.mark.parametrize("read", [by_message, by_column])
def test_a_batch_that_grows_too_large_is_raised_until_skipped(read: Read) -> None:
    it = Filled()
    seen: list[int] = []
    for _ in range(2):
        with pytest.raises(InvalidMessageException, match=r"batch\.expanded\.max\.bytes") as caught:
            go_on(read, it.stream, seen)
        assert (caught.value.where, caught.value.offset, it.position.consumed) == (WHERE, 3, 3)
    assert seen == [0, 1, 2]
    assert it.stream.skip() == 7
    assert all_of(read, it.stream) == [7, 8, 9]


@pytest.mark.parametrize("read", [by_message, by_column])
def test_the_policy_skip_passes_over_a_batch_too_large(read: Read) -> None:
    it = Filled(skip=True)
    assert all_of(read, it.stream) == [0, 1, 2, 7, 8, 9]
    assert it.queue.skipped == 1


def test_what_is_decompressed_counts_against_the_budget() -> None:
    """Fetchers asked for as much as if the batch in hand took only what was fetched of it."""
    it = Filled(largest=5000)
    waiting = it.budget.used
    [it.stream.get(timeout=0) for _ in range(4)]
    assert it.budget.used > waiting + 4000
    all_of(by_message, it.stream)
    assert it.budget.used == 0


@pytest.mark.parametrize(("given", "limit"), [({}, 5000), ({"batch_expanded_max_bytes": 300}, 300)])
def test_the_limit_of_a_batch_is_that_of_the_queues_by_default(given: dict[str, int], limit: int) -> None:
    config = ConsumerConfig(zookeeper_connect="zk", group_id="g", queued_max_bytes=5000, **given)
    assert config.batch_expanded_max_bytes == limit
