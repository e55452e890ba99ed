"""What a coordinator knows of one member, what is asked of it, and what it answers.

Pure. Times in seconds; a ticket is whatever the caller wants to have back with the answer to a request that waits.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from zkconsumer.testing.group_states import NONE
from zkconsumer.testing.wire_types import BYTES, INT16, STRING, Array, Field, MalformedRequestError, Struct, WireReader

Protocols = tuple[tuple[str, bytes], ...]
"""What a member offers: names of protocols in the order of its liking, each with the member's metadata."""


CONSUMERS = "consumer"
"""The type of the protocol whose metadata the coordinator can read."""

_SUBSCRIPTION = Struct(Field("version", INT16), Field("topics", Array(STRING)), Field("user_data", BYTES))
"""The first version, with which all later ones begin."""


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """The topics that a consumer says it subscribes to, None where its bytes are no subscription."""
    try:
        topics = _SUBSCRIPTION.read(WireReader(metadata))["topics"]
    except MalformedRequestError:
        return None
    return None if topics is None or None in topics else frozenset(topics)


class JoinRequest(NamedTuple):
    """A JoinGroup. ``member_id`` is empty for a new member, ``instance_id`` None for a dynamic one."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout: float
    rebalance_timeout: float
    protocol_type: str
    protocols: Protocols
    needs_member_id: bool = False
    """Whether a new member is sent away once, with an id (JoinGroup 4 and later)."""
    skips_assignment: bool = False
    """Whether a returning static leader can be told not to assign (JoinGroup 9 and later)."""


class SyncRequest(NamedTuple):
    """A SyncGroup; ``assignment`` by member id, from the leader only. The names of the protocol are None before version
    5.
    """

    member_id: str
    instance_id: str | None
    generation: int
    assignment: dict[str, bytes]
    protocol_type: str | None = None
    protocol: str | None = None


class JoinAnswer(NamedTuple):
    """What a JoinGroup is answered; ``members`` (id, instance id, metadata) for the leader only."""

    error: int
    member_id: str
    generation: int = -1
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    members: tuple[tuple[str, str | None, bytes], ...] = ()
    skip_assignment: bool = False


class SyncAnswer(NamedTuple):
    """What a SyncGroup is answered."""

    error: int
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


class DueAnswer(NamedTuple):
    """An answer that is due now, to whoever holds the ticket."""

    ticket: object
    answer: JoinAnswer | SyncAnswer


@dataclass(slots=True)
class GroupMember:
    """One member. ``deadline`` is when its session ends unless it is heard of, None while nothing is expected of it;
    the tickets are of its requests that wait, None where there is none.
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
        """What it offers for a protocol. Raises KeyError where it does not offer it."""
        return dict(self.protocols)[protocol]

    @property
    def excused(self) -> bool:
        """Whether it need not send heartbeats, since a request of it waits (a new member's only for so long)."""
        return not self.is_new and (self.join_ticket is not None or self.sync_ticket is not None)


class MemberView(NamedTuple):
    """A member as it stands, for those who look at a group."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes
    awaiting_join: bool
    awaiting_sync: bool


class GroupView(NamedTuple):
    """A group as it stands. ``protocol`` and the members' metadata are told while it is Stable, as DescribeGroups
    does.
    """

    group_id: str
    state: str
    generation: int
    protocol_type: str
    protocol: str
    leader: str
    members: dict[str, MemberView]
    error: int = NONE
