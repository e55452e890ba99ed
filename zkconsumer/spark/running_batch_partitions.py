"""The retention of partitions that the running batch of a query reads, although the group would have them.

A running batch can be neither stopped nor shrunk. So the query's member plans as if it still owned the partitions
of the batch. It gives a partition up when the batch has ended, or ``releaseAfter`` seconds after the batch was planned.
Nothing blocks for that: the group thread goes on serving everything else, and the next owner watches the owner node.

Threads: the query's main thread keeps and lets go, the group thread asks what to keep, and the attendant watches the
time. One lock guards the few sets; no work is done under it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from time import monotonic

from zkconsumer.assignors.group_strategy import GroupStrategy, StrategyView, Threads
from zkconsumer.config import ConsumerConfig
from zkconsumer.core.partition_position import PartitionPosition
from zkconsumer.model import Assignment, TopicPartition
from zkconsumer.runtime.interruptible_wait import InterruptibleLock

NEVER = float("inf")


class BatchRetention:
    """The partitions of the batch that is planned or runs.

    Arguments: ``release_after`` in seconds from the planning of a batch, None to keep until it ends. ``again`` is told
    the reason when a partition that the group waits for need not be kept any more.
    """

    def __init__(
        self,
        release_after: float | None,
        again: Callable[[str], None],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._release_after = release_after
        self._again = again
        self._clock = clock
        self._lock = InterruptibleLock()
        self._batch = 0
        self._kept: frozenset[TopicPartition] = frozenset()
        self._until = NEVER
        self._leaving: frozenset[TopicPartition] = frozenset()
        self._wanted: frozenset[TopicPartition] = frozenset()

    # ---- the query ----

    def keep(self, partitions: Iterable[TopicPartition]) -> frozenset[TopicPartition]:
        """Keep these for a new batch, in place of those before. Returns the partitions that the batch may read.

        It may not read a partition that leaves, nor one that was kept for the batch before alone.
        """
        with self._lock:
            self._batch += 1
            freed = self._free(self._wanted)
            self._kept = frozenset(partitions) - self._leaving
            self._until = NEVER if self._release_after is None else self._clock() + self._release_after
            kept = self._kept
        self._tell(freed, "a batch has ended")
        return kept

    def keep_only(self, partitions: Collection[TopicPartition]) -> None:
        """Keep only these of the kept partitions: the batch reads no others."""
        with self._lock:
            self._kept = self._kept.intersection(partitions)
            freed = self._free(self._wanted - self._kept)
        self._tell(freed, "a batch does not read what others wait for")

    @property
    def batch(self) -> int:
        """The number of the batch that was begun last."""
        return self._batch

    def end(self, batch: int) -> None:
        """Keep nothing: the batch has ended, if it is still the last one."""
        with self._lock:
            if batch != self._batch:
                return
            self._kept = frozenset()
            freed = self._free(self._wanted)
        self._tell(freed, "a batch has ended")

    def keeps(self, partition: TopicPartition) -> bool:
        """Return whether this one is kept now."""
        with self._lock:
            return partition in self._kept and self._clock() < self._until

    # ---- the attendant ----

    def look_at_the_time(self) -> float:
        """Let go of partitions that were kept too long. Returns the seconds until that is due; infinite: never."""
        with self._lock:
            left = self._until - self._clock()
            freed = self._free(self._wanted) if left <= 0 else frozenset()
        self._tell(freed, "releaseAfter has passed")
        return left if left > 0 else NEVER

    def _free(self, partitions: frozenset[TopicPartition]) -> frozenset[TopicPartition]:
        """Give partitions to the group with the next round; until then no batch begins to read them."""
        self._wanted -= partitions
        self._leaving |= partitions
        return partitions

    def _tell(self, freed: frozenset[TopicPartition], why: str) -> None:
        if freed:
            self._again(why)

    # ---- the group ----

    def amend(
        self, assignment: Assignment, owned: Mapping[TopicPartition, PartitionPosition], view: StrategyView
    ) -> Assignment:
        """Return the assignment with the kept partitions of ``owned`` left in place. Notes the partitions that then
        leave.
        """
        with self._lock:
            kept = {} if self._clock() >= self._until else {tp: owned[tp].thread for tp in self._kept if tp in owned}
            kept = {tp: thread for tp, thread in kept.items() if tp.partition in view.partitions.get(tp.topic, ())}
            amended = {**assignment, **kept}
            self._wanted = frozenset(tp for tp, thread in kept.items() if assignment.get(tp) != thread)
            self._leaving = frozenset(tp for tp, position in owned.items() if amended.get(tp) != position.thread)
            return amended


class RetainingStrategy(GroupStrategy):
    """The configured strategy, except for the partitions that the retention keeps.

    Arguments: ``owned`` returns the partitions that are owned now.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        retention: BatchRetention,
        owned: Callable[[], Mapping[TopicPartition, PartitionPosition]],
    ) -> None:
        super().__init__(config)
        self._retention = retention
        self._owned = owned

    def __call__(self, view: StrategyView, threads: Threads) -> Assignment:
        """Return the assignment. Raises any error of the strategy."""
        return self._retention.amend(super().__call__(view, threads), self._owned(), view)
