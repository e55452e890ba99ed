"""``minOffsetsPerTrigger`` and ``maxTriggerDelay``: whether a batch waits for more messages. Pure: no clock, no I/O.

The rule is that of Spark's Kafka source: a batch begins once enough offsets are there, or once the delay has passed
since the last one. The first trigger of a run never waits. So nothing has to be stored, and a restart prolongs no wait.

A member of a group needs one rule more: a batch does not wait if it reads a partition that this member has just won.
The messages of such a partition may have waited with their former owner already. Otherwise a partition that moves from
member to member could wait forever.
"""

from __future__ import annotations

from collections.abc import Mapping

from zkconsumer.model import TopicPartition
from zkconsumer.spark.offset_ranges import Progress


class TriggerDelay:
    """Decides for one run of a query, trigger by trigger.

    Arguments: ``least`` is the number of offsets that are worth a batch. ``longest`` is the delay in seconds after
    which fewer are read as well.
    """

    def __init__(self, least: int, longest: float) -> None:
        self._least = least
        self._longest = longest
        self._since: float | None = None
        self._owned: frozenset[TopicPartition] = frozenset()

    def waits(
        self, positions: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], done: Progress, now: float
    ) -> bool:
        """Return whether the batch from the positions to the ends waits for a later trigger.

        It does not wait if a position is another one than that of the checkpoint, ``done``: the checkpoint must learn
        of it, because messages that come before the next batch would be missed otherwise. ``now`` is a monotonic time
        in seconds.
        """
        won = not self._owned.issuperset(positions)
        self._owned = frozenset(positions)
        moved = any(tp not in done or done[tp].end != position for tp, position in positions.items())
        there = sum(max(0, ends.get(tp, position) - position) for tp, position in positions.items())
        late = self._since is None or now - self._since >= self._longest
        if not (won or moved or late or there >= self._least):
            return True
        self._since = now
        return False
