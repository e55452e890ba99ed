"""Batches of format 2 as the two quick ways to columns take them. Pure.

Bytes that look strange raise ``StrangeBytesError``, and the caller reads the same batches record by record. That way
says what is wrong with them, and where.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from zkconsumer.kafka.batch_headers import CODEC
from zkconsumer.kafka.compression import decompress

# attributes, last offset delta, first and max timestamp, producer id, producer epoch, base sequence, count of records
_HEAD = Struct(">hiqqqhii").unpack_from
_BASE = Struct(">q").unpack_from
_ATTRIBUTES = 21
_CONTENT = 61
_LOG_APPEND_TIME = 0x08

FROM_ANYWHERE: Final = -(2**63)
"""A ``first`` that every offset is after."""
NO_END: Final = 2**63 - 1
LARGEST_MS: Final = (2**63 - 1) // 1000
"""The largest timestamp that microseconds of 64 bits express."""


class StrangeBytesError(Exception):
    """The bytes are not as expected; the caller reads them record by record instead."""


class Block(NamedTuple):
    """A batch with its records unpacked.

    ``data`` holds ``total`` records, of which those from offset ``first`` on and before ``end`` are wanted.
    """

    data: memoryview
    total: int
    base_offset: int
    last_offset: int
    first_timestamp: int
    append_time: int | None
    first: int
    end: int


def block(view: memoryview, first: int, end: int | None, limit: int) -> Block:
    """Return the content of a batch of format 2, decompressed to at most ``limit`` bytes; see ``Block`` for the rest.

    Raises: StrangeBytesError.
    """
    attributes, last, oldest, newest, _, _, _, count = _HEAD(view, _ATTRIBUTES)
    data = view[_CONTENT:]
    if attributes & CODEC:
        try:
            data = decompress(attributes & CODEC, data, 2, limit)
        except ValueError as error:
            raise StrangeBytesError from error
    append_time = newest if attributes & _LOG_APPEND_TIME else None
    base = _BASE(view)[0]
    return Block(data, count, base, base + last, oldest, append_time, first, NO_END if end is None else end)
