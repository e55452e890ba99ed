"""Which errors end the connection to a coordinator, and which versions a client of offsets speaks: tables."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest

from zkconsumer.errors import BrokerAuthenticationError, BrokerError, BrokerUnavailableError
from zkconsumer.kafka import error_codes
from zkconsumer.kafka.coordinator_client import OffsetClient
from zkconsumer.kafka.group_schemas import (
    DELETE_GROUPS,
    GROUP_MESSAGES,
    OF_0_8,
    OF_0_9,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    OFFSET_MESSAGES,
    OffsetAndMetadata,
    negotiated_versions,
)
from zkconsumer.model import Endpoint, TopicPartition
from zkconsumer.runtime.deadline import Deadline

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
SOON = Deadline(10.0)
ALL_KNOWN = {message.key: (0, 99) for message in GROUP_MESSAGES}


class Search:
    """Finds the same channel each time; ``offsets`` is what the coordinator answers."""

    group = "g"
    endpoint = Endpoint(1, "h", 9092)

    def __init__(self, offsets: dict[TopicPartition, OffsetAndMetadata] | None = None) -> None:
        self.found = self.discarded = 0
        self.stored = offsets or {}

    def find(self, _: Deadline) -> Search:
        self.found += 1
        return self

    def discard(self, _: Search) -> None:
        self.discarded += 1

    def offsets(self, *_: object) -> dict[TopicPartition, OffsetAndMetadata]:
        return self.stored


def client_of(search: Search) -> OffsetClient:
    anything: Any = search
    return OffsetClient(anything)


@pytest.mark.parametrize(
    ("error", "dropped"),
    [
        (BrokerUnavailableError("away"), True),
        (BrokerError("an answer that leaves a partition out"), True),
        (BrokerAuthenticationError("refused"), True),
        (error_codes.error(error_codes.NOT_COORDINATOR, "a commit"), True),
        (error_codes.error(error_codes.COORDINATOR_NOT_AVAILABLE, "a commit"), True),
        (error_codes.error(error_codes.COORDINATOR_LOAD_IN_PROGRESS, "a commit"), False),
        (error_codes.error(error_codes.GROUP_AUTHORIZATION_FAILED, "a commit"), False),
        (error_codes.error(error_codes.UNKNOWN_MEMBER_ID, "a commit"), False),
    ],
    ids=str,
)
def test_a_coordinator_is_kept_after_its_own_answers(error: BrokerError, dropped: bool) -> None:
    search = Search()
    client = client_of(search)
    with pytest.raises(type(error)):
        client.ask(Mock(side_effect=error), SOON)
    assert search.discarded == dropped
    assert client.ask(lambda _: 5, SOON) == 5
    assert search.found == 1 + dropped


def test_a_partition_without_an_offset_is_left_out() -> None:
    search = Search({T0: OffsetAndMetadata(7), T1: OffsetAndMetadata(-1)})
    assert client_of(search).fetch([T0, T1], SOON) == {T0: OffsetAndMetadata(7)}


def test_an_unknown_offset_is_an_error_and_keeps_the_connection() -> None:
    search = Search({T0: OffsetAndMetadata(7), T1: OffsetAndMetadata(-1, error_codes.UNSTABLE_OFFSET_COMMIT)})
    with pytest.raises(BrokerError, match="offset of t-1"):
        client_of(search).fetch([T0, T1], SOON)
    assert search.discarded == 0


def test_the_highest_common_versions_are_chosen() -> None:
    ranges = {**ALL_KNOWN, OFFSET_COMMIT.key: (0, 3), OFFSET_FETCH.key: (1, 5)}
    chosen = negotiated_versions(ranges, "broker 1", GROUP_MESSAGES)
    assert (chosen[OFFSET_COMMIT], chosen[OFFSET_FETCH]) == (3, 5)
    assert set(chosen) == set(GROUP_MESSAGES)


@pytest.mark.parametrize("known", [(0, 0), (9, 12), None], ids=["ZooKeeper's alone", "too new", "none"])
def test_without_a_common_version_the_broker_is_named(known: tuple[int, int] | None) -> None:
    ranges = {message.key: (0, 99) for message in OFFSET_MESSAGES}
    if known is None:
        del ranges[OFFSET_COMMIT.key]
    else:
        ranges[OFFSET_COMMIT.key] = known
    with pytest.raises(BrokerError, match="broker 1 speaks OffsetCommit"):
        negotiated_versions(ranges, "broker 1", OFFSET_MESSAGES)


def test_requests_of_tools_may_be_missing() -> None:
    ranges = {key: known for key, known in ALL_KNOWN.items() if key != DELETE_GROUPS.key}
    assert DELETE_GROUPS not in negotiated_versions(ranges, "broker 1", GROUP_MESSAGES)


def test_old_brokers_keep_offsets_in_kafka_with_fixed_versions() -> None:
    """Version 0 of both would make the broker write to ZooKeeper."""
    assert [(versions[OFFSET_COMMIT], versions[OFFSET_FETCH]) for versions in (OF_0_8, OF_0_9)] == [(1, 1), (2, 1)]
    assert set(OF_0_8) == set(OFFSET_MESSAGES)
