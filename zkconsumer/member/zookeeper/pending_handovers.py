"""Pending handovers: partitions given up for other members, until an owner is seen. Pure; times are monotonic seconds.

A member of ours that wants a partition watches its owner node. A Scala member does not. It tries four times, two
seconds apart, and then stays registered and does nothing until it hears of another change of the group (KAFKA-4228).
So the member that gave a partition up looks when those tries must be over, and wakes the Scala member.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from zkconsumer.model import ThreadId, TopicPartition

NEVER = float("inf")
LONGEST = 300.0
"""Seconds between two looks at the same partition, at most."""


@dataclass(slots=True)
class _HandOver:
    thread: ThreadId
    since: float
    seen: float
    pause: float
    look_at: float
    nudges: int = 0


class PendingHandovers:
    """The partitions that may have no owner, and when to look at them.

    Arguments: ``patience`` in seconds, after which a member has used up its attempts to own a partition.
    """

    def __init__(self, patience: float) -> None:
        self.patience = patience
        self._open: dict[TopicPartition, _HandOver] = {}

    def __contains__(self, tp: object) -> bool:
        return tp in self._open

    def gave(self, partitions: Mapping[TopicPartition, ThreadId], now: float) -> None:
        """Note partitions that we gave up, which these threads should own now."""
        for tp, thread in partitions.items():
            self._open[tp] = _HandOver(thread, now, now, self.patience, now + self.patience)

    def found(self, partitions: Mapping[TopicPartition, ThreadId], now: float) -> None:
        """Note partitions that nobody owns, which these threads should own.

        The member that gave them up looks first. We look after three times as long, for that member may be gone.
        """
        for tp, thread in partitions.items():
            if tp in self._open:
                self._open[tp].seen = now
            else:
                self._open[tp] = _HandOver(thread, now, now, 3 * self.patience, now + 3 * self.patience)

    def settled(self, partitions: Collection[TopicPartition]) -> None:
        """Drop partitions that have owners."""
        for tp in partitions:
            self._open.pop(tp, None)

    def assigned(self, assignment: Mapping[TopicPartition, ThreadId], ours: Collection[TopicPartition]) -> None:
        """Apply another assignment. Drop our partitions and unassigned ones, and note the new threads of the rest."""
        for tp, known in list(self._open.items()):
            thread = assignment.get(tp)
            if thread is None or tp in ours:
                del self._open[tp]
            elif thread != known.thread:
                known.thread, known.nudges = thread, 0

    def due(self, now: float) -> Mapping[TopicPartition, ThreadId]:
        """Return the partitions to look at now, with the threads that should own them."""
        return {tp: known.thread for tp, known in self._open.items() if known.look_at <= now}

    def nudges(self, tp: TopicPartition) -> int:
        """Return how often the member of the present thread was woken."""
        return self._open[tp].nudges

    def nudged(self, partitions: Collection[TopicPartition]) -> None:
        """Note that this member woke the new owners of these partitions."""
        for tp in partitions:
            self._open[tp].nudges += 1

    def looked(self, partitions: Collection[TopicPartition], now: float) -> None:
        """Note that these were looked at and have no owner. The pause before the next look doubles."""
        for tp in partitions:
            self._open[tp].seen = now
        self.postponed(partitions, now)

    def postponed(self, partitions: Collection[TopicPartition], now: float) -> None:
        """Note that these could not be looked at. The pause before the next look doubles."""
        for tp in partitions:
            known = self._open[tp]
            known.pause = min(LONGEST, 2 * known.pause)
            known.look_at = now + known.pause

    @property
    def next_look(self) -> float:
        """When a partition is due."""
        return min((known.look_at for known in self._open.values()), default=NEVER)

    def overdue(self) -> Mapping[TopicPartition, float]:
        """Return the partitions without an owner for too long, with the seconds for which they were seen so."""
        without = {tp: known.seen - known.since for tp, known in sorted(self._open.items()) if known.seen > known.since}
        return {tp: seconds for tp, seconds in without.items() if seconds >= self.patience}
