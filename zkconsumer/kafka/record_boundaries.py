"""Finds where the records of batches of format 2 begin, without reading record after record.

Pure, one thread at a time; needs numpy. A record begins with its length, which leads to the next. Runs of records of
one length are found by comparing that length at equal distances. Elsewhere, places of lengths are guessed from the
bytes, for all records at once. A guess counts if the chain of lengths leads to it. From a place where it does not, a
short loop goes on. So the result is the chain, whatever the bytes are.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

from zkconsumer.kafka.record_batch import StrangeBytesError

try:
    import numpy as np
except ImportError:  # pragma: no cover - the tests' environment has it
    np = None  # type: ignore[assignment]

_PATIENCE = 64  # records to walk in a loop before the next look for a likely place
_LONGEST_WALK = 8192
_SHORTEST_RUN = 32  # records of one length that are worth comparing together
_STRIP = 100_000  # bytes that are looked at together: their temporary vectors fit into the processor's cache
_FEWEST_OTHERS = 4
_SMALLEST = 12  # how the length of the smallest record is written: six numbers of one byte
_LONG = 127  # the largest last byte of a number


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
