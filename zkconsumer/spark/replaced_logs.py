"""Partitions whose log is not the one that the query has read: the topic was made anew, or the log was cut.

A log that ends before the offset where the query would go on shows it, and ZooKeeper's node of the topic. No offset of
such a log says what the query has read of it, so it is read from its beginning, once. Pure. The query's main thread
alone uses this.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from zkconsumer.model import TopicPartition
from zkconsumer.spark.offset_ranges import Progress, Span


@dataclass(slots=True)
class _FromBeginning:
    """One partition that is read from its beginning.

    Contents: ``before`` is the offset in the log before; ``known`` is the checkpoint's offset then, None where the
    checkpoint did not know the partition; ``start`` is where its log begins; ``planned`` is the first batch from there.
    """

    before: int
    known: int | None
    start: int
    planned: Span | None = None


class ShorterLogs:
    """The partitions that are read from their beginning, until a batch that reads them so has ended."""

    def __init__(self) -> None:
        self._found: dict[TopicPartition, _FromBeginning] = {}

    def __contains__(self, partition: TopicPartition) -> bool:
        return partition in self._found

    def add(self, partition: TopicPartition, before: int, known: int | None, start: int) -> None:
        """The offset ``before`` of a partition is of another log than the one it has now, which begins at ``start``."""
        self._found[partition] = _FromBeginning(before, known, start)

    def ended(self, done: Progress) -> None:
        """Forget the partitions whose first batch from the beginning is the one that has ended."""
        self._found = {tp: one for tp, one in self._found.items() if one.planned is None or one.planned != done.get(tp)}

    def plan(self, progress: Progress) -> None:
        """Note the first batch that reads from the beginning."""
        for tp, one in self._found.items():
            if tp in progress and progress[tp].start == one.start:
                one.planned = progress[tp]

    def position(self, partition: TopicPartition, position: int, committed: int | None) -> int:
        """Return where a partition is read on; ``position`` unless it is read from its beginning.

        The place stays the beginning also where the log has grown beyond ``before`` meanwhile. An offset of the group
        other than ``before`` was written since, by another member that reads the new log.
        """
        one = self._found.get(partition)
        if one is None:
            return position
        if committed is not None and committed != one.before:
            one.start = max(committed, one.start)
        return one.start

    def waiting(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return where those of these begin that no batch has read from the beginning yet."""
        return {tp: one.start for tp, one in self._found.items() if tp in partitions and one.planned is None}

    def finished(self, done: Progress) -> Mapping[TopicPartition, Span]:
        """Return what of finished batches still counts: not the ends that the log before had."""
        return {tp: span for tp, span in done.items() if tp not in self._found or self._found[tp].known != span.end}
