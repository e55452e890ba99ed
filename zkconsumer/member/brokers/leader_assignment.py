"""The leader's assignment of a brokers' group, from the bytes of JoinGroup to those of SyncGroup. Pure; any thread.

Mirrors ``performAssignment`` of the Java consumer's ``ConsumerCoordinator``. Differs on purpose: a member with
unreadable bytes gets no partitions and is named, and the others go on. In Java the leader fails, and the next leader
after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from zkconsumer.assignors.group_strategy import StrategyConfig
from zkconsumer.assignors.java_consumer_assignors import (
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
from zkconsumer.member.brokers.zkconsumer_assignor import ZkconsumerAssignor
from zkconsumer.model import ConsumerId, TopicPartition

_SIMPLE: Mapping[str, Callable[[], GroupAssignor]] = {
    "range": RangeGroupAssignor,
    "roundrobin": RoundRobinGroupAssignor,
    "sticky": StickyGroupAssignor,
    "cooperative-sticky": CooperativeStickyGroupAssignor,
}

GROUP_ASSIGNORS = (*_SIMPLE, ZkconsumerAssignor.name)
"""The names of the strategies for brokers' groups."""


class LeaderDecision(NamedTuple):
    """The leader's assignment: as bytes for SyncGroup, as values, and the unreadable members, which get nothing."""

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
    """Return the strategy ``name``. All further arguments are those of :class:`ZkconsumerAssignor`, for ``zkconsumer``.

    Raises UnknownAssignorError, and for ``zkconsumer`` the errors of :class:`ZkconsumerAssignor`.
    """
    if name == ZkconsumerAssignor.name:
        return ZkconsumerAssignor(config, consumer, streams, extra)
    if name not in _SIMPLE:
        raise UnknownAssignorError(f"no strategy of a group is called {name!r}; known are {', '.join(GROUP_ASSIGNORS)}")
    return _SIMPLE[name]()


def common_protocol(assignors: Sequence[GroupAssignor]) -> RebalanceProtocol:
    """Return the rebalance protocol of a member with these strategies: cooperative if all strategies support it.

    The broker may pick any of the strategies. Raises ConfigException if they have no protocol in common.
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
    """Return the offers of a JoinGroup request: each strategy with its subscription, the preferred one first.

    Arguments: ``owned`` are the partitions that the member keeps while it joins. ``previous`` is its last assignment,
    in ``generation`` (-1: none).
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
    """Return the topics of all readable members. The leader needs their partitions."""
    return frozenset(topic for said in _decoded_members(members)[0].values() for topic in said.topics)


def assign_group(
    assignor: GroupAssignor, partitions: Mapping[str, int], members: Sequence[JoinedMember]
) -> LeaderDecision:
    """Return the leader's assignment. Raises AssignmentError as the strategy does.

    Arguments: ``assignor`` is the strategy that the coordinator picked; ``partitions`` has the number of partitions of
    each existing topic.
    """
    readable, unreadable = _decoded_members(members)
    given: Mapping[str, MemberAssignment] = {}
    while readable:
        try:
            given = assignor.assign(partitions, readable)
            break
        except MalformedMemberError as failure:  # the strategy's part of the member's bytes
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
