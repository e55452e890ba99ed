"""The expiry of offsets in the fake coordinator. tests/contract/test_offset_expiry.py has the rule of each state."""

from __future__ import annotations

import pytest

from zkconsumer.core.consumer_protocol import MemberSubscription, encode_subscription
from zkconsumer.model import TopicPartition
from zkconsumer.testing.committed_offsets import CommittedOffset, CommittedOffsets, ExpiryBasis
from zkconsumer.testing.group_members import subscribed_topics
from zkconsumer.testing.group_states import CoordinatorGroupState, CoordinatorRules


def test_the_first_to_die_is_due_and_only_what_is_due_dies() -> None:
    offsets = CommittedOffsets(CoordinatorRules(offsets_retention=1000.0))
    alone = ExpiryBasis(CoordinatorGroupState.EMPTY, 0.0)
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
