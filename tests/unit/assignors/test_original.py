"""``range`` and ``roundrobin`` of the original: its own tables, and what holds for any group."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.assignors.groups import group, owners, text
from zkconsumer.assignors import AssignmentError, RangeAssignor, RoundRobinAssignor, assignor, java_hash
from zkconsumer.config import ConsumerConfig
from zkconsumer.model import TopicPartition

RANGE = {
    "R1 two members with two streams": (
        {"C1": {"t": 2}, "C2": {"t": 2}},
        {"t": [0, 1, 2, 3, 4]},
        {"C1-0": "t-0 t-1", "C1-1": "t-2", "C2-0": "t-3", "C2-1": "t-4"},
    ),
    "R2 thread 10 comes before thread 2": (
        {"g_a": {"t": 12}},
        {"t": list(range(14))},
        {
            "g_a-0": "t-0 t-1",
            "g_a-1": "t-2 t-3",
            "g_a-10": "t-4",
            "g_a-11": "t-5",
            **{f"g_a-{n}": f"t-{n + 4}" for n in range(2, 10)},
        },
    ),
    "R3 three members": (
        {"g_c1": {"t": 1}, "g_c2": {"t": 1}, "g_c3": {"t": 1}},
        {"t": list(range(10))},
        {"g_c1-0": "t-0 t-1 t-2 t-3", "g_c2-0": "t-4 t-5 t-6", "g_c3-0": "t-7 t-8 t-9"},
    ),
    "R4 more threads than partitions": (
        {"g_c1": {"t": 2}, "g_c2": {"t": 3}},
        {"t": [0, 1, 2]},
        {"g_c1-0": "t-0", "g_c1-1": "t-1", "g_c2-0": "t-2"},
    ),
    "R5 c10 comes before c2": (
        {"g_c1": {"t": 1}, "g_c2": {"t": 1}, "g_c10": {"t": 1}},
        {"t": [0, 1, 2, 3]},
        {"g_c1-0": "t-0 t-1", "g_c10-0": "t-2", "g_c2-0": "t-3"},
    ),
    "R6 threads of two members interleave": (
        {"g_c": {"t": 2}, "g_c-0": {"t": 1}},
        {"t": [0, 1, 2, 3]},
        {"g_c-0": "t-0 t-1", "g_c-0-0": "t-2", "g_c-1": "t-3"},
    ),
    "R7 the skew of topics adds up": (
        {"g_c1": {"a": 1, "b": 1}, "g_c2": {"a": 1, "b": 1}},
        {"a": [0, 1, 2], "b": [0, 1, 2]},
        {"g_c1-0": "a-0 a-1 b-0 b-1", "g_c2-0": "a-2 b-2"},
    ),
    "R8 members with different topics": (
        {"g_c1": {"a": 2}, "g_c2": {"a": 1, "b": 1}, "g_c3": {"b": 2}},
        {"a": list(range(7)), "b": [0, 1, 2, 3]},
        {"g_c1-0": "a-0 a-1 a-2", "g_c1-1": "a-3 a-4", "g_c2-0": "a-5 a-6 b-0 b-1", "g_c3-0": "b-2", "g_c3-1": "b-3"},
    ),
    "R9 gaps count by position": (
        {"g_c1": {"a": 1}, "g_c2": {"a": 2}},
        {"a": [0, 2, 5, 9]},
        {"g_c1-0": "a-0 a-2", "g_c2-0": "a-5", "g_c2-1": "a-9"},
    ),
    "R10 upper case, underscore, lower case": (
        {"g_B": {"a": 1}, "g_a": {"a": 1}, "g__": {"a": 1}},
        {"a": [0, 1, 2]},
        {"g_B-0": "a-0", "g__-0": "a-1", "g_a-0": "a-2"},
    ),
    "a topic that does not exist": ({"g_a": {"t": 1, "u": 1}}, {"u": [0]}, {"g_a-0": "u-0"}),
    "nobody": ({}, {"t": [0]}, {}),
    "surrogates sort before the end of the plane": (
        {"g_\uffee": {"t": 1}, "g_\U0001f600": {"t": 1}},
        {"t": [0]},
        {"g_\U0001f600-0": "t-0"},
    ),
}


@pytest.mark.parametrize(("members", "partitions", "expected"), RANGE.values(), ids=RANGE)
def test_range(members: dict[str, dict[str, int]], partitions: dict[str, list[int]], expected: dict[str, str]) -> None:
    assert text(owners(RangeAssignor(), group(members), partitions)) == expected


T = list(range(12))
RR6 = ({"g1c1": {"topic-1": 2}, "g1c2": {"topic-1": 1, "topic-2": 1}}, {"topic-1": T[:4], "topic-2": T[:4]})
ROUND_ROBIN = {
    "RR1 new": ("1.1", {"C1": {"t": 2}, "C2": {"t": 2}}, {"t": T[:5]},
        {"C1-0": "t-0 t-4", "C1-1": "t-1", "C2-0": "t-2", "C2-1": "t-3"}),
    "RR1 old": ("0.8.2", {"C1": {"t": 2}, "C2": {"t": 2}}, {"t": T[:5]},
        {"C1-0": "t-0 t-4", "C1-1": "t-1", "C2-0": "t-2", "C2-1": "t-3"}),
    "RR2": ("1.1", {"g_c1": {"a": 1, "b": 1}, "g_c2": {"a": 1, "b": 1}}, {"a": T[:3], "b": T[:3]},
        {"g_c1-0": "a-0 a-2 b-1", "g_c2-0": "a-1 b-0 b-2"}),
    "RR3 new": ("1.0", {"g_c1": {"t": 1}, "g_c2": {"t": 1}, "g_c3": {"t": 1}}, {"t": T},
        {"g_c1-0": "t-0 t-3 t-6 t-9", "g_c2-0": "t-1 t-4 t-7 t-10", "g_c3-0": "t-2 t-5 t-8 t-11"}),
    "RR3 old, another order": ("0.11", {"g_c1": {"t": 1}, "g_c2": {"t": 1}, "g_c3": {"t": 1}}, {"t": T},
        {"g_c1-0": "t-1 t-4 t-7 t-10", "g_c2-0": "t-2 t-5 t-8 t-11", "g_c3-0": "t-0 t-3 t-6 t-9"}),
    "RR4 new": ("1.1", {c: {"logs": 1, "events": 1} for c in ("g_c1", "g_c2")}, {"logs": T[:2], "events": T[:3]},
        {"g_c1-0": "events-0 events-2 logs-0", "g_c2-0": "events-1 logs-1"}),
    "RR4 old": ("0.10", {c: {"logs": 1, "events": 1} for c in ("g_c1", "g_c2")}, {"logs": T[:2], "events": T[:3]},
        {"g_c1-0": "events-0 events-2 logs-1", "g_c2-0": "events-1 logs-0"}),
    "RR5": ("0.11", {"g_c1": {"a": 1}, "g_c2": {"a": 1, "b": 1}, "g_c3": {"b": 1}}, {"a": T[:3], "b": T[:3]},
        {"g_c1-0": "a-0 a-2", "g_c2-0": "a-1 b-0 b-2", "g_c3-0": "b-1"}),
    "RR6": ("1.1", *RR6,
        {"g1c1-0": "topic-1-0 topic-1-3", "g1c1-1": "topic-1-1",
         "g1c2-0": "topic-1-2 topic-2-0 topic-2-1 topic-2-2 topic-2-3"}),
    "RR7 a member without topics": ("1.1", {"g_c1": {"t": 1}, "g_c2": {}}, {"t": T[:4]}, {"g_c1-0": "t-0 t-1 t-2 t-3"}),
    "nobody has a topic": ("0.8.2", {"g_c1": {}}, {"t": [0]}, {}),
    "a tie": ("1.1", {"g_c1": {"Aa": 1, "BB": 1}, "g_c2": {"Aa": 1, "BB": 1}}, {"BB": [0], "Aa": [0]},
        {"g_c1-0": "Aa-0", "g_c2-0": "BB-0"}),
}  # fmt: skip


@pytest.mark.parametrize(("release", "members", "partitions", "expected"), ROUND_ROBIN.values(), ids=ROUND_ROBIN)
def test_round_robin(
    release: str, members: dict[str, dict[str, int]], partitions: dict[str, list[int]], expected: dict[str, str]
) -> None:
    assert text(owners(RoundRobinAssignor(release), group(members), partitions)) == expected


@pytest.mark.parametrize("release", ["0.8.2", "0.9"])
@pytest.mark.parametrize(
    "members",
    [
        RR6[0],
        {"g_c1": {"a": 1}, "g_c2": {"a": 1, "b": 1}},
        {"g_c1": {"a": 1, "b": 2}},
        {"g_c1": {"a": 1}, "g_c2": {"b": 1}},
    ],
)
def test_old_releases_refuse_unequal_subscriptions(release: str, members: dict[str, dict[str, int]]) -> None:
    with pytest.raises(AssignmentError, match="same threads for every topic"):
        RoundRobinAssignor(release).assign(group(members), {"a": [0], "b": [0], "topic-1": [0]})


@pytest.mark.parametrize(
    ("subject", "expected"),
    [
        ("", 0),
        ("t-0", 112919),
        ("t-9", 112928),
        ("t-10", 3500568),
        ("[t,0]", 87540032),
        ("[t,9]", 87540311),
        ("[t,10]", -1581226645),
        ("topic-1-0", 387174390),
        ("[topic-1,0]", -1196313087),
        ("logs-0", -1097327726),
        ("events-0", 278135932),
        ("[logs,0]", 24528527),
        ("[events,0]", -670581339),
        ("Aa", 2112),
        ("BB", 2112),
        ("\U0001f600", 1772899),
    ],
)
def test_the_hash_is_java_s(subject: str, expected: int) -> None:
    assert java_hash(subject) == expected
    assert java_hash(subject[1:], java_hash(subject[:1])) == expected


def test_the_release_comes_from_the_configuration() -> None:
    common = {"zookeeper.connect": "h:1", "group.id": "g", "partition.assignment.strategy": "roundrobin"}
    members = group({f"g_c{n}": {"t": 1} for n in (1, 2, 3)})
    old = assignor("roundrobin", ConsumerConfig(common | {"scala.compat.version": "0.11"}))
    new = assignor("roundrobin", ConsumerConfig(common))
    assert old.assign(members, {"t": T})[TopicPartition("t", 0)] == "g_c3-0"
    assert new.assign(members, {"t": T})[TopicPartition("t", 0)] == "g_c1-0"


topics = st.sampled_from(["a", "b", "topic-1", "Aa", "BB"])
groups = st.dictionaries(
    st.sampled_from([f"g_c{n}" for n in range(12)]), st.dictionaries(topics, st.integers(1, 4), max_size=4), max_size=8
)
clusters = st.dictionaries(topics, st.sets(st.integers(0, 40), max_size=20).map(sorted))


@given(groups, clusters, st.sampled_from(["range", "roundrobin", "average", "average-by-circle", "consistent-hash"]))
def test_each_subscribed_partition_has_one_subscribed_owner(
    members: dict[str, dict[str, int]], partitions: dict[str, list[int]], name: str
) -> None:
    everybody = group(members)
    assignment = assignor(name).assign(everybody, partitions)
    wanted = {topic for subscribed in members.values() for topic in subscribed}
    assert assignment.keys() == {
        TopicPartition(t, n) for t, numbers in partitions.items() if t in wanted for n in numbers
    }
    for partition, thread in assignment.items():
        assert any(thread in member.threads.get(partition.topic, ()) for member in everybody.values())


@given(st.integers(1, 10), st.integers(1, 8), clusters, st.sampled_from(["0.8.2", "1.1"]))
def test_round_robin_is_balanced_where_all_want_the_same(
    members: int, streams: int, partitions: dict[str, list[int]], release: str
) -> None:
    everybody = group({f"g_c{n}": dict.fromkeys(partitions, streams) for n in range(members)})
    counts = Counter(RoundRobinAssignor(release).assign(everybody, partitions).values())
    each = [
        counts[thread] for member in everybody.values() for threads in member.threads.values() for thread in threads
    ]
    assert not each or max(each) - min(each) <= 1


@given(groups, clusters, st.randoms(use_true_random=False), st.sampled_from(["range", "roundrobin", "consistent-hash"]))
def test_the_order_in_which_members_are_seen_does_not_matter(
    members: dict[str, dict[str, int]], partitions: dict[str, list[int]], shuffler: object, name: str
) -> None:
    names = list(members)
    shuffler.shuffle(names)  # type: ignore[attr-defined]
    shuffled = group({name: members[name] for name in names})
    assert assignor(name).assign(group(members), partitions) == assignor(name).assign(shuffled, partitions)
