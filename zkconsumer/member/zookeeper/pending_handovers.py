"""What was given up for somebody else to take, until an owner is seen. Pure: times are given, in monotonic seconds.

A member of ours that wants a partition watches its owner node. A Scala member does not: it tries four times, two
seconds apart, and then stays registered and does nothing until it hears of another change of the group (KAFKA-4228).
So whoever gave a partition up looks once those tries must be over, and wakes it.
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


class HandOvers:
    """Partitions that have no owner as far as we know, and when to look at them.

    Arguments: ``patience`` in seconds, after which whoever should own a partition has used up its attempts.
    """

    def __init__(self, patience: float) -> None:
        self.patience = patience
        self._open: dict[TopicPartition, _HandOver] = {}

    def __contains__(self, tp: object) -> bool:
        return tp in self._open

    def gave(self, partitions: Mapping[TopicPartition, ThreadId], now: float) -> None:
        """We gave these up; they are these threads' now."""
        for tp, thread in partitions.items():
            self._open[tp] = _HandOver(thread, now, now, self.patience, now + self.patience)

    def found(self, partitions: Mapping[TopicPartition, ThreadId], now: float) -> None:
        """Nobody owns these, which are those threads'. Whoever gave them up looks first; we after three times as long,
        for it may be gone.
        """
        for tp, thread in partitions.items():
            if tp in self._open:
                self._open[tp].seen = now
            else:
                self._open[tp] = _HandOver(thread, now, now, 3 * self.patience, now + 3 * self.patience)

    def settled(self, partitions: Collection[TopicPartition]) -> None:
        """These have owners."""
        for tp in partitions:
            self._open.pop(tp, None)

    def assigned(self, assignment: Mapping[TopicPartition, ThreadId], ours: Collection[TopicPartition]) -> None:
        """Another assignment is in force: what is ours now, or nobody's, is no hand-over; what is another thread's now
        is that one's from here on.
        """
        for tp, known in list(self._open.items()):
            thread = assignment.get(tp)
            if thread is None or tp in ours:
                del self._open[tp]
            elif thread != known.thread:
                known.thread, known.nudges = thread, 0

    def due(self, now: float) -> Mapping[TopicPartition, ThreadId]:
        """What to look at now, with the threads that should own it."""
        return {tp: known.thread for tp, known in self._open.items() if known.look_at <= now}

    def nudges(self, tp: TopicPartition) -> int:
        """How often whoever should own it was woken, since it is its present thread's."""
        return self._open[tp].nudges

    def nudged(self, partitions: Collection[TopicPartition]) -> None:
        """Whoever should own these was woken."""
        for tp in partitions:
            self._open[tp].nudges += 1

    def looked(self, partitions: Collection[TopicPartition], now: float) -> None:
        """These were looked at and have no owner: the next look comes later each time."""
        for tp in partitions:
            self._open[tp].seen = now
        self.postponed(partitions, now)

    def postponed(self, partitions: Collection[TopicPartition], now: float) -> None:
        """These could not be looked at, so nothing is known of them: the next look comes later each time."""
        for tp in partitions:
            known = self._open[tp]
            known.pause = min(LONGEST, 2 * known.pause)
            known.look_at = now + known.pause

    @property
    def next_look(self) -> float:
        """When something is due."""
        return min((known.look_at for known in self._open.values()), default=NEVER)

    def overdue(self) -> Mapping[TopicPartition, float]:
        """What was seen without an owner for longer than it may take, with the seconds from when it was given up, or
        found so, to when it was last seen.
        """
        without = {tp: known.seen - known.since for tp, known in sorted(self._open.items()) if known.seen > known.since}
        return {tp: seconds for tp, seconds in without.items() if seconds >= self.patience}
