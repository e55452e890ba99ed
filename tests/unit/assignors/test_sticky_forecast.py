"""Sticky assignment: its invariants on any chain of changes, and a few small cases."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from zkconsumer.assignors import java_consumer_assignors as java
from zkconsumer.assignors.java_consumer_assignors import SubscribedMember, cooperative_sticky, sticky
from zkconsumer.model import TopicPartition


def tps(*numbers: int, topic: str = "t") -> list[TopicPartition]:
    return [TopicPartition(topic, n) for n in numbers]


def test_a_newcomer_gets_some_of_every_topic() -> None:
    held = [*tps(0, 1, 2, 3, topic="t"), *tps(0, 1, 2, 3, topic="u")]
    found = sticky({"a": SubscribedMember(["t", "u"], held, 1), "b": SubscribedMember(["t", "u"])}, {"t": 4, "u": 4})
    assert sorted(found["b"]) == [*tps(2, 3, topic="t"), *tps(2, 3, topic="u")]


def test_of_two_claims_the_later_generation_counts() -> None:
    members = {"a": SubscribedMember(["t"], tps(0), 1), "b": SubscribedMember(["t"], tps(0), 2)}
    assert sticky(members, {"t": 1}) == {"a": [], "b": tps(0)}


def test_cooperation_leaves_out_what_still_has_to_be_released() -> None:
    members = {"a": SubscribedMember(["t"], tps(0, 1), 1), "b": SubscribedMember(["t"])}
    first = cooperative_sticky(members, {"t": 2})
    assert first == {"a": tps(0), "b": []}
    members = {name: SubscribedMember(["t"], owned, 2) for name, owned in first.items()}
    assert cooperative_sticky(members, {"t": 2}) == {"a": tps(0), "b": tps(1)}


def test_static_members_come_first() -> None:
    members = {
        "z": SubscribedMember(["t"], instance="i2"),
        "y": SubscribedMember(["t"], instance="i10"),
        "b": SubscribedMember(["t"]),
        "B": SubscribedMember(["t"]),
    }
    assert java.in_java_order(members) == ["y", "z", "B", "b"]
    assert java.range_assignment(members, {"t": 5, "u": 3})["y"] == tps(0, 1)
    assert java.roundrobin_assignment(members, {"t": 5})["y"] == tps(0, 4)


def test_a_group_without_members_or_topics_is_no_error() -> None:
    assert sticky({}, {"t": 3}) == {}
    assert sticky({"a": SubscribedMember([])}, {"t": 3}) == {"a": []}
    assert cooperative_sticky({"a": SubscribedMember(["missing"])}, {}) == {"a": []}


topic_names = st.sampled_from(["a", "b", "c"])
partition_lists = st.lists(st.builds(TopicPartition, topic_names, st.integers(0, 9)), unique=True, max_size=12)
client_groups = st.dictionaries(
    st.sampled_from("mnopqrst"),
    st.builds(
        SubscribedMember, st.lists(topic_names, unique=True, max_size=3), partition_lists, st.integers(-1, 3), st.none()
    ),
    max_size=6,
)
counts = st.dictionaries(topic_names, st.integers(0, 9), max_size=3)


@given(client_groups, counts)
def test_an_assignment_is_complete_disjoint_and_balanced(
    members: dict[str, SubscribedMember], topics: dict[str, int]
) -> None:
    """For all claims, and only to subscribers."""
    found = sticky(members, topics)
    wanted = {topic for one in members.values() for topic in one.topics}
    given_away = sorted(partition for owned in found.values() for partition in owned)
    assert given_away == sorted(
        TopicPartition(t, n) for t, count in topics.items() if t in wanted for n in range(count)
    )
    for owner, owned in found.items():
        assert {partition.topic for partition in owned} <= set(members[owner].topics)
        for partition in owned:
            for other, one in members.items():
                if partition.topic in one.topics:
                    assert len(owned) <= len(found[other]) + 1, f"{partition} could go from {owner} to {other}"


@given(st.sets(st.sampled_from("mnopqrst"), min_size=1), st.sets(st.sampled_from("mnopqrst"), min_size=1), counts)
def test_no_partition_moves_without_need(before: set[str], after: set[str], topics: dict[str, int]) -> None:
    """With equal subscriptions only balance moves partitions."""
    first = sticky({name: SubscribedMember(list("abc")) for name in before}, topics)
    members = {name: SubscribedMember(list("abc"), first.get(name, ()), 1 if name in before else -1) for name in after}
    second = sticky(members, topics)
    total, least = sum(topics.values()), sum(topics.values()) // len(after)
    kept = sum(partition in second[name] for name in after for partition in members[name].owned)
    larger = total % len(after)
    quotas = sorted((len(one.owned) for one in members.values()), reverse=True)
    assert kept == sum(min(owned, least + (rank < larger)) for rank, owned in enumerate(quotas))
    assert sticky({name: SubscribedMember(list("abc"), second[name], 2) for name in after}, topics) == second


@given(client_groups, counts)
def test_cooperation_ends_in_two_rounds(members: dict[str, SubscribedMember], topics: dict[str, int]) -> None:
    first = cooperative_sticky(members, topics)
    held = {name: SubscribedMember(one.topics, first[name], 4) for name, one in members.items()}
    second = cooperative_sticky(held, topics)
    wanted = {topic for one in members.values() for topic in one.topics}
    everything = sum(count for topic, count in topics.items() if topic in wanted)
    if sum(len(owned) for owned in second.values()) < everything:  # unequal subscriptions may need another exchange
        assert len({frozenset(one.topics) for one in members.values()}) > 1
