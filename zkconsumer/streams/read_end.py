"""The end of a bounded stream, for the stream's queue. Any thread."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from zkconsumer.model import TopicPartition
from zkconsumer.ownership.partition_position import PartitionPosition


class ReadEnd(Protocol):
    """The end of a stream that has one (``until``)."""

    def limit(self, tp: TopicPartition) -> int:
        """Return the offset before which a partition is read. Takes no lock: it is asked under the queue's."""

    def left(self, ahead: Mapping[PartitionPosition, int]) -> int:
        """Return the number of offsets before the end, without those that are finished or before ``ahead``."""

    def reached(self, ahead: Mapping[PartitionPosition, int]) -> bool:
        """Return whether all before the end is finished, or before the offsets in ``ahead``. Returns at once."""
