"""One group of the Java consumer, librdkafka and ours, which the broker coordinates.

With each kind of leader, members join, leave cleanly and are killed. Every message is consumed, and twice only if its
first member was killed before its commit. The group rebalances once for each change of its members.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping

import pytest

from tests.cluster.conftest import unique
from tests.cluster.even_load import EvenLoad
from tests.cluster.member_process import MemberProcess
from tests.cluster.our_member import OurMember
from tests.cluster.peer_members import JavaMember, LibrdkafkaMember
from tests.timing import eventually, scaled
from zkconsumer.core.consumer_protocol import decode_assignment, decode_subscription
from zkconsumer.devcluster import DevCluster
from zkconsumer.errors import CoordinatorNotAvailableError, NotCoordinatorError
from zkconsumer.kafka import BrokerChannel
from zkconsumer.kafka.group_channel import GroupChannel, GroupDescription
from zkconsumer.model import Endpoint, TopicPartition
from zkconsumer.runtime.deadline import Deadline

PARTITIONS = 6
OURS = {
    "group.coordination": "kafka",
    "session.timeout.ms": 6000,
    "heartbeat.interval.ms": 300,
    "auto.commit.interval.ms": 200,
    "auto.offset.reset": "smallest",
}
ROUNDS = {"range": 1, "cooperative-sticky": 2}
"""Rebalances for one change: what changes hands is given up in one and taken in another."""


class PeerGroup:
    """A group of at most one member of each kind, and the coordinator's own view."""

    def __init__(self, cluster: DevCluster, strategy: str) -> None:
        self.name, self.topic = unique("group"), unique("topic")
        self.strategy = strategy
        self.servers = cluster.bootstrap_servers
        cluster.create_topic(self.topic, PARTITIONS)
        self.make: dict[str, Callable[[], MemberProcess]] = {
            "java": lambda: JavaMember(self.servers, self.name, self.topic, strategy),
            "librdkafka": lambda: LibrdkafkaMember(self.servers, self.name, self.topic, strategy),
            "ours": lambda: OurMember(
                cluster.zookeeper_connect,
                self.name,
                {self.topic: 2},
                properties={**OURS, "partition.assignment.strategy": strategy},
            ),
        }
        self.running: dict[str, MemberProcess] = {}
        self.all: list[tuple[str, MemberProcess]] = []
        self.killed: list[MemberProcess] = []
        self.produced = 0  # in each partition
        host, port = self.servers.split(":")
        self.channel = GroupChannel(
            BrokerChannel(Endpoint(0, host, int(port)), client_id="looking on", socket_timeout=scaled(10))
        )
        self.channel.connect(Deadline(scaled(10)))

    def join(self, kind: str) -> None:
        member = self.make[kind]()
        self.all.append((kind, member))
        self.running[kind] = member.start()
        member.wait_ready()
        self.settled()

    def leave(self, kind: str) -> None:
        member = self.running.pop(kind)
        assert member.stop() is not None, member.log_text()
        self.settled()

    def kill(self, kind: str) -> None:
        member = self.running.pop(kind)
        self.killed.append(member)
        member.kill()
        self.settled()

    def settled(self) -> None:
        """Every member has its share, and each of them new messages."""
        share = PARTITIONS // len(self.running)
        eventually(lambda: self.shares() == [share] * len(self.running), 40, f"a settled group: {self.shares}")
        before = {kind: len(member.messages) for kind, member in self.running.items()}
        for kind, member in self.running.items():
            member.wait_messages(before[kind] + 1)

    def seen(self) -> GroupDescription:
        return self.channel.describe([self.name], Deadline(scaled(10)))[self.name]

    def shares(self) -> list[int]:
        try:
            seen = self.seen()
        except (NotCoordinatorError, CoordinatorNotAvailableError):  # the topic of offsets is being made
            return []
        if seen.state != "Stable":
            return []
        owned = [decode_assignment(one.assignment, one.member_id).partitions for one in seen.members]
        return sorted(map(len, owned))

    def close(self) -> None:
        self.channel.close()
        for _, member in self.all:
            member.close()

    # -- conditions

    def consumed_all(self) -> bool:
        seen = {(m.partition, m.offset) for _, member in self.all for m in member.messages}
        missing = {(p, o) for p in range(PARTITIONS) for o in range(self.produced)} - seen
        assert not missing, f"{len(missing)} missing, among them {sorted(missing)[:5]}"
        return True

    def duplicates(self) -> Mapping[tuple[int, int], list[MemberProcess]]:
        """Return the members that consumed each repeated message, in the order of hand-outs."""
        takers: dict[tuple[int, int], list[tuple[float, int]]] = defaultdict(list)
        for number, (_, member) in enumerate(self.all):
            for m in member.messages:
                takers[m.partition, m.offset].append((m.at, number))
        return {
            place: [self.all[number][1] for _, number in sorted(taken)]
            for place, taken in takers.items()
            if len(taken) > 1
        }


@pytest.fixture
def group(request: pytest.FixtureRequest, cluster: DevCluster) -> Iterator[PeerGroup]:
    made = PeerGroup(cluster, request.param)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.parametrize(
    ("group", "leader"),
    [("range", "ours"), *(("cooperative-sticky", leader) for leader in ("ours", "java", "librdkafka"))],
    indirect=["group"],
)
def test_members_of_three_kinds_share_a_group(group: PeerGroup, leader: str) -> None:
    others = [kind for kind in ("java", "ours", "librdkafka") if kind != leader]
    changes = 0
    with EvenLoad(group.servers, group.topic, PARTITIONS, each=1, pause_s=0.02) as load:
        for kind in (leader, *others):
            group.join(kind)
            changes += 1
        # each kind has understood the other two: all report the same strategy
        seen = group.seen()
        assert seen.protocol == group.strategy
        assert {t for one in seen.members for t in decode_subscription(one.metadata, "m").topics} == {group.topic}
        for kind in ("ours", "librdkafka"):
            group.leave(kind)
            group.join(kind)
            changes += 2
        assert not group.duplicates(), "clean changes repeat nothing"
        group.kill("librdkafka")
        group.join("librdkafka")
        group.kill("ours")
        changes += 3
        java = group.running["java"]
        assert isinstance(java, JavaMember)
        generations = java.generations
    group.produced = load.sent[0]
    eventually(group.consumed_all, 60, "all messages")
    repeated = group.duplicates()
    print(f"{sum(load.sent)} messages, {len(repeated)} of them consumed twice, generations {generations}")
    for (partition, offset), takers in repeated.items():
        # only uncommitted messages of a killed member are repeated
        assert len(takers) == 2, (partition, offset, takers)
        assert takers[0] in group.killed, f"{group.topic}-{partition} {offset}: first by {takers[0].who}"
    joined_at = changes_before_java(group)
    assert generations[-1] - generations[0] <= ROUNDS[group.strategy] * (changes - joined_at), generations
    assert not java.lost
    for member in group.running.values():
        assert member.stop() is not None, member.log_text()
    stored = group.channel.offsets(group.name, None, Deadline(scaled(10)))
    assert {tp: one.offset for tp, one in stored.items()} == {
        TopicPartition(group.topic, p): group.produced for p in range(PARTITIONS)
    }


def changes_before_java(group: PeerGroup) -> int:
    """How many members had joined when the Java consumer had, itself included."""
    return next(number for number, (kind, _) in enumerate(group.all, 1) if kind == "java")
