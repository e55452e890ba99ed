"""The plan of slots: who handles how much of which partition."""

from __future__ import annotations

from functools import reduce
from operator import or_

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zkconsumer.balance.sharing.slot_plan import FEWEST_SLOTS, SharingMember, deal_slots, slot_quotas
from zkconsumer.core.key_slots import ALL_SLOTS, BLOCK, SLOTS, slot_of_offset
from zkconsumer.model import TopicPartition

T = frozenset({"t"})


def partitions(*owners: str) -> dict[TopicPartition, str]:
    return {TopicPartition("t", number): owner for number, owner in enumerate(owners)}


def quotas(capacities: dict[str, int], *owners: str) -> list[dict[str, int]]:
    members = {consumer: SharingMember(capacity, T) for consumer, capacity in capacities.items()}
    return list(slot_quotas(members, partitions(*owners)).values())


@pytest.mark.parametrize(
    ("capacities", "owners", "expected"),
    [
        ({"a": 10}, "aa", [{"a": 256}, {"a": 256}]),
        ({"a": 10, "b": 10}, "ab", [{"a": 256}, {"b": 256}]),
        ({"a": 10, "b": 10}, "a", [{"a": 128, "b": 128}]),
        ({"a": 10, "b": 30}, "a", [{"a": 64, "b": 192}]),
        ({"a": 10, "b": 10, "c": 10}, "ab", [{"a": 171, "c": 85}, {"b": 171, "c": 85}]),
        ({"a": 10, "b": 10, "c": 10}, "aab", [{"a": 256}, {"a": 9, "c": 247}, {"b": 256}]),
        (dict.fromkeys("abcd", 10), "abc", [{"a": 192, "d": 64}, {"b": 192, "d": 64}, {"c": 192, "d": 64}]),
        # the second partition's owner does not share
        ({"a": 10, "b": 10}, "ax", [{"a": 128, "b": 128}]),
        ({}, "ab", []),
    ],
)
def test_quotas(capacities: dict[str, int], owners: str, expected: list[dict[str, int]]) -> None:
    assert quotas(capacities, *owners) == expected


def test_a_small_surplus_of_partitions_is_not_lent() -> None:
    owners = [member for member in "abcd" for _ in range(25)] + ["a"]
    found = quotas(dict.fromkeys("abcd", 10), *owners)
    assert all(len(one) == 1 for one in found)


def test_only_subscribers_of_the_topic_get_slots() -> None:
    members = {
        "a": SharingMember(10, T),
        "b": SharingMember(10, frozenset({"other"})),
        "c": SharingMember(10, frozenset({"t", "other"})),
    }
    (found,) = slot_quotas(members, partitions("a")).values()
    assert found.keys() == {"a", "c"}


names = st.sampled_from("abcdef")
capacities = st.dictionaries(names, st.integers(1, 200), min_size=1)


@settings(max_examples=60, deadline=None)
@given(capacities, st.lists(names, min_size=1, max_size=12))
def test_quotas_of_a_partition_are_all_its_slots(found: dict[str, int], owners: list[str]) -> None:
    members = {consumer: SharingMember(capacity, T) for consumer, capacity in found.items()}
    plan = slot_quotas(members, partitions(*owners))
    assert plan.keys() == {tp for tp, owner in partitions(*owners).items() if owner in members}
    for tp, shares in plan.items():
        assert sum(shares.values()) == SLOTS
        assert shares[owners[tp.partition]] > 0
        assert all(n >= FEWEST_SLOTS for consumer, n in shares.items() if consumer != owners[tp.partition])
    backwards = dict(reversed(members.items()))
    assert slot_quotas(backwards, dict(reversed(partitions(*owners).items()))) == plan


sets = st.integers(0, ALL_SLOTS)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 60), max_size=4), st.lists(sets, max_size=5), sets)
def test_dealt_slots_are_disjoint_and_all(wanted: list[int], had: list[int], pinned: int) -> None:
    numbers = {f"b{number}": n for number, n in enumerate(wanted)}
    numbers["me"] = SLOTS - sum(numbers.values())
    present: dict[str, int] = {}
    for number, slots in enumerate(had):
        present[f"b{number}"] = slots & ~reduce(or_, present.values(), 0)
    dealt = deal_slots(numbers, present, "me", pinned)
    assert reduce(or_, dealt.values(), 0) == ALL_SLOTS
    assert sum(slots.bit_count() for slots in dealt.values()) == SLOTS
    assert dealt["me"] & pinned == pinned
    for consumer, slots in dealt.items():
        if consumer == "me":
            continue
        assert slots.bit_count() <= numbers[consumer]
        # as much as possible stays
        kept = (slots & present.get(consumer, 0)).bit_count()
        assert kept == min(numbers[consumer], (present.get(consumer, 0) & ~pinned).bit_count())
    again = deal_slots(numbers, {c: s for c, s in dealt.items() if c != "me"}, "me", pinned)
    assert again == dealt


def test_blocks_next_to_each_other_go_to_all_members() -> None:
    """With a short backlog without keys one member would have all the work otherwise."""
    dealt = deal_slots(dict.fromkeys("abcd", SLOTS // 4), {}, "a")
    for first in (0, 6, 1021):
        slots = [slot_of_offset((first + block) * BLOCK) for block in range(8)]
        assert {name for name, mine in dealt.items() if any(mine >> slot & 1 for slot in slots)} == set("abcd")
    assert {slot_of_offset(block * BLOCK) for block in range(SLOTS)} == set(range(SLOTS))
