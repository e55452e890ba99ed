"""Which chunks a worker process has."""

from __future__ import annotations

from zkconsumer.balance.worker_link import ChunkCache
from zkconsumer.balance.worker_process import SentChunk
from zkconsumer.model import ThreadId, TopicPartition
from zkconsumer.ownership.partition_position import PartitionPosition
from zkconsumer.streams.stream_queue import Chunk


def new_chunk(size: int) -> Chunk:
    return Chunk(PartitionPosition(TopicPartition("t", 1), ThreadId("g_c-0"), 0), b"x" * size, 0, 10)


def test_a_chunk_is_sent_once_and_evicted_by_its_last_use() -> None:
    cache, new = ChunkCache(most_bytes=100), list[SentChunk]()
    first, second, third = new_chunk(40), new_chunk(40), new_chunk(40)
    assert [cache.serial(chunk, new) for chunk in (first, second, first)] == [1, 2, 1]
    assert [(sent.serial, sent.topic, sent.partition, len(sent.records)) for sent in new] == [
        (1, "t", 1, 40),
        (2, "t", 1, 40),
    ]
    assert cache.forget({1}) == ()
    assert cache.serial(third, new) == 3
    assert cache.forget({3}) == (2,)
    assert cache.serial(second, new) == 4
    assert cache.forget({1, 3, 4}) == ()  # all are needed, whatever they take
    assert cache.forget(()) == (1,)
