"""Requests and small answers in every version."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.kafka.scripted import response
from zkconsumer.errors import BrokerError, BrokerResponseError
from zkconsumer.kafka import error_codes, requests
from zkconsumer.kafka.api_schema import ApiRequest
from zkconsumer.kafka.broker_schemas import LIST_OFFSETS, METADATA
from zkconsumer.kafka.requests import ListedOffset
from zkconsumer.model import TopicPartition


def read_back(request: ApiRequest) -> dict[str, Any]:
    body = request.encode(0, "")[14:]
    return request.message.read(request.message.request, request.version, body)


@pytest.mark.parametrize("version", range(4))
def test_offsets_are_asked_for_and_told(version: int) -> None:
    wanted = {TopicPartition("a", 1): -1, TopicPartition("a", 2): -2, TopicPartition("b", 0): 1000}
    request = requests.list_offsets_request(version, wanted, 1)
    again = read_back(request)
    asked = {
        TopicPartition(topic["name"], one["partition_index"]): one["timestamp"]
        for topic in again["topics"]
        for one in topic["partitions"]
    }
    assert asked == wanted
    assert again.get("isolation_level") == (1 if version >= 2 else None)
    tools = read_back(requests.list_offsets_request(version, wanted, 1, written=True))
    assert [each["replica_id"] for each in (again, tools)] == [-1, -2]
    old: list[Any] = [(1, 0, [44, 3]), (2, 0, []), (3, 6, [])]
    new = [(1, 0, 5, 44), (2, 0, -1, -1), (3, 6, -1, -1)]
    throttle = [0] if version >= 2 else []
    told = response(LIST_OFFSETS, version, *throttle, [("a", new if version else old)])
    assert requests.listed_offsets(requests.decode(request, told, "broker")) == {
        TopicPartition("a", 1): ListedOffset(44, -1 if version == 0 else 5, 0),
        TopicPartition("a", 2): ListedOffset(-1, -1, 0),
        TopicPartition("a", 3): ListedOffset(-1, -1, 6),
    }


@given(st.sampled_from(range(6)), st.binary(max_size=60))
def test_any_bytes_are_an_answer_or_an_error(version: int, data: bytes) -> None:
    request = requests.metadata_request(version, ["t"])
    try:
        requests.cluster_metadata(requests.decode(request, data, "broker"))
    except BrokerError as failure:
        assert "broker: its answer to Metadata" in str(failure)  # noqa: PT017 - most bytes fail, some do not


@pytest.mark.parametrize("version", range(6))
def test_leaders_are_told_in_every_version(version: int) -> None:
    rack, internal = ([None], [False]) if version >= 1 else ([], [])
    offline: list[list[int]] = [[]] if version >= 5 else []
    head = [0] if version >= 3 else []
    middle = ["id", 1] if version >= 2 else [1] if version == 1 else []
    topics = [(0, "t", *internal, [(0, 0, 1, [1], [1], *offline)])]
    request = requests.metadata_request(version, ["t"])
    data = response(METADATA, version, *head, [(1, "h", 9, *rack)], *middle, topics)
    told = requests.cluster_metadata(requests.decode(request, data, "broker"))
    assert told == ({1: ("h", 9)}, {TopicPartition("t", 0): 1}, {})


def test_versions_are_the_highest_that_both_know() -> None:
    ranges = {1: (0, 6), 2: (1, 2), 3: (0, 99), 18: (0, 3)}
    chosen = requests.negotiated_versions(ranges, "broker")
    assert {api.name: v for api, v in chosen.items()} == {"ApiVersions": 0, "Fetch": 6, "ListOffsets": 2, "Metadata": 5}
    for missing in ({**ranges, 1: (12, 13)}, {2: (0, 1), 3: (0, 1)}):
        with pytest.raises(BrokerError, match="broker speaks Fetch"):
            requests.negotiated_versions(missing, "broker")


def test_a_broker_that_will_not_tell_its_versions() -> None:
    request = requests.api_versions_request()
    refusal = requests.decode(request, struct.pack(">hi", 33, 0), "broker")
    with pytest.raises(BrokerResponseError, match="UNSUPPORTED_SASL_MECHANISM"):
        requests.api_ranges(refusal, "broker")
    newer = requests.decode(request, struct.pack(">hihhh", 35, 1, 1, 4, 17), "broker")
    assert requests.api_ranges(newer, "broker") == {1: (4, 17)}


def test_error_codes_have_names() -> None:
    assert error_codes.name(0) == "NONE"
    assert error_codes.name(error_codes.OFFSET_OUT_OF_RANGE) == "OFFSET_OUT_OF_RANGE"
    assert error_codes.name(4711) == "ERROR_4711"
    assert error_codes.retriable(error_codes.NOT_LEADER_OR_FOLLOWER)
    assert not error_codes.retriable(error_codes.NONE)
    assert not error_codes.retriable(error_codes.OFFSET_OUT_OF_RANGE)
    failure = error_codes.error(29, "broker 1, Fetch")
    assert (failure.code, str(failure)) == (29, "broker 1, Fetch: the broker answered TOPIC_AUTHORIZATION_FAILED (29)")
