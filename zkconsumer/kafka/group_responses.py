"""Versions of the group requests, and their responses as values. Pure; any thread."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from zkconsumer.core.consumer_protocol import JoinedMember
from zkconsumer.errors import BrokerError
from zkconsumer.kafka import error_codes
from zkconsumer.kafka.api_schema import ApiSchema
from zkconsumer.kafka.group_schemas import (
    CONSUMER_GROUP_DESCRIBE,
    DELETE_GROUPS,
    FIND_COORDINATOR,
    GROUP_MESSAGES,
    LIST_GROUPS,
    OFFSET_COMMIT,
    OFFSET_DELETE,
    OFFSET_FETCH,
)
from zkconsumer.model import TopicPartition

Versions = Mapping[ApiSchema, int]

_OPTIONAL: Final = frozenset({LIST_GROUPS, DELETE_GROUPS, OFFSET_DELETE, CONSUMER_GROUP_DESCRIBE})
"""Requests of tools. Brokers before 0.9, 1.1, 2.4 and 3.7 do not know them."""

_LEAST: Final[Mapping[ApiSchema, int]] = {OFFSET_COMMIT: 1, OFFSET_FETCH: 1}
"""The lowest versions that keep offsets in Kafka. With version 0 the broker writes them to ZooKeeper."""

OF_0_8: Final[Versions] = {FIND_COORDINATOR: 0, OFFSET_COMMIT: 1, OFFSET_FETCH: 1}
"""The versions of 0.8.2, which keeps offsets but coordinates no groups. It cannot be asked for its versions."""

OF_0_9: Final[Versions] = {
    **{message: 0 for message in GROUP_MESSAGES if message not in _OPTIONAL},
    LIST_GROUPS: 0,
    OFFSET_COMMIT: 2,
    OFFSET_FETCH: 1,
}
"""The versions of 0.9, which cannot be asked for them either."""


class Membership(NamedTuple):
    """The member in whose name a request is sent: of a generation, or nobody yet (-1 and no member id)."""

    group: str
    generation: int = -1
    member_id: str = ""
    instance_id: str | None = None


class OffsetAndMetadata(NamedTuple):
    """A partition's offset in Kafka: -1 if none is stored; unknown if ``error`` is not 0.

    ``metadata`` and ``leader_epoch`` (-1: unknown) stand beside the offset. Members write only the epoch.
    """

    offset: int
    error: int = error_codes.NONE
    metadata: str = ""
    leader_epoch: int = -1


class Joined(NamedTuple):
    """The response to a join. Only the leader gets the ``members``.

    ``skip_assignment`` tells a returning static leader to keep the group's assignment (KIP-814).
    """

    generation: int
    protocol: str
    leader: str
    member_id: str
    members: tuple[JoinedMember, ...] = ()
    skip_assignment: bool = False

    @property
    def is_leader(self) -> bool:
        """Whether this member leads the group."""
        return bool(self.member_id) and self.leader == self.member_id


class DescribedMember(NamedTuple):
    """A member as its coordinator describes it."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    metadata: bytes
    assignment: bytes


class AssignedMember(NamedTuple):
    """A member of a group of KIP-848's protocol, as its coordinator describes it."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    topics: tuple[str, ...]
    assignment: tuple[TopicPartition, ...]


class AssignedGroup(NamedTuple):
    """A group of KIP-848's protocol. ``state`` is Empty, Assigning, Reconciling, Stable or Dead."""

    state: str
    assignor: str
    members: tuple[AssignedMember, ...]


class ListedGroup(NamedTuple):
    """A group in a broker's list. ``state`` is empty where the broker is older than 2.6."""

    group: str
    protocol_type: str
    state: str


_WITHOUT_MEMBERS = frozenset({"Empty", "Dead"})


class GroupDescription(NamedTuple):
    """A group as its coordinator describes it.

    ``state`` is Empty, PreparingRebalance, CompletingRebalance (AwaitingSync before 1.1), Stable or Dead. A group that
    does not exist is Dead.
    """

    state: str
    protocol_type: str
    protocol: str
    members: tuple[DescribedMember, ...]

    @property
    def who(self) -> list[str]:
        """The members in words, by client.id, group.instance.id and host; empty if anybody may commit."""
        if self.state in _WITHOUT_MEMBERS:
            return []
        names = [
            f"{one.client_id or one.member_id}{f' as {one.instance_id}' if one.instance_id else ''} at"
            f" {one.host.lstrip('/') or '?'}"
            for one in self.members
        ]
        return sorted(names) or [f"somebody: its state is {self.state}"]


def negotiated_versions(ranges: Mapping[int, tuple[int, int]], broker: str, wanted: Collection[ApiSchema]) -> Versions:
    """Return the highest version of each wanted request that both sides know, without requests of tools only we know.

    Arguments: ``ranges`` is the broker's lowest and highest version by request number. Raises BrokerError.
    """
    chosen: dict[ApiSchema, int] = {}
    for message in wanted:
        low, high = ranges.get(message.key, (0, -1))
        best = min(high, message.highest)
        if best >= max(low, message.lowest, _LEAST.get(message, 0)):
            chosen[message] = best
        elif message not in _OPTIONAL:
            raise BrokerError(f"{broker} speaks {message.name} {low} to {high}, this client up to {message.highest}")
    return chosen
