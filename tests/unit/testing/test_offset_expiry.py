"""The expiry of offsets in the fake coordinator, as tables of the group's state and its members' subscriptions."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from zkconsumer.core.consumer_protocol import MemberSubscription, encode_subscription
from zkconsumer.model import TopicPartition
from zkconsumer.testing.committed_offsets import CommittedOffset, CommittedOffsets, ExpiryBasis, end_of
from zkconsumer.testing.group_members import subscribed_topics
from zkconsumer.testing.group_states import CoordinatorRules, GroupState

AGE, SAID, EMPTIED, NEVER = 1050.0, 70.0, 1030.0, None
"""When an offset of second 50 dies: by its age, by what its commit said, with a group that is empty since second 30."""


class Case(NamedTuple):
    state: GroupState
    protocol_type: str | None
    subscribed: frozenset[str] | None
    dies: float | None
    dies_as_said: float | None


NOBODY, MINE, OTHERS = frozenset[str](), frozenset({"t"}), frozenset({"u"})
SINCE_2_1 = [
    Case(GroupState.EMPTY, None, None, AGE, SAID),
    Case(GroupState.EMPTY, "consumer", None, EMPTIED, SAID),
    Case(GroupState.EMPTY, "connect", None, EMPTIED, SAID),
    Case(GroupState.STABLE, "consumer", MINE, NEVER, NEVER),
    Case(GroupState.STABLE, "consumer", MINE | OTHERS, NEVER, NEVER),
    Case(GroupState.STABLE, "consumer", OTHERS, AGE, SAID),
    Case(GroupState.STABLE, "consumer", NOBODY, AGE, SAID),
    Case(GroupState.STABLE, "consumer", None, NEVER, NEVER),
    Case(GroupState.STABLE, "connect", None, NEVER, NEVER),
    Case(GroupState.PREPARING, "consumer", OTHERS, NEVER, NEVER),
    Case(GroupState.AWAITING, "consumer", OTHERS, NEVER, NEVER),
]


def name(case: Case) -> str:
    wanted = "unknown" if case.subscribed is None else "+".join(sorted(case.subscribed)) or "none"
    return f"{case.state.value}-{case.protocol_type}-{wanted}"


@pytest.mark.parametrize("case", SINCE_2_1, ids=name)
def test_an_offset_dies_as_its_group_stands(case: Case) -> None:
    rules, group = (
        CoordinatorRules(retention=1000.0),
        ExpiryBasis(case.state, 30.0, case.protocol_type, case.subscribed),
    )
    assert end_of(rules, group, "t", CommittedOffset(5, -1, "", 50.0)) == case.dies
    assert end_of(rules, group, "t", CommittedOffset(5, -1, "", 50.0, expires=SAID)) == case.dies_as_said


@pytest.mark.parametrize("case", SINCE_2_1, ids=name)
def test_in_1_1_an_offset_expires_by_its_own_age(case: Case) -> None:
    """In Kafka 1.1 an offset expires by its own age, whatever the state of its group."""
    rules = CoordinatorRules(modern=False, retention=1000.0)
    group = ExpiryBasis(case.state, 30.0, case.protocol_type, case.subscribed)
    assert end_of(rules, group, "t", CommittedOffset(5, -1, "", 50.0)) == AGE
    assert end_of(rules, group, "t", CommittedOffset(5, -1, "", 50.0, expires=SAID)) == SAID


def test_the_first_to_die_is_due_and_only_what_is_due_dies() -> None:
    offsets = CommittedOffsets(CoordinatorRules(retention=1000.0))
    alone = ExpiryBasis(GroupState.EMPTY, 0.0)
    assert offsets.due(alone) is None
    offsets.commit(("t", 0), CommittedOffset(5, -1, "", 50.0))
    offsets.commit(("t", 1), CommittedOffset(6, -1, "", 40.0))
    offsets.commit(("u", 0), CommittedOffset(7, -1, "", 40.0, expires=2000.0))
    assert offsets.due(alone) == 1040.0
    assert offsets.expire(1039.9, alone) == []
    assert offsets.expire(1040.0, alone) == [("t", 1)]
    assert (offsets.places(), offsets.due(alone)) == ([("t", 0), ("u", 0)], 1050.0)


@pytest.mark.parametrize("version", range(4))
def test_a_subscription_of_any_version_is_understood(version: int) -> None:
    owned = (TopicPartition("gone", 1),)
    said = MemberSubscription(("t", "u"), user_data=b"x", owned=owned, generation=7, rack="r")
    assert subscribed_topics(encode_subscription(said, version)) == frozenset({"t", "u"})
    assert subscribed_topics(encode_subscription(MemberSubscription(()), version)) == frozenset()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0",
        b"no subscription",
        b"\0\0\0\0\0\1\0\1",
        b"\0\0\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\0\0\0\0\0\1\xff\xff\xff\xff\xff\xff",
        b"\0\0\x7f\xff\xff\xff\0\1t",
    ],
    ids=["nothing", "half a version", "text", "cut off", "no list", "no name", "more than there is"],
)
def test_what_is_no_subscription_is_not_understood(data: bytes) -> None:
    assert subscribed_topics(data) is None
