"""Reads a batch of format 2 in Python, if the compiled reader refuses a batch that is sound. Pure.

That happens for one reason: header names that are not UTF-8. Java clients write and read any bytes there, replacing
those that are no text. The original never saw headers, so such a message must not stop a group. Slow, and used for such
batches only.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Any

from aiokafka.record.default_records import DefaultRecord

# attributes, last offset delta, first and max timestamp, producer id, producer epoch, base sequence, count of records
_HEAD = Struct(">hiqqqhii").unpack_from
_ATTRIBUTES = 21
_CONTENT = 61
_LOG_APPEND_TIME = 0x08


def read_leniently(view: memoryview) -> Iterator[Any]:
    """Return the records of an uncompressed batch; bytes of a header's name that are no UTF-8 become U+FFFD.

    Raises: ValueError, IndexError or OverflowError if the batch is corrupt.
    """
    base = int.from_bytes(view[:8], "big")
    attributes, _, first, last, _, _, _, total = _HEAD(view, _ATTRIBUTES)
    content = view[_CONTENT:]
    at = 0
    for _ in range(total):
        _, at = _varint(content, at)
        delta, at = _varint(content, at + 1)  # after the record's attributes, of which there are none yet
        offset, at = _varint(content, at)
        key, at = _field(content, at)
        value, at = _field(content, at)
        headers, at = _headers(content, at)
        stamp, kind = (last, 1) if attributes & _LOG_APPEND_TIME else (first + delta, 0)
        yield DefaultRecord(base + offset, stamp, kind, key, value, headers)


def _headers(content: memoryview, at: int) -> tuple[list[tuple[str, bytes | None]], int]:
    count, at = _varint(content, at)
    headers = []
    for _ in range(count):
        name, at = _field(content, at)
        value, at = _field(content, at)
        if name is None:
            raise ValueError("a header without a name")
        headers.append((name.decode("utf-8", "replace"), value))
    return headers, at


def _field(content: memoryview, at: int) -> tuple[bytes | None, int]:
    length, at = _varint(content, at)
    if length < 0:
        return None, at
    if at + length > len(content):
        raise ValueError(f"a field of {length} bytes does not lie within the batch")
    return bytes(content[at : at + length]), at + length


def _varint(content: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 70:
        byte = content[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value >> 1 ^ -(value & 1), at
        shift += 7
    raise ValueError("a number of more than ten bytes")
