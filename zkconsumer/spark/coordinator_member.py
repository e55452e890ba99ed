"""``group.coordination=kafka``: the parts of a query's member whose group the brokers coordinate.

What a running batch reads is to the group's thread like messages in a reader's hands: giving it up waits until they are
let go, while the heartbeats go on, on their own thread. It waits until the batch has ended, or ``releaseAfter`` has
passed, and never for as long as the rebalance waits for us (``max.poll.interval.ms``), or the coordinator would take us
for gone. By a strategy that gives everything up before it joins again that holds up the whole group; by
``cooperative-sticky`` only the partitions that go elsewhere wait.

Threads: the group's calls ``start``, ``revoke`` and ``end``; the query's main thread asks ``started``. That no batch
begins to read what leaves is the keeper's protocol: the main thread keeps *before* it looks whether a position is
revoked, the group's thread revokes *before* it looks what is kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from threading import Event
from time import monotonic
from typing import Any, Final

from zkconsumer.config import ConsumerConfig
from zkconsumer.core.partition_position import NOTHING_HELD, PartitionPosition
from zkconsumer.deadline import Deadline
from zkconsumer.member.connector_state import Phase
from zkconsumer.model import ConsumerId, TopicPartition
from zkconsumer.spark.batch_retention import Keeper
from zkconsumer.spark.query_member import BatchDelivery
from zkconsumer.wiring.coordinator_member import KafkaMember

_POLL: Final = 0.02
_BATCH_RUNS: Final = 1 << 62
"""The end of what is in hand: a batch holds its partitions, also when its end is marked already."""
_HEARTBEATS: Final = 2
_IN_TIME: Final = 0.9
"""The part of the rebalance timeout after which we join again, with whatever a batch still reads."""


class HoldingDelivery(BatchDelivery):
    """The same, but that what a batch reads counts as held."""

    def __init__(self, member: CoordinatedQueryMember) -> None:
        super().__init__(member)
        self._keeper = member.keeper
        self._started: set[PartitionPosition] = set()
        self._pause = Event()  # set at the end

    def accept(self, positions: Sequence[PartitionPosition]) -> Sequence[tuple[PartitionPosition, Any]]:
        """Let batches read these: it is known where they start, or that the group has no offset of them."""
        self._started.update(positions)
        return ()

    def started(self, position: PartitionPosition) -> bool:
        """Return whether the group's offset was asked for."""
        return position in self._started

    def revoke(self, positions: Sequence[PartitionPosition]) -> None:
        """Let no batch that is planned from now on read these."""
        for position in positions:
            position.revoked = True
            self._started.discard(position)
        self._mark_held(positions)

    def wait(self, positions: Sequence[PartitionPosition], limit: Deadline) -> None:
        """Wait for the batch that reads these, until the limit."""
        while True:
            self._mark_held(positions)
            if limit.expired or not any(position.held for position in positions):
                return
            self._pause.wait(limit.bounded(_POLL))

    def _mark_held(self, positions: Sequence[PartitionPosition]) -> None:
        for position in positions:
            kept = not self._pause.is_set() and self._keeper.keeps(position.tp)
            position.held_until = _BATCH_RUNS if kept else NOTHING_HELD

    def end(self) -> None:
        """The query ends: no batch runs any more."""
        self._pause.set()
        super().end()


class CoordinatedQueryMember(KafkaMember):
    """The parts of a member that reads in batches (``member.ReadingMember``)."""

    def __init__(self, config: ConsumerConfig, consumer: ConsumerId, release_after: float | None) -> None:
        super().__init__(config.replace({"rebalance.drain.timeout.ms": str(longest_drain_ms(config))}), consumer)
        self.keeper = Keeper(release_after, lambda _: None)  # the group's thread looks by itself
        self.batches: BatchDelivery = HoldingDelivery(self)
        self.delivery = self.batches
        self._seen, self._seen_at = 0, monotonic()

    def positions(self) -> Mapping[TopicPartition, PartitionPosition]:
        """What is owned now (a copy)."""
        return {} if self.rebalancer is None else self.rebalancer.positions()

    @property
    def settled(self) -> bool:
        """Whether what the group gave us is owned, and may be read.

        By an incremental strategy what others give up for us comes with the generation after, of which we hear by a
        heartbeat: until there was time for that, more may be on its way. Who has nothing at all may be waiting for a
        batch of somebody else's, and cannot know.
        """
        state = None if self.rebalancer is None else self.rebalancer.state
        if state is None or state.phase is not Phase.OWNING or not self.lease.valid:
            return False
        now, ours = monotonic(), self.positions()
        if state.rebalances != self._seen:
            self._seen, self._seen_at = state.rebalances, now
        more_until = self._seen_at + _HEARTBEATS * self.config.heartbeat_interval_ms / 1000
        if self._generation.incremental and (now < more_until or not ours):
            return False
        return all(self.batches.started(position) for position in ours.values())

    def _joining_limit(self) -> float:
        """Others may have batches to finish before the group is complete, too, once there is somebody to ask."""
        limit = super()._joining_limit()
        return max(limit, self.config.max_poll_interval_ms / 1000) if self._line.found else limit


def longest_drain_ms(config: ConsumerConfig) -> int:
    """How long a batch may hold up a rebalance: it began up to a heartbeat before we hear of it, and after the wait
    there is a commit to be made.
    """
    return max(0, int(_IN_TIME * config.max_poll_interval_ms) - config.heartbeat_interval_ms)
