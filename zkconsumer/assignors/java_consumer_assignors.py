"""The Java consumer's strategies for brokers' groups, with their names and user data. Pure; any thread.

The leader of a group uses them to assign partitions to members. ``range`` and ``roundrobin`` equal the Java classes,
without racks. ``sticky`` and ``cooperative-sticky`` keep the same promises, but may assign free partitions in another
order. That is safe, because one member computes the assignment for all. Mirrors ``RangeAssignor``,
``RoundRobinAssignor``, ``StickyAssignor`` and ``CooperativeStickyAssignor`` of 3.9.1. Differs: the strategies keep no
state, so the caller passes a member's previous assignment. Names are in the order of Java's text.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from zkconsumer.assignors.scala_assignors import blocks
from zkconsumer.core import byte_reader
from zkconsumer.core.byte_reader import ByteReader
from zkconsumer.core.consumer_protocol import MemberAssignment, MemberSubscription, RebalanceProtocol
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

    Invariants for every input, which the tests check:

    * Complete: every partition of a subscribed topic has exactly one owner, which subscribes to the topic.
    * Balanced: no member could give a partition to a subscriber that has at least two partitions fewer. With equal
      subscriptions the counts differ by at most one.
    * Sticky: with equal subscriptions no partition moves unless balance needs it, and no member loses a partition
      while it owns less than its fair share.
    * Deterministic.

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


GroupMembers = Mapping[str, MemberSubscription]
"""The subscriptions of the group's members, by member id."""

EAGER = (RebalanceProtocol.EAGER,)
COOPERATIVE = (RebalanceProtocol.COOPERATIVE, RebalanceProtocol.EAGER)
"""A cooperative strategy can also run eagerly: this is how a group changes over to it (KIP-429)."""


class GroupAssignor(ABC):
    """A strategy of a brokers' group. Members offer it; the leader uses it."""

    name: str
    """The name of the strategy in the members' votes."""
    protocols: tuple[RebalanceProtocol, ...] = EAGER
    """The rebalance protocols that work with this strategy."""

    def user_data(self, topics: Sequence[str], previous: Sequence[TopicPartition], generation: int) -> bytes | None:
        """Return a member's user data for the leader's strategy, None without any.

        Arguments: ``topics`` are the subscribed ones; ``previous`` is the last assignment, in ``generation`` (-1:
        none).
        """
        return None

    @abstractmethod
    def assign(self, partitions: Mapping[str, int], members: GroupMembers) -> Mapping[str, MemberAssignment]:
        """Return the assignment of each member. Raises AssignmentError, MalformedMemberError.

        Arguments: ``partitions`` has the number of partitions of each existing topic.
        """


class _FunctionAssignor(GroupAssignor):
    """A strategy made of a function of members and partitions."""

    def __init__(self, name: str, assign: Callable[[SubscribedMembers, Mapping[str, int]], MemberPartitions]) -> None:
        self.name = name
        self._assign = assign

    def assign(self, partitions: Mapping[str, int], members: GroupMembers) -> dict[str, MemberAssignment]:
        found = self._assign({member: self._subscribed_member(said) for member, said in members.items()}, partitions)
        return {member: MemberAssignment(tuple(given)) for member, given in found.items()}

    def _subscribed_member(self, said: MemberSubscription) -> SubscribedMember:
        return SubscribedMember(said.topics, instance=said.instance)


class RangeGroupAssignor(_FunctionAssignor):
    """``RangeAssignor``, the Java consumer's default: contiguous blocks, topic by topic."""

    def __init__(self) -> None:
        super().__init__("range", range_assignment)


class RoundRobinGroupAssignor(_FunctionAssignor):
    """``RoundRobinAssignor``: all partitions in turn."""

    def __init__(self) -> None:
        super().__init__("roundrobin", roundrobin_assignment)


class StickyGroupAssignor(_FunctionAssignor):
    """``StickyAssignor``: balanced first, then with the fewest moves. Members give up everything meanwhile.

    Its user data is the member's last assignment, since 2.2 with the generation. As in Java, unreadable user data
    counts as none: the member keeps nothing, and the group goes on.
    """

    def __init__(self) -> None:
        super().__init__("sticky", sticky)

    def user_data(self, topics: Sequence[str], previous: Sequence[TopicPartition], generation: int) -> bytes | None:
        """Return the last assignment, None before the first."""
        return None if generation < 0 else byte_reader.partitions(previous) + byte_reader.int32(generation)

    def _subscribed_member(self, said: MemberSubscription) -> SubscribedMember:
        held, generation = decode_sticky(said.user_data)
        return SubscribedMember(said.topics, held, generation, said.instance)


class CooperativeStickyGroupAssignor(_FunctionAssignor):
    """``CooperativeStickyAssignor``: sticky; a moving partition is first given up, then assigned.

    Subscriptions name the owned partitions, and from version 2 on their generation. Before, the generation was in the
    user data, where Java's class still writes it.
    """

    protocols = COOPERATIVE

    def __init__(self) -> None:
        super().__init__("cooperative-sticky", cooperative_sticky)

    def user_data(self, topics: Sequence[str], previous: Sequence[TopicPartition], generation: int) -> bytes | None:
        """Return the generation of the last assignment, -1 before the first."""
        return byte_reader.int32(generation)

    def _subscribed_member(self, said: MemberSubscription) -> SubscribedMember:
        generation = said.generation
        if generation < 0 and said.user_data is not None:
            generation = _generation_of(said.user_data)
        return SubscribedMember(said.topics, said.owned, generation, said.instance)


def decode_sticky(data: bytes | None) -> tuple[list[TopicPartition], int]:
    """Decode user data of ``sticky``: the last assignment and its generation (-1: unknown, as before 2.2)."""
    if not data:
        return [], -1
    with suppress(ValueError):
        reader = ByteReader(data)
        held = reader.partitions()
        return held, reader.int32() if reader.left else -1
    return [], -1


def _generation_of(data: bytes) -> int:
    """Return the generation in user data of ``cooperative-sticky``. Java writes just that; librdkafka as ``sticky``."""
    if len(data) == 4:
        return ByteReader(data).int32()
    return decode_sticky(data)[1]


def range_assignment(members: SubscribedMembers, partitions: Mapping[str, int]) -> MemberPartitions:
    """Assign contiguous blocks, topic by topic. ``partitions`` has the number of partitions of each topic."""
    order = in_java_order(members)
    assignment: MemberPartitions = {consumer: [] for consumer in members}
    for topic in _topics(members, partitions):
        takers = [consumer for consumer in order if topic in members[consumer].topics]
        for consumer, block in zip(takers, blocks(range(partitions[topic]), len(takers)), strict=True):
            assignment[consumer] += [TopicPartition(topic, number) for number in block]
    return assignment


def roundrobin_assignment(members: SubscribedMembers, partitions: Mapping[str, int]) -> MemberPartitions:
    """Assign all partitions in turn, by topic and number. A member without the topic loses its turn."""
    order = in_java_order(members)
    wanted = {consumer: frozenset(member.topics) for consumer, member in members.items()}
    assignment: MemberPartitions = {consumer: [] for consumer in members}
    at = 0
    for topic in _topics(members, partitions):
        for number in range(partitions[topic]):
            while topic not in wanted[order[at]]:
                at = (at + 1) % len(order)
            assignment[order[at]].append(TopicPartition(topic, number))
            at = (at + 1) % len(order)
    return assignment


def _topics(members: SubscribedMembers, partitions: Mapping[str, int]) -> list[str]:
    """Return the existing subscribed topics, in the order of Java's text."""
    wanted = {topic for member in members.values() for topic in member.topics}
    return sorted((topic for topic in wanted if topic in partitions), key=utf16_key)
