"""The strategies of ZooKeeper's mode in a coordinated group: every stream gets what it got there."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zkconsumer import ConsumerConfig
from zkconsumer.assignors import AssignmentError, Member, advertisement, assignor
from zkconsumer.core.consumer_protocol import (
    JoinedMember,
    MemberAssignment,
    MemberSubscription,
    decode_assignment,
    encode_subscription,
)
from zkconsumer.errors import UnknownAssignorError
from zkconsumer.member.brokers.assignment import partition_streams
from zkconsumer.member.brokers.leader_assignment import assign_group, protocol_offers
from zkconsumer.member.brokers.zkconsumer_assignor import ZkconsumerAssignor
from zkconsumer.model import ConsumerId, TopicPartition, thread_id


def config(**properties: str) -> ConsumerConfig:
    given_ = {name.replace("_", "."): value for name, value in properties.items()}
    return ConsumerConfig({"zookeeper.connect": "z", "group.id": "g", **given_})


def tps(*numbers: int, topic: str = "t") -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition(topic, n) for n in numbers)


def made(
    name: str, strategy: str = "range", streams: int | dict[str, int] = 1, **properties: str
) -> ZkconsumerAssignor:
    chosen = config(partition_assignment_strategy=strategy, **properties)
    return ZkconsumerAssignor(
        chosen,
        ConsumerId(f"g_{name}"),
        lambda topic: streams[topic] if isinstance(streams, dict) else streams,
        advertisement(chosen),
    )


def joined(member: str, assignor_: ZkconsumerAssignor, *topics: str, owned: Any = ()) -> JoinedMember:
    [(_, data)] = protocol_offers([assignor_], topics, owned=owned, previous=owned, generation=1)
    return JoinedMember(member, data)


NAMES = st.sampled_from("abcde")
BROUGHT = st.dictionaries(NAMES, st.dictionaries(st.sampled_from("tuv"), st.integers(1, 11), min_size=1), min_size=1)


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "average", "consistent-hash"])
@given(BROUGHT, st.dictionaries(st.sampled_from("tuv"), st.integers(1, 13)))
def test_every_stream_gets_what_it_got_under_zookeeper(
    strategy: str, brought: dict[str, dict[str, int]], topics: dict[str, int]
) -> None:
    members = {
        ConsumerId(f"g_{name}"): Member(
            {t: tuple(thread_id(ConsumerId(f"g_{name}"), n) for n in range(count)) for t, count in streams.items()},
            strategy=strategy,
        )
        for name, streams in brought.items()
    }
    under_zookeeper = assignor(strategy, config()).assign(members, {t: range(n) for t, n in topics.items()})
    # the coordinator's ids are random, so that their order is another one
    ids = {name: f"consumer-{99 - ord(name)}" for name in brought}
    made_ = {name: made(name, strategy, streams) for name, streams in brought.items()}
    found = assign_group(next(iter(made_.values())), topics, [joined(ids[n], made_[n], *brought[n]) for n in brought])
    here = {
        tp: thread_id(ConsumerId(f"g_{name}"), number)
        for name, streams in brought.items()
        for tp, number in partition_streams(decode_assignment(found.assignments[ids[name]], "m"), streams, {}).items()
    }
    assert here == dict(under_zookeeper)


def test_what_changes_hands_is_first_given_up() -> None:
    a, b = made("a"), made("b")
    first = assign_group(a, {"t": 4}, [joined("1", a, "t", owned=tps(0, 1, 2, 3)), joined("2", b, "t")]).decoded
    assert (first["1"].partitions, first["2"].partitions) == (tps(0, 1), ())
    second = assign_group(a, {"t": 4}, [joined("1", a, "t", owned=tps(0, 1)), joined("2", b, "t")]).decoded
    assert (second["1"].partitions, second["2"].partitions) == (tps(0, 1), tps(2, 3))


def test_a_restarted_consumer_id_is_another_member() -> None:
    """The group has two members of one consumer id until the session of the first one has timed out."""
    one, two = made("a"), made("a")
    found = assign_group(one, {"t": 4}, [joined("1", one, "t"), joined("2", two, "t")]).decoded
    assert sorted(found["1"].partitions + found["2"].partitions) == list(tps(0, 1, 2, 3))
    assert found["1"].partitions
    assert found["2"].partitions


def test_different_strategies_assign_by_range_or_refuse() -> None:
    """The property ``assignment.mixed.group`` decides."""
    a, b = made("a", "average"), made("b", "consistent-hash")
    members = [joined("1", a, "t"), joined("2", b, "t")]
    assert assign_group(a, {"t": 4}, members).decoded["1"].partitions == tps(0, 1)
    refusing = made("a", "average", assignment_mixed_group="refuse")
    with pytest.raises(AssignmentError):
        assign_group(refusing, {"t": 4}, members)


@pytest.mark.parametrize(
    "data",
    [
        *(None, b"", b"\0\0", b"{", b"[]", b"{}", b'{"version":1}', b'{"version":0,"consumer":"c","streams":{}}'),
        *(b'{"version":1,"consumer":"c","streams":[1]}', b'{"version":1,"consumer":7,"streams":{}}'),
        *(b'{"version":1,"consumer":"c","streams":{"t":-1}}', b'{"version":1,"consumer":"c","streams":{"t":1e9}}'),
        *(b'{"version":1,"consumer":"c","streams":{"t":99999999}}', b'{"version":1,"a":' + b"[" * 100_000),
    ],
)
def test_a_member_of_another_kind_gets_nothing_and_is_named(data: bytes | None) -> None:
    ours = made("a")
    stranger = JoinedMember("stranger", encode_subscription(MemberSubscription(("t",), data)))
    found = assign_group(ours, {"t": 2}, [stranger, joined("1", ours, "t")])
    assert list(found.unreadable) == ["stranger"]
    assert found.decoded["1"].partitions == tps(0, 1)
    assert found.decoded["stranger"].partitions == ()


def test_known_fields_of_later_user_data_are_read() -> None:
    """Version 2 of the user data has a field that this version does not know."""
    ours = made("a")
    data = json.dumps({"version": 2, "consumer": "g_b", "streams": {"t": 1}, "colour": "blue", "strategy": "range"})
    other = JoinedMember("2", encode_subscription(MemberSubscription(("t",), data.encode())))
    assert assign_group(ours, {"t": 2}, [other, joined("1", ours, "t")]).decoded["2"].partitions == tps(1)


def test_an_unknown_strategy_is_refused_at_once() -> None:
    with pytest.raises(UnknownAssignorError):
        made("a", "fair")


# -- which of a member's streams


def test_without_a_word_of_the_leader_streams_get_blocks() -> None:
    given_ = MemberAssignment(tps(0, 1, 2, 3, 4) + tps(7, topic="u"))
    assert partition_streams(given_, {"t": 2, "u": 3}, {}) == {
        **dict(zip(tps(0, 1, 2, 3, 4), (0, 0, 0, 1, 1), strict=True)),
        TopicPartition("u", 7): 0,
    }


def test_what_stays_remains_in_its_stream_up_to_its_share() -> None:
    before = dict.fromkeys(tps(0, 1, 2), 1)
    assert partition_streams(MemberAssignment(tps(0, 1, 2, 5)), {"t": 2}, before) == {
        **dict.fromkeys(tps(0, 1), 1),
        **dict.fromkeys(tps(2, 5), 0),
    }


def test_topics_without_a_stream_of_ours_are_left_out() -> None:
    assert partition_streams(MemberAssignment(tps(0)), {"u": 1}, {}) == {}


@pytest.mark.parametrize(
    "data",
    [b"{", b"[]", b'{"streams":7}', b'{"streams":{"t":7}}', b'{"streams":{"t":[7]}}', b'{"streams":{"t":[["0"]]}}'],
)
def test_a_leader_s_nonsense_is_not_believed(data: bytes) -> None:
    assert partition_streams(MemberAssignment(tps(0, 1), data), {"t": 2}, {}) == {tps(0)[0]: 0, tps(1)[0]: 1}


def test_a_stream_that_we_do_not_have_is_not_believed() -> None:
    data = b'{"version":1,"streams":{"t":[[],[1],[0]]}}'
    assert partition_streams(MemberAssignment(tps(0, 1), data), {"t": 2}, {}) == {tps(0)[0]: 0, tps(1)[0]: 1}


@given(st.sets(st.integers(0, 30)), st.integers(1, 5), st.dictionaries(st.integers(0, 30), st.integers(-1, 6)))
def test_streams_are_even_whatever_was_before(numbers: set[int], streams: int, before: dict[int, int]) -> None:
    given_ = MemberAssignment(tps(*sorted(numbers)))
    found = partition_streams(given_, {"t": streams}, {TopicPartition("t", n): s for n, s in before.items()})
    assert set(found) == set(given_.partitions)
    counts = [list(found.values()).count(n) for n in range(streams)]
    assert max(counts) - min(counts) <= 1
    again = partition_streams(given_, {"t": streams}, found)
    assert again == found, "nothing moves twice"
