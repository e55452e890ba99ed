"""The member of a query: a member of the group that reads in batches, and the batch as the holder of its partitions.

A connector's own machinery registers, claims, releases and commits. A batch reads its ranges by itself, and marks
finished offsets in the positions' ``consumed``. Every commit and every release writes ``consumed``, fenced.

A running batch can be neither stopped nor shrunk. In a group that ZooKeeper coordinates, the query's member plans as if
it still owned the partitions of the batch (:class:`BatchRetention`). The member gives a partition up when the batch has
ended, or ``releaseAfter`` seconds after the batch was planned. Nothing blocks for that: the group thread goes on
serving everything else, and the next owner watches the owner node.

In a group that the brokers coordinate these partitions count as held by a reader, so giving them up waits for the end
of the batch, while the heartbeats go on, on their own thread. The wait ends early when ``releaseAfter`` has passed, or
after most of ``max.poll.interval.ms``; otherwise the coordinator would take the member for dead. With a strategy that
gives up every partition before the member joins again, this holds up the whole group. With ``cooperative-sticky`` only
the partitions that move wait.

Threads: the group thread calls a :class:`BatchDelivery`; only ``started`` is the query's main thread's. No batch begins
to read a partition that leaves. The main thread keeps the partition *before* it looks whether the position is revoked.
The group thread revokes *before* it looks at the kept partitions. The main thread keeps partitions and lets go, the
group thread asks what to keep, and the attendant watches the time. One lock guards the few sets of the retention; no
work is done under it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from queue import SimpleQueue
from threading import Event
from time import monotonic
from typing import Any, Final

from zkconsumer.assignors.group_strategy import GroupStrategy, StrategyView, Threads
from zkconsumer.config import ConsumerConfig
from zkconsumer.core.registration import CONFLICT_KEY, KEEPS_CHECKPOINT, READER_KEY, SPARK_QUERY, Registration
from zkconsumer.member.connector_state import Phase
from zkconsumer.member.events import LookAgain
from zkconsumer.model import Assignment, ConsumerId, TopicPartition
from zkconsumer.ownership.partition_position import NOTHING_HELD, PartitionPosition
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.runtime.interruptible_wait import InterruptibleLock
from zkconsumer.wiring import MemberEnvironment, build_member
from zkconsumer.wiring.member_parts import stamped
from zkconsumer.zookeeper.session import Session

NEVER = float("inf")


class BatchRetention:
    """The partitions of the batch that is planned or runs.

    Arguments: ``release_after`` in seconds from the planning of a batch, None to keep until it ends. ``again`` is told
    the reason when a partition that the group waits for need not be kept any more.
    """

    def __init__(
        self, release_after: float | None, again: Callable[[str], None], clock: Callable[[], float] = monotonic
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


_POLL: Final = 0.02
_BATCH_RUNS: Final = 1 << 62
"""The end of the messages in hand: a batch holds its partitions even if its end is marked already."""
_HEARTBEATS: Final = 2
_IN_TIME: Final = 0.9
"""The part of the rebalance timeout after which the member joins again, even if a batch still reads."""


class BatchDelivery:
    """The partitions that batches may read: the :class:`~zkconsumer.member.interfaces.Delivery` of a query.

    Arguments: with ``retention`` a revocation waits for the running batch, as for a reader with messages in hand.
    Without, the strategy leaves the partitions of a running batch where they are, and nobody waits.
    """

    def __init__(self, retention: BatchRetention | None = None) -> None:
        self.refusal: Exception | None = None
        self._retention = retention
        self._started: set[PartitionPosition] = set()
        self._ended = Event()

    def accept(self, positions: Sequence[PartitionPosition]) -> Sequence[tuple[PartitionPosition, Any]]:
        """Let batches read these: their start is known, or the group has no offset of them.

        Returns nothing to fetch.
        """
        self._started.update(positions)
        return ()

    def started(self, position: PartitionPosition) -> bool:
        """Return whether batches may read this position: always in ZooKeeper, which tells offsets with the claim."""
        return self._retention is None or position in self._started

    def revoke(self, positions: Sequence[PartitionPosition]) -> None:
        """Keep these positions out of all batches that are planned from now on."""
        for position in positions:
            position.revoked = True
            self._started.discard(position)
        self._holds(positions)

    def wait(self, positions: Sequence[PartitionPosition], limit: Deadline) -> None:
        """Wait for the batch that reads these, until the limit."""
        while self._holds(positions) and not limit.expired:
            self._ended.wait(limit.bounded(_POLL))

    def _holds(self, positions: Sequence[PartitionPosition]) -> bool:
        """Mark the positions that the running batch holds; return whether there are any."""
        if self._retention is None:
            return False
        for position in positions:
            kept = not self._ended.is_set() and self._retention.keeps(position.tp)
            position.held_until = _BATCH_RUNS if kept else NOTHING_HELD
        return any(position.held for position in positions)

    def replace(self, old: PartitionPosition, new: PartitionPosition) -> None:
        """Use the new position from the next batch on."""
        new.paused = new.halted = old.paused
        old.successor = new
        self.revoke([old])

    def refuse(self, error: Exception | None) -> None:
        """Raise ``error`` in the next call of Spark's; None takes it back."""
        self.refusal = error

    def fail(self, position: PartitionPosition, error: Exception) -> None:
        """Raise ``error`` in the next call of Spark's."""
        self.refusal = error

    def held_by(self, position: PartitionPosition, thread: int) -> bool:
        """Return False: nobody holds single messages."""
        return False

    @property
    def reads(self) -> bool:
        """Whether batches are left to read: the query has not ended."""
        return not self._ended.is_set()

    def end(self) -> None:
        """Note that the query has ended and runs no batch any more."""
        self._ended.set()


def stamped_query(config: ConsumerConfig, session: Session, registration: Registration) -> Registration:
    """Return the registration as any member writes it, marked as a query's.

    Tools that write offsets tell queries by the mark: a query goes on from its checkpoint and adopts no offset.
    """
    made = stamped(config, session, registration)
    return replace(made, extra={**made.extra, READER_KEY: SPARK_QUERY, CONFLICT_KEY: KEEPS_CHECKPOINT})


class QueryMember:
    """A member that reads in batches. Nothing is connected before it is opened.

    Arguments: ``release_after`` as for :class:`BatchRetention`. Raises: ConfigException, UnknownAssignorError.
    """

    def __init__(self, config: ConsumerConfig, consumer: ConsumerId, release_after: float | None) -> None:
        if config.coordinated_by_brokers:
            self.retention = BatchRetention(release_after, lambda _: None)  # the group thread looks by itself
            self.delivery = BatchDelivery(self.retention)
            config = config.replace({"rebalance.drain.timeout.ms": str(longest_drain_ms(config))})
            environment = MemberEnvironment(delivery=self.delivery, joins_patiently=True)
        else:
            events: SimpleQueue[Any] = SimpleQueue()
            self.retention = BatchRetention(release_after, lambda reason: events.put(LookAgain(reason)))
            self.delivery = BatchDelivery()
            strategy = RetainingStrategy(config, self.retention, lambda: self.group.positions())
            environment = MemberEnvironment(
                events=lambda: events, delivery=self.delivery, strategy=strategy, stamp=stamped_query
            )
        self.group = build_member(config, consumer, environment=environment)
        self._seen, self._seen_at = 0, monotonic()

    @property
    def settled(self) -> bool:
        """Whether the member, as far as it knows, owns and may read its whole share.

        With an incremental strategy, partitions that others give up for us come with the next generation, which a
        heartbeat tells of. Until there was time for that, more partitions may be on their way. A member without any
        partition may be waiting for the batch of another query, and cannot know.
        """
        state = self.group.state
        if state is None or state.phase is not Phase.OWNING or not self.group.lease.valid:
            return False
        now, ours = monotonic(), self.group.positions()
        if state.rebalances != self._seen:
            self._seen, self._seen_at = state.rebalances, now
        more_until = self._seen_at + _HEARTBEATS * self.group.config.heartbeat_interval_ms / 1000
        if self.group.coordination.incremental and (now < more_until or not ours):
            return False
        return all(self.delivery.started(position) for position in ours.values())


def longest_drain_ms(config: ConsumerConfig) -> int:
    """Return how long a batch may hold up a rebalance.

    The rebalance began up to a heartbeat before the member hears of it, and a commit follows the wait.
    """
    return max(0, int(_IN_TIME * config.max_poll_interval_ms) - config.heartbeat_interval_ms)
