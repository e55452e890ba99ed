"""``range``: each topic for itself, in contiguous blocks. The original's default. Pure; any thread."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from zkconsumer.assignors.assignor import NO_RACKS, Members, Partitions, Racks, threads_by_topic
from zkconsumer.model import ThreadId, TopicPartition

T = TypeVar("T")


def blocks(items: Sequence[T], shares: int) -> Iterator[Sequence[T]]:
    """``items`` cut into ``shares`` contiguous blocks; the first ones get one more where it does not come out even."""
    size, more = divmod(len(items), shares)
    start = 0
    for position in range(shares):
        end = start + size + (position < more)
        yield items[start:end]
        start = end


class RangeAssignor:
    """Of each topic, the first thread gets the first partitions, and so on; mirrors ``kafka.consumer.RangeAssignor``.

    Threads beyond the number of partitions idle. Partition numbers count by position, so gaps do no harm. Since every
    topic starts with the same threads, the skew of many small topics adds up.
    """

    def assign(
        self, members: Members, partitions: Partitions, racks: Racks = NO_RACKS
    ) -> dict[TopicPartition, ThreadId]:
        """Who shall own what; raises nothing."""
        return {
            TopicPartition(topic, number): thread
            for topic, threads in threads_by_topic(members).items()
            for thread, block in zip(threads, blocks(partitions.get(topic, ()), len(threads) or 1), strict=False)
            for number in block
        }
