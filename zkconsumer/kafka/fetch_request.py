"""Writes a fetch request, versions 0 to 11. Pure; the fetcher thread calls it.

The schema in ``broker_schemas.py`` gives the same bytes, and the tests compare them. But it makes a dictionary of each
partition and walks its fields, which takes longer than to read a small response.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import groupby
from operator import itemgetter
from struct import Struct
from typing import Any

from zkconsumer.kafka.broker_schemas import FETCH
from zkconsumer.kafka.requests import FetchPosition, FetchRequest
from zkconsumer.model import TopicPartition

_HEADER = Struct(">ihhih").pack  # length of the rest, kind, version, correlation id, length of the client id
_HEADER_SIZE = 10  # bytes of it that the length counts
_WAIT = Struct(">iii").pack  # replica, wait in ms, least bytes
_WAIT_3 = Struct(">iiii").pack  # + most bytes
_WAIT_4 = Struct(">iiiib").pack  # + isolation level
_WAIT_7 = Struct(">iiiibii").pack  # + session id, epoch
_POSITION = Struct(">iqi").pack  # partition, offset, bytes
_POSITION_5 = Struct(">iqqi").pack  # + the log's start (replicas only), before the bytes
_POSITION_9 = Struct(">iiqqi").pack  # + the leader's epoch, before the offset
_INT16 = Struct(">h").pack
_INT32 = Struct(">i").pack

_CONSUMER = -1  # the replica id of a client that is no replica
_UNKNOWN = -1
_NEWEST = 11
_INT32_MAX = 2**31 - 1
_NO_RACK = b"\0\0"  # the leader itself shall answer
_NOTHING = _INT32(0)


def encode(version: int, request: FetchRequest, correlation_id: int, client_id: bytes) -> bytes:
    """Return the request as its bytes, length included; fields that the version does not have are left out."""
    if version == _NEWEST and len(request[0]) == 1 and not request[7]:
        return _one_partition(request, correlation_id, client_id)
    body = client_id + _limits(version, request) + _topics(request.positions, _position(version))
    if version >= 7:
        body += _topics(request.forgotten, _forgotten) if request.forgotten else _NOTHING
    if version >= 11:
        body += _NO_RACK
    return _HEADER(_HEADER_SIZE + len(body), FETCH.key, version, correlation_id, len(client_id)) + body


def _one_partition(request: FetchRequest, correlation_id: int, client_id: bytes) -> bytes:
    """Return a request of the newest version for one partition, as most are where the broker remembers."""
    positions, seconds, least, most, level, session, epoch, _ = request
    topic, partition, offset, size = positions[0]
    name = topic.encode()
    pack, length = _one_layout(len(client_id), len(name))
    head = (length, FETCH.key, _NEWEST, correlation_id, len(client_id), client_id)
    limits = (_CONSUMER, min(round(seconds * 1000), _INT32_MAX), least, min(most, _INT32_MAX), level, session, epoch)
    return pack(*head, *limits, 1, len(name), name, 1, partition, _UNKNOWN, offset, _UNKNOWN, size, 0, 0)


@cache
def _one_layout(client: int, topic: int) -> tuple[Callable[..., bytes], int]:
    """Return the packer of such a request, and the request's length, for names of ``client`` and ``topic`` bytes."""
    layout = Struct(f">ihhih{client}siiiibiiih{topic}siiiqqiih")
    return layout.pack, layout.size - 4


def _limits(version: int, request: FetchRequest) -> bytes:
    _, seconds, least, most, level, session, epoch, _ = request
    wait = min(round(seconds * 1000), _INT32_MAX)
    most = min(most, _INT32_MAX)
    if version >= 7:
        return _WAIT_7(_CONSUMER, wait, least, most, level, session, epoch)
    if version >= 4:
        return _WAIT_4(_CONSUMER, wait, least, most, level)
    return _WAIT_3(_CONSUMER, wait, least, most) if version == 3 else _WAIT(_CONSUMER, wait, least)


def _position(version: int) -> Callable[[FetchPosition], bytes]:
    return _position_9 if version >= 9 else _position_5 if version >= 5 else _position_0


def _position_9(position: FetchPosition) -> bytes:
    _, partition, offset, size = position
    return _POSITION_9(partition, _UNKNOWN, offset, _UNKNOWN, size)


def _position_5(position: FetchPosition) -> bytes:
    _, partition, offset, size = position
    return _POSITION_5(partition, offset, _UNKNOWN, size)


def _position_0(position: FetchPosition) -> bytes:
    _, partition, offset, size = position
    return _POSITION(partition, offset, size)


def _forgotten(tp: TopicPartition) -> bytes:
    return _INT32(tp[1])


def _topics(parts: Sequence[Any], write: Callable[[Any], bytes]) -> bytes:
    """Write runs of equal topics as one entry; the order stays, since it decides which partition is served first."""
    if not parts:
        return _NOTHING
    runs = [(topic.encode(), [write(part) for part in run]) for topic, run in groupby(parts, itemgetter(0))]
    written = [_INT32(len(runs))]
    for name, entries in runs:
        written += (_INT16(len(name)), name, _INT32(len(entries)), *entries)
    return b"".join(written)
