"""The group requests on real brokers: brokers understand our requests, and we decode their answers.

The brokers are the newest, the last with the original connector, one that answers ApiVersions with few versions, and
the first that coordinates groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.cluster.conftest import unique
from tests.timing import eventually, scaled
from zkconsumer.assignors.java_consumer_assignors import CooperativeStickyGroupAssignor, RangeGroupAssignor
from zkconsumer.core.consumer_protocol import decode_assignment, decode_subscription
from zkconsumer.devcluster import DevCluster
from zkconsumer.errors import (
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    MemberIdRequiredError,
    NotCoordinatorError,
    UnknownMemberIdError,
)
from zkconsumer.kafka import BrokerChannel
from zkconsumer.kafka.group_channel import GroupChannel, Joined, Membership
from zkconsumer.member.brokers.leader_assignment import assign_group, protocol_offers
from zkconsumer.model import Endpoint, TopicPartition
from zkconsumer.runtime.deadline import Deadline

SESSION = 10.0
EMPTY = ("Empty", "Dead")


@pytest.fixture(scope="module", params=["0.9.0.1", "0.10.2.2", "1.1.1", "3.9.1"])
def broker(released: Callable[[str], DevCluster], request: pytest.FixtureRequest) -> Endpoint:
    """One broker for each release, as the group's coordinator. It has the topic "t"."""
    cluster = released(request.param)
    cluster.create_topic("t", 4)
    host, port = cluster.bootstrap_servers.split(":")
    return Endpoint(0, host, int(port), generation=2 if request.param.startswith("0.9") else 5)


@pytest.fixture
def channel(broker: Endpoint) -> Iterator[Callable[[], GroupChannel]]:
    """Connections to the broker, which end with the test."""
    made: list[GroupChannel] = []

    def connect() -> GroupChannel:
        one = GroupChannel(BrokerChannel(broker, client_id="tests", socket_timeout=scaled(10)))
        made.append(one)
        one.connect(soon())
        return one

    yield connect
    for one in made:
        one.close()


def soon(seconds: float = 30) -> Deadline:
    return Deadline(scaled(seconds))


class RequestedMember:
    """A member with two connections: ``life`` for joining and heartbeats, ``other`` for all other requests."""

    def __init__(self, connect: Callable[[], GroupChannel], group: str, instance: str | None = None) -> None:
        self.life, self.other = connect(), connect()
        self.who = Membership(group, instance_id=instance)
        self.joined: Joined | None = None
        eventually(self._coordinator_is_there, 60, "the topic of offsets")

    def _coordinator_is_there(self) -> bool:
        """Wait until the group's coordinator is found and ready."""
        try:
            return self.other.find_coordinator(self.who.group, soon()).broker_id == 0 and bool(self.state())
        except (CoordinatorNotAvailableError, NotCoordinatorError, CoordinatorLoadInProgressError):
            return False

    def join(self, *assignors: Any, session: float = SESSION, who: Membership | None = None) -> Joined:
        assignors = assignors or (RangeGroupAssignor(),)
        protocols = protocol_offers(assignors, ["t"], owned=(), previous=(), generation=-1)
        who = who or self.who
        try:
            self.joined = self._join(who, protocols, session)
        except MemberIdRequiredError as required:
            self.joined = self._join(who._replace(member_id=required.member_id), protocols, session)
        self.who = self.who._replace(generation=self.joined.generation, member_id=self.joined.member_id)
        return self.joined

    def _join(self, who: Membership, protocols: list[tuple[str, bytes]], session: float) -> Joined:
        return self.life.join(
            who, protocols, session_timeout=session, rebalance_timeout=scaled(20), deadline=soon(40), reason="a test"
        )

    def sync(self) -> tuple[TopicPartition, ...]:
        assert self.joined is not None
        assignments = None
        if self.joined.is_leader:
            assignments = assign_group(RangeGroupAssignor(), {"t": 4}, self.joined.members).assignments
        data = self.life.sync(self.who, protocol=self.joined.protocol, assignments=assignments, deadline=soon())
        return decode_assignment(data, self.who.member_id).partitions

    def state(self) -> str:
        return self.other.describe([self.who.group], soon())[self.who.group].state


@pytest.fixture
def member(channel: Callable[[], GroupChannel]) -> Callable[..., RequestedMember]:
    return lambda group, instance=None: RequestedMember(channel, group, instance)


def tps(*numbers: int) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition("t", n) for n in numbers)


def test_a_member_joins_works_and_leaves(member: Callable[..., RequestedMember]) -> None:
    one = member(unique("group"))
    assert one.state() in EMPTY
    joined = one.join(CooperativeStickyGroupAssignor(), RangeGroupAssignor())
    assert joined.is_leader
    assert joined.protocol == "cooperative-sticky"
    assert [m.member_id for m in joined.members] == [one.who.member_id]
    assert decode_subscription(joined.members[0].metadata, "m").topics == ("t",)
    assert one.sync() == tps(0, 1, 2, 3)
    one.life.heartbeat(one.who, soon())

    group = one.who.group
    assert one.other.commit(one.who, {TopicPartition("t", 1): 7}, soon()) == {TopicPartition("t", 1): 0}
    found = one.other.offsets(group, tps(1, 2), soon())
    assert {tp.partition: stored[:2] for tp, stored in found.items()} == {1: (7, 0), 2: (-1, 0)}
    if one.other.versions["OffsetFetch"] >= 2:
        assert {tp.partition: s[:2] for tp, s in one.other.offsets(group, None, soon()).items()} == {1: (7, 0)}

    seen = one.other.describe([group], soon())[group]
    assert (seen.state, seen.protocol_type, seen.protocol) == ("Stable", "consumer", "cooperative-sticky")
    [described] = seen.members
    assert (described.member_id, described.client_id) == (one.who.member_id, "tests")
    assert decode_assignment(described.assignment, "m").partitions == tps(0, 1, 2, 3)

    one.life.leave(one.who, soon(), reason="done")
    assert one.state() in EMPTY
    with pytest.raises(UnknownMemberIdError):
        one.life.heartbeat(one.who, soon())
    with pytest.raises(UnknownMemberIdError):
        one.life.leave(one.who, soon())
