"""The arithmetic in words says what the assignors compute, for random groups."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from tests.values import present
from zkconsumer.assignors.assignor import java_hash
from zkconsumer.assignors.java_consumer_assignors import SubscribedMember, range_assignment, roundrobin_assignment
from zkconsumer.core.registration import STATIC, Registration
from zkconsumer.member.zookeeper.claim_plan import GroupView, threads_of
from zkconsumer.model import ConsumerId, ThreadId, TopicPartition
from zkconsumer.operations.group_snapshot import BrokersGroup, BrokersMember
from zkconsumer.operations.strategy_inference import RANGE, ROUNDROBIN, ROUNDROBIN_OLD, Strategy, assignment_by
from zkconsumer.operations.strategy_reasons import (
    arithmetic,
    brokers_arithmetic,
    number_runs,
    ordinal,
    threads_of_topic,
)

TOPICS = ("t", "Aa", "BB")  # the last two have the same hash in Java
ROOMS = ("east", "west")

members = some.dictionaries(
    some.sampled_from([f"g_m{n}" for n in (1, 2, 10)] + ["g_é", "g_Z"]),
    some.dictionaries(some.sampled_from(TOPICS), some.integers(1, 3)),
    min_size=1,
)
partitions = some.dictionaries(
    some.sampled_from(TOPICS), some.sets(some.integers(0, 14), max_size=12).map(lambda found: tuple(sorted(found)))
)


def view_of(wanted: Mapping[str, Mapping[str, int]], existing: Mapping[str, tuple[int, ...]]) -> GroupView:
    """A view in which members and leaders are in two rooms by turns."""
    return GroupView(
        {
            ConsumerId(name): Registration(STATIC, topics, extra={"room": ROOMS[at % 2]})
            for at, (name, topics) in enumerate(wanted.items())
        },
        dict(existing),
        racks={TopicPartition(t, n): ROOMS[n % 3 % 2] for t, numbers in existing.items() for n in numbers},
    )


@pytest.mark.parametrize(
    "strategy",
    [
        RANGE,
        ROUNDROBIN,
        ROUNDROBIN_OLD,
        *(Strategy(name) for name in ("average", "average-by-circle", "consistent-hash", "machine-room-nearby")),
    ],
    ids=lambda strategy: strategy.label,
)
@settings(max_examples=30, deadline=None)
@given(wanted=members, existing=partitions)
def test_the_words_name_the_assignors_thread(
    strategy: Strategy, wanted: Mapping[str, Mapping[str, int]], existing: Mapping[str, tuple[int, ...]]
) -> None:
    view = view_of(wanted, existing)
    threads = threads_of(view, exclude_internal_topics=True)
    for tp, thread in assignment_by(strategy, view, threads).items():
        found = arithmetic(strategy, view, threads, tp)
        assert found.thread == thread
        assert any(thread in step for step in found.steps)
        if strategy.name in ("range", "average"):
            _check_blocks(found.steps, view, list(threads_of_topic(threads, tp.topic)), tp)
        elif strategy.name == "roundrobin":
            _check_turn(strategy, found.steps, thread, tp)


def _check_blocks(steps: tuple[str, ...], view: GroupView, order: list[ThreadId], tp: TopicPartition) -> None:
    """Do the sum again with the numbers in the words."""
    said = present(re.fullmatch(r"\S+: (\d+) partitions? of \S+, (\d+) threads?: (.+)", steps[0]))
    count, among = int(said[1]), int(said[2])
    assert (count, among) == (len(view.partitions[tp.topic]), len(order))
    sizes = re.fullmatch(r"each gets (\d+)|the first (\d+) gets? (\d+), the last (\d+) gets? (\d+|none)", said[3])
    each, first, more, rest, less = (
        0 if number in (None, "none") else int(number) for number in present(sizes).groups()
    )
    assert each * among + first * more + rest * less == count
    assert each or first + rest == among
    place = re.fullmatch(r"thread (\d+) of (\d+), (\S+), gets partitions? (.+); .* is the (\d+)\w\w of these", steps[1])
    assert place is not None
    assert order[int(place[1]) - 1] == place[3]
    assert _numbers(place[4])[int(place[5]) - 1] == tp.partition
    at = int(place[1])
    assert len(_numbers(place[4])) == (each or (more if at <= first else less))


def _numbers(text: str) -> list[int]:
    runs = [part.partition("-") for part in text.split(", ")]
    return [number for first, _, last in runs for number in range(int(first), int(last or first) + 1)]


def _check_turn(strategy: Strategy, steps: tuple[str, ...], thread: str, tp: TopicPartition) -> None:
    text = f"[{tp.topic},{tp.partition}]" if strategy is ROUNDROBIN_OLD else f"{tp.topic}-{tp.partition}"
    said = present(re.search(r'"(.+)" has (-?\d+) and is number (\d+)', steps[0]))
    assert (said[1], int(said[2])) == (text, java_hash(text))
    modulo = re.fullmatch(r"\((\d+) - 1\) modulo (\d+) is (\d+): thread (\d+) of (\d+), (.+)", steps[2])
    if modulo is not None:
        assert int(modulo[1]) == int(said[3])
        assert (int(modulo[1]) - 1) % int(modulo[2]) == int(modulo[3]) == int(modulo[4]) - 1
        assert modulo[6] == thread


@pytest.mark.parametrize("name", ["range", "roundrobin"])
@settings(max_examples=30, deadline=None)
@given(
    wanted=some.dictionaries(
        some.sampled_from(["m-1", "m-10", "m-2", "\u00e9"]), some.sets(some.sampled_from(TOPICS)), min_size=1
    ),
    sizes=some.dictionaries(some.sampled_from(TOPICS), some.integers(1, 12)),
    static=some.booleans(),
)
def test_the_words_name_the_member_of_a_brokers_group(
    name: str, wanted: Mapping[str, set[str]], sizes: Mapping[str, int], static: bool
) -> None:
    """As the Java consumer's strategies, with static members first."""
    first = min(wanted) if static else None
    members = tuple(
        BrokersMember(member, "c", "/h", "a-static-one" if member == first else None, topics=tuple(topics))
        for member, topics in wanted.items()
    )
    subscribed = {one.member_id: SubscribedMember(one.topics, instance=one.instance_id) for one in members}
    assign = range_assignment if name == "range" else roundrobin_assignment
    numbers = {topic: range(count) for topic, count in sizes.items()}
    for member, partitions in assign(subscribed, sizes).items():
        for tp in partitions:
            found = brokers_arithmetic(BrokersGroup("Stable", name, members=members), numbers, tp)
            assert found.thread == member
            assert member in found.steps[-1]


def test_strategies_that_depend_on_before_are_told_so() -> None:
    members = (BrokersMember("m", "c", "/h", topics=("t",)),)
    sticky = brokers_arithmetic(BrokersGroup("Stable", "sticky", members=members), {"t": [0]}, TopicPartition("t", 0))
    assert (sticky.thread, "keeps what it had" in sticky.steps[0]) == (None, True)
    other = brokers_arithmetic(BrokersGroup("Stable", "mine", members=members), {"t": [0]}, TopicPartition("t", 0))
    assert other.steps == ("the leader of the brokers' group computed it with mine",)


def test_range_in_words() -> None:
    view = view_of({"g_a": {"t": 2}, "g_b": {"t": 1}}, {"t": tuple(range(8))})
    found = arithmetic(RANGE, view, threads_of(view, exclude_internal_topics=True), TopicPartition("t", 5))
    assert found.steps == (
        "range: 8 partitions of t, 3 threads: the first 2 get 3, the last 1 gets 2",
        "thread 2 of 3, g_a-1, gets partitions 3-5; t-5 is the 3rd of these",
    )


def test_partitions_without_arithmetic_say_why() -> None:
    view = view_of({"g_a": {"t": 1}}, {"t": (0,)})
    threads = threads_of(view, exclude_internal_topics=True)
    assert arithmetic(RANGE, view, threads, TopicPartition("t", 1)).steps == ("t-1 does not exist",)
    assert (
        "no member has a thread" in arithmetic(RANGE, GroupView({}, {"t": (0,)}), {}, TopicPartition("t", 0)).steps[0]
    )
    other = arithmetic(Strategy("mine"), view, threads, TopicPartition("t", 0))
    assert (other.thread, "mine" in other.steps[0]) == (None, True)
    kept = GroupView(view.members, view.partitions, kept={TopicPartition("t", 0): ThreadId("g_x-0")})
    assert arithmetic(RANGE, kept, threads, TopicPartition("t", 0)).thread == "g_x-0"


def test_numbers_in_words() -> None:
    assert number_runs([0, 1, 2, 5, 7, 8]) == "0-2, 5, 7-8"
    assert number_runs(range(0, 60, 2)).endswith("20, 22 and 18 more")
    assert [ordinal(n) for n in (1, 2, 3, 4, 11, 21, 112)] == ["1st", "2nd", "3rd", "4th", "11th", "21st", "112th"]
