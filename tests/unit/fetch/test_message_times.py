"""The times of the messages at some offsets: known, missing, and of no message."""

from __future__ import annotations

from typing import Any, cast

import pytest

from tests.timing import scaled
from tests.unit.kafka.sets import WHERE, Batch, MessageSet, Written
from zkconsumer.data_plane.fetch_response import PartitionResponse
from zkconsumer.fetch.message_times import NO_MESSAGE, NO_TIME, message_times
from zkconsumer.kafka import BrokerChannel
from zkconsumer.runtime.deadline import Deadline

MARKER = Batch([Written(key=b"\0\0\0\1", value=b"\0" * 6)], transactional=True, control=True, producer_id=7)

END = 9


class Answering:
    """A channel that answers each fetch with one set."""

    def __init__(self, records: bytes) -> None:
        self._part = PartitionResponse(WHERE.topic, WHERE.partition, 0, END, 0, (), records)

    def send_fetch(self, request: object, deadline: Deadline) -> int:
        return 1

    def receive_fetch(self, pending: int, deadline: Deadline) -> Any:
        return type("Answer", (), {"partitions": (self._part,)})()


@pytest.mark.parametrize(
    ("batches", "expected"),
    [
        pytest.param([Batch([Written(timestamp=7)], magic=1)], 7, id="known"),
        pytest.param([Batch(magic=0)], NO_TIME, id="format 0"),
        pytest.param([Batch([Written(timestamp=-1)])], NO_TIME, id="none given"),
        pytest.param([MARKER, Batch([Written(timestamp=8)])], 8, id="behind a marker"),
        pytest.param([MARKER], None, id="a marker, and more behind the answer"),
        pytest.param([MARKER] * END, NO_MESSAGE, id="markers up to the end"),
        pytest.param([], None, id="nothing"),
    ],
)
def test_a_message_without_a_time_is_told_from_no_message(batches: list[Batch], expected: int | None) -> None:
    channel = cast("BrokerChannel", Answering(MessageSet(batches).data))
    assert message_times(channel, {WHERE: 0}, Deadline(scaled(5))).get(WHERE) == expected
