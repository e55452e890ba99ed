"""The consumers' protocol: what members and their leader write into JoinGroup and SyncGroup. Pure; any thread.

The broker passes these bytes on unread. They are those of the Java consumer, so that Java, librdkafka and other members
can be in one group with ours: subscriptions and assignments of versions 0 (0.9 on), 1 (2.4, the partitions still
owned), 2 (3.1, the generation in which they are) and 3 (3.5, the rack). Each version only adds to the one before, so a
later one is read as the highest known. Mirrors ``ConsumerProtocol``; differs in that unreadable bytes of one member are
an error that names the member, where Java's leader fails with a buffer's underflow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from zkconsumer.core import byte_reader
from zkconsumer.core.byte_reader import ByteReader
from zkconsumer.errors import MalformedMemberError
from zkconsumer.model import TopicPartition

PROTOCOL_TYPE = "consumer"
"""The type of a consumers' group; a coordinator admits no others to it."""

HIGHEST = 3
"""The latest version that we write and read."""


class RebalanceProtocol(Enum):
    """How a member rebalances: it gives up everything before it joins, or only what it is told to (KIP-429)."""

    EAGER = 0
    COOPERATIVE = 1


@dataclass(frozen=True, slots=True)
class MemberSubscription:
    """What a member tells the leader.

    ``topics`` it subscribes to; ``user_data`` is its strategy's; ``owned`` is what it holds while it joins, as of
    ``generation`` (-1: none, or not told); its ``rack``. ``instance``, its group.instance.id, comes with the answer to
    JoinGroup and is not in the bytes.
    """

    topics: tuple[str, ...]
    user_data: bytes | None = None
    owned: tuple[TopicPartition, ...] = ()
    generation: int = -1
    rack: str | None = None
    instance: str | None = None


@dataclass(frozen=True, slots=True)
class MemberAssignment:
    """What the leader tells a member; ``user_data`` is the strategy's."""

    partitions: tuple[TopicPartition, ...] = ()
    user_data: bytes | None = None


class JoinedMember(NamedTuple):
    """A member as the leader learns of it: its subscription still as bytes."""

    member_id: str
    metadata: bytes
    instance_id: str | None = None


def encode_subscription(subscription: MemberSubscription, version: int = HIGHEST) -> bytes:
    """The bytes of a subscription; what the version cannot say is left out."""
    data = byte_reader.int16(version)
    data += byte_reader.array(map(byte_reader.string, subscription.topics)) + byte_reader.nullable_bytes(
        subscription.user_data
    )
    if version >= 1:
        data += byte_reader.partitions(subscription.owned)
    if version >= 2:
        data += byte_reader.int32(subscription.generation)
    if version >= 3:
        data += byte_reader.string(subscription.rack)
    return data


def decode_subscription(data: bytes, member: str, instance: str | None = None) -> MemberSubscription:
    """A member's subscription. Arguments: ``member`` and ``instance``, its ids. Raises MalformedMemberError."""
    try:
        reader = ByteReader(data)
        version = _version(reader)
        topics = tuple(reader.array(reader.string))
        user_data = reader.nullable_bytes()
        owned = tuple(reader.partitions()) if version >= 1 else ()
        generation = reader.int32() if version >= 2 else -1
        rack = reader.nullable_string() if version >= 3 else None
    except ValueError as failure:
        raise MalformedMemberError(member, f"its subscription cannot be read: {failure}") from failure
    return MemberSubscription(topics, user_data, owned, generation, rack, instance)


def encode_assignment(assignment: MemberAssignment, version: int = HIGHEST) -> bytes:
    """The bytes of an assignment, which are the same in all versions."""
    return (
        byte_reader.int16(version)
        + byte_reader.partitions(assignment.partitions)
        + byte_reader.nullable_bytes(assignment.user_data)
    )


def decode_assignment(data: bytes, member: str) -> MemberAssignment:
    """A member's assignment. No bytes at all, as a member gets that its leader left out, are no partitions.

    Arguments: ``member`` is its id. Raises MalformedMemberError.
    """
    if not data:
        return MemberAssignment()
    try:
        reader = ByteReader(data)
        _version(reader)
        assigned = tuple(reader.partitions())
        return MemberAssignment(assigned, reader.nullable_bytes())
    except ValueError as failure:
        raise MalformedMemberError(member, f"its assignment cannot be read: {failure}") from failure


def _version(reader: ByteReader) -> int:
    version = reader.int16()
    if version < 0:
        raise ValueError(f"version {version}")
    return version


def elect(votes: Iterable[Sequence[str]]) -> str | None:
    """The strategy that a coordinator picks: of those that all members know, the one that most prefer.

    Arguments: each member's strategies, the preferred one first. Of equally many votes the one that was named first
    wins, where the broker's choice is a hash map's. Returns None where the members have none in common.
    """
    ballots = [list(ballot) for ballot in votes]
    common = set.intersection(*map(set, ballots)) if ballots else set()
    counted = Counter(next(name for name in ballot if name in common) for ballot in ballots if common)
    return counted.most_common(1)[0][0] if counted else None
