"""The requests that every broker answers have the bytes of the Java client of 3.9.1 and of aiokafka 0.14."""

from __future__ import annotations

from typing import Any

from tests.vectors.cases import Case
from tests.vectors.test_group_protocol import with_bytes
from zkconsumer.data_plane.fetch_response import PartitionResponse, ResponseReader, read
from zkconsumer.kafka import requests
from zkconsumer.kafka.api_schema import ApiRequest
from zkconsumer.kafka.broker_schemas import BROKER_MESSAGES
from zkconsumer.kafka.requests import FetchPosition, FetchRequest
from zkconsumer.model import TopicPartition

FILES = ("kafka391_broker_requests", "aiokafka014_requests")
BY_NAME = {message.name: message for message in BROKER_MESSAGES}
CORRELATION, CLIENT = 258, "wer-ü"
"""The header of the recorded requests of aiokafka."""


def check_message(data: dict[str, Any], written: bytes) -> None:
    message, version = BY_NAME[data["message"]], data["version"]
    fields = message.request if data["side"] == "request" else message.response
    values = with_bytes(fields, data["values"])
    assert message.write(fields, version, values) == written
    assert message.read(fields, version, written) == values


def check_fetched(data: dict[str, Any], written: bytes) -> None:
    """A whole response to a fetch, also through the reader that does without the schema."""
    check_message(data, written)
    told = read(ResponseReader.over(memoryview(written)), data["version"], "broker")
    assert (round(told.throttle * 1000), told.error, told.session_id) == tuple(
        data["values"].get(name, 0) for name in ("throttle_time_ms", "error_code", "session_id")
    )
    assert told.partitions == [
        PartitionResponse(
            topic["topic"],
            one["partition_index"],
            one["error_code"],
            one["high_watermark"],
            one.get("log_start_offset", -1),
            tuple((each["producer_id"], each["first_offset"]) for each in one.get("aborted_transactions", ())),
            bytes.fromhex(one["records"]),
            one.get("last_stable_offset", -1),
            one.get("preferred_read_replica", -1),
        )
        for topic in data["values"]["responses"]
        for one in topic["partitions"]
    ]


def request(data: dict[str, Any]) -> ApiRequest:
    version = data["version"]
    match data["message"]:
        case "ApiVersions":
            return requests.api_versions_request()
        case "Metadata":
            return requests.metadata_request(version, data["topics"])
        case "ListOffsets":
            wanted = {TopicPartition(topic, partition): time for topic, partition, time in data["wanted"]}
            level, written = data["isolation_level"], data["written"]
            return requests.list_offsets_request(version, wanted, level, written=written)
        case "DescribeConfigs":
            return requests.topic_configs_request(version, data["topics"], data["names"])
        case "SaslHandshake":
            return requests.mechanism_request(version, data["mechanism"])
        case "SaslAuthenticate":
            return requests.token_request(version, bytes.fromhex(data["token"]))
    raise AssertionError(data)


def check_request(data: dict[str, Any], written: bytes) -> None:
    if data["message"] == "Fetch":
        positions = [FetchPosition(*one) for one in data["positions"]]
        forgotten = [TopicPartition(*one) for one in data["forgotten"]]
        asked = FetchRequest(positions, 0.1, 1, 1 << 20, 1, 77, 5, forgotten)
        assert requests.encode_fetch(data["version"], asked, CORRELATION, CLIENT.encode()) == written
    else:
        assert request(data).encode(CORRELATION, CLIENT) == written


def test_requests_and_responses_have_the_recorded_bytes(case: Case) -> None:
    written = bytes.fromhex(case.data["hex"])
    if "values" not in case.data:
        check_request(case.data, written)
    elif (case.data["message"], case.data["side"]) == ("Fetch", "response"):
        check_fetched(case.data, written)
    else:
        check_message(case.data, written)
