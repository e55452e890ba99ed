"""Reads the timestamps of the messages at some offsets, by one small fetch of each place.

Called by the thread that owns the channel, to the leader of the partitions. Kafka's own tools have nothing like it;
exporters guess the time by interpolation between two looks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from zkconsumer.data_plane.fetch_response import PartitionResponse
from zkconsumer.kafka import BrokerChannel, CorruptRecordsError, FetchPosition, FetchRequest, batches, error_codes
from zkconsumer.kafka.compression import Expansion
from zkconsumer.kafka.message_set import extent
from zkconsumer.model import TopicPartition
from zkconsumer.runtime.deadline import Deadline

BYTES = 64 * 1024
"""Bytes of one partition to fetch. A broker sends a larger batch only in the first partition of a request."""
AT_ONCE = 50
"""Partitions in one fetch."""
NO_TIME = -1
"""Stands for the time of a message without one, as brokers before 0.10 write them."""
NO_MESSAGE = -2
"""Stands for the time where no message is left up to the log's end, but transaction markers or deleted records."""
EXPANDED = 16 * 1024 * 1024
"""Bytes of one batch after decompression. The time of a message in a larger one is not read."""


def message_times(
    channel: BrokerChannel, offsets: Mapping[TopicPartition, int], deadline: Deadline
) -> dict[TopicPartition, int]:
    """Return the time (ms since 1970) of the first message from each offset on, :data:`NO_TIME` if it has none.

    A place without any message up to the log's end has :data:`NO_MESSAGE`. Messages that do not fit and corrupt ones
    are left out. Raises BrokerError.
    """
    found: dict[TopicPartition, int] = {}
    left = dict(offsets)
    while left:
        asked = dict(list(left.items())[:AT_ONCE])
        request = FetchRequest(
            [FetchPosition(*tp, offset, BYTES) for tp, offset in asked.items()], 0.0, 0, BYTES * AT_ONCE
        )
        answer = channel.receive_fetch(channel.send_fetch(request, deadline), deadline)
        told = {TopicPartition(one.topic, one.partition): one for one in answer.partitions}
        first = next(iter(asked))
        for tp, offset in asked.items():
            one = told.get(tp)
            time = None if one is None or one.error != error_codes.NONE else _time_at(one, offset)
            if time is not None:
                found[tp] = time
            # a batch larger than BYTES comes whole if it is asked for first, from brokers since 0.10.1
            if time is not None or tp == first or one is None or one.error or one.records:
                left.pop(tp)
    return found


def _time_at(answer: PartitionResponse, offset: int) -> int | None:
    where = TopicPartition(answer.topic, answer.partition)
    try:
        for record in _records(answer, where, offset):
            if record.offset >= offset:
                return int(record.timestamp) if record.timestamp >= 0 else NO_TIME
        if answer.records and 0 <= answer.high_watermark <= (_reached(answer, where, offset) or -1):
            return NO_MESSAGE
    except CorruptRecordsError:
        return None
    return None


def _reached(answer: PartitionResponse, where: TopicPartition, offset: int) -> int | None:
    return extent(answer.records, where, offset, answer.high_watermark).next_offset


def _records(answer: PartitionResponse, where: TopicPartition, offset: int) -> Iterator[Any]:
    for batch in batches(
        answer.records, check_crc=False, where=where, fetch_offset=offset, expansion=Expansion(EXPANDED)
    ):
        yield from batch
