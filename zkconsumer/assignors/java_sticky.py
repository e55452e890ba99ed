"""The Java consumer's sticky assignment, as a function. Pure; any thread.

Invariants for every input, which the tests check:

* Complete: every partition of a subscribed topic has exactly one owner, which subscribes to the topic.
* Balanced: no member could give a partition to a subscriber that has at least two partitions fewer. With equal
  subscriptions the counts differ by at most one.
* Sticky: with equal subscriptions no partition moves unless balance needs it, and no member loses a partition while it
  owns less than its fair share.
* Deterministic.

Differs from Kafka: free partitions may be assigned in another order. That is safe, because in a brokers' group one
member computes the assignment for all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from zkconsumer.model import TopicPartition, utf16_key


@dataclass(frozen=True, slots=True)
class SubscribedMember:
    """A member of a brokers' group.

    ``topics`` are the subscribed ones; ``owned`` are its partitions in ``generation`` (-1: unknown); ``instance`` is
    its ``group.instance.id``.
    """

    topics: Sequence[str]
    owned: Sequence[TopicPartition] = ()
    generation: int = -1
    instance: str | None = None


SubscribedMembers = Mapping[str, SubscribedMember]
MemberPartitions = dict[str, list[TopicPartition]]
"""The partitions of every member. Members without partitions have an empty list."""


def in_java_order(members: SubscribedMembers) -> list[str]:
    """Return the member ids as the Java consumer sorts them: static members by instance, then the others by id."""

    def key(consumer: str) -> tuple[bool, bytes]:
        instance = members[consumer].instance
        return instance is None, utf16_key(consumer if instance is None else instance)

    return sorted(members, key=key)


def sticky(members: SubscribedMembers, partitions: Mapping[str, int]) -> MemberPartitions:
    """Return the assignment that moves as few partitions as balance allows.

    ``partitions`` has the number of partitions of each topic. If two members claim a partition, the member with the
    higher generation owned it. With equal generations neither member did.
    """
    return _Balance(members, partitions).settled()


def cooperative_sticky(members: SubscribedMembers, partitions: Mapping[str, int]) -> MemberPartitions:
    """Return the assignment of :func:`sticky` without partitions that another member still owns.

    Their new owners get them in the next rebalance, after the old owners have given them up.
    """
    target = sticky(members, partitions)
    holders: dict[TopicPartition, set[str]] = {}
    for consumer, member in members.items():
        for partition in member.owned:
            holders.setdefault(TopicPartition(*partition), set()).add(consumer)
    return {
        consumer: [partition for partition in owned if holders.get(partition, set()) <= {consumer}]
        for consumer, owned in target.items()
    }


class _Balance:
    """One computation: start from the owned partitions, assign the free ones, then even out."""

    def __init__(self, members: SubscribedMembers, partitions: Mapping[str, int]) -> None:
        self._order = in_java_order(members)
        self._takers: dict[str, list[str]] = {
            topic: [consumer for consumer in self._order if topic in members[consumer].topics]
            for topic in sorted(partitions, key=utf16_key)
        }
        self._equal = len({frozenset(member.topics).intersection(partitions) for member in members.values()}) <= 1
        self._all = [
            TopicPartition(topic, number)
            for topic, takers in self._takers.items()
            if takers
            for number in range(partitions[topic])
        ]
        self._owned: dict[str, dict[TopicPartition, None]] = {consumer: {} for consumer in self._order}
        self._owner: dict[TopicPartition, str] = {}
        self._keep_claims(members)

    def _keep_claims(self, members: SubscribedMembers) -> None:
        claims: dict[TopicPartition, dict[int, list[str]]] = {}
        for consumer in self._order:
            for partition in members[consumer].owned:
                claim = claims.setdefault(TopicPartition(*partition), {})
                claim.setdefault(members[consumer].generation, []).append(consumer)
        for partition in self._all:
            by_generation = claims.get(partition)
            if by_generation is None:
                continue
            latest = by_generation[max(by_generation)]
            if len(latest) == 1 and latest[0] in self._takers[partition.topic]:
                self._give(partition, latest[0])

    def _give(self, partition: TopicPartition, consumer: str) -> None:
        former = self._owner.get(partition)
        if former is not None:
            del self._owned[former][partition]
        self._owned[consumer][partition] = None
        self._owner[partition] = consumer

    def settled(self) -> MemberPartitions:
        if self._equal:
            self._release_beyond_quota()
        for partition in self._all:
            if partition not in self._owner:
                self._give(partition, self._poorest(partition.topic))
        self._even_out()
        return {consumer: sorted(owned) for consumer, owned in self._owned.items()}

    def _release_beyond_quota(self) -> None:
        """Release partitions beyond each member's quota, which equal subscriptions fix beforehand."""
        if not self._order:
            return
        least, larger = divmod(len(self._all), len(self._order))
        for consumer in self._order:
            quota = least
            if larger and len(self._owned[consumer]) > least:
                quota, larger = least + 1, larger - 1
            for partition in _topics_in_turn(self._owned[consumer])[quota:]:
                del self._owned[consumer][partition]
                del self._owner[partition]

    def _poorest(self, topic: str) -> str:
        return min(self._takers[topic], key=lambda consumer: len(self._owned[consumer]))

    def _even_out(self) -> None:
        """Move partitions to poorer subscribers while any can move. Each lessens the sum of squares, so it ends."""
        moved = True
        while moved:
            moved = False
            for partition in self._all:
                poorest = self._poorest(partition.topic)
                if len(self._owned[self._owner[partition]]) > len(self._owned[poorest]) + 1:
                    self._give(partition, poorest)
                    moved = True


def _topics_in_turn(partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
    """Return the first partition of each topic, then the second of each, and so on.

    A member gives up partitions from the end of this list. So it gives up partitions of each topic, and not all
    partitions of one topic. Otherwise it might lose the only topic with messages.
    """
    ranks: dict[str, int] = {}
    ranked: list[tuple[int, TopicPartition]] = []
    for partition in partitions:
        ranks[partition.topic] = ranks.get(partition.topic, 0) + 1
        ranked.append((ranks[partition.topic], partition))
    return [partition for _, partition in sorted(ranked, key=lambda one: one[0])]
