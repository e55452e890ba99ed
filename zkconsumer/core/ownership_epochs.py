"""What of a group's partitions nobody else can have while we commit: our stays with them, over generations. Pure.

A commit may take longer than its partition stays with us, and the coordinator lets any member of its generation commit
any partition. So a commit belongs to a stay: it is not sent in a generation in which that has ended.

A stay goes on where we keep a partition, and where the very next generation gives it back to us (every eager rebalance
takes all first): nobody else had it. It ends with a generation that does not, one that we have missed, or a loss.

Differs from the Java consumer on purpose: there a commit that the next generation refuses fails as a whole.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from zkconsumer.model import TopicPartition


@dataclass(frozen=True, slots=True)
class Held:
    """The number of our stay with each partition that is nobody else's in this generation. ``decided`` says that the
    generation's leader has told us all that is ours.
    """

    generation: int = -1
    decided: bool = True
    stays: Mapping[TopicPartition, int] = field(default_factory=dict)

    def ended(self, partition: TopicPartition, stay: int | None) -> bool:
        """Whether that stay is over; one that may still be given back is not."""
        now = self.stays.get(partition)
        return stay is None or (now != stay and (now is not None or self.decided))


class Stays:
    """Numbers our stays. Owned by the group's thread; :attr:`held` is replaced as a whole, so that any may read it."""

    def __init__(self) -> None:
        self.held = Held()
        self._decided = self.held
        self._last = 0

    def joined(self, generation: int, kept: Collection[TopicPartition]) -> None:
        """The next generation begins; its leader leaves us what we ``kept`` while joining, until we give it up."""
        before = self._decided.stays
        self.held = Held(generation, False, {tp: before[tp] for tp in kept if tp in before})

    def given(self, partitions: Collection[TopicPartition]) -> None:
        """The leader gave us these."""
        held, before = self.held, self._decided
        back = before.stays if held.generation - before.generation in (0, 1) else {}
        self._last += 1
        stays = {**{tp: back.get(tp, self._last) for tp in partitions}, **held.stays}
        self.held = self._decided = Held(held.generation, True, stays)

    def lost(self) -> None:
        """Nothing is ours any more."""
        self.held = self._decided = Held(self.held.generation)
