"""Writes the question for a fetch, versions 0 to 11.

Pure; called by the fetcher thread. aiokafka's own classes write the same bytes, and the tests compare; but they walk a
schema for each field, which took a tenth of all that a small answer costs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from operator import itemgetter
from struct import Struct
from typing import Any

from zkconsumer.brokers.protocol import FETCH, FetchPosition, FetchRequest
from zkconsumer.model import TopicPartition

_HEADER = Struct(">ihhih").pack  # length of what follows, kind, version, correlation id, length of the client id
_HEADER_SIZE = 10  # of it, what the length counts
_WAIT = Struct(">iii").pack  # replica, wait in ms, least bytes
_WAIT_3 = Struct(">iiii").pack  # + most bytes
_WAIT_4 = Struct(">iiiib").pack  # + isolation level
_WAIT_7 = Struct(">iiiibii").pack  # + session id, epoch
_POSITION = Struct(">iqi").pack  # partition, offset, bytes
_POSITION_5 = Struct(">iqqi").pack  # + the log's start (replicas only), before the bytes
_POSITION_9 = Struct(">iiqqi").pack  # + the leader's epoch, before the offset
_INT16 = Struct(">h").pack
_INT32 = Struct(">i").pack

_CONSUMER = -1  # the replica id of somebody who is no replica
_UNKNOWN = -1
_INT32_MAX = 2**31 - 1
_NO_RACK = b"\0\0"  # the leader itself shall answer
_NOTHING = _INT32(0)


def encode(version: int, request: FetchRequest, correlation_id: int, client_id: bytes) -> bytes:
    """The request as it goes over the wire, length included; what the version cannot say is left out."""
    parts = [client_id, _limits(version, request), _topics(request.positions, _position(version))]
    if version >= 7:
        parts.append(_topics(request.forgotten, _forgotten) if request.forgotten else _NOTHING)
    if version >= 11:
        parts.append(_NO_RACK)
    body = b"".join(parts)
    return _HEADER(_HEADER_SIZE + len(body), FETCH.key, version, correlation_id, len(client_id)) + body


def _limits(version: int, request: FetchRequest) -> bytes:
    wait = min(max(round(request.max_wait * 1000), 0), _INT32_MAX)
    if version < 3:
        return _WAIT(_CONSUMER, wait, request.min_bytes)
    most = min(request.max_bytes, _INT32_MAX)
    if version < 4:
        return _WAIT_3(_CONSUMER, wait, request.min_bytes, most)
    if version < 7:
        return _WAIT_4(_CONSUMER, wait, request.min_bytes, most, request.isolation_level)
    session = request.session_id, request.session_epoch
    return _WAIT_7(_CONSUMER, wait, request.min_bytes, most, request.isolation_level, *session)


def _position(version: int) -> Callable[[FetchPosition], bytes]:
    if version >= 9:
        return lambda p: _POSITION_9(p[1], _UNKNOWN, p[2], _UNKNOWN, p[3])
    if version >= 5:
        return lambda p: _POSITION_5(p[1], p[2], _UNKNOWN, p[3])
    return lambda p: _POSITION(p[1], p[2], p[3])


def _forgotten(tp: TopicPartition) -> bytes:
    return _INT32(tp[1])


def _topics(parts: Sequence[Any], write: Callable[[Any], bytes]) -> bytes:
    """Runs of equal topics become one entry; the order stays, since it decides who is served first."""
    runs = [(topic.encode(), [write(part) for part in run]) for topic, run in groupby(parts, itemgetter(0))]
    written = [_INT32(len(runs))]
    for name, entries in runs:
        written += (_INT16(len(name)), name, _INT32(len(entries)), *entries)
    return b"".join(written)
