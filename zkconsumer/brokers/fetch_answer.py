"""Reads the answer to a fetch, versions 0 to 11, without touching the records.

Pure; called by the fetcher thread. aiokafka's own reader would copy the records several times and walk them through a
stream object; here each partition's records are copied once, out of the channel's receive buffer.
Whatever the bytes are, the outcome is an answer or a BrokerError.
"""

from __future__ import annotations

import struct
from struct import Struct
from typing import NamedTuple

from zkconsumer.errors import BrokerError

_INT16 = Struct(">h").unpack_from
_INT32 = Struct(">i").unpack_from
_SESSION = Struct(">hi").unpack_from  # error code, session id
_ABORTED = Struct(">qq")
_PARTITION = Struct(">ihq")  # partition, error code, high watermark
_PARTITION_4 = Struct(">ihqq")  # + last stable offset
_PARTITION_5 = Struct(">ihqqq")  # + log start offset

MAX_VERSION = 11


class FetchedPartition(NamedTuple):
    """One partition of an answer.

    ``error`` is a code of ``brokers.errors``; ``high_watermark`` the log end as far as consumers may read, -1 unknown;
    ``log_start`` the first offset there is, -1 unknown; ``aborted`` the (producer id, first offset) of aborted
    transactions in the records, told only to read_committed; ``records`` the message set for ``records.batches``.
    """

    topic: str
    partition: int
    error: int
    high_watermark: int
    log_start: int
    aborted: tuple[tuple[int, int], ...]
    records: bytes


class FetchAnswer(NamedTuple):
    """An answer: seconds of throttling by the broker's quota, the partitions in the broker's order, and the id of the
    fetch session, 0 for none (in a session, partitions with nothing new are left out).
    """

    throttle: float
    partitions: list[FetchedPartition]
    session_id: int = 0
    error: int = 0


def parse(view: memoryview, version: int, who: str) -> FetchAnswer:
    """The answer in ``view`` (after the correlation id). Arguments: ``who`` names the broker in errors.

    Raises BrokerError for bytes that are no answer of this version.
    """
    try:
        answer, end = _parse(view, version)
    except (struct.error, UnicodeDecodeError, ValueError) as failure:
        raise BrokerError(f"{who}: its answer to Fetch version {version} cannot be read: {failure}") from failure
    if end != len(view):
        raise BrokerError(f"{who}: its answer to Fetch version {version} has {len(view) - end} bytes too many")
    return answer


def _parse(view: memoryview, version: int) -> tuple[FetchAnswer, int]:
    at, throttle, error, session_id = 0, 0, 0, 0
    if version >= 1:
        (throttle,) = _INT32(view, at)
        at += 4
    if version >= 7:
        error, session_id = _SESSION(view, at)
        at += 6
    (topics,) = _INT32(view, at)
    at += 4
    partitions: list[FetchedPartition] = []
    for _ in range(_checked(topics)):
        (length,) = _INT16(view, at)
        at += 2
        topic = str(_slice(view, at, length), "utf-8")
        at += length
        (count,) = _INT32(view, at)
        at += 4
        for _ in range(_checked(count)):
            at = _parse_partition(view, at, version, topic, partitions)
    return FetchAnswer(throttle / 1000, partitions, session_id, error), at


def _parse_partition(view: memoryview, at: int, version: int, topic: str, into: list[FetchedPartition]) -> int:
    log_start = -1
    if version >= 5:
        partition, error, high_watermark, _, log_start = _PARTITION_5.unpack_from(view, at)
        at += _PARTITION_5.size
    elif version == 4:
        partition, error, high_watermark, _ = _PARTITION_4.unpack_from(view, at)
        at += _PARTITION_4.size
    else:
        partition, error, high_watermark = _PARTITION.unpack_from(view, at)
        at += _PARTITION.size
    aborted: tuple[tuple[int, int], ...] = ()
    if version >= 4:
        (count,) = _INT32(view, at)
        at += 4
        if _checked(count):
            size = count * _ABORTED.size
            aborted = tuple(_ABORTED.iter_unpack(_slice(view, at, size)))
            at += size
    if version >= 11:
        at += 4  # the preferred read replica: told only to those who name their rack
    (size,) = _INT32(view, at)
    at += 4
    records = b""
    if _checked(size):
        records = bytes(_slice(view, at, size))
        at += size
    into.append(FetchedPartition(topic, partition, error, high_watermark, log_start, aborted, records))
    return at


def _checked(count: int) -> int:
    """A length or count; -1 stands for null, which means nothing here; less is no length."""
    if count < -1:
        raise ValueError(f"negative length {count}")
    return max(count, 0)


def _slice(view: memoryview, at: int, length: int) -> memoryview:
    """``length`` bytes from ``at``; a slice of Python would silently be shorter at the end."""
    if length < 0 or at + length > len(view):
        raise ValueError(f"{length} bytes at {at} do not lie within the {len(view)} of the answer")
    return view[at : at + length]
