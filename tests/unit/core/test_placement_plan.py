"""The plan of a group as bytes: what is written is read, and anything else is refused as a whole."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zkconsumer.core.placement_plan import (
    MAX_PLAN_BYTES,
    MOST_PARTITIONS,
    InvalidPlanError,
    PlacementPlan,
    PlanInputs,
    decode_plan,
    encode_plan,
    too_large,
)
from zkconsumer.model import ConsumerId, ThreadId, TopicPartition, thread_id

A, B, GONE = ConsumerId("g_a"), ConsumerId("g_b"), ConsumerId("g_c-d")


def plan() -> PlacementPlan:
    inputs = PlanInputs("sticky", {A: {"t": 2}, B: {"t": 1, "u": 1}}, {"t": (0, 1, 2, 5), "u": (0,)}, frozenset([B]))
    owners = {("t", 0): "g_a-0", ("t", 1): "g_a-1", ("t", 2): "g_b-0", ("t", 5): "g_c-d-0", ("u", 0): "g_b-0"}
    assignment = {TopicPartition(*tp): ThreadId(thread) for tp, thread in owners.items()}
    return PlacementPlan(inputs, assignment, {GONE: {"t": 1}}, A)


def test_a_plan_is_readable_text() -> None:
    assert json.loads(encode_plan(plan())) == {
        "version": 1,
        "strategy": "sticky",
        "planner": "g_a",
        "partitions": {"t": "0-2,5", "u": "0"},
        "subscriptions": [{"t": 2}, {"t": 1, "u": 1}, {"t": 1}],
        "members": {"g_a": [0, 0], "g_b": [1, 1]},
        "reserved": {"g_c-d": 2},
        "assignment": {"g_a-0": {"t": "0"}, "g_a-1": {"t": "1"}, "g_b-0": {"t": "2", "u": "0"}, "g_c-d-0": {"t": "5"}},
    }


def test_reserved_partitions_are_told_apart() -> None:
    made = plan()
    assert made.held_back == {TopicPartition("t", 5): GONE}
    assert set(made.assignment) - set(made.present) == {TopicPartition("t", 5)}


def test_a_member_without_topics_stands_in_the_plan() -> None:
    made = PlacementPlan(PlanInputs("sticky", {A: {}}, {}), {}, {}, A)
    assert decode_plan(encode_plan(made)) == made


letters = st.characters(min_codepoint=33, max_codepoint=0x2FF, exclude_characters="/.", exclude_categories=["Cc"])
names = st.text(letters, min_size=1, max_size=5)
members = st.dictionaries(names.map(ConsumerId), st.dictionaries(names, st.integers(1, 3), max_size=3), max_size=4)


@st.composite
def plans(draw: st.DrawFn) -> PlacementPlan:
    streams, others = draw(members), draw(members)
    reserved = {c: topics for c, topics in others.items() if c not in streams}
    wanted = sorted({topic for topics in streams.values() for topic in topics})
    numbers = st.lists(st.integers(0, 9), unique=True, min_size=1).map(sorted).map(tuple)
    partitions = {topic: draw(numbers) for topic in wanted}
    everybody = {**streams, **reserved}
    assignment = {
        TopicPartition(topic, n): draw(
            st.sampled_from([thread_id(c, k) for c in everybody for k in range(everybody[c].get(topic, 0))])
        )
        for topic, listed in partitions.items()
        for n in listed
    }
    lasting = frozenset(draw(st.sets(st.sampled_from(sorted(streams))))) if streams else frozenset()
    inputs = PlanInputs(draw(names), streams, partitions, lasting)
    return PlacementPlan(inputs, assignment, reserved, ConsumerId(draw(names)))


@given(plans())
def test_what_is_written_is_read(made: PlacementPlan) -> None:
    assert decode_plan(encode_plan(made)) == made


def changed(*path: Any, to: Any) -> bytes:
    document = json.loads(encode_plan(plan()))
    inner = document
    for step in path[:-1]:
        inner = inner[step]
    if to is ...:
        del inner[path[-1]]
    else:
        inner[path[-1]] = to
    return json.dumps(document).encode()


KEYS = ("version", "strategy", "planner", "partitions", "subscriptions", "members", "reserved", "assignment")


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("value", [..., None, True, 7, -1, 1.5, "x", [], [1], {"x": []}, {"x": {"y": None}}])
def test_a_part_of_another_kind_is_refused(key: str, value: Any) -> None:
    if key in ("strategy", "planner") and value == "x":
        assert decode_plan(changed(key, to=value)).assignment == plan().assignment
        return
    with pytest.raises(InvalidPlanError):
        decode_plan(changed(key, to=value))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "no JSON"),
        (b"\xff\xfe", "no JSON"),
        (b"[" * 100_000, "no JSON"),
        (b"[]", "JSON object"),
        (b"1" * 5000, "no JSON"),
        (b" " * (MAX_PLAN_BYTES + 1), "bytes are more"),
        (changed("version", to=2), "version 2, ours is 1"),
        (changed("assignment", "g_a-0", "t", to="0-1"), "assigned twice"),
        (changed("assignment", "g_a-0", to=...), "not assigned as a whole"),
        (changed("assignment", "g_a-0", "t", to="0,3"), "not assigned as a whole"),
        (changed("assignment", "g_a-0", "v", to="0"), "takes no part in v"),
        (changed("assignment", "g_x-0", to={"t": "7"}), "takes no part in t"),
        (changed("assignment", "g_a-2", to={"t": "7"}), "takes no part in t"),
        (changed("assignment", "g_a-01", to={"t": "7"}), "no thread"),
        (changed("assignment", "g_a", to={"t": "7"}), "takes no part in t"),
        (changed("assignment", "g_a-٣", to={"t": "7"}), "takes no part in t"),
        (changed("partitions", "t", to="0-2147483646"), "more than"),
        (changed("partitions", "t", to=f"0-{MOST_PARTITIONS}"), "more than"),
        (changed("partitions", "t", to="2-1"), "no run"),
        (changed("partitions", "t", to="1,0"), "no run"),
        (changed("partitions", "t", to="1,1"), "no run"),
        (changed("partitions", "t", to="-1"), "no partition number"),
        (changed("partitions", "t", to="99999999999"), "no partition number"),
        (changed("partitions", "v", to="0"), None),
        (changed("members", "g_a", to=[9, 0]), "a subscription"),
        (changed("members", "g_a", to=[0, 2]), "second part"),
        (changed("members", "g_a", to=[0]), "a pair"),
        (changed("reserved", "g_a", to=0), "present and reserved"),
        (changed("subscriptions", 0, "t", to=1_000_000), "number of streams"),
        (changed("version", to=1.0), "version 1.0, ours is 1"),
        (changed("members", "g_a\nFATAL", to=[0, 0]), "cannot stand in a name"),
        (changed("members", "g_\ud800", to=[0, 0]), "cannot stand in a name"),
        (changed("members", "g_a/ids", to=[0, 0]), "cannot stand in a name"),
        (changed("members", "x" * 1001, to=[0, 0]), "1001 characters"),
        (changed("reserved", "", to=0), "cannot be a name"),
        (changed("partitions", "v\n", to="0"), "cannot stand in a name"),
        (changed("subscriptions", 0, "v\n", to=1), "cannot stand in a name"),
        (changed("planner", to="x" * 1001), "1001 characters"),
        (changed("strategy", to="x" * 1001), "1001 characters"),
    ],
)
def test_a_plan_that_cannot_be_followed_is_refused(data: bytes, why: str | None) -> None:
    """A topic that no member wants may have partitions: nobody needs an owner for them."""
    if why is None:
        assert decode_plan(data).assignment == plan().assignment
        return
    with pytest.raises(InvalidPlanError, match=why):
        decode_plan(data)


def test_a_plan_names_no_more_streams_than_fit_into_memory() -> None:
    """Each member of a plan takes a few bytes, and may name a subscription with 100,000 streams."""
    for part, entry in (("members", [1, 0]), ("reserved", 1)):
        document = json.loads(encode_plan(plan()))
        document["subscriptions"][1] = {"t": 100_000}
        document[part] |= {f"g_x{n}": entry for n in range(20)}
        with pytest.raises(InvalidPlanError, match="more than 500000 streams"):
            decode_plan(json.dumps(document).encode())


@given(st.data())
def test_any_bytes_are_a_whole_plan_or_refused(data: st.DataObject) -> None:
    written = bytearray(encode_plan(plan()))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(written) - 1))
        written[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
        if not written:
            break
    try:
        found = decode_plan(bytes(written))
    except InvalidPlanError:
        return
    wanted = {topic for streams in found.inputs.streams.values() for topic in streams}
    everything = {TopicPartition(t, n) for t in wanted for n in found.inputs.partitions.get(t, ())}
    assert set(found.assignment) == everything


def test_a_plan_that_is_too_large_is_not_written() -> None:
    streams = {ConsumerId(f"g_{'x' * 200}{n}"): {"t": 1} for n in range(3000)}
    with pytest.raises(ValueError, match="more than the 524288"):
        encode_plan(PlacementPlan(PlanInputs("sticky", streams, {}), {}))


@pytest.mark.parametrize("numbers", [(-1, 0), (1, 0), (0, 1 << 31)])
def test_a_plan_that_nobody_could_read_is_not_written(numbers: tuple[int, ...]) -> None:
    """The planner would write it in each round, and each write makes another round."""
    assignment = {TopicPartition("t", n): thread_id(A, 0) for n in numbers}
    made = PlacementPlan(PlanInputs("sticky", {A: {"t": 1}}, {"t": numbers}), assignment, {}, A)
    with pytest.raises(ValueError, match="no member could read the plan"):
        encode_plan(made)


def test_a_plan_that_would_be_read_as_another_is_not_written() -> None:
    with pytest.raises(ValueError, match="another plan"):
        encode_plan(replace(plan(), inputs=replace(plan().inputs, lasting=frozenset([GONE]))))


def test_a_group_too_large_for_a_plan_is_found_out_before() -> None:
    """Its threads alone would fill the memory of the planner."""
    many = {ConsumerId(f"g_{n}"): {f"t{topic}": 100_000 for topic in range(100)} for n in range(10)}
    assert "100000000 streams of all topics are more than" in too_large(PlanInputs("sticky", many, {}))
    assert "partitions are more than" in too_large(PlanInputs("sticky", {}, {"t": tuple(range(MOST_PARTITIONS + 1))}))
    assert not too_large(plan().inputs)
