"""The Java consumer's strategies for brokers' groups, with their names and user data. Pure; any thread.

The leader of a group uses them to assign partitions to members. ``range`` and ``roundrobin`` equal the Java classes,
without racks. ``sticky`` and ``cooperative-sticky`` keep the same promises, but may assign free partitions in another
order. Mirrors ``RangeAssignor``, ``RoundRobinAssignor``, ``StickyAssignor`` and ``CooperativeStickyAssignor`` of 3.9.1.
Differs: the strategies keep no state, so the caller passes a member's previous assignment. Names are in the order of
Java's text.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from zkconsumer.assignors.java_sticky import (
    MemberPartitions,
    SubscribedMember,
    SubscribedMembers,
    cooperative_sticky,
    in_java_order,
    sticky,
)
from zkconsumer.assignors.range import blocks
from zkconsumer.core import byte_reader
from zkconsumer.core.byte_reader import ByteReader
from zkconsumer.core.consumer_protocol import MemberAssignment, MemberSubscription, RebalanceProtocol
from zkconsumer.model import TopicPartition, utf16_key

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
