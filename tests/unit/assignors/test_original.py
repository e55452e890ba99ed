"""``range`` and ``roundrobin`` of the original beyond the recorded groups in ``tests/vectors``."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.assignors.groups import group, owners, text
from zkconsumer.assignors import AssignmentError, RangeAssignor, RoundRobinAssignor, assignor, java_hash
from zkconsumer.config import ConsumerConfig
from zkconsumer.model import TopicPartition


@pytest.mark.parametrize(
    ("members", "partitions", "expected"),
    [
        ({"c1": {"a": 1}, "c2": {"a": 2}}, {"a": [0, 2, 5, 9]}, {"c1-0": "a-0 a-2", "c2-0": "a-5", "c2-1": "a-9"}),
        ({"g_\uffee": {"t": 1}, "g_\U0001f600": {"t": 1}}, {"t": [0]}, {"g_\U0001f600-0": "t-0"}),
        ({}, {"t": [0]}, {}),
    ],
    ids=["gaps count by position", "surrogates sort before the end of the plane", "nobody"],
)
def test_range(members: dict[str, dict[str, int]], partitions: dict[str, list[int]], expected: dict[str, str]) -> None:
    assert text(owners(RangeAssignor(), group(members), partitions)) == expected


T = list(range(12))
THREE = {"g_c1": {"t": 1}, "g_c2": {"t": 1}, "g_c3": {"t": 1}}


@pytest.mark.parametrize(
    ("release", "expected"),
    [
        ("1.0", {"g_c1-0": "t-0 t-3 t-6 t-9", "g_c2-0": "t-1 t-4 t-7 t-10", "g_c3-0": "t-2 t-5 t-8 t-11"}),
        ("0.11", {"g_c1-0": "t-1 t-4 t-7 t-10", "g_c2-0": "t-2 t-5 t-8 t-11", "g_c3-0": "t-0 t-3 t-6 t-9"}),
    ],
)
def test_round_robin_has_another_order_since_1_0(release: str, expected: dict[str, str]) -> None:
    assert text(owners(RoundRobinAssignor(release), group(THREE), {"t": T})) == expected


def test_round_robin_breaks_a_tie_of_hashes_by_name() -> None:
    tied = group({name: {"Aa": 1, "BB": 1} for name in ("g_c1", "g_c2")})
    assert text(owners(RoundRobinAssignor("1.1"), tied, {"BB": [0], "Aa": [0]})) == {"g_c1-0": "Aa-0", "g_c2-0": "BB-0"}


@pytest.mark.parametrize("release", ["0.8.2", "0.9"])
@pytest.mark.parametrize(
    "members",
    [
        {"g1c1": {"topic-1": 2}, "g1c2": {"topic-1": 1, "topic-2": 1}},
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
    [("", 0), ("t-10", 3500568), ("[t,10]", -1581226645), ("Aa", 2112), ("BB", 2112), ("\U0001f600", 1772899)],
)
def test_the_hash_is_java_s(subject: str, expected: int) -> None:
    assert java_hash(subject) == expected
    assert java_hash(subject[1:], java_hash(subject[:1])) == expected


def test_the_release_comes_from_the_configuration() -> None:
    common = {"zookeeper.connect": "h:1", "group.id": "g", "partition.assignment.strategy": "roundrobin"}
    members = group(THREE)
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
