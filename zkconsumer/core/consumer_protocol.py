"""Subscriptions and assignments in the bytes of JoinGroup and SyncGroup. Pure; any thread.

The broker passes these bytes on unread. The format is that of the Java consumer, so that Java, librdkafka and other
members can share a group with ours:

* version 0 (Kafka 0.9): topics and user data
* version 1 (2.4): also the partitions that the member still owns
* version 2 (3.1): also the generation of these
* version 3 (3.5): also the rack

Each version only adds fields, so a later version is read as the highest known one. Mirrors ``ConsumerProtocol``.
Differs on purpose: the error for unreadable bytes names the member, while Java's leader fails with a buffer underflow.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from zkconsumer.core import byte_reader
from zkconsumer.core.byte_reader import ByteReader
from zkconsumer.errors import MalformedMemberError
from zkconsumer.model import TopicPartition

PROTOCOL_TYPE = "consumer"
"""The protocol type of a group of consumers. A coordinator admits no other type to it."""

HIGHEST = 3
"""The highest version that this package reads and writes."""


class RebalanceProtocol(Enum):
    """Eager members give up all partitions before they join; cooperative members only moving partitions (KIP-429)."""

    EAGER = 0
    COOPERATIVE = 1


@dataclass(frozen=True, slots=True)
class MemberSubscription:
    """A member's subscription, as the leader reads it.

    ``user_data`` belongs to the strategy. ``owned`` are the partitions that the member keeps while it joins, as of
    ``generation`` (-1: none, or unknown). ``instance`` is its ``group.instance.id``, which comes with the JoinGroup
    response and is not in the bytes.
    """

    topics: tuple[str, ...]
    user_data: bytes | None = None
    owned: tuple[TopicPartition, ...] = ()
    generation: int = -1
    rack: str | None = None
    instance: str | None = None


@dataclass(frozen=True, slots=True)
class MemberAssignment:
    """The leader's assignment for one member; ``user_data`` belongs to the strategy."""

    partitions: tuple[TopicPartition, ...] = ()
    user_data: bytes | None = None


class JoinedMember(NamedTuple):
    """A member in the JoinGroup response of the leader, with its subscription as bytes."""

    member_id: str
    metadata: bytes
    instance_id: str | None = None


def encode_subscription(subscription: MemberSubscription, version: int = HIGHEST) -> bytes:
    """Encode a subscription, without the fields that the version does not have."""
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
    """Decode a member's subscription. Raises MalformedMemberError.

    Arguments: ``member`` is the member id, ``instance`` its ``group.instance.id``.
    """
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
    """Encode an assignment. The bytes are the same in all versions."""
    return (
        byte_reader.int16(version)
        + byte_reader.partitions(assignment.partitions)
        + byte_reader.nullable_bytes(assignment.user_data)
    )


def decode_assignment(data: bytes, member: str) -> MemberAssignment:
    """Decode an assignment. Empty bytes, for a member that its leader left out, mean no partitions.

    Arguments: ``member`` names the sender in errors. Raises MalformedMemberError.
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
