"""The members of a fake group, and the requests and answers of joining and syncing.

Pure. Times are in seconds. A ticket is an object of the caller, who gets it back with the answer to a waiting request.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from zkconsumer.testing.group_states import NONE
from zkconsumer.testing.wire_types import (
    BYTES,
    INT16,
    STRING,
    Array,
    MalformedRequestError,
    Struct,
    WireField,
    WireReader,
)

Protocols = tuple[tuple[str, bytes], ...]
"""The protocols that a member offers, its favourite first: the name and the member's metadata."""

CONSUMERS = "consumer"
"""The only protocol type whose metadata the coordinator can read."""

_SUBSCRIPTION = Struct(WireField("version", INT16), WireField("topics", Array(STRING)), WireField("user_data", BYTES))
"""Version 0. All later versions begin with its fields."""


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """Return the topics of a consumer's subscription, None if the bytes are no subscription."""
    try:
        topics = _SUBSCRIPTION.read(WireReader(metadata))["topics"]
    except MalformedRequestError:
        return None
    return None if topics is None or None in topics else frozenset(topics)


class JoinRequest(NamedTuple):
    """A JoinGroup request. ``member_id`` is empty for a new member, ``instance_id`` is None for a dynamic one."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout: float
    rebalance_timeout: float
    protocol_type: str
    protocols: Protocols
    needs_member_id: bool = False
    """Whether a new member first gets an id and has to join again with it (JoinGroup 4 and later)."""
    skips_assignment: bool = False
    """Whether the answer can tell a returning static leader not to assign (JoinGroup 9 and later)."""


class SyncRequest(NamedTuple):
    """A SyncGroup request. Only the leader sends an ``assignment``, by member id.

    ``protocol_type`` and ``protocol`` are None before version 5.
    """

    member_id: str
    instance_id: str | None
    generation: int
    assignment: dict[str, bytes]
    protocol_type: str | None = None
    protocol: str | None = None


class JoinAnswer(NamedTuple):
    """The answer to a JoinGroup. Only the leader gets the ``members`` (id, instance id, metadata)."""

    error: int
    member_id: str
    generation: int = -1
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    members: tuple[tuple[str, str | None, bytes], ...] = ()
    skip_assignment: bool = False


class SyncAnswer(NamedTuple):
    """The answer to a SyncGroup."""

    error: int
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


class DueAnswer(NamedTuple):
    """An answer to send now, with the ticket of its request."""

    ticket: object
    answer: JoinAnswer | SyncAnswer


@dataclass(slots=True)
class FakeGroupMember:
    """A member of a group. Its session ends at ``deadline`` unless a heartbeat comes; None: no heartbeat is due.

    ``join_ticket`` and ``sync_ticket`` belong to its waiting requests.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout: float
    rebalance_timeout: float
    protocol_type: str
    protocols: Protocols
    assignment: bytes = b""
    join_ticket: object | None = None
    sync_ticket: object | None = None
    deadline: float | None = None
    is_new: bool = field(default=True)

    def metadata(self, protocol: str) -> bytes:
        """Return the member's metadata for a protocol. Raises KeyError if the member does not offer it."""
        return dict(self.protocols)[protocol]

    @property
    def excused(self) -> bool:
        """Whether the member needs no heartbeats, because one of its requests waits. New members always need them."""
        return not self.is_new and (self.join_ticket is not None or self.sync_ticket is not None)


class MemberView(NamedTuple):
    """The present state of a member, for tests and DescribeGroups."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


class FakeGroupView(NamedTuple):
    """The present state of a group, for tests and DescribeGroups."""

    group_id: str
    state: str
    generation: int
    protocol_type: str
    protocol: str
    leader: str
    members: dict[str, MemberView]
    error: int = NONE
