"""Who asks a group's coordinator, in which versions, and what is answered. Pure; any thread."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from zkconsumer.core.consumer_protocol import JoinedMember
from zkconsumer.errors import BrokerError
from zkconsumer.kafka.group_schemas import DELETE_GROUPS, GROUP_MESSAGES, OFFSET_COMMIT, OFFSET_DELETE, OFFSET_FETCH
from zkconsumer.kafka.schema import ApiSchema

Versions = Mapping[ApiSchema, int]

_OPTIONAL: Final = frozenset({DELETE_GROUPS, OFFSET_DELETE})
"""What only tools ask; brokers before 1.1 and 2.4 know them not."""

_LEAST: Final[Mapping[ApiSchema, int]] = {OFFSET_COMMIT: 1, OFFSET_FETCH: 1}
"""Version 0 of these means ZooKeeper, written by the broker."""

OF_0_9: Final[Versions] = {
    **{message: 0 for message in GROUP_MESSAGES if message not in _OPTIONAL},
    OFFSET_COMMIT: 2,
    OFFSET_FETCH: 1,
}
"""The versions of a broker that cannot be asked for them."""


class Membership(NamedTuple):
    """Who speaks: a member of a group in a generation, or nobody yet (-1 and no member id)."""

    group: str
    generation: int = -1
    member_id: str = ""
    instance_id: str | None = None


class Coordinator(NamedTuple):
    """The broker that coordinates a group, as the one that was asked knows it."""

    broker_id: int
    host: str
    port: int


class Joined(NamedTuple):
    """The answer to a join. Only the leader learns of the ``members``.

    ``skip_assignment``: the group goes on with the assignment it has, which a static leader that comes back is to
    leave alone (KIP-814).
    """

    generation: int
    protocol: str
    leader: str
    member_id: str
    members: tuple[JoinedMember, ...] = ()
    skip_assignment: bool = False

    @property
    def is_leader(self) -> bool:
        """Whether we lead the group."""
        return bool(self.member_id) and self.leader == self.member_id


class DescribedMember(NamedTuple):
    """A member as the coordinator describes it to anybody."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    metadata: bytes
    assignment: bytes


_WITHOUT_MEMBERS = frozenset({"Empty", "Dead"})


class GroupDescription(NamedTuple):
    """A group as its coordinator sees it.

    ``state`` is Empty, PreparingRebalance, CompletingRebalance (AwaitingSync before 1.1), Stable or Dead; the last one
    also where there is no such group.
    """

    state: str
    protocol_type: str
    protocol: str
    members: tuple[DescribedMember, ...]

    @property
    def who(self) -> list[str]:
        """The members in words, by client.id, group.instance.id and host; empty where offsets of nobody are taken."""
        if self.state in _WITHOUT_MEMBERS:
            return []
        names = [
            f"{one.client_id or one.member_id}{f' as {one.instance_id}' if one.instance_id else ''} at"
            f" {one.host.lstrip('/') or '?'}"
            for one in self.members
        ]
        return sorted(names) or [f"somebody: its state is {self.state}"]


def negotiated_versions(ranges: Mapping[int, tuple[int, int]], who: str) -> Versions:
    """The highest version of each request that both sides know, without those of tools that the broker has not.

    Arguments: the broker's lowest and highest version by the request's number; its name. Raises BrokerError.
    """
    chosen: dict[ApiSchema, int] = {}
    for message in GROUP_MESSAGES:
        low, high = ranges.get(message.key, (0, -1))
        best = min(high, message.highest)
        if best >= max(low, message.lowest, _LEAST.get(message, 0)):
            chosen[message] = best
        elif message not in _OPTIONAL:
            raise BrokerError(f"{who} speaks {message.name} {low} to {high}, this client up to {message.highest}")
    return chosen
