"""``roundrobin``: all partitions of all topics, dealt out in the order of a hash. Pure; any thread.

Mirrors ``kafka.consumer.RoundRobinAssignor`` of 0.8.2 to 1.1.1. Its order is that of Java's hash of a partition's
*text*, and that text changed in 1.0 with a logging commit (KAFKA-5822), from ``[topic,0]`` to ``topic-0``. Members that
disagree about it want the same partitions and never settle, hence ``scala.compat.version``. Equal hashes come in the
order of a Scala hash map there, which cannot be known from outside; here in the order of topic and number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from zkconsumer.assignors.assignor import (
    NO_RACKS,
    AssignmentError,
    Members,
    Partitions,
    Racks,
    java_hash,
    threads_by_topic,
)
from zkconsumer.model import ThreadId, TopicPartition, utf16_key


class RoundRobinAssignor:
    """Deals partitions to threads in turn; a thread that does not take part in a topic loses its turn.

    Argument: ``scala_compat_version``, the release to agree with: below 1.0 the old text is hashed; below 0.10 a group
    whose topics do not all have the very same threads is refused, as there (KAFKA-2434).
    """

    def __init__(self, scala_compat_version: str = "1.1") -> None:
        release = tuple(int(part) for part in scala_compat_version.split("."))
        self._old_text = release < (1, 0)
        self._same_threads_only = release < (0, 10)

    @classmethod
    def from_config(cls, config: object) -> RoundRobinAssignor:
        """As the property ``scala.compat.version`` says."""
        return cls(getattr(config, "scala_compat_version", "1.1"))

    def assign(
        self, members: Members, partitions: Partitions, racks: Racks = NO_RACKS
    ) -> dict[TopicPartition, ThreadId]:
        """Who shall own what. Raises AssignmentError where the old releases refuse."""
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
            (value, utf16_key(topic), number, TopicPartition(topic, number))
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
