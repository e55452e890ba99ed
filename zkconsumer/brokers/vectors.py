"""Columns straight from the bytes of batches of format 2, by vector operations; only where numpy is installed.

Pure, one thread at a time. Nothing here is needed: whatever looks strange raises ``StrangeBytesError``, and the
caller reads the same batches record by record, which says what is wrong with them, and where.

How: a record's length is the first thing in it, so where records begin can be told without reading them, one after
the other. That is guessed from the bytes first, for all records at once, and a guess counts where the chain of lengths
leads to it; from where it does not, a short loop goes on. Then every field is read for all records at once.
Keys and values are never Python objects: Arrow copies them out of the fetched bytes in one go.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate, pairwise
from struct import Struct
from typing import Any, Final, NamedTuple

from zkconsumer.brokers.compression import decompress

try:
    import numpy as np
except ImportError:  # pragma: no cover - the tests' environment has it
    np = None  # type: ignore[assignment]

AVAILABLE: Final[bool] = np is not None

# attributes, last offset delta, first and max timestamp, producer id, producer epoch, base sequence, count of records
_HEAD = Struct(">hiqqqhii").unpack_from
_BASE = Struct(">q").unpack_from
_ATTRIBUTES = 21
_CONTENT = 61
_CODEC = 0x07
_LOG_APPEND_TIME = 0x08
_PATIENCE = 64  # records to walk one by one before the next look for a likely one
_LONGEST_WALK = 8192
_STRIP = 100_000  # bytes that are looked at together: their temporary vectors fit into the processor's cache
_FEWEST_OTHERS = 4
_LARGEST = 2**31 - 1
_NO_END = 2**63 - 1


class StrangeBytesError(Exception):
    """The bytes are not as expected; read them with care instead."""


class Block(NamedTuple):
    """A batch with its records unpacked: ``data`` holds ``total`` of them, of which those from offset ``first`` on and
    before ``end`` are wanted.
    """

    data: bytes | memoryview
    total: int
    base_offset: int
    first_timestamp: int
    append_time: int | None
    first: int
    end: int


class Fields(NamedTuple):
    """What the records of some blocks say, as vectors; ``starts`` and ``sizes`` (-1: null) of keys and values in
    ``data``.
    """

    data: bytes
    offsets: Any
    timestamps: Any
    timestamp_types: Any
    key_starts: Any
    key_sizes: Any
    value_starts: Any
    value_sizes: Any


def block(view: memoryview, first: int, end: int | None) -> Block:
    """The content of a batch of format 2, decompressed; see ``Block`` for the rest. Raises StrangeBytesError."""
    attributes, _, oldest, newest, _, _, _, count = _HEAD(view, _ATTRIBUTES)
    data: bytes | memoryview = view[_CONTENT:]
    if attributes & _CODEC:
        try:
            data = decompress(attributes & _CODEC, bytes(data), 2)
        except ValueError as error:
            raise StrangeBytesError from error
    append_time = newest if attributes & _LOG_APPEND_TIME else None
    return Block(data, count, _BASE(view)[0], oldest, append_time, first, _NO_END if end is None else end)


def read_fields(blocks: Sequence[Block]) -> Fields:
    """All fields but the headers, of the wanted records. Raises StrangeBytesError."""
    data, begins = _together(blocks)
    if len(data) > _LARGEST:
        raise StrangeBytesError
    starts, ends = _boundaries(data, blocks, begins)
    counts = [part.total for part in blocks]
    buffer = np.frombuffer(data, np.uint8)
    stamp_deltas, at = _varints(buffer, starts + 1)  # after the record's attributes, of which there are none yet
    offset_deltas, at = _varints(buffer, at)
    key_sizes, key_starts = _varints(buffer, at)
    value_sizes, value_starts = _varints(buffer, key_starts + np.maximum(key_sizes, 0))
    headers = value_starts + np.maximum(value_sizes, 0)
    smallest = min(int(key_sizes.min()), int(value_sizes.min()))
    # at least the number of headers follows; where it says none, nothing else does
    bare = buffer.take(headers, mode="clip") == 0
    fits = np.where(bare, headers + 1 == ends, headers < ends) & (key_sizes < ends) & (value_sizes < ends)
    if smallest < -1 or not fits.all():
        raise StrangeBytesError
    offsets = np.repeat(np.array([part.base_offset for part in blocks], np.int64), counts) + offset_deltas
    timestamps = np.repeat(np.array([part.first_timestamp for part in blocks], np.int64), counts) + stamp_deltas
    kinds = np.repeat(np.array([part.append_time is not None for part in blocks], np.int32), counts)
    if kinds.any():
        appended = np.array([part.append_time or 0 for part in blocks], np.int64)
        timestamps = np.where(kinds == 1, np.repeat(appended, counts), timestamps)
    fields = Fields(data, offsets, timestamps, kinds, key_starts, key_sizes, value_starts, value_sizes)
    wanted = (offsets >= np.repeat(np.array([part.first for part in blocks], np.int64), counts)) & (
        offsets < np.repeat(np.array([part.end for part in blocks], np.int64), counts)
    )
    return fields if wanted.all() else Fields(data, *(vector[wanted] for vector in fields[1:]))


def binary_array(data: bytes, starts: Any, sizes: Any) -> Any:
    """Pieces of ``data`` as an Arrow array; a piece of negative size is null."""
    import pyarrow as pa

    count = len(starts)
    if not count:
        return pa.array([], pa.binary())
    # Arrow wants pieces that touch: so the gaps are pieces too, and then only the others are taken.
    edges = np.empty(2 * count + 1, np.int32)
    edges[0:-1:2] = starts
    edges[1::2] = starts + np.maximum(sizes, 0)
    edges[-1] = edges[-2]
    pieces = pa.Array.from_buffers(pa.binary(), 2 * count, [None, pa.py_buffer(edges), pa.py_buffer(data)])
    null = sizes < 0
    return pieces.take(pa.array(np.arange(0, 2 * count, 2, dtype=np.int32), mask=null if null.any() else None))


def timestamp_array(milliseconds: Any, largest: int) -> Any:
    """Microseconds as an Arrow array; -1 and what is beyond ``largest`` is null."""
    import pyarrow as pa

    null = (milliseconds == -1) | (milliseconds > largest) | (milliseconds < -largest)
    array_ = pa.array(milliseconds * 1000, pa.int64(), mask=null if null.any() else None)
    return array_.view(pa.timestamp("us", tz="UTC"))


def column(fields: Fields, name: str, largest_timestamp: int) -> Any:
    """One column as an Arrow array. Arguments: ``largest_timestamp`` in ms; what is beyond becomes null."""
    import pyarrow as pa

    if name == "key":
        return binary_array(fields.data, fields.key_starts, fields.key_sizes)
    if name == "value":
        return binary_array(fields.data, fields.value_starts, fields.value_sizes)
    if name == "timestamp":
        return timestamp_array(fields.timestamps, largest_timestamp)
    return pa.array(fields.offsets if name == "offset" else fields.timestamp_types)


# ---- where records begin


def _together(blocks: Sequence[Block]) -> tuple[bytes, list[int]]:
    """Bytes that hold all blocks, and where each begins in them: what was fetched, as it is, where the blocks are parts
    of it, since a copy of its size costs more than all else.
    """
    whole = blocks[0].data.obj if isinstance(blocks[0].data, memoryview) else None
    if isinstance(whole, bytes) and all(
        isinstance(part.data, memoryview) and part.data.obj is whole for part in blocks
    ):
        first = _address(whole)
        begins = [_address(part.data) - first for part in blocks]
        if all(one < other for one, other in pairwise(begins)):
            return whole, begins
    return b"".join(part.data for part in blocks), [0, *accumulate(len(part.data) for part in blocks)][:-1]


def _address(data: bytes | memoryview) -> int:
    return int(np.frombuffer(data, np.uint8).__array_interface__["data"][0]) if len(data) else 0


def _boundaries(data: bytes, blocks: Sequence[Block], begins: Sequence[int]) -> tuple[Any, Any]:
    """Where each record begins (after its length) and ends."""
    totals = [part.total for part in blocks]
    finishes = [begin + len(part.data) for begin, part in zip(begins, blocks, strict=True)]
    if min(totals) < 1 or any(begin >= end for begin, end in zip(begins, finishes, strict=True)):
        raise StrangeBytesError
    buffer = np.frombuffer(data, np.uint8)
    try:
        lengths_at = _chain(data, buffer, list(zip(begins, finishes, totals, strict=True)))
    except IndexError as error:
        raise StrangeBytesError from error
    starts = lengths_at + 1
    more = np.flatnonzero(buffer[lengths_at] > 127)
    while more.size:
        byte = buffer[starts[more]]
        starts[more] += 1
        more = more[byte > 127]
    ends = np.empty_like(lengths_at)
    ends[:-1] = lengths_at[1:]
    ends[np.cumsum(totals) - 1] = finishes
    return starts, ends


def _chain(data: bytes, buffer: Any, spans: Sequence[tuple[int, int, int]]) -> Any:
    """Where the length of each record stands, of spans (begin, end, number of records) that hold nothing else.

    Raises StrangeBytesError or IndexError where they do.
    """
    likely = _likely(buffer, np.array([begin for begin, _, _ in spans], np.int64), spans[-1][1])
    following = _following(buffer, likely)
    firsts = likely.searchsorted([begin for begin, _, _ in spans]).tolist()
    # the indexes at which a likely place does not lead to the next one, or should not
    breaks = {*np.flatnonzero(following[:-1] != likely[1:]).tolist(), *(first - 1 for first in firsts), len(likely) - 1}
    stops = sorted(breaks)
    parts: list[Any] = []
    patience = _PATIENCE
    for known, (_, end, left) in zip(firsts, spans, strict=True):
        while True:
            # from one that is right the next is right as well, as long as each leads to the next
            last = stops[bisect_left(stops, known)]
            parts.append(likely[known : last + 1])
            left -= last + 1 - known
            at = int(following[last])
            while left > 0 and at < end:
                known = int(likely.searchsorted(at))
                if known < len(likely) and likely[known] == at:
                    break
                walked, at = _walk(data, at, min(patience, left))
                parts.append(walked)
                left -= len(walked)
                patience = min(2 * patience, _LONGEST_WALK)
            else:
                if left or at != end:
                    raise StrangeBytesError
                break
    return np.concatenate(parts)


def _likely(buffer: Any, begins: Any, finish: int) -> Any:
    """Where lengths of records probably stand, those among them that surely do (``begins``), in order; nothing before
    the first of these and from ``finish`` on is looked at, since what was fetched may be many times that.

    A record without headers ends with 0 (their number); the next begins with its length, of one byte or two unless it
    is large, and then 0 (its attributes). Text has no 0 in it, and other data seldom in this way.
    """
    found = []
    for low in range(int(begins[0]), finish, _STRIP):
        strip = buffer[low : min(low + _STRIP + 3, finish)]
        zeros = np.flatnonzero(strip == 0)
        if len(zeros) > len(strip) // _FEWEST_OTHERS:
            continue  # not worth being looked at
        gaps = zeros[1:] - zeros[:-1]
        at = zeros[:-1][(gaps == 2) | (gaps == 3)] + 1
        at = at[(strip[at] > 127) == (strip[at + 1] != 0)]
        found.append(low + at[at <= _STRIP])  # those behind it are the next strip's
    likely = np.concatenate(found) if found else begins[:0]
    places = likely.searchsorted(begins)
    new = likely.take(places, mode="clip") != begins if len(likely) else np.ones(len(begins), bool)
    return np.insert(likely, places[new], begins[new])


def _following(buffer: Any, at: Any) -> Any:
    """Where the record behind each of these ends, -1 where its length is none, or one of more than two bytes."""
    first = buffer[at].astype(np.int64)
    second = buffer.take(at + 1, mode="clip").astype(np.int64)
    short = first < 128
    ends = at + np.where(short, 1 + (first >> 1), (first >> 1) + (second << 6) - 62)
    return np.where((first & 1 == 0) & (short | (second < 128)), ends, -1)


def _walk(data: bytes, at: int, count: int) -> tuple[Any, int]:
    """Where the lengths of the next records stand, one by one, and where the last one ends. Raises IndexError beyond
    the data.
    """
    found = [0] * count
    for number in range(count):
        found[number] = at
        size = data[at]
        if size < 128:
            at += 1 + (size >> 1)
        else:
            more = data[at + 1]
            if more < 128:
                at += (size >> 1) + (more << 6) - 62
            else:
                at = _after_long(data, at)
        if size & 1:
            raise StrangeBytesError  # a negative length
    return np.array(found, np.int64), at


def _after_long(data: bytes, at: int) -> int:
    """Where a record ends whose length takes more than two bytes."""
    size = shift = 0
    while shift <= 28:
        byte = data[at]
        at += 1
        size |= (byte & 127) << shift
        if byte < 128:
            return at + (size >> 1)
        shift += 7
    raise StrangeBytesError


def _varints(buffer: Any, at: Any) -> tuple[Any, Any]:
    """A number at each position, and the positions after them. Positions outside of the data give wrong numbers."""
    byte = buffer.take(at, mode="clip").astype(np.int64)
    value = byte & 127
    at = at + 1
    more = np.flatnonzero(byte > 127)
    shift = 7
    while more.size:
        if shift > 63:
            raise StrangeBytesError
        byte = buffer.take(at[more], mode="clip").astype(np.int64)
        value[more] |= (byte & 127) << shift
        at[more] += 1
        more = more[byte > 127]
        shift += 7
    return (value >> 1 & 0x7FFFFFFFFFFFFFFF) ^ -(value & 1), at
