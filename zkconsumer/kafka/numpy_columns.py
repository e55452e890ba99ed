"""Decodes batches of format 2 into Arrow columns by vector operations; only if numpy is installed.

Pure, one thread at a time. Nothing here is needed: bytes that look strange raise ``StrangeBytesError``, and the caller
reads the same batches record by record. That way says what is wrong with them, and where.

:func:`boundaries` finds where records begin without reading them. Then every field is read for all records at once.
Keys and values never become Python objects: Arrow copies them out of the fetched bytes in one go.

A record begins with its length, which leads to the next. Runs of records of one length are found by comparing that
length at equal distances. Elsewhere, places of lengths are guessed from the bytes, for all records at once. A guess
counts if the chain of lengths leads to it. From a place where it does not, a short loop goes on. So the result is the
chain, whatever the bytes are.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any, Final, NamedTuple

from zkconsumer.kafka.record_batch import FROM_ANYWHERE, LARGEST_MS, NO_END, Block, StrangeBytesError

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
    _any_bit: Any = np.bitwise_or.reduce  # numpy 2.5 has its types in a form that only Python 3.12 reads


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
    spans = [(begin, begin + len(part.data), part.total) for begin, part in zip(begins, blocks, strict=True)]
    starts, ends = boundaries(data, spans)
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
    if not int(_any_bit(first)) & 0x81:  # no second byte, nothing negative
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
    if int(_any_bit(word)) & 0x80:  # attributes of two bytes for the reader of records one by one
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


_PATIENCE = 64  # records to walk in a loop before the next look for a likely place
_LONGEST_WALK = 8192
_SHORTEST_RUN = 32  # records of one length that are worth comparing together
_STRIP = 100_000  # bytes that are looked at together: their temporary vectors fit into the processor's cache
_FEWEST_OTHERS = 4
_SMALLEST = 12  # how the length of the smallest record is written: six numbers of one byte

Span = tuple[int, int, int]
"""Bytes from one place to another, and the number of their records."""


def boundaries(data: bytes | memoryview, spans: Sequence[Span]) -> tuple[Any, Any]:
    """Return where each record of some spans begins (after its length) and ends, as vectors.

    The spans are in order, at least one. Raises: StrangeBytesError if a span does not hold exactly its records.
    """
    if any(begin >= end or total < 1 for begin, end, total in spans):
        raise StrangeBytesError
    buffer = np.frombuffer(data, np.uint8)
    try:
        lengths_at = _chain(data, buffer, spans)
    except IndexError as error:
        raise StrangeBytesError from error
    first = buffer[lengths_at]
    starts = lengths_at + 1 + (first > _LONG)
    more = np.flatnonzero(first > _LONG)
    more = more[buffer[lengths_at[more] + 1] > _LONG]
    while more.size:
        byte = buffer[starts[more]]
        starts[more] += 1
        more = more[byte > _LONG]
    ends = np.empty_like(lengths_at)
    ends[:-1] = lengths_at[1:]
    ends[np.cumsum([total for _, _, total in spans]) - 1] = [end for _, end, _ in spans]
    return starts, ends


def _chain(data: bytes | memoryview, buffer: Any, spans: Sequence[Span]) -> Any:
    """Return where the length of each record stands. Raises StrangeBytesError or IndexError."""
    found: list[list[Any]] = []
    others: list[tuple[list[Any], Span]] = []
    for begin, end, total in spans:
        parts: list[Any] = []
        rest = _runs(data, buffer, (begin, end, total), parts)
        found.append(parts)
        if rest[2]:
            others.append((parts, rest))
        elif rest[0] != end:
            raise StrangeBytesError
    if others:
        _chain_others(data, buffer, others)
    return np.concatenate([part for parts in found for part in parts])


def _runs(data: bytes | memoryview, buffer: Any, span: Span, parts: list[Any]) -> Span:
    """Put the runs of records of one length at the beginning of a span into ``parts``; returns the rest of the span."""
    at, end, left = span
    while left >= _SHORTEST_RUN:
        size = data[at]
        more = data[at + 1]
        step = 1 + (size >> 1) if size <= _LONG else (size >> 1) + (more << 6) - 62
        count = min(left, (end - at) // step)
        # compare three first, since in most data no two lengths are equal
        if size & 1 or (size > _LONG and more > _LONG) or count < _SHORTEST_RUN:
            break
        if data[at + step] != size or data[at + 2 * step] != size:
            break
        alike = buffer[at : at + count * step : step] == size
        if size > _LONG:
            alike &= buffer[at + 1 : at + count * step : step] == more
        if not alike.all():
            count = int(alike.argmin())
        parts.append(np.arange(at, at + count * step, step))
        at += count * step
        left -= count
        if count < _SHORTEST_RUN:
            break
    if 0 < left < _SHORTEST_RUN and parts:
        walked, at = _walk(data, at, left)
        parts.append(walked)
        left = 0
    return at, end, left


def _chain_others(data: bytes | memoryview, buffer: Any, others: Sequence[tuple[list[Any], Span]]) -> None:
    """Find the rest of some spans by guessing, and add it to each span's parts."""
    begins, ends, totals = np.array([span for _, span in others], np.int64).T
    likely = _likely(buffer, begins, int(ends[-1]))
    likely, following = _on_the_way(likely, _following(buffer, likely), begins, ends)
    firsts = likely.searchsorted(begins)
    expected = np.append(likely[1:], ends[-1:])
    expected[firsts[1:] - 1] = ends[:-1]
    if (expected == following).all() and (np.diff(firsts, append=len(likely)) == totals).all():
        for (parts, _), found in zip(others, np.split(likely, firsts[1:]), strict=True):
            parts.append(found)
    else:
        _chain_each(data, likely, following, firsts.tolist(), others)


def _on_the_way(likely: Any, following: Any, begins: Any, ends: Any) -> tuple[Any, Any]:
    """Return likely places, and the ends of the records there, without wrong ones. Places between the spans are left
    out, and places that the place before them leads past, to a later one. Any of the others may still be right or
    wrong, but for the beginnings, which stay: the chain decides.
    """
    astray = (following[:-1] != likely[1:]).nonzero()[0]
    target = following[astray]
    reached = likely.searchsorted(target)
    past = (likely.take(reached, mode="clip") == target) & (reached > astray + 1)
    firsts = likely.searchsorted(begins)
    skipped = [
        *zip((astray[past] + 1).tolist(), reached[past].tolist(), strict=True),
        *zip(likely.searchsorted(ends[:-1]).tolist(), firsts[1:].tolist(), strict=True),
    ]
    kept = np.ones(len(likely), bool)
    for low, high in skipped:
        kept[low:high] = False
    kept[firsts] = True
    return likely[kept], following[kept]


def _chain_each(
    data: bytes | memoryview,
    likely: Any,
    following: Any,
    firsts: Sequence[int],
    others: Sequence[tuple[list[Any], Span]],
) -> None:
    """Find the rest of some spans, one after the other. Arguments: ``firsts`` are the indexes of their beginnings."""
    # the indexes of likely places that do not lead to the next one, or should not
    breaks = {*np.flatnonzero(following[:-1] != likely[1:]).tolist(), *(first - 1 for first in firsts), len(likely) - 1}
    stops = sorted(breaks)
    patience = _PATIENCE
    for known, (parts, (_, end, left)) in zip(firsts, others, strict=True):
        while True:
            # behind a right place the next is right as well, as long as each leads to the next
            last = stops[bisect_left(stops, known)]
            parts.append(likely[known : last + 1])
            left -= last + 1 - known
            at = int(following[last])
            if at < 0:  # a record of more than 8 KB
                at = _walk(data, int(likely[last]), 1)[1]
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


def _likely(buffer: Any, begins: Any, finish: int) -> Any:
    """Return the places where lengths of records probably stand, in order, with the sure ones (``begins``).

    Nothing before the first of these and from ``finish`` on is looked at, since the fetched bytes may be many times
    that. A record without headers ends with 0, their number. The next record begins with its length, one or two bytes
    unless large, and then attributes of 0. Text has no 0, and binary data seldom has a 0 there.
    """
    found = []
    for low in range(int(begins[0]), finish, _STRIP):
        strip = buffer[low : min(low + _STRIP + 3, finish)]
        zero = strip == 0
        framed = zero[2:-1] | zero[3:]
        framed &= zero[:-3]
        at = framed.nonzero()[0]
        if len(at) <= len(strip) // _FEWEST_OTHERS:  # else guessing is not worth it
            at += low + 1
            found.append(at)
    at = np.concatenate(found) if found else begins[:0]
    first = buffer[at]
    # the lowest bit is the sign; the attributes, 0, follow a length of one byte; a second byte is never 0
    likely = at[(first & 1 == 0) & (first >= _SMALLEST) & ((first > _LONG) == (buffer[at + 1] != 0))]
    places = likely.searchsorted(begins)
    new = likely.take(places, mode="clip") != begins if len(likely) else np.ones(len(begins), bool)
    return np.insert(likely, places[new], begins[new]) if new.any() else likely


def _following(buffer: Any, at: Any) -> Any:
    """Return where the record behind each place ends, -1 if its length is senseless or takes more than two bytes."""
    first = buffer[at].astype(np.int64)
    second = buffer.take(at + 1, mode="clip").astype(np.int64)
    short = first <= _LONG
    ends = at + np.where(short, 1 + (first >> 1), (first >> 1) + (second << 6) - 62)
    return np.where((first & 1 == 0) & (short | (second <= _LONG)), ends, -1)


def _walk(data: bytes | memoryview, at: int, count: int) -> tuple[Any, int]:
    """Return the places of the next records' lengths, found in a loop, and the end of the last record. Raises:
    IndexError beyond the data.
    """
    found = [0] * count
    for number in range(count):
        found[number] = at
        size = data[at]
        if size <= _LONG:
            at += 1 + (size >> 1)
        else:
            more = data[at + 1]
            at = at + (size >> 1) + (more << 6) - 62 if more <= _LONG else _after_long(data, at)
        if size & 1:
            raise StrangeBytesError  # a negative length
    return np.array(found, np.int64), at


def _after_long(data: bytes | memoryview, at: int) -> int:
    """Return where a record ends whose length takes more than two bytes."""
    size = shift = 0
    while shift <= 28:
        byte = data[at]
        at += 1
        size |= (byte & 127) << shift
        if byte <= _LONG:
            return at + (size >> 1)
        shift += 7
    raise StrangeBytesError
