"""Message formats 0 and 1 (brokers before 0.11, and what newer ones convert down): single messages, compressed in
wrappers.

Pure. Written by hand instead of using aiokafka's class, for three reasons: that class trusts the lengths inside a
compressed set (a corrupt one can make it read outside its memory or loop for ever), gives one batch object for each
uncompressed message, and does not read LZ4 of format 0. The records handed out are aiokafka's format 2 record
objects, so that whoever iterates sees one kind: ``timestamp`` is -1 and ``timestamp_type`` -1 where the format has
none (format 0).

Mirrors the original's ByteBufferMessageSet: the CRC of each message is checked (inner ones too), the offsets inside a
format 1 wrapper are relative to the wrapper's (KIP-31), LogAppendTime of the wrapper overrides the inner timestamps.
"""

from __future__ import annotations

from struct import Struct
from typing import Any, NamedTuple
from zlib import crc32

from aiokafka.record.default_records import DefaultRecord

from zkconsumer.brokers.compression import decompress
from zkconsumer.brokers.heads import CODEC, MalformedSetError
from zkconsumer.brokers.record_batch import DECODED_BYTES

RUN_LIMIT = 512  # uncompressed messages that make one batch: enough to spread its cost, few enough to hold

_HEAD = Struct(">qiIbB").unpack_from  # offset, size, CRC, magic, attributes
_TIME_AND_KEY = Struct(">qi").unpack_from  # what follows in format 1
_INT32 = Struct(">i").unpack_from
_START = 12  # offset and size
_SUMMED = 16  # where the part begins that the CRC is of
_BODY = 18  # where format 0 has the key, and format 1 the timestamp
_SMALLEST = 26  # the bytes of a message of format 0 with empty key and value
_LOG_APPEND_TIME = 0x08


class Run(NamedTuple):
    """Some messages that were read together.

    ``end`` is where the next one starts; ``next_offset`` the offset after the last (in a wrapper: after the wrapper's
    own).
    """

    records: list[Any]
    end: int
    next_offset: int


def read_run(data: bytes, at: int, end: int, check_crc: bool) -> Run:
    """The messages from ``at``: one wrapper's content, or a run of uncompressed ones.

    Arguments: ``data`` up to ``end`` is a message set whose messages are complete from ``at`` on as far as their
    sizes say; the last may be cut off, then the run ends before it. Raises MalformedSetError if the first message is
    corrupt; a corrupt one after it ends the run.
    """
    records: list[Any] = []
    view = memoryview(data)
    next_offset = -1
    enough = at + DECODED_BYTES
    while at + _SMALLEST <= end and at < enough and len(records) < RUN_LIMIT:
        offset, size, stored, magic, attributes = _HEAD(data, at)
        stop = at + _START + size
        if stop > end or (records and (magic > 1 or attributes & CODEC)):
            break
        try:
            _check(view, at, stop, offset, magic, stored if check_crc else None)
            if attributes & CODEC:
                return Run(_unwrapped(data, at, stop, check_crc), stop, offset + 1)
            records.append(_record(data, at, stop, magic, attributes, offset, None))
        except MalformedSetError:
            if not records:
                raise
            break
        at, next_offset = stop, offset + 1
    return Run(records, at, next_offset)


def _check(view: memoryview, at: int, stop: int, offset: int, magic: int, stored: int | None) -> None:
    """Refuse a message whose head makes no sense or whose checksum is not the stored one (None: not asked for)."""
    if stop - at < _SMALLEST or offset < 0 or not 0 <= magic <= 1:
        raise MalformedSetError(f"a message says that its size is {stop - at - _START}, its format {magic}")
    if stored is not None:
        computed = crc32(view[at + _SUMMED : stop])
        if computed != stored:
            raise MalformedSetError(f"its checksum is {computed:#010x}, not {stored:#010x} as it says")


def _record(data: bytes, at: int, stop: int, magic: int, attributes: int, offset: int, stamp: int | None) -> Any:
    """One message. Arguments: ``stamp`` is the time of appending that its wrapper says, None for the message's own."""
    body = at + _BODY
    if magic:
        if body + 16 > stop:
            raise MalformedSetError("it is cut short")
        timestamp, length = _TIME_AND_KEY(data, body)
        kind = 1 if attributes & _LOG_APPEND_TIME else 0
        body += 12
        if stamp is not None:
            timestamp, kind = stamp, 1
    else:
        timestamp = kind = -1
        (length,) = _INT32(data, body)
        body += 4
    key = value = None
    if length != -1:
        if length < 0 or body + length + 4 > stop:
            raise MalformedSetError(f"a key of {length} bytes does not lie within it")
        key = data[body : body + length]
        body += length
    (length,) = _INT32(data, body)
    body += 4
    if length != -1:
        value = data[body : body + length]
        body += length
    if body != stop or length < -1:
        raise MalformedSetError(f"a value of {length} bytes does not end where it does")
    return DefaultRecord(offset, timestamp, kind, key, value, [])


def _unwrapped(data: bytes, at: int, stop: int, check_crc: bool) -> list[Any]:
    """The messages inside a wrapper, with their absolute offsets."""
    offset, _, _, magic, attributes = _HEAD(data, at)
    wrapper = _record(data, at, stop, magic, attributes, offset, None)
    if wrapper.value is None:
        raise MalformedSetError("it is a wrapper without content")
    try:
        content = decompress(attributes & CODEC, wrapper.value, magic)
    except ValueError as failure:
        raise MalformedSetError(str(failure)) from failure
    heads = _inner_heads(content, magic, check_crc)
    base = offset - heads[-1][0] if magic else 0
    if base < 0:
        raise MalformedSetError(f"offset {offset} is before that of its last inner message")
    stamp = wrapper.timestamp if wrapper.timestamp_type == 1 else None
    return [
        _record(content, begin, until, magic, inner_attributes, base + inner, stamp)
        for inner, begin, until, inner_attributes in heads
    ]


def _inner_heads(content: bytes, magic: int, check_crc: bool) -> list[tuple[int, int, int, int]]:
    """(offset as written, start, end, attributes) of each inner message; all of them must be whole."""
    heads: list[tuple[int, int, int, int]] = []
    view = memoryview(content)
    at, end = 0, len(content)
    while at < end:
        if end - at < _SMALLEST:
            raise MalformedSetError("its content is cut off")
        offset, size, stored, inner_magic, attributes = _HEAD(content, at)
        stop = at + _START + size
        if stop > end:
            raise MalformedSetError("its content is cut off")
        if inner_magic != magic:
            raise MalformedSetError(f"a message of format {inner_magic} is inside")
        if attributes & CODEC:
            raise MalformedSetError("a compressed message is inside")
        _check(view, at, stop, offset, magic, stored if check_crc else None)
        heads.append((offset, at, stop, attributes))
        at = stop
    if not heads:
        raise MalformedSetError("it is a wrapper without content")
    return heads
