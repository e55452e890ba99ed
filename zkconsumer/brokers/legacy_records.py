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
from zkconsumer.brokers.heads import MalformedSetError

RUN_LIMIT = 512  # uncompressed messages that make one batch: enough to spread its cost, few enough to hold

_HEAD = Struct(">qiIbB").unpack_from  # offset, size, CRC, magic, attributes
_INT32 = Struct(">i").unpack_from
_INT64 = Struct(">q").unpack_from
_OVERHEAD = 12  # offset and size
_BODY = 18  # where a message of format 0 has its key; format 1 has the timestamp there
_SMALLEST = (26, 34)  # of a message by format, with empty key and value
_CODEC = 0x07
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
    next_offset = -1
    while at + _OVERHEAD <= end and len(records) < RUN_LIMIT:
        try:
            offset, stop, magic, attributes = _head(data, at, end)
            if stop > end or (records and (magic > 1 or attributes & _CODEC)):
                break
            if check_crc:
                _check_crc(data, at, stop)
            if attributes & _CODEC:
                return Run(_unwrapped(data, at, stop, check_crc), stop, offset + 1)
            records.append(_record(data, at, stop, magic, attributes, offset))
        except MalformedSetError:
            if not records:
                raise
            break
        at, next_offset = stop, offset + 1
    return Run(records, at, next_offset)


def _head(data: bytes, at: int, end: int) -> tuple[int, int, int, int]:
    """(offset, end, magic, attributes) of the message at ``at``; the end may lie beyond ``end``."""
    (size,) = _INT32(data, at + 8)
    if size < _SMALLEST[0] - _OVERHEAD:
        raise MalformedSetError(f"its size is {size}")
    stop = at + _OVERHEAD + size
    if at + _BODY > end:
        return -1, stop, 0, 0  # cut off before its head is complete
    offset, _, _, magic, attributes = _HEAD(data, at)
    if offset < 0:
        raise MalformedSetError(f"its offset is {offset}")
    if magic in (0, 1):
        if size < _SMALLEST[magic] - _OVERHEAD:
            raise MalformedSetError(f"its size is {size}")
    elif magic < 0:
        raise MalformedSetError(f"its format is {magic}")
    return offset, stop, magic, attributes


def _check_crc(data: bytes, at: int, stop: int) -> None:
    (stored,) = _CRC(data, at + _OVERHEAD)
    computed = crc32(memoryview(data)[at + 16 : stop])
    if stored != computed:
        raise MalformedSetError(f"its checksum is {computed:#010x}, not {stored:#010x} as it says")


_CRC = Struct(">I").unpack_from


def _record(data: bytes, at: int, stop: int, magic: int, attributes: int, offset: int) -> Any:
    timestamp, kind = -1, -1
    body = at + _BODY
    if magic == 1:
        (timestamp,) = _INT64(data, body)
        kind = 1 if attributes & _LOG_APPEND_TIME else 0
        body += 8
    key, body = _field(data, body, stop)
    value, body = _field(data, body, stop)
    if body != stop:
        raise MalformedSetError(f"{stop - body} bytes follow its value")
    return DefaultRecord(offset, timestamp, kind, key, value, [])


def _field(data: bytes, at: int, stop: int) -> tuple[bytes | None, int]:
    """A key or value and where the next field starts; a length of -1 is null."""
    start = at + 4
    if start > stop:
        raise MalformedSetError("a length lies outside of it")
    (length,) = _INT32(data, at)
    if length < 0:
        if length != -1:
            raise MalformedSetError(f"a field has the length {length}")
        return None, start
    if start + length > stop:
        raise MalformedSetError(f"a field of {length} bytes lies outside of it")
    return data[start : start + length], start + length


def _unwrapped(data: bytes, at: int, stop: int, check_crc: bool) -> list[Any]:
    """The messages inside a wrapper, with their absolute offsets."""
    offset, _, _, magic, attributes = _HEAD(data, at)
    body = at + _BODY + 8 * magic
    _, body = _field(data, body, stop)
    packed, body = _field(data, body, stop)
    if packed is None or body != stop:
        raise MalformedSetError("it is a wrapper without content")
    try:
        content = decompress(attributes & _CODEC, packed, magic)
    except ValueError as failure:
        raise MalformedSetError(str(failure)) from failure
    heads = _inner_heads(content, magic, check_crc)
    base = offset - heads[-1][0] if magic == 1 else 0
    if base < 0:
        raise MalformedSetError(f"offset {offset} is before that of its last inner message")
    override = magic == 1 and attributes & _LOG_APPEND_TIME
    (stamp,) = _INT64(data, at + _BODY) if override else (-1,)
    records = []
    for inner, begin, until, inner_attributes in heads:
        record = _record(content, begin, until, magic, inner_attributes, base + inner)
        if override:
            record = DefaultRecord(record.offset, stamp, 1, record.key, record.value, [])
        records.append(record)
    return records


def _inner_heads(content: bytes, magic: int, check_crc: bool) -> list[tuple[int, int, int, int]]:
    """(offset as written, start, end, attributes) of each inner message; all of them must be whole."""
    heads: list[tuple[int, int, int, int]] = []
    at, end = 0, len(content)
    while at < end:
        if end - at < _SMALLEST[0]:
            raise MalformedSetError("its content is cut off")
        offset, stop, inner_magic, attributes = _head(content, at, end)
        if stop > end:
            raise MalformedSetError("its content is cut off")
        if inner_magic != magic:
            raise MalformedSetError(f"a message of format {inner_magic} is inside")
        if attributes & _CODEC:
            raise MalformedSetError("a compressed message is inside")
        if check_crc:
            _check_crc(content, at, stop)
        heads.append((offset, at, stop, attributes))
        at = stop
    if not heads:
        raise MalformedSetError("it is a wrapper without content")
    return heads
