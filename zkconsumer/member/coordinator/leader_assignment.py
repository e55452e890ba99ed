"""What members offer, and what their leader does: from the bytes of JoinGroup to those of SyncGroup. Pure; any thread.

Mirrors the part of the Java consumer's ``ConsumerCoordinator`` around ``performAssignment``. Differs on purpose: one
member whose bytes cannot be read gets nothing, and is named, while the others go on; there the leader fails, and the
next leader after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from zkconsumer.assignors.group_strategy import StrategyConfig
from zkconsumer.assignors.java_consumer import (
    CooperativeStickyGroupAssignor,
    GroupAssignor,
    RangeGroupAssignor,
    RoundRobinGroupAssignor,
    StickyGroupAssignor,
)
from zkconsumer.core.consumer_protocol import (
    JoinedMember,
    MemberAssignment,
    MemberSubscription,
    RebalanceProtocol,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from zkconsumer.errors import ConfigException, MalformedMemberError, UnknownAssignorError
from zkconsumer.member.coordinator.streams_assignor import StreamsAssignor
from zkconsumer.model import ConsumerId, TopicPartition

_SIMPLE: Mapping[str, Callable[[], GroupAssignor]] = {
    "range": RangeGroupAssignor,
    "roundrobin": RoundRobinGroupAssignor,
    "sticky": StickyGroupAssignor,
    "cooperative-sticky": CooperativeStickyGroupAssignor,
}

GROUP_ASSIGNORS = (*_SIMPLE, StreamsAssignor.name)
"""The strategies of groups that a broker coordinates, by name."""


class LeaderDecision(NamedTuple):
    """What a leader decided: what SyncGroup tells each member, the same unwritten, and the members that cannot be read
    and get nothing.
    """

    assignments: Mapping[str, bytes]
    decoded: Mapping[str, MemberAssignment]
    unreadable: Mapping[str, MalformedMemberError]


def group_assignor(
    name: str,
    config: StrategyConfig,
    consumer: ConsumerId,
    streams: Callable[[str], int],
    extra: Mapping[str, object] | None = None,
) -> GroupAssignor:
    """The strategy called ``name``. All further arguments are those of :class:`StreamsAssignor`, for ``zkconsumer``.

    Raises UnknownAssignorError; for ``zkconsumer`` what the strategy of ZooKeeper's mode raises.
    """
    if name == StreamsAssignor.name:
        return StreamsAssignor(config, consumer, streams, extra)
    if name not in _SIMPLE:
        raise UnknownAssignorError(f"no strategy of a group is called {name!r}; known are {', '.join(GROUP_ASSIGNORS)}")
    return _SIMPLE[name]()


def common_protocol(assignors: Sequence[GroupAssignor]) -> RebalanceProtocol:
    """How a member with these strategies behaves: incrementally if each of them can, as the broker may pick any.

    Raises ConfigException where they have no protocol in common, or there are none.
    """
    common = set.intersection(*(set(one.protocols) for one in assignors)) if assignors else set()
    if not common:
        names = ", ".join(one.name for one in assignors) or "none"
        raise ConfigException("partition.assignment.strategy", f"these have no way to rebalance in common: {names}")
    return max(common, key=lambda protocol: protocol.value)


def protocol_offers(
    assignors: Sequence[GroupAssignor],
    topics: Sequence[str],
    *,
    owned: Sequence[TopicPartition],
    previous: Sequence[TopicPartition],
    generation: int,
    rack: str | None = None,
) -> list[tuple[str, bytes]]:
    """What JoinGroup offers: each strategy with the subscription that goes with it, the preferred one first.

    Arguments: ``owned`` is what we hold while we join, nothing where all was given up before; ``previous`` what we
    were last assigned, in ``generation`` (-1: never).
    """
    held = tuple(owned)
    return [
        (
            one.name,
            encode_subscription(
                MemberSubscription(tuple(topics), one.user_data(topics, previous, generation), held, generation, rack)
            ),
        )
        for one in assignors
    ]


def topics_of_members(members: Iterable[JoinedMember]) -> frozenset[str]:
    """The topics that anybody subscribes to, whose partitions the leader must know. Unreadable members have none."""
    return frozenset(topic for said in _decoded_members(members)[0].values() for topic in said.topics)


def assign_group(
    assignor: GroupAssignor, partitions: Mapping[str, int], members: Sequence[JoinedMember]
) -> LeaderDecision:
    """Decide for the group.

    Arguments: ``assignor`` is the one that the coordinator picked; ``partitions`` counts those of each topic that
    exists. Raises AssignmentError where the strategy refuses.
    """
    readable, unreadable = _decoded_members(members)
    given: Mapping[str, MemberAssignment] = {}
    while readable:
        try:
            given = assignor.assign(partitions, readable)
            break
        except MalformedMemberError as failure:  # its strategy's part of the bytes
            unreadable[failure.member] = failure
            del readable[failure.member]
    decoded = {one.member_id: given.get(one.member_id, MemberAssignment()) for one in members}
    return LeaderDecision({member: encode_assignment(found) for member, found in decoded.items()}, decoded, unreadable)


def _decoded_members(
    members: Iterable[JoinedMember],
) -> tuple[dict[str, MemberSubscription], dict[str, MalformedMemberError]]:
    readable: dict[str, MemberSubscription] = {}
    unreadable: dict[str, MalformedMemberError] = {}
    for member_id, metadata, instance in members:
        try:
            readable[member_id] = decode_subscription(metadata, member_id, instance)
        except MalformedMemberError as failure:
            unreadable[member_id] = failure
    return readable, unreadable
