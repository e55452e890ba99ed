"""The strategies of a group's leader, under the names and with the user data of the Java consumer's. Pure; any thread.

``range`` and ``roundrobin`` give what the Java classes give, without racks; ``sticky`` and ``cooperative-sticky`` keep
the same promises and may hand out free partitions in another order, which nobody but the leader computes.
``zkconsumer``, ours alone, is in ``streams.py``. Mirrors ``RangeAssignor``, ``RoundRobinAssignor``, ``StickyAssignor``
and ``CooperativeStickyAssignor`` of 3.9; differs in that what a member held is told by the caller and kept by nobody
here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Protocol

from zkconsumer.assignors.range import blocks
from zkconsumer.assignors.sticky import (
    MemberPartitions,
    SubscribedMember,
    SubscribedMembers,
    cooperative_sticky,
    in_java_order,
    sticky,
)
from zkconsumer.core import byte_reader
from zkconsumer.core.byte_reader import ByteReader
from zkconsumer.core.consumer_protocol import MemberAssignment, MemberSubscription, RebalanceProtocol
from zkconsumer.model import TopicPartition, utf16_key

GroupMembers = Mapping[str, MemberSubscription]
"""The group's members by their ids, as the leader sees them."""

EAGER = (RebalanceProtocol.EAGER,)
COOPERATIVE = (RebalanceProtocol.COOPERATIVE, RebalanceProtocol.EAGER)
"""What can be used incrementally can be used eagerly too, which is how a group moves to it (KIP-429)."""


class GroupAssignor(Protocol):
    """A strategy as members offer it and as the leader uses it."""

    @property
    def name(self) -> str:
        """The name that members vote for."""
        ...  # pragma: no cover

    @property
    def protocols(self) -> tuple[RebalanceProtocol, ...]:
        """How a member may behave under this strategy."""
        ...  # pragma: no cover

    def user_data(self, topics: Sequence[str], previous: Sequence[TopicPartition], generation: int) -> bytes | None:
        """What a member tells its leader's strategy.

        Arguments: the topics it subscribes to; what it was last assigned, and in which generation (-1: never).
        """
        ...  # pragma: no cover

    def assign(self, partitions: Mapping[str, int], members: GroupMembers) -> Mapping[str, MemberAssignment]:
        """What each member gets. Arguments: the number of partitions of each topic that exists; the members.

        Raises AssignmentError, MalformedMemberError.
        """
        ...  # pragma: no cover


class _FunctionAssignor:
    """A strategy that is a function of members and partitions and needs no user data."""

    def __init__(self, name: str, assign: Callable[[SubscribedMembers, Mapping[str, int]], MemberPartitions]) -> None:
        self.name = name
        self._assign = assign

    @property
    def protocols(self) -> tuple[RebalanceProtocol, ...]:
        """Only the eager one."""
        return EAGER

    def user_data(self, topics: Sequence[str], previous: Sequence[TopicPartition], generation: int) -> bytes | None:
        """Nothing."""
        return None

    def assign(self, partitions: Mapping[str, int], members: GroupMembers) -> dict[str, MemberAssignment]:
        """What each member gets; raises nothing."""
        found = self._assign({member: self._subscribed_member(said) for member, said in members.items()}, partitions)
        return {member: MemberAssignment(tuple(given)) for member, given in found.items()}

    def _subscribed_member(self, said: MemberSubscription) -> SubscribedMember:
        return SubscribedMember(said.topics, instance=said.instance)


class RangeGroupAssignor(_FunctionAssignor):
    """Each topic for itself, in contiguous blocks: ``RangeAssignor``, the Java consumer's default."""

    def __init__(self) -> None:
        super().__init__("range", range_assignment)


class RoundRobinGroupAssignor(_FunctionAssignor):
    """All partitions dealt out in turn: ``RoundRobinAssignor``."""

    def __init__(self) -> None:
        super().__init__("roundrobin", roundrobin_assignment)


class StickyGroupAssignor(_FunctionAssignor):
    """Balanced first, then what moves least; everything is given up meanwhile: ``StickyAssignor``.

    Its user data is what the member was last assigned, with the generation since 2.2. As there, user data that cannot
    be read counts as none: a member then keeps nothing, and the group goes on.
    """

    def __init__(self) -> None:
        super().__init__("sticky", sticky)

    def user_data(self, topics: Sequence[str], previous: Sequence[TopicPartition], generation: int) -> bytes | None:
        """What was assigned last; nothing before the first assignment."""
        return None if generation < 0 else byte_reader.partitions(previous) + byte_reader.int32(generation)

    def _subscribed_member(self, said: MemberSubscription) -> SubscribedMember:
        held, generation = decode_sticky(said.user_data)
        return SubscribedMember(said.topics, held, generation, said.instance)


class CooperativeStickyGroupAssignor(_FunctionAssignor):
    """Sticky, and a partition that changes hands is first given up, then given: ``CooperativeStickyAssignor``.

    What members hold is in their subscriptions. The generation stands there since version 2 and in the user data
    before, where Java's class goes on writing it.
    """

    def __init__(self) -> None:
        super().__init__("cooperative-sticky", cooperative_sticky)

    @property
    def protocols(self) -> tuple[RebalanceProtocol, ...]:
        """Both."""
        return COOPERATIVE

    def user_data(self, topics: Sequence[str], previous: Sequence[TopicPartition], generation: int) -> bytes | None:
        """The generation of the last assignment, -1 before the first."""
        return byte_reader.int32(generation)

    def _subscribed_member(self, said: MemberSubscription) -> SubscribedMember:
        generation = said.generation
        if generation < 0 and said.user_data is not None:
            generation = _generation_of(said.user_data)
        return SubscribedMember(said.topics, said.owned, generation, said.instance)


def decode_sticky(data: bytes | None) -> tuple[list[TopicPartition], int]:
    """What a member of ``sticky`` was last assigned, and in which generation (-1: not told, as before 2.2)."""
    if not data:
        return [], -1
    with suppress(ValueError):
        reader = ByteReader(data)
        held = reader.partitions()
        return held, reader.int32() if reader.left else -1
    return [], -1


def _generation_of(data: bytes) -> int:
    """The generation in the user data of ``cooperative-sticky``: Java's is nothing else, librdkafka's is that of
    ``sticky``.
    """
    if len(data) == 4:
        return ByteReader(data).int32()
    return decode_sticky(data)[1]


def range_assignment(members: SubscribedMembers, partitions: Mapping[str, int]) -> MemberPartitions:
    """Each topic for itself, in contiguous blocks. ``partitions`` counts those of each topic."""
    order = in_java_order(members)
    assignment: MemberPartitions = {consumer: [] for consumer in members}
    for topic in _topics(members, partitions):
        takers = [consumer for consumer in order if topic in members[consumer].topics]
        for consumer, block in zip(takers, blocks(range(partitions[topic]), len(takers)), strict=True):
            assignment[consumer] += [TopicPartition(topic, number) for number in block]
    return assignment


def roundrobin_assignment(members: SubscribedMembers, partitions: Mapping[str, int]) -> MemberPartitions:
    """All partitions by topic and number, dealt out; who does not subscribe to a topic loses its turn."""
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
    """The topics that exist and that anybody subscribes to, in Java's order."""
    wanted = {topic for member in members.values() for topic in member.topics}
    return sorted((topic for topic in wanted if topic in partitions), key=utf16_key)
