"""Sticky placement: its promises for any group, and that nothing better exists in small ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations, product

from hypothesis import given
from hypothesis import strategies as st

from zkconsumer.assignors import sticky_placement as module
from zkconsumer.assignors.sticky_placement import fewest_moves
from zkconsumer.model import Assignment, ThreadId, TopicPartition

TopicThreads = dict[str, list[ThreadId]]
TopicNumbers = dict[str, tuple[int, ...]]
Group = tuple[TopicThreads, TopicNumbers, dict[TopicPartition, ThreadId]]


def totals(threads: TopicThreads, assignment: Assignment, topic: str | None = None) -> dict[ThreadId, int]:
    found = {thread: 0 for name, listed in threads.items() if topic in (None, name) for thread in listed}
    for tp, thread in assignment.items():
        if topic in (None, tp.topic):
            found[thread] += 1
    return found


def kept(before: Assignment, after: Assignment) -> int:
    return sum(after.get(tp) == thread for tp, thread in before.items())


@st.composite
def groups(draw: st.DrawFn, *, alike: bool = False, most_threads: int = 5, most: int = 9) -> Group:
    names = [ThreadId(f"g_{n}-0") for n in range(draw(st.integers(1, most_threads)))]
    topics = [f"t{n}" for n in range(draw(st.integers(1, 3)))]
    threads = {
        topic: names if alike else draw(st.lists(st.sampled_from(names), unique=True).map(sorted)) for topic in topics
    }
    partitions = {topic: tuple(range(draw(st.integers(0, most)))) for topic in topics}
    owner = st.sampled_from([*names, ThreadId("g_gone-0"), None])
    before = {
        TopicPartition(topic, n): thread
        for topic, numbers in partitions.items()
        for n in numbers
        if (thread := draw(owner)) is not None
    }
    return threads, partitions, before


@given(groups())
def test_everything_is_assigned_and_even(group: Group) -> None:
    threads, partitions, before = group
    found = fewest_moves(threads, partitions, before)
    assert set(found) == {TopicPartition(t, n) for t, ns in partitions.items() if threads[t] for n in ns}
    for topic, listed in threads.items():
        assert all(thread in listed for tp, thread in found.items() if tp.topic == topic)
        counts = totals(threads, found, topic).values()
        assert max(counts, default=0) - min(counts, default=0) <= 1


@given(groups(alike=True))
def test_totals_are_even_with_equal_subscriptions(group: Group) -> None:
    threads, partitions, before = group
    counts = totals(threads, fewest_moves(threads, partitions, before)).values()
    assert max(counts) - min(counts) <= 1


@given(groups())
def test_an_even_assignment_does_not_move(group: Group) -> None:
    threads, partitions, before = group
    once = fewest_moves(threads, partitions, before)
    assert fewest_moves(threads, partitions, once) == once


@given(groups(most_threads=4, most=5))
def test_no_even_assignment_moves_less(group: Group) -> None:
    """Every choice of the threads with one partition more is tried."""
    threads, partitions, before = group
    found = fewest_moves(threads, partitions, before)
    squares = sum(count * count for count in totals(threads, found).values())
    assert (squares, -kept(before, found)) == best(threads, partitions, before)


def best(threads: TopicThreads, partitions: TopicNumbers, before: Assignment) -> tuple[int, int]:
    topics = [topic for topic in partitions if threads[topic]]
    choices = [
        [set(some) for some in combinations(threads[topic], len(partitions[topic]) % len(threads[topic]))]
        for topic in topics
    ]
    return min(quality(threads, partitions, before, topics, chosen) for chosen in product(*choices))


def quality(
    threads: TopicThreads,
    partitions: TopicNumbers,
    before: Assignment,
    topics: Sequence[str],
    chosen: Sequence[set[ThreadId]],
) -> tuple[int, int]:
    loads: dict[ThreadId, int] = {}
    stays = 0
    for topic, extra in zip(topics, chosen, strict=True):
        for thread in threads[topic]:
            quota = len(partitions[topic]) // len(threads[topic]) + (thread in extra)
            loads[thread] = loads.get(thread, 0) + quota
            stays += min(quota, sum(before.get(TopicPartition(topic, n)) == thread for n in partitions[topic]))
    return sum(load * load for load in loads.values()), -stays


def members(*names: str) -> list[ThreadId]:
    return [ThreadId(f"g_{name}-0") for name in names]


def shares(assignment: Mapping[TopicPartition, ThreadId]) -> dict[str, str]:
    found: dict[str, list[str]] = {}
    for tp, thread in sorted(assignment.items()):
        found.setdefault(thread[2:-2], []).append(f"{tp.topic}{tp.partition}")
    return {name: " ".join(listed) for name, listed in sorted(found.items())}


def test_topics_with_one_partition_are_spread_over_members() -> None:
    """Range gives them all to the first member."""
    topics = dict.fromkeys("klmn", (0,))
    found = fewest_moves({name: members("a", "b") for name in topics}, topics, {})
    assert shares(found) == {"a": "k0 m0", "b": "l0 n0"}


def test_a_large_group_is_even_without_the_search() -> None:
    threads = [ThreadId(f"g_{n:03}-0") for n in range(120)]
    topics = {f"t{n}": range(30 + n) for n in range(40)}
    assert len(threads) * len(topics) > module.SEARCHED
    before = fewest_moves(dict.fromkeys(topics, threads), topics, {})
    after = fewest_moves(dict.fromkeys(topics, threads[1:]), topics, before)
    counts = totals(dict.fromkeys(topics, threads[1:]), after).values()
    assert max(counts) - min(counts) <= 1
    free = sum(thread == threads[0] for thread in before.values())
    assert kept(before, after) >= len(before) - 2 * free
