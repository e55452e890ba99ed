"""The request for the end of a leader epoch (OffsetForLeaderEpoch), and the epochs in the heads of batches. Pure.

Brokers from 0.11 on answer it. Up to 2.0 it was for brokers alone: where rights are checked, a client is refused there.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from struct import Struct
from typing import Any, NamedTuple

from zkconsumer.core.leader_epochs import EpochEnd, Epochs
from zkconsumer.kafka import error_codes
from zkconsumer.kafka.schema import INT16, INT32, INT64, STRING, Call, Field, Message
from zkconsumer.model import TopicPartition

_CONSUMER = -1
_ANY = -1  # no leader epoch is expected
_HEAD = Struct(">qii").unpack_from  # offset, size of what follows, leader epoch
_EPOCH = Struct(">i").unpack_from
EPOCH_AT, EPOCH_END = 12, 16
"""Where the leader epoch stands in a batch of format 2; in older formats other bytes stand there."""
_MAGIC, _START = 16, 12

OFFSET_FOR_LEADER_EPOCH = Message(
    *(23, "OffsetForLeaderEpoch", 0, 3, 4),
    request=(
        Field("replica_id", INT32, 3),
        Field(
            "topics",
            (
                Field("topic", STRING),
                Field(
                    "partitions",
                    (Field("partition", INT32), Field("current_leader_epoch", INT32, 2), Field("leader_epoch", INT32)),
                    many=True,
                ),
            ),
            many=True,
        ),
    ),
    response=(
        Field("throttle_time_ms", INT32, 2, default=0),
        Field(
            "topics",
            (
                Field("topic", STRING),
                Field(
                    "partitions",
                    (
                        Field("error_code", INT16),
                        Field("partition", INT32),
                        Field("leader_epoch", INT32, 1, default=-1),
                        Field("end_offset", INT64),
                    ),
                    many=True,
                ),
            ),
            many=True,
        ),
    ),
)


class AnsweredEpoch(NamedTuple):
    """The answer for one partition: an error code, 0 for none, and where the epoch ends."""

    error: int
    end: EpochEnd


def epoch_ends_request(version: int, epochs: Mapping[TopicPartition, int]) -> Call:
    """The question where these epochs end."""
    topics = [
        {
            "topic": topic,
            "partitions": [
                {"partition": tp.partition, "current_leader_epoch": _ANY, "leader_epoch": epochs[tp]} for tp in run
            ],
        }
        for topic, run in groupby(sorted(epochs), lambda tp: tp.topic)
    ]
    return Call(OFFSET_FOR_LEADER_EPOCH, version, {"replica_id": _CONSUMER, "topics": topics})


def epoch_ends(answer: Mapping[str, Any], epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, AnsweredEpoch]:
    """The answers for the partitions asked for; one that is missing is UNKNOWN_SERVER_ERROR."""
    found = dict.fromkeys(epochs, AnsweredEpoch(error_codes.UNKNOWN_SERVER_ERROR, EpochEnd(-1)))
    for topic in answer["topics"] or ():
        for one in topic["partitions"] or ():
            tp = TopicPartition(topic["topic"], one["partition"])
            if tp in found:
                found[tp] = AnsweredEpoch(one["error_code"], EpochEnd(one["end_offset"], one.get("leader_epoch", -1)))
    return found


def epochs_in(records: bytes, fetch_offset: int, last: int) -> Epochs:
    """The epochs of a set of whole batches, each with the first offset in it that was asked for; none for sets of older
    formats, and for batches that name none.

    Arguments: ``last`` is where the last whole batch begins in the set. Almost always all have the first one's epoch,
    and nothing but two heads is looked at.
    """
    if len(records) <= _MAGIC or records[_MAGIC] != 2:
        return ()
    first, _, epoch = _HEAD(records, 0)
    if epoch == _EPOCH(records, last + EPOCH_AT)[0]:
        return ((max(first, fetch_offset), epoch),) if epoch >= 0 else ()
    found: list[tuple[int, int]] = []
    at = 0
    while at <= last:
        first, size, epoch = _HEAD(records, at)
        if records[at + _MAGIC] == 2 and epoch >= 0 and (not found or found[-1][1] != epoch):
            found.append((max(first, fetch_offset), epoch))
        at += _START + size
    return tuple(found)
