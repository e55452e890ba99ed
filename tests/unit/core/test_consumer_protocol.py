"""Subscriptions and assignments as bytes: foreign bytes are checked, and later versions are read."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from zkconsumer.core.consumer_protocol import (
    HIGHEST,
    MemberAssignment,
    MemberSubscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from zkconsumer.errors import MalformedMemberError
from zkconsumer.model import TopicPartition

OWNED = (TopicPartition("t", 0), TopicPartition("t", 3), TopicPartition("u", 1))
SAID = MemberSubscription(("t", "u"), b"data", OWNED, 7, "rack-1")

topics = st.text(max_size=5)
# In the bytes partitions are grouped by topic.
partitions = st.lists(st.builds(TopicPartition, topics, st.integers(0, 2**31 - 1)), max_size=6, unique=True).map(
    lambda listed: tuple(sorted(listed))
)
optional = st.none() | st.binary(max_size=8)


@given(
    st.builds(
        MemberSubscription,
        st.lists(topics, max_size=4).map(tuple),
        optional,
        partitions,
        st.integers(-1, 2**31 - 1),
        st.none() | st.text(max_size=5),
    )
)
def test_a_subscription_is_read_as_it_was_written(said: MemberSubscription) -> None:
    assert decode_subscription(encode_subscription(said), "m") == said


@given(st.builds(MemberAssignment, partitions, optional))
def test_an_assignment_is_read_as_it_was_written(given_: MemberAssignment) -> None:
    assert decode_assignment(encode_assignment(given_), "m") == given_


def test_a_version_beyond_the_highest_is_read_as_the_highest() -> None:
    later = (HIGHEST + 4).to_bytes(2, "big") + encode_subscription(SAID)[2:] + b"more of it"
    assert decode_subscription(later, "m") == SAID
    found = (HIGHEST + 4).to_bytes(2, "big") + encode_assignment(MemberAssignment(OWNED, b"d"))[2:] + b"more"
    assert decode_assignment(found, "m") == MemberAssignment(OWNED, b"d")


def test_bytes_of_version_0_tell_topics_and_user_data_only() -> None:
    assert decode_subscription(encode_subscription(SAID, 0), "m", "i") == MemberSubscription(
        ("t", "u"), b"data", instance="i"
    )


def test_who_was_left_out_by_the_leader_has_nothing() -> None:
    assert decode_assignment(b"", "m") == MemberAssignment()


@pytest.mark.parametrize(
    ("release", "subscription", "assignment"),
    [
        ("0.9.0.1", "000000000002000174000175000000020102", "00000000000200017400000001000000000001750000000100000002"),
        (
            "2.8.2",
            "00010000000200017400017500000002010200000000",
            "00010000000200017400000001000000000001750000000100000002",
        ),
        (
            "3.9.1",
            "00030000000200017400017500000002010200000000ffffffffffff",
            "00030000000200017400000001000000000001750000000100000002",
        ),
    ],
)
def test_what_releases_of_the_java_client_wrote_is_read(release: str, subscription: str, assignment: str) -> None:
    # recorded by running ConsumerProtocol of each release; those up to 1.1.1 write as 0.9 does
    assert decode_subscription(bytes.fromhex(subscription), release) == MemberSubscription(("t", "u"), b"\1\2")
    found = decode_assignment(bytes.fromhex(assignment + "0000000103"), release)
    assert found == MemberAssignment((TopicPartition("t", 0), TopicPartition("u", 2)), b"\3")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0",
        b"\xff\xff" + encode_subscription(SAID)[2:],
        b"\0\1\x7f\xff\xff\xff",
        b"\0\1\xff\xff\xff\xff",
        b"\0\0\0\0\0\1\xff\xff",
        b"\0\0\0\0\0\1\0\1\xff\xff\xff\xff\xff",
        b"\0\0\0\0\0\0\xff\xff\xff\xf0",
        b"\0\1\0\0\0\0\xff\xff\xff\xff\0\0\0\1\0\1t\0\0\0\1\xff\xff\xff\xff",
    ],
    ids=[
        *("nothing", "half a version", "a negative version", "many topics", "fewer than no topics", "no topic"),
        *("no UTF-8", "a negative length", "a negative partition"),
    ],
)
def test_unreadable_bytes_are_an_error_that_names_the_member(data: bytes) -> None:
    with pytest.raises(MalformedMemberError, match="consumer-7") as raised:
        decode_subscription(data, "consumer-7")
    assert raised.value.member == "consumer-7"


@given(st.binary(max_size=60))
@example(b"\0\3" + b"\0" * 30)
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for decode in (decode_subscription, decode_assignment):
        try:
            decode(data, "m")
        except MalformedMemberError:
            pass


@pytest.mark.parametrize("cut", range(len(encode_subscription(SAID))))
def test_a_subscription_that_was_cut_off_is_refused(cut: int) -> None:
    with pytest.raises(MalformedMemberError):
        decode_subscription(encode_subscription(SAID)[:cut], "m")
