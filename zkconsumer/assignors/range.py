"""The strategy ``range``: contiguous blocks, topic by topic. The original's default. Pure; any thread."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from zkconsumer.assignors.assignor import NO_RACKS, Members, Partitions, Racks, threads_by_topic
from zkconsumer.model import ThreadId, TopicPartition

T = TypeVar("T")


def blocks(items: Sequence[T], shares: int) -> Iterator[Sequence[T]]:
    """Cut ``items`` into ``shares`` contiguous blocks of equal size. The first blocks get one more item if needed."""
    size, more = divmod(len(items), shares)
    start = 0
    for position in range(shares):
        end = start + size + (position < more)
        yield items[start:end]
        start = end


class RangeAssignor:
    """Assigns each topic's partitions in blocks: the first ones to the first thread, and so on.

    More threads than partitions leave threads idle. Gaps in the partition numbers do no harm. Every topic starts with
    the same threads, so the skew of many small topics adds up. Mirrors ``kafka.consumer.RangeAssignor``.
    """

    def assign(
        self, members: Members, partitions: Partitions, racks: Racks = NO_RACKS
    ) -> dict[TopicPartition, ThreadId]:
        """Return the assignment; raises nothing."""
        return {
            TopicPartition(topic, number): thread
            for topic, threads in threads_by_topic(members).items()
            for thread, block in zip(threads, blocks(partitions.get(topic, ()), len(threads) or 1), strict=False)
            for number in block
        }
