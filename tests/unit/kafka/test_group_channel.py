"""Exchanges with a coordinator that says what the test wants: versions, headers, error codes, waits and their ends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any

import pytest

from tests.timing import scaled
from tests.unit.kafka.scripted import RANGES, Asked, Peer, Script, ScriptedBroker
from zkconsumer.errors import (
    BrokerError,
    BrokerResponseError,
    BrokerUnavailableError,
    CoordinatorLoadInProgressError,
    IllegalGenerationError,
    MemberIdRequiredError,
    NotCoordinatorError,
)
from zkconsumer.kafka import BrokerChannel
from zkconsumer.kafka.api_schema import ApiSchema
from zkconsumer.kafka.group_channel import GroupChannel, Joined, Membership
from zkconsumer.kafka.group_schemas import (
    CONSUMER_GROUP_DESCRIBE,
    GROUP_MESSAGES,
    OFFSET_FETCH_OF_GROUPS,
    TOOL_MESSAGES,
)
from zkconsumer.model import TopicPartition
from zkconsumer.runtime.deadline import Deadline

ME = Membership("g", 3, "m-1", "i-1")
HERE, THERE = TopicPartition("t", 0), TopicPartition("u", 1)
BY_KEY = {message.key: message for message in TOOL_MESSAGES}
ALL = {message.key: (0, 99) for message in GROUP_MESSAGES}
JOINED = {
    "error_code": 0,
    "generation_id": 4,
    "protocol_name": "range",
    "leader": "m-1",
    "member_id": "m-1",
    "members": [],
}
FIRST = {message.key: (0, 0) for message in GROUP_MESSAGES if message.key not in (42, 47)} | {8: (0, 2), 9: (0, 1)}
"""As 0.10.0 has them."""


def soon(seconds: float = 20) -> Deadline:
    return Deadline(scaled(seconds))


def message_of(asked: Asked) -> ApiSchema:
    return OFFSET_FETCH_OF_GROUPS if (asked.api, asked.version) == (9, 8) else BY_KEY[asked.api]


def read(asked: Asked) -> tuple[ApiSchema, dict[str, Any]]:
    """A request, behind the tags of the newer header."""
    message = message_of(asked)
    body = asked.body
    if message.compact(asked.version):
        assert body[:1] == b"\0"
        body = body[1:]
    return message, message.read(message.request, asked.version, body)


def reply(peer: Peer, asked: Asked, values: Mapping[str, Any]) -> None:
    message = message_of(asked)
    head = b"\1\5\3tag" if message.compact(asked.version) else b""  # a tagged field that nobody knows
    peer.answer(asked.correlation_id, head + message.write(message.response, asked.version, values))


def joins(channel: GroupChannel, deadline: Deadline | None = None) -> Joined:
    return channel.join(ME, [], session_timeout=1, rebalance_timeout=1, deadline=deadline or soon())


@contextmanager
def coordinator(
    *answers: Mapping[str, Any], ranges: Mapping[int, tuple[int, int]] = ALL
) -> Iterator[tuple[GroupChannel, list[tuple[str, int, dict[str, Any]]]]]:
    """A channel to a broker that gives these answers in turn, and the requests that the broker got."""
    asked_: list[tuple[str, int, dict[str, Any]]] = []

    def script(peer: Peer) -> None:
        for _ in range(2):
            peer.versions({**RANGES, **ranges})
        for values in answers:
            asked = peer.request()
            message, body = read(asked)
            asked_.append((message.name, asked.version, body))
            reply(peer, asked, values)
        peer.until_closed()

    with connected(script) as channel:
        yield channel, asked_


@contextmanager
def connected(script: Script, generation: int = 5, socket_timeout: float = 20) -> Iterator[GroupChannel]:
    with ScriptedBroker(script) as broker, closing(made(broker, generation, socket_timeout)) as channel:
        channel.connect(soon())
        yield channel


def made(broker: ScriptedBroker, generation: int = 5, socket_timeout: float = 20) -> GroupChannel:
    return GroupChannel(
        BrokerChannel(broker.endpoint(generation), client_id="ü", socket_timeout=scaled(socket_timeout))
    )


@pytest.mark.parametrize("ranges", [ALL, FIRST], ids=["the newest", "the oldest"])
def test_members_say_who_they_are_in_every_version(ranges: Mapping[int, tuple[int, int]]) -> None:
    ok = {"error_code": 0}
    committed = {"topics": [{"name": "t", "partitions": [{"partition_index": 0, "error_code": 0}]}]}
    with coordinator(JOINED, {**ok, "assignment": b"a"}, ok, committed, {**ok, "members": []}, ranges=ranges) as (
        channel,
        asked,
    ):
        found = channel.join(
            ME, [("range", b"s")], session_timeout=10, rebalance_timeout=60, deadline=soon(), reason="r"
        )
        assert found.is_leader
        assert channel.sync(ME, protocol="range", assignments={"m-1": b"a"}, deadline=soon()) == b"a"
        channel.heartbeat(ME, soon())
        assert channel.commit(ME, {HERE: 9}, soon()) == {HERE: 0}
        channel.leave(ME, soon(), reason="r")
    newest = ranges is ALL
    assert [name for name, _, _ in asked] == ["JoinGroup", "SyncGroup", "Heartbeat", "OffsetCommit", "LeaveGroup"]
    assert [version for _, version, _ in asked] == ([9, 5, 4, 8, 5] if newest else [0, 0, 0, 2, 0])
    join, sync, heartbeat, commit, leave = [body for _, _, body in asked]
    assert join["session_timeout_ms"] == 10_000
    assert join.get("rebalance_timeout_ms") == (60_000 if newest else None)
    assert join["protocols"] == [{"name": "range", "metadata": b"s"}]
    assert sync["assignments"] == [{"member_id": "m-1", "assignment": b"a"}]
    assert sync.get("protocol_name") == ("range" if newest else None)
    for body in (join, sync, heartbeat, commit):
        assert (body["group_id"], body["member_id"]) == ("g", "m-1")
        assert body.get("group_instance_id") == ("i-1" if newest else None)
    for body in (sync, heartbeat, commit):
        assert body["generation_id"] == 3
    if newest:
        assert leave["members"] == [{"member_id": "m-1", "group_instance_id": "i-1", "reason": "r"}]
    else:
        assert leave["member_id"] == "m-1"


def test_a_first_join_gets_its_member_id_with_the_error() -> None:
    with coordinator({**JOINED, "error_code": 79, "protocol_name": None, "member_id": "m-9"}) as (channel, _):
        with pytest.raises(MemberIdRequiredError) as raised:
            joins(channel)
        assert raised.value.member_id == "m-9"


def test_the_members_of_a_group_are_its_leader_s_to_know() -> None:
    members = [
        {"member_id": "m-1", "group_instance_id": None, "metadata": b"a"},
        {"member_id": "m-2", "group_instance_id": "i-2", "metadata": b"b"},
    ]
    with coordinator({**JOINED, "members": members, "skip_assignment": True}) as (channel, _):
        found = joins(channel)
    assert [tuple(one) for one in found.members] == [("m-1", b"a", None), ("m-2", b"b", "i-2")]
    assert found.skip_assignment


def partition(code: int, index: int = 0, **more: Any) -> dict[str, Any]:
    return {"partition_index": index, "error_code": code, **more}


def test_a_commit_tells_group_errors_from_partition_errors() -> None:
    def answer(*codes: int) -> dict[str, Any]:
        parts = zip(("t", "u"), codes, (0, 1), strict=True)
        return {"topics": [{"name": name, "partitions": [partition(code, index)]} for name, code, index in parts]}

    with coordinator(answer(0, 12), answer(22, 22)) as (channel, asked):
        assert channel.commit(ME, {HERE: 1, THERE: 2}, soon()) == {HERE: 0, THERE: 12}
        with pytest.raises(IllegalGenerationError, match="ILLEGAL_GENERATION"):
            channel.commit(ME, {HERE: 1, THERE: 2}, soon())
    assert [topic["name"] for topic in asked[0][2]["topics"]] == ["t", "u"]


def test_an_answer_that_leaves_out_a_partition_is_an_error() -> None:
    with coordinator({"topics": []}, {"topics": [], "error_code": 0}) as (channel, _):
        with pytest.raises(BrokerError, match="OffsetCommit says nothing of t-0"):
            channel.commit(ME, {HERE: 1}, soon())
        with pytest.raises(BrokerError, match="OffsetFetch says nothing of t-0"):
            channel.offsets("g", [HERE], soon())


def test_offsets_that_a_transaction_may_change_are_none() -> None:
    stored = partition(0, committed_offset=5, metadata="x", committed_leader_epoch=2)
    unstable = partition(88, committed_offset=-1)

    def answer(one: Mapping[str, Any]) -> dict[str, Any]:
        return {"topics": [{"name": "t", "partitions": [one]}]}

    with coordinator(answer(stored), answer(unstable), {"topics": [], "error_code": 16}) as (channel, asked):
        assert channel.offsets("g", None, soon()) == {HERE: (5, 0, "x", 2)}
        assert channel.offsets("g", [HERE], soon()) == {HERE: (-1, 88, "", -1)}
        with pytest.raises(NotCoordinatorError):
            channel.offsets("g", [HERE], soon())
    assert asked[0][2] == {"group_id": "g", "topics": None, "require_stable": True}
    of_groups = {"groups": [{"group_id": name, "error_code": 0, **answer(stored)} for name in "gh"]}
    ranges = {**ALL, **{message.key: (0, 99) for message in TOOL_MESSAGES}}
    with coordinator(of_groups, of_groups, ranges=ranges) as (channel, asked):
        assert channel.offsets_of("gh", soon()) == {name: {HERE: (5, 0, "x", 2)} for name in "gh"}
        with pytest.raises(BrokerError, match="says nothing of 'i'"):
            channel.offsets_of("hi", soon())
    assert [one["topics"] for one in asked[0][2]["groups"]] == [None, None]


def test_leaving_tells_what_was_wrong_with_the_member() -> None:
    member = {"member_id": "m-1", "group_instance_id": None, "error_code": 25}
    answer = {"error_code": 0, "members": [member]}
    with coordinator(answer) as (channel, _), pytest.raises(BrokerResponseError, match="UNKNOWN_MEMBER_ID"):
        channel.leave(ME, soon())


NEW_MEMBER: dict[str, Any] = {
    "member_id": "m",
    "instance_id": None,
    "rack_id": None,
    "member_epoch": 3,
    "client_id": "c",
    "client_host": "/h",
    "subscribed_topic_names": ["t"],
    "subscribed_topic_regex": None,
    "assignment": {
        "topic_partitions": [{"topic_id_high": 1, "topic_id_low": -1, "topic_name": "t", "partitions": [1, 0]}]
    },
    "target_assignment": {"topic_partitions": []},
}
NEW_GROUP = {
    "error_code": 0,
    "error_message": None,
    "group_id": "g",
    "group_state": "Stable",
    "group_epoch": 3,
    "assignment_epoch": 3,
    "assignor_name": "uniform",
    "members": [NEW_MEMBER],
    "authorized_operations": 0,
}
WITH_NEW_GROUPS = {**ALL, CONSUMER_GROUP_DESCRIBE.key: (0, 1)}


def test_a_group_of_the_new_protocol_is_described() -> None:
    with coordinator({"groups": [NEW_GROUP]}, ranges=WITH_NEW_GROUPS) as (channel, asked):
        found = channel.describe_assigned("g", soon())
    assert found is not None
    assert (found.state, found.assignor) == ("Stable", "uniform")
    (member,) = found.members
    assert (member.member_id, member.host, member.topics) == ("m", "/h", ("t",))
    assert member.assignment == (TopicPartition("t", 1), TopicPartition("t", 0))
    assert asked == [("ConsumerGroupDescribe", 0, {"group_ids": ["g"], "include_authorized_operations": False})]


@pytest.mark.parametrize("code", [69, 35])
def test_a_broker_without_that_group_says_so(code: int) -> None:
    with coordinator({"groups": [{**NEW_GROUP, "error_code": code}]}, ranges=WITH_NEW_GROUPS) as (channel, _):
        assert channel.describe_assigned("g", soon()) is None
    with coordinator(ranges=ALL) as (channel, asked):
        assert channel.describe_assigned("g", soon()) is None
    assert asked == [], "an older broker is not asked"


def test_another_answer_about_that_group_is_an_error() -> None:
    with coordinator({"groups": []}, {"groups": [{**NEW_GROUP, "error_code": 16}]}, ranges=WITH_NEW_GROUPS) as (
        channel,
        _,
    ):
        with pytest.raises(BrokerError, match="says nothing of 'g'"):
            channel.describe_assigned("g", soon())
        with pytest.raises(NotCoordinatorError):
            channel.describe_assigned("g", soon())


def test_a_code_that_nobody_knows_is_an_error_all_the_same() -> None:
    with coordinator({"error_code": 31999}) as (channel, _), pytest.raises(BrokerResponseError, match="ERROR_31999"):
        channel.heartbeat(ME, soon())


@pytest.mark.parametrize("ranges", [ALL, FIRST], ids=["the newest", "the oldest"])
def test_groups_are_listed_with_their_state_if_it_is_told(ranges: Mapping[int, tuple[int, int]]) -> None:
    groups = [{"group_id": "g", "protocol_type": "consumer", "group_state": "Stable"}]
    with coordinator({"error_code": 0, "groups": groups}, {"error_code": 14, "groups": []}, ranges=ranges) as (
        channel,
        _,
    ):
        assert channel.list_groups(soon()) == [("g", "consumer", "Stable" if ranges is ALL else "")]
        with pytest.raises(CoordinatorLoadInProgressError):
            channel.list_groups(soon())


def test_what_a_broker_is_too_old_for_is_said() -> None:
    with coordinator(ranges=FIRST) as (channel, _):
        with pytest.raises(BrokerError, match="older than 0.10.2"):
            channel.offsets("g", None, soon())
        with pytest.raises(BrokerError, match="does not know DeleteGroups"):
            channel.delete_group("g", soon())
    with ScriptedBroker() as broker:
        with pytest.raises(BrokerError, match="older than 0.9"):
            made(broker, generation=1).connect(soon())
        with pytest.raises(BrokerError, match="not connected"):
            made(broker).heartbeat(ME, soon())


def test_a_broker_that_no_longer_has_our_versions_is_refused() -> None:
    def script(peer: Peer) -> None:
        for _ in range(2):
            peer.versions({**RANGES, **ALL, 11: (10, 12)})
        peer.until_closed()

    with pytest.raises(BrokerError, match="JoinGroup 10 to 12, this client up to 9"), connected(script):
        pass


def test_a_broker_of_0_9_is_not_asked_for_versions() -> None:
    def script(peer: Peer) -> None:
        asked = peer.request()
        assert (asked.api, asked.version) == (12, 0)
        reply(peer, asked, {"error_code": 0})
        peer.until_closed()

    with connected(script, generation=2) as channel:
        channel.heartbeat(ME, soon())


@contextmanager
def silent(socket_timeout: float, then: Callable[[Peer, Asked], None]) -> Iterator[GroupChannel]:
    """A channel to a broker that does what ``then`` says with the first request."""

    def script(peer: Peer) -> None:
        for _ in range(2):
            peer.versions({**RANGES, **ALL})
        then(peer, peer.request())
        peer.until_closed()

    with connected(script, socket_timeout=socket_timeout) as channel:
        yield channel


def test_a_join_may_take_longer_than_any_other_answer() -> None:
    late = threading.Event()

    def answer_late(peer: Peer, asked: Asked) -> None:
        late.wait(scaled(1))  # nobody sets it: this is how long the group takes to join
        reply(peer, asked, JOINED)

    with silent(0.4, answer_late) as channel:
        assert joins(channel).generation == 4


def test_no_wait_is_endless() -> None:
    late = pytest.raises(BrokerUnavailableError, match="did not answer in time")
    with silent(0.3, lambda peer, _: peer.until_closed()) as channel, late:
        channel.heartbeat(ME, soon())
    late = pytest.raises(BrokerUnavailableError, match="did not answer in time")
    with silent(20, lambda peer, _: peer.until_closed()) as channel, late:
        joins(channel, Deadline(0.3))


def test_closing_wakes_a_member_that_waits_for_the_others() -> None:
    waits = threading.Event()

    def close_when_it_waits(peer: Peer, _: Asked) -> None:
        waits.set()
        peer.until_closed()

    with silent(20, close_when_it_waits) as channel:
        closer = threading.Thread(target=lambda: (waits.wait(scaled(20)), channel.close()), name="closer")
        closer.start()
        with pytest.raises(BrokerUnavailableError, match="was closed"):
            channel.sync(ME, protocol="range", deadline=soon())
        closer.join(scaled(20))
