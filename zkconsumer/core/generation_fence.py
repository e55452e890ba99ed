"""Which commits of a brokers' group the current generation may still send, by ownership epochs. Pure.

A commit may take longer than the ownership of its partition, and the coordinator lets any member of its generation
commit any partition. So each ownership has an epoch, a commit carries it, and a commit of an ended epoch is not sent.

An epoch goes on while the member keeps the partition. It also goes on where the next generation gives the partition
back: nobody else owned it meanwhile. (An eager rebalance takes all partitions first.) An epoch ends when a generation
gives the partition to nobody or another member, when the member misses a generation, or with a loss.

Differs from the Java consumer on purpose: there a commit that the next generation refuses fails as a whole.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from zkconsumer.model import TopicPartition


@dataclass(frozen=True, slots=True)
class GenerationEpochs:
    """Epochs of the partitions that no other member owns in this generation.

    ``decided`` is true once the generation's leader has sent this member's assignment. ``past`` has the last ended
    epoch of each partition, as far as known, since the member last left by its own will.
    """

    generation: int = -1
    decided: bool = True
    epochs: Mapping[TopicPartition, int] = field(default_factory=dict)
    past: Mapping[TopicPartition, int] = field(default_factory=dict)

    def ended(self, partition: TopicPartition, epoch: int | None) -> bool:
        """Return whether this epoch has ended. One that the leader may still give back has not."""
        now = self.epochs.get(partition)
        return epoch is None or (now != epoch and (now is not None or self.decided))


class OwnershipEpochs:
    """Counter of ownership epochs, owned by the group thread.

    Any thread may read :attr:`current`, which is replaced as a whole.
    """

    def __init__(self) -> None:
        self.current = GenerationEpochs()
        self._decided = self.current
        self._past: dict[TopicPartition, int] = {}
        self._last = 0

    def begin_generation(self, generation: int, kept: Collection[TopicPartition]) -> None:
        """Begin the next generation. Partitions ``kept`` while joining stay ours until the member gives them up."""
        before = self._decided.epochs
        epochs = {tp: before[tp] for tp in kept if tp in before}
        self.current = GenerationEpochs(generation, False, epochs, self._past | _ended(before, epochs))

    def assigned(self, partitions: Collection[TopicPartition]) -> None:
        """Take in the leader's assignment."""
        current, before = self.current, self._decided
        given_back = before.epochs if current.generation - before.generation in (0, 1) else {}
        self._last += 1
        epochs = {**{tp: given_back.get(tp, self._last) for tp in partitions}, **current.epochs}
        self._decide(GenerationEpochs(current.generation, True, epochs))

    def lost(self) -> None:
        """End all epochs."""
        self._decide(GenerationEpochs(self.current.generation))

    def left(self) -> None:
        """End all epochs, because the member leaves by its own will. Nothing is past then."""
        self._past = {}
        self.current = self._decided = GenerationEpochs(self.current.generation)

    def _decide(self, decided: GenerationEpochs) -> None:
        self._past = self._past | _ended(self._decided.epochs, decided.epochs)
        self.current = self._decided = replace(decided, past=self._past)


def _ended(before: Mapping[TopicPartition, int], now: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    return {tp: epoch for tp, epoch in before.items() if now.get(tp) != epoch}
