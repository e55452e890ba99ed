"""The strategies of Kafka's new consumer, as functions. Pure; any thread.

They assign to members, not to threads, and in a group coordinated by a broker. Here they serve to compare: what would
the same group own after a migration? Mirrors ``org.apache.kafka.clients.consumer.RangeAssignor`` and
``RoundRobinAssignor`` of 3.9.1 without racks. Names are ordered as Java orders text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from zkconsumer.assignors.range import blocks
from zkconsumer.model import TopicPartition, utf16_key


@dataclass(frozen=True, slots=True)
class ClientMember:
    """A member of a new consumer's group.

    ``topics`` it subscribes to; ``owned``, what it owned in ``generation`` (-1: unknown); ``instance``, its
    group.instance.id.
    """

    topics: Sequence[str]
    owned: Sequence[TopicPartition] = ()
    generation: int = -1
    instance: str | None = None


ClientMembers = Mapping[str, ClientMember]
ClientAssignment = dict[str, list[TopicPartition]]
"""Every member with what it shall own; members without partitions have an empty list."""


def in_order(members: ClientMembers) -> list[str]:
    """The member ids as the new consumer sorts them: static members first, by instance, then the others by id."""

    def key(consumer: str) -> tuple[bool, bytes]:
        instance = members[consumer].instance
        return instance is None, utf16_key(consumer if instance is None else instance)

    return sorted(members, key=key)


def client_range(members: ClientMembers, partitions: Mapping[str, int]) -> ClientAssignment:
    """Each topic for itself, in contiguous blocks. ``partitions`` counts those of each topic."""
    order = in_order(members)
    assignment: ClientAssignment = {consumer: [] for consumer in members}
    for topic in _topics(members, partitions):
        takers = [consumer for consumer in order if topic in members[consumer].topics]
        for consumer, block in zip(takers, blocks(range(partitions[topic]), len(takers)), strict=True):
            assignment[consumer] += [TopicPartition(topic, number) for number in block]
    return assignment


def client_roundrobin(members: ClientMembers, partitions: Mapping[str, int]) -> ClientAssignment:
    """All partitions by topic and number, dealt out; who does not subscribe to a topic loses its turn."""
    order = in_order(members)
    wanted = {consumer: frozenset(member.topics) for consumer, member in members.items()}
    assignment: ClientAssignment = {consumer: [] for consumer in members}
    at = 0
    for topic in _topics(members, partitions):
        for number in range(partitions[topic]):
            while topic not in wanted[order[at]]:
                at = (at + 1) % len(order)
            assignment[order[at]].append(TopicPartition(topic, number))
            at = (at + 1) % len(order)
    return assignment


def _topics(members: ClientMembers, partitions: Mapping[str, int]) -> list[str]:
    """The topics that exist and that anybody subscribes to, in Java's order."""
    wanted = {topic for member in members.values() for topic in member.topics}
    return sorted((topic for topic in wanted if topic in partitions), key=utf16_key)
