"""Which partitions a query keeps although the group would have them: those that its running batch reads.

A batch that runs can be neither stopped nor shrunk. So while it reads a partition, the query's member plans as if the
partition were its own still, and gives it up when the batch has ended, or ``releaseAfter`` seconds after it was
planned. Nothing blocks for that: the group's thread goes on serving everything else, and whoever waits for the
partition watches its owner node.

Threads: the query's main thread keeps and lets go, the group's thread asks what to keep, the attendant looks after the
time; one lock guards the few sets, and nothing is done under it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from threading import Lock
from time import monotonic

from zkconsumer.assignors.group_strategy import GroupStrategy, StrategyView, Threads
from zkconsumer.config import ConsumerConfig
from zkconsumer.core.partition_position import PartitionPosition
from zkconsumer.model import Assignment, TopicPartition

NEVER = float("inf")


class Keeper:
    """The partitions of the batch that is planned or runs.

    Arguments: ``release_after`` in seconds from the planning of a batch, None to keep until it ends; ``again`` is told,
    with the reason, when something that the group waits for need not be kept any more.
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
        self._lock = Lock()
        self._batch = 0
        self._kept: frozenset[TopicPartition] = frozenset()
        self._until = NEVER
        self._leaving: frozenset[TopicPartition] = frozenset()
        self._wanted: frozenset[TopicPartition] = frozenset()

    # ---- the query ----

    def keep(self, partitions: Iterable[TopicPartition]) -> frozenset[TopicPartition]:
        """A new batch may read these, which are kept in place of those before. Returns those that it may read indeed:
        not what leaves, and not what was only kept for the batch before.
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
        """Of what is kept, the batch reads these."""
        with self._lock:
            self._kept = self._kept.intersection(partitions)
            freed = self._free(self._wanted - self._kept)
        self._tell(freed, "a batch does not read what others wait for")

    @property
    def batch(self) -> int:
        """The number of the batch that was begun last."""
        return self._batch

    def end(self, batch: int) -> None:
        """The batch has ended, if it is still the last one: nothing of it is kept."""
        with self._lock:
            if batch != self._batch:
                return
            self._kept = frozenset()
            freed = self._free(self._wanted)
        self._tell(freed, "a batch has ended")

    def keeps(self, partition: TopicPartition) -> bool:
        """Whether this one is kept now."""
        with self._lock:
            return partition in self._kept and self._clock() < self._until

    # ---- the attendant ----

    def look_at_the_time(self) -> float:
        """Let go of what was kept for too long. Returns the seconds until that is due, infinite where it is not."""
        with self._lock:
            left = self._until - self._clock()
            freed = self._free(self._wanted) if left <= 0 else frozenset()
        self._tell(freed, "releaseAfter has passed")
        return left if left > 0 else NEVER

    def _free(self, partitions: frozenset[TopicPartition]) -> frozenset[TopicPartition]:
        """The group gets these with its next round; until then no batch begins to read them."""
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
        """The assignment, but with what is kept of ``owned`` left where it is. What then leaves is noted."""
        with self._lock:
            kept = {} if self._clock() >= self._until else {tp: owned[tp].thread for tp in self._kept if tp in owned}
            kept = {tp: thread for tp, thread in kept.items() if tp.partition in view.partitions.get(tp.topic, ())}
            amended = {**assignment, **kept}
            self._wanted = frozenset(tp for tp, thread in kept.items() if assignment.get(tp) != thread)
            self._leaving = frozenset(tp for tp, position in owned.items() if amended.get(tp) != position.thread)
            return amended


class KeepingStrategy(GroupStrategy):
    """The strategy that the configuration names, but for what the keeper keeps.

    Arguments: ``owned`` tells what is ours now.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        keeper: Keeper,
        owned: Callable[[], Mapping[TopicPartition, PartitionPosition]],
    ) -> None:
        super().__init__(config)
        self._keeper = keeper
        self._owned = owned

    def __call__(self, view: StrategyView, threads: Threads) -> Assignment:
        """Who shall own what. Raises whatever the strategy raises."""
        return self._keeper.amend(super().__call__(view, threads), self._owned(), view)
