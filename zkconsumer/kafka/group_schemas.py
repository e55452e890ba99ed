"""Schemas of the group requests, in all versions from 0.8.2 to 3.9 that a group of consumers needs, and their results.

Versions later than ``highest`` serve other purposes: several groups in one request, members of KIP-848's groups. Pure;
any thread.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from zkconsumer.core.consumer_protocol import JoinedMember
from zkconsumer.errors import BrokerError
from zkconsumer.kafka import error_codes
from zkconsumer.kafka.api_schema import (
    BOOL,
    BYTES,
    INT8,
    INT16,
    INT32,
    INT64,
    STRING,
    ApiSchema,
    Field,
    by_topic,
    many,
    throttle_time,
)
from zkconsumer.model import TopicPartition

_ERROR = Field("error_code", INT16)
_GROUP = Field("group_id", STRING)
_MEMBER = Field("member_id", STRING)
_GENERATION = Field("generation_id", INT32)


def _instance(since: int) -> Field:
    return Field("group_instance_id", STRING, since, default=None)


FIND_COORDINATOR = ApiSchema(
    *(10, "FindCoordinator", 0, 3, 3),
    request=(Field("key", STRING), Field("key_type", INT8, 1, default=0)),
    response=(
        throttle_time(1),
        _ERROR,
        Field("error_message", STRING, 1, default=None),
        Field("node_id", INT32),
        Field("host", STRING),
        Field("port", INT32),
    ),
)

JOIN_GROUP = ApiSchema(
    *(11, "JoinGroup", 0, 9, 6),
    request=(
        _GROUP,
        Field("session_timeout_ms", INT32),
        Field("rebalance_timeout_ms", INT32, 1, default=-1),
        _MEMBER,
        _instance(5),
        Field("protocol_type", STRING),
        many("protocols", Field("name", STRING), Field("metadata", BYTES)),
        Field("reason", STRING, 8, default=None),
    ),
    response=(
        throttle_time(2),
        _ERROR,
        _GENERATION,
        Field("protocol_type", STRING, 7, default=None),
        Field("protocol_name", STRING),
        Field("leader", STRING),
        Field("skip_assignment", BOOL, 9, default=False),
        _MEMBER,
        many("members", _MEMBER, _instance(5), Field("metadata", BYTES)),
    ),
)

SYNC_GROUP = ApiSchema(
    *(14, "SyncGroup", 0, 5, 4),
    request=(
        _GROUP,
        _GENERATION,
        _MEMBER,
        _instance(3),
        Field("protocol_type", STRING, 5, default=None),
        Field("protocol_name", STRING, 5, default=None),
        many("assignments", _MEMBER, Field("assignment", BYTES)),
    ),
    response=(
        throttle_time(1),
        _ERROR,
        Field("protocol_type", STRING, 5, default=None),
        Field("protocol_name", STRING, 5, default=None),
        Field("assignment", BYTES),
    ),
)

HEARTBEAT = ApiSchema(
    *(12, "Heartbeat", 0, 4, 4),
    request=(_GROUP, _GENERATION, _MEMBER, _instance(3)),
    response=(throttle_time(1), _ERROR),
)

LEAVE_GROUP = ApiSchema(
    *(13, "LeaveGroup", 0, 5, 4),
    request=(
        _GROUP,
        Field("member_id", STRING, until=2),
        Field("members", (_MEMBER, _instance(3), Field("reason", STRING, 5, default=None)), 3, many=True),
    ),
    response=(throttle_time(1), _ERROR, Field("members", (_MEMBER, _instance(3), _ERROR), 3, many=True)),
)

_PARTITION = Field("partition_index", INT32)
_TOPIC = Field("name", STRING)

OFFSET_COMMIT = ApiSchema(
    *(8, "OffsetCommit", 0, 8, 8),
    request=(
        _GROUP,
        Field("generation_id", INT32, 1, default=-1),
        Field("member_id", STRING, 1, default=""),
        _instance(7),
        Field("retention_time_ms", INT64, 2, 4, default=-1),
        by_topic(
            _TOPIC,
            _PARTITION,
            Field("committed_offset", INT64),
            Field("committed_leader_epoch", INT32, 6, default=-1),
            Field("commit_timestamp", INT64, 1, 1, default=-1),
            Field("committed_metadata", STRING, default=""),
        ),
    ),
    response=(throttle_time(3), by_topic(_TOPIC, _PARTITION, _ERROR)),
)

_OFFSETS_BY_TOPIC = by_topic(
    _TOPIC,
    _PARTITION,
    *(Field("committed_offset", INT64), Field("committed_leader_epoch", INT32, 5, default=-1)),
    *(Field("metadata", STRING, default=""), _ERROR),
)

OFFSET_FETCH = ApiSchema(
    *(9, "OffsetFetch", 0, 7, 6),
    request=(
        _GROUP,
        many("topics", _TOPIC, Field("partition_indexes", INT32, many=True)),
        Field("require_stable", BOOL, 7, default=False),
    ),
    response=(throttle_time(3), _OFFSETS_BY_TOPIC, Field("error_code", INT16, 2, default=0)),
)

OFFSET_FETCH_OF_GROUPS = ApiSchema(
    *(9, "OffsetFetch of groups", 8, 8, 6),
    request=(
        many("groups", _GROUP, many("topics", _TOPIC, Field("partition_indexes", INT32, many=True))),
        Field("require_stable", BOOL),
    ),
    response=(throttle_time(3), many("groups", _GROUP, _OFFSETS_BY_TOPIC, _ERROR)),
)
"""The versions of OffsetFetch that ask for several groups. Brokers since 3.0 have them, and commands alone use them."""

DESCRIBE_GROUPS = ApiSchema(
    *(15, "DescribeGroups", 0, 5, 5),
    request=(Field("groups", STRING, many=True), Field("include_authorized_operations", BOOL, 3, default=False)),
    response=(
        throttle_time(1),
        many(
            "groups",
            _ERROR,
            _GROUP,
            Field("group_state", STRING),
            Field("protocol_type", STRING),
            Field("protocol_data", STRING),
            many(
                "members",
                _MEMBER,
                _instance(4),
                Field("client_id", STRING),
                Field("client_host", STRING),
                Field("member_metadata", BYTES),
                Field("member_assignment", BYTES),
            ),
            Field("authorized_operations", INT32, 3, default=-(2**31)),
        ),
    ),
)

LIST_GROUPS = ApiSchema(
    *(16, "ListGroups", 0, 4, 3),
    request=(Field("states_filter", STRING, 4, default=(), many=True),),
    response=(
        throttle_time(1),
        _ERROR,
        many("groups", _GROUP, Field("protocol_type", STRING), Field("group_state", STRING, 4, default="")),
    ),
)

DELETE_GROUPS = ApiSchema(
    *(42, "DeleteGroups", 0, 2, 2),
    request=(Field("groups_names", STRING, many=True),),
    response=(throttle_time(0), many("results", _GROUP, _ERROR)),
)

OFFSET_DELETE = ApiSchema(
    *(47, "OffsetDelete", 0, 0, 1),
    request=(_GROUP, by_topic(_TOPIC, _PARTITION)),
    response=(_ERROR, throttle_time(0), by_topic(_TOPIC, _PARTITION, _ERROR)),
)

_OWNED = (
    Field(
        "topic_partitions",
        (
            *(Field("topic_id_high", INT64), Field("topic_id_low", INT64), Field("topic_name", STRING)),
            Field("partitions", INT32, many=True),
        ),
        many=True,
    ),
)

CONSUMER_GROUP_DESCRIBE = ApiSchema(
    *(69, "ConsumerGroupDescribe", 0, 0, 0),
    request=(Field("group_ids", STRING, many=True), Field("include_authorized_operations", BOOL, default=False)),
    response=(
        throttle_time(0),
        many(
            "groups",
            *(_ERROR, Field("error_message", STRING), _GROUP, Field("group_state", STRING)),
            *(Field("group_epoch", INT32), Field("assignment_epoch", INT32), Field("assignor_name", STRING)),
            many(
                "members",
                *(_MEMBER, Field("instance_id", STRING), Field("rack_id", STRING)),
                *(Field("member_epoch", INT32), Field("client_id", STRING), Field("client_host", STRING)),
                Field("subscribed_topic_names", STRING, many=True),
                Field("subscribed_topic_regex", STRING),
                *(Field("assignment", _OWNED), Field("target_assignment", _OWNED)),
            ),
            Field("authorized_operations", INT32),
        ),
    ),
)
"""Groups of KIP-848's protocol, which DescribeGroups takes for unknown ones. Brokers since 3.7 have the request."""

GROUP_MESSAGES = (
    *(FIND_COORDINATOR, JOIN_GROUP, SYNC_GROUP, HEARTBEAT, LEAVE_GROUP, OFFSET_COMMIT, OFFSET_FETCH),
    *(DESCRIBE_GROUPS, DELETE_GROUPS, OFFSET_DELETE, LIST_GROUPS),
)
"""The requests for groups of the classic protocol."""

TOOL_MESSAGES = (OFFSET_FETCH_OF_GROUPS, *GROUP_MESSAGES, CONSUMER_GROUP_DESCRIBE)
"""All requests of this module."""

OFFSET_MESSAGES = (FIND_COORDINATOR, OFFSET_COMMIT, OFFSET_FETCH)
"""The requests of a client that is no member and only reads and writes offsets."""


Versions = Mapping[ApiSchema, int]

_OPTIONAL: Final = frozenset(
    {LIST_GROUPS, DELETE_GROUPS, OFFSET_DELETE, OFFSET_FETCH_OF_GROUPS, CONSUMER_GROUP_DESCRIBE}
)
"""Requests of tools. Brokers before 0.9, 1.1, 2.4, 3.0 and 3.7 do not know them."""

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
