"""The offers of members and the leader's assignment, through the bytes that members exchange."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.values import present
from zkconsumer import ConsumerConfig
from zkconsumer.assignors.java_consumer_assignors import (
    CooperativeStickyGroupAssignor,
    GroupAssignor,
    RangeGroupAssignor,
    RoundRobinGroupAssignor,
    StickyGroupAssignor,
)
from zkconsumer.core.consumer_protocol import (
    JoinedMember,
    MemberSubscription,
    RebalanceProtocol,
    decode_assignment,
    decode_subscription,
    encode_subscription,
)
from zkconsumer.errors import ConfigException, UnknownAssignorError
from zkconsumer.member.brokers.leader_assignment import (
    GROUP_ASSIGNORS,
    assign_group,
    common_protocol,
    group_assignor,
    protocol_offers,
    topics_of_members,
)
from zkconsumer.model import ConsumerId, TopicPartition

CONFIG = ConsumerConfig({"zookeeper.connect": "z", "group.id": "g"})


def tps(*numbers: int, topic: str = "t") -> list[TopicPartition]:
    return [TopicPartition(topic, n) for n in numbers]


class Group:
    """Members of one strategy, from round to round, which keep their partitions as the protocol says."""

    def __init__(self, assignor: GroupAssignor, cooperative: bool) -> None:
        self.assignor = assignor
        self.cooperative = cooperative
        self.owned: dict[str, list[TopicPartition]] = {}
        self.generation = 0

    def round(self, topics: Mapping[str, int], subscriptions: Mapping[str, Sequence[str]]) -> bool:
        """One generation. Returns whether anybody has given something up, and so must join again."""
        members = []
        for member, wanted in subscriptions.items():
            before = self.owned.get(member)
            [(_, data)] = protocol_offers(
                [self.assignor],
                wanted,
                owned=(before or ()) if self.cooperative else (),
                previous=before or (),
                generation=-1 if before is None else self.generation,
            )
            members.append(JoinedMember(member, data))
        found = assign_group(self.assignor, topics, members)
        assert not found.unreadable
        self.generation += 1
        taken = {m: list(decode_assignment(data, m).partitions) for m, data in found.assignments.items()}
        dropped = {m: set(self.owned.get(m, ())) - set(taken[m]) for m in taken}
        if self.cooperative:  # a member may take partitions before the losers have let go of theirs
            for member, given_ in taken.items():
                others = {tp for m, held in self.owned.items() if m != member and m in taken for tp in held}
                assert not set(given_) - set(self.owned.get(member, ())) & others
                assert not set(given_) & others, "taken from somebody who still holds it"
        self.owned = taken
        return self.cooperative and any(dropped.values())


CHAINS = st.lists(st.sets(st.sampled_from("abcde"), min_size=1, max_size=5), min_size=1, max_size=5)


@given(CHAINS, st.integers(0, 9), st.integers(0, 5))
def test_cooperative_members_settle_and_nothing_is_owned_twice(chain: list[set[str]], p: int, q: int) -> None:
    group, topics = Group(CooperativeStickyGroupAssignor(), cooperative=True), {"t": p, "u": q}
    for names in chain:
        rounds = 0
        while group.round(topics, {name: ["t", "u"] for name in sorted(names)}):
            rounds += 1
            assert rounds <= 1, "one round gives up, one takes, no more"
        held = sorted(tp for owned in group.owned.values() for tp in owned)
        assert held == tps(*range(p)) + tps(*range(q), topic="u")
        counts = [len(owned) for owned in group.owned.values()]
        assert max(counts) - min(counts) <= 1


@given(CHAINS, st.integers(0, 9))
def test_sticky_members_keep_what_balance_leaves_them(chain: list[set[str]], p: int) -> None:
    group = Group(StickyGroupAssignor(), cooperative=False)
    for names in chain:
        before = {name: set(owned) for name, owned in group.owned.items()}
        group.round({"t": p}, {name: ["t"] for name in sorted(names)})
        for name, owned in group.owned.items():
            if len(before.get(name, ())) <= p // len(names):
                assert before.get(name, set()) <= set(owned), "it had no more than its share"


def test_the_later_of_two_sticky_owners_keeps_a_partition() -> None:
    """Two members claim partition 1 from their last assignments. The claim of the later generation counts."""
    [(_, old)] = protocol_offers([StickyGroupAssignor()], ["t"], owned=(), previous=tps(0, 1), generation=3)
    [(_, new)] = protocol_offers([StickyGroupAssignor()], ["t"], owned=(), previous=tps(1), generation=4)
    found = assign_group(StickyGroupAssignor(), {"t": 2}, [JoinedMember("a", old), JoinedMember("b", new)])
    assert {m: list(given_.partitions) for m, given_ in found.decoded.items()} == {"a": tps(0), "b": tps(1)}


def test_sticky_user_data_without_a_generation_is_read() -> None:
    """Releases before 2.2 send user data without a generation. Other members send none, or send unreadable data."""
    assignor = StickyGroupAssignor()
    data = present(assignor.user_data(["t"], tps(1), 5))
    members = {
        "a": MemberSubscription(("t",), data[:-4]),  # before 2.2
        "b": MemberSubscription(("t",), b"\0\0\1"),  # of no release
        "c": MemberSubscription(("t",)),
    }
    found = assignor.assign({"t": 2}, members)
    assert list(found["a"].partitions) == tps(1)
    assert sorted(tp for one in found.values() for tp in one.partitions) == tps(0, 1)


@pytest.mark.parametrize("form", ["field", "java", "librdkafka"])
def test_the_generation_of_owned_partitions_is_found(form: str) -> None:
    """It is a field of the subscription, or it stands in the user data of the Java consumer or of librdkafka."""

    def member(generation: int) -> MemberSubscription:
        if form == "field":
            return MemberSubscription(("t",), None, tuple(tps(0)), generation)
        assignor = CooperativeStickyGroupAssignor() if form == "java" else StickyGroupAssignor()
        return MemberSubscription(("t",), assignor.user_data(["t"], tps(0), generation), tuple(tps(0)))

    found = CooperativeStickyGroupAssignor().assign({"t": 2}, {"a": member(4), "b": member(5)})
    # b had partition 0 last. a still claims partition 0, so that b gets the partition only in the next round.
    assert [list(found[m].partitions) for m in "ab"] == [tps(1), []]


def test_an_unreadable_member_gets_no_partitions() -> None:
    """The other members get all partitions."""
    good = encode_subscription(MemberSubscription(("t",)))
    members = [JoinedMember("a", good), JoinedMember("b", b"\0\0\0"), JoinedMember("c", good)]
    assert topics_of_members(members) == {"t"}
    found = assign_group(RangeGroupAssignor(), {"t": 4}, members)
    assert set(found.unreadable) == {"b"}
    assert set(found.assignments) == {"a", "b", "c"}
    assert decode_assignment(found.assignments["b"], "b").partitions == ()
    assert list(found.decoded["a"].partitions) == tps(0, 1)


def test_static_members_are_told_apart_by_their_instance() -> None:
    said = encode_subscription(MemberSubscription(("t",)))
    members = [JoinedMember("a", said, None), JoinedMember("b", said, "i2"), JoinedMember("c", said, "i1")]
    for assignor in (RangeGroupAssignor(), RoundRobinGroupAssignor()):
        found = assign_group(assignor, {"t": 3}, members).decoded
        assert [list(found[m].partitions) for m in "cba"] == [tps(0), tps(1), tps(2)]


def test_a_group_of_nobody_and_of_nothing() -> None:
    assert assign_group(RangeGroupAssignor(), {}, []).assignments == {}
    said = encode_subscription(MemberSubscription(("gone",)))
    for assignor in (RangeGroupAssignor(), RoundRobinGroupAssignor(), StickyGroupAssignor()):
        assert assign_group(assignor, {}, [JoinedMember("a", said)]).decoded["a"].partitions == ()


def test_offers_say_what_is_held_only_where_it_is_held() -> None:
    assignors = [RangeGroupAssignor(), CooperativeStickyGroupAssignor()]
    listed = protocol_offers(assignors, ["t"], owned=tps(1), previous=tps(1, 2), generation=6, rack="r")
    assert [name for name, _ in listed] == ["range", "cooperative-sticky"]
    for _, data in listed:
        said = decode_subscription(data, "m")
        assert (said.topics, said.owned, said.generation, said.rack) == (("t",), tuple(tps(1)), 6, "r")
    assert decode_subscription(listed[1][1], "m").user_data == b"\0\0\0\6"


def test_cooperative_rebalancing_needs_only_such_strategies() -> None:
    """One eager strategy makes the member eager."""
    eager, both = RangeGroupAssignor(), CooperativeStickyGroupAssignor()
    assert common_protocol([both]) is RebalanceProtocol.COOPERATIVE
    assert common_protocol([both, eager]) is RebalanceProtocol.EAGER
    with pytest.raises(ConfigException):
        common_protocol([])


def test_strategies_are_found_by_name() -> None:
    for name in GROUP_ASSIGNORS:
        assert group_assignor(name, CONFIG, ConsumerId("g_c"), lambda _: 1).name == name
    with pytest.raises(UnknownAssignorError, match="cooperative-sticky"):
        group_assignor("fair", CONFIG, ConsumerId("g_c"), lambda _: 1)
