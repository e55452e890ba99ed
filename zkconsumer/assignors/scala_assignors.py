"""The original's strategies: ``range``, its default, and ``roundrobin``. Pure; any thread."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from zkconsumer.assignors.assignor import (
    NO_RACKS,
    AssignmentError,
    Members,
    Partitions,
    Racks,
    java_hash,
    threads_by_topic,
)
from zkconsumer.model import ThreadId, TopicPartition, shared_partition, utf16_key

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
            shared_partition(topic, number): thread
            for topic, threads in threads_by_topic(members).items()
            for thread, block in zip(threads, blocks(partitions.get(topic, ()), len(threads) or 1), strict=False)
            for number in block
        }


class RoundRobinAssignor:
    """Assigns all partitions of all topics in turn. A thread without the partition's topic loses its turn.

    Mirrors ``kafka.consumer.RoundRobinAssignor`` of 0.8.2 to 1.1.1. It sorts partitions by Java's hash of their *text*.
    A logging commit in 1.0 (KAFKA-5822) changed that text from ``[topic,0]`` to ``topic-0``. Members that hash
    different texts claim the same partitions and never settle; ``scala.compat.version`` prevents that. The original
    leaves equal hashes in the order of a Scala hash map, which no other member can know. Here topic and number decide.

    Argument: ``scala_compat_version`` is the release to agree with. Below 1.0 the old text is hashed. Below 0.10 all
    topics must have the same threads, as in the original (KAFKA-2434).
    """

    def __init__(self, scala_compat_version: str = "1.1") -> None:
        release = tuple(int(part) for part in scala_compat_version.split("."))
        self._old_text = release < (1, 0)
        self._same_threads_only = release < (0, 10)

    @classmethod
    def from_config(cls, config: object) -> RoundRobinAssignor:
        """Make the strategy for the release in ``scala.compat.version``."""
        return cls(getattr(config, "scala_compat_version", "1.1"))

    def assign(
        self, members: Members, partitions: Partitions, racks: Racks = NO_RACKS
    ) -> dict[TopicPartition, ThreadId]:
        """Return the assignment. Raises AssignmentError for a group that releases below 0.10 refuse."""
        by_topic = threads_by_topic(members)
        if self._same_threads_only and len({tuple(threads) for threads in by_topic.values()}) > 1:
            raise AssignmentError(
                "roundrobin of releases before 0.10.2 needs the same threads for every topic: all members with "
                "the same topics, each with as many streams for one as for another"
            )
        ring = sorted({thread for threads in by_topic.values() for thread in threads}, key=utf16_key)
        takes_part = {topic: set(threads) for topic, threads in by_topic.items()}
        assignment: dict[TopicPartition, ThreadId] = {}
        at = 0
        for partition in self._in_order(by_topic, partitions):
            wanted = takes_part[partition.topic]
            while ring[at] not in wanted:
                at = (at + 1) % len(ring)
            assignment[partition] = ring[at]
            at = (at + 1) % len(ring)
        return assignment

    def _in_order(self, by_topic: dict[str, list[ThreadId]], partitions: Partitions) -> Iterator[TopicPartition]:
        hashed = [
            (value, utf16_key(topic), number, shared_partition(topic, number))
            for topic, threads in by_topic.items()
            if threads
            for number, value in self._hashes(topic, partitions.get(topic, ()))
        ]
        hashed.sort()
        return (partition for *_, partition in hashed)

    def _hashes(self, topic: str, numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
        prefix = java_hash(f"[{topic}," if self._old_text else f"{topic}-")
        end = "]" if self._old_text else ""
        return ((number, java_hash(f"{number}{end}", prefix)) for number in numbers)
