"""Decodes batches of format 2 into Arrow columns by vector operations; only if numpy is installed.

Pure, one thread at a time. Nothing here is needed: bytes that look strange raise ``StrangeBytesError``, and the caller
reads the same batches record by record. That way says what is wrong with them, and where.

``record_boundaries`` finds where records begin without reading them. Then every field is read for all records at once.
Keys and values never become Python objects: Arrow copies them out of the fetched bytes in one go.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any, Final, NamedTuple

from zkconsumer.kafka.record_batch import FROM_ANYWHERE, LARGEST_MS, NO_END, Block, StrangeBytesError
from zkconsumer.kafka.record_boundaries import Span, boundaries

try:
    import numpy as np
except ImportError:  # pragma: no cover - the tests' environment has it
    np = None  # type: ignore[assignment]

AVAILABLE: Final[bool] = np is not None

_LONG = 127  # the largest last byte of a number
_LARGEST = 2**31 - 1
_MANY_HEADERS = 100  # in one record: then a plain loop, for a loop over vectors of one element is slow
if AVAILABLE:
    _1, _3, _7, _8, _127, _255 = (np.uint64(number) for number in (1, 3, 7, 8, 127, 255))


class RecordFields(NamedTuple):
    """The fields of the records of some blocks, as vectors.

    ``starts`` and ``sizes`` (-1: null) of keys and values are places in ``data``.
    """

    data: bytes | memoryview
    offsets: Any
    timestamps: Any
    timestamp_types: Any
    key_starts: Any
    key_sizes: Any
    value_starts: Any
    value_sizes: Any

    @property
    def row_count(self) -> int:
        """The number of wanted records."""
        return len(self.offsets)

    def column(self, name: str) -> Any:
        """Return one column as an Arrow array."""
        import pyarrow as pa

        if name == "key":
            return binary_array(self.data, self.key_starts, self.key_sizes)
        if name == "value":
            return binary_array(self.data, self.value_starts, self.value_sizes)
        if name == "timestamp":
            return timestamp_array(self.timestamps)
        return _numbers(self.offsets, pa.int64()) if name == "offset" else _numbers(self.timestamp_types, pa.int32())


def read_fields(blocks: Sequence[Block]) -> RecordFields:
    """Return all fields but the headers, of the wanted records.

    Raises: StrangeBytesError, also for headers that do not end with their record.
    """
    data, begins = _together(blocks)
    if len(data) > _LARGEST:
        raise StrangeBytesError
    starts, ends = boundaries(data, _spans(blocks, begins))
    counts = [part.total for part in blocks]
    buffer = np.frombuffer(data, np.uint8)
    leading = _leading(data, starts)
    if leading is None:
        if bool((buffer.take(starts, mode="clip") > _LONG).any()):
            raise StrangeBytesError
        stamp_deltas, at = _varints(buffer, starts + 1)  # after the record's attributes, of which there are none yet
        offset_deltas, at = _varints(buffer, at)
        key_sizes, key_starts = _varints(buffer, at)
    else:
        stamp_deltas, offset_deltas, key_sizes, key_starts = leading
    value_sizes, value_starts = _sizes(buffer, key_starts + np.maximum(key_sizes, 0))
    headers = value_starts + np.maximum(value_sizes, 0)
    smallest = min(int(key_sizes.min()), int(value_sizes.min()))
    # at least the number of headers follows; if it is 0, nothing else does
    bare = buffer.take(headers, mode="clip") == 0
    fits = np.where(bare, headers + 1 == ends, headers < ends) & (key_sizes < ends) & (value_sizes < ends)
    if smallest < -1 or not fits.all():
        raise StrangeBytesError
    if not bare.all():
        with_headers = np.flatnonzero(~bare)
        _pass_headers(buffer, headers[with_headers], ends[with_headers])
    offsets = np.repeat(np.array([part.base_offset for part in blocks], np.int64), counts) + offset_deltas
    lasts = np.cumsum(counts) - 1
    in_order = offsets[1:] > offsets[:-1]
    # from one block to the next they may begin anew
    in_order[lasts[:-1]] = True
    within = np.array([(part.base_offset, part.last_offset) for part in blocks], np.int64)
    firsts = np.concatenate(([0], lasts[:-1] + 1))
    if not in_order.all() or (offsets[firsts] < within[:, 0]).any() or (offsets[lasts] > within[:, 1]).any():
        raise StrangeBytesError
    timestamps = np.repeat(np.array([part.first_timestamp for part in blocks], np.int64), counts) + stamp_deltas
    kinds = np.zeros(len(starts), np.int32)
    if any(part.append_time is not None for part in blocks):
        kinds = np.repeat(np.array([part.append_time is not None for part in blocks], np.int32), counts)
        appended = np.array([part.append_time or 0 for part in blocks], np.int64)
        timestamps = np.where(kinds == 1, np.repeat(appended, counts), timestamps)
    fields = RecordFields(data, offsets, timestamps, kinds, key_starts, key_sizes, value_starts, value_sizes)
    if all(part.first == FROM_ANYWHERE and part.end == NO_END for part in blocks):
        return fields
    wanted = (offsets >= np.repeat(np.array([part.first for part in blocks], np.int64), counts)) & (
        offsets < np.repeat(np.array([part.end for part in blocks], np.int64), counts)
    )
    return fields if wanted.all() else RecordFields(data, *(vector[wanted] for vector in fields[1:]))


def _pass_headers(buffer: Any, at: Any, ends: Any) -> None:
    """Go through the headers of records, which begin ``at`` with their number. Raises: StrangeBytesError if they do not
    end at ``ends``; the reader of single records calls that corrupt.
    """
    left, at = _sizes(buffer, at)
    for _ in range(_MANY_HEADERS):
        fewest = int(left.min())
        if fewest < 0:
            break
        if not fewest:
            more = left > 0
            if not np.array_equal(at[~more], ends[~more]):
                break
            left, at, ends = left[more], at[more], ends[more]
            if not len(left):
                return
        at = _pass_field(buffer, at, ends, 0)  # the name
        at = _pass_field(buffer, at, ends, -1)
        left = left - 1
    raise StrangeBytesError


def _pass_field(buffer: Any, at: Any, ends: Any, least: int) -> Any:
    """Return the ends of the fields that begin there with their sizes, none below ``least``; may be beyond ``ends``."""
    first = buffer.take(at, mode="clip")
    if not int(np.bitwise_or.reduce(first)) & 0x81:  # no second byte, nothing negative
        return at + 1 + (first >> 1)
    sizes, at = _sizes(buffer, at)
    if int(sizes.min()) < least or bool((sizes > ends - at).any()):
        raise StrangeBytesError
    return at + np.maximum(sizes, 0)


def binary_array(data: bytes | memoryview, starts: Any, sizes: Any) -> Any:
    """Return parts of ``data`` as an Arrow array; a part of negative size is null."""
    import pyarrow as pa

    count = len(starts)
    null = sizes < 0
    if null.all():  # also if there are no parts
        return pa.nulls(count, pa.binary())
    # Arrow wants parts that touch. So the gaps are parts too, and then only the others are taken.
    edges = np.empty(2 * count + 1, np.int32)
    edges[0:-1:2] = starts
    edges[1::2] = starts + np.maximum(sizes, 0)
    edges[-1] = edges[-2]
    pieces = pa.Array.from_buffers(pa.binary(), 2 * count, [None, pa.py_buffer(edges), pa.py_buffer(data)])
    return pieces.take(_numbers(np.arange(0, 2 * count, 2, dtype=np.int32), pa.int32(), null))


def timestamp_array(milliseconds: Any) -> Any:
    """Return microseconds as an Arrow array; -1, and values beyond ``LARGEST_MS``, are null."""
    import pyarrow as pa

    null = (milliseconds == -1) | (milliseconds > LARGEST_MS) | (milliseconds < -LARGEST_MS)
    return _numbers(milliseconds * 1000, pa.timestamp("us", tz="UTC"), null)


def _numbers(values: Any, kind: Any, null: Any = None) -> Any:
    """Return a vector as an Arrow array. ``pyarrow.array`` would import pandas (see ``arrow_columns.numbers``).

    Arguments: ``kind`` is an Arrow type of the vector's width; ``null`` marks the values that become null, if given.
    """
    import pyarrow as pa

    some = null is not None and null.any()
    valid = pa.py_buffer(np.packbits(~null, bitorder="little")) if some else None
    return pa.Array.from_buffers(kind, len(values), [valid, pa.py_buffer(np.ascontiguousarray(values))])


# ---- where blocks are


def _together(blocks: Sequence[Block]) -> tuple[bytes | memoryview, list[int]]:
    """Return bytes that hold all blocks, and where each begins in them. If the blocks are parts of the fetched bytes,
    these are returned as they are. A copy of their size would cost more than all else.
    """
    whole = blocks[0].data.obj
    if len(blocks) == 1 and not isinstance(whole, bytes):
        return blocks[0].data, [0]
    if isinstance(whole, bytes) and all(part.data.obj is whole for part in blocks):
        first = _address(whole)
        begins = [_address(part.data) - first for part in blocks]
        if all(one < other for one, other in pairwise(begins)):
            return whole, begins
    return b"".join(part.data for part in blocks), [0, *accumulate(len(part.data) for part in blocks)][:-1]


def _address(data: bytes | memoryview) -> int:
    return int(np.frombuffer(data, np.uint8).__array_interface__["data"][0]) if len(data) else 0


def _spans(blocks: Sequence[Block], begins: Sequence[int]) -> list[Span]:
    return [(begin, begin + len(part.data), part.total) for begin, part in zip(begins, blocks, strict=True)]


# ---- numbers


def _leading(data: bytes | memoryview, starts: Any) -> tuple[Any, Any, Any, Any] | None:
    """Return the first fields of records that begin there, None if one of their numbers takes more than two bytes. The
    fields are the timestamp and offset differences, the size of the key and the key's beginning. The fields take at
    most seven bytes, so a word is read for each record. Longer numbers are read the slow way.
    """
    last = len(data) - 8
    if last < 0:
        return None
    words = np.ndarray((last + 1,), "<u8", data, 0, (1,))
    if int(starts[-1]) > last:  # a small record at the end
        at = np.minimum(starts, last)
        word = words[at] >> ((starts - at) << 3).astype(np.uint64)
    else:
        word = words[starts]
    if int(np.bitwise_or.reduce(word)) & 0x80:  # attributes of two bytes for the reader of records one by one
        raise StrangeBytesError
    word >>= _8  # the record's attributes, of which there are none yet
    found = []
    ends = starts + 1
    for _ in range(3):
        more = word >> _7 & _1
        second = word >> _8 & _255
        if bool((second * more > _LONG).any()):
            return None
        value = word & _127 | (second * more) << _7
        found.append((value >> _1).astype(np.int64) ^ -(value & _1).astype(np.int64))
        word >>= _8 + (more << _3)
        ends = ends + 1 + more.astype(np.int64)
    stamps, offsets, keys = found
    return stamps, offsets, keys, ends


def _sizes(buffer: Any, at: Any) -> tuple[Any, Any]:
    """As :func:`_varints`, for numbers that mostly take two bytes at most."""
    first = buffer.take(at, mode="clip").astype(np.int64)
    more = first > _LONG
    second = buffer.take(at + 1, mode="clip") * more
    if bool((second > _LONG).any()):
        return _varints(buffer, at)
    value = first & _LONG | second.astype(np.int64) << 7
    return value >> 1 ^ -(value & 1), at + 1 + more


def _varints(buffer: Any, at: Any) -> tuple[Any, Any]:
    """Return a number at each position, and the positions after them. Positions outside the data give wrong numbers."""
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
