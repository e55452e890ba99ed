"""Reads the heads of the batches in a message set, to find where the set ends. Pure; the fetcher thread calls it.

Only sets of format 2 whose heads make sense are read here, as nearly all are. For other sets the caller looks
closer, and finds the fault: only the caller's way has error texts.
"""

from __future__ import annotations

from zkconsumer.data_plane import c_types as cython
from zkconsumer.data_plane.big_endian import int16_at, int32_at, int64_at, start_of_view  # cimport

# Numbers of C. Otherwise each use of one would look it up.
_START = cython.declare(cython.Py_ssize_t, 12)  # bytes of an offset and a size, with which each batch begins
_HEAD = cython.declare(cython.Py_ssize_t, 61)  # bytes of a batch before its records
_MAGIC_AT = cython.declare(cython.Py_ssize_t, 16)
_ATTRIBUTES_AT = cython.declare(cython.Py_ssize_t, 21)
_CONTROL = cython.declare(cython.int, 0x20)
_FURTHEST = cython.declare(cython.longlong, (1 << 62) - 1)  # an offset to which a count can be added


def plain_extent(
    records: bytes, fetch_offset: cython.longlong, log_end: cython.longlong
) -> tuple[int, int, int, int] | None:
    """Return how far the whole batches of a set reach, or None if the set needs a closer look.

    Arguments: ``log_end`` is the end of the log, -1 if it is unknown. Returns: the offset after the last batch, or
    ``fetch_offset`` if no batch reaches beyond it; the number of new messages; the places where the last whole batch
    begins and where it ends. A rest behind the last whole batch is a part of a batch.
    """
    view = memoryview(records)
    data = start_of_view(view)
    total: cython.Py_ssize_t = len(view)
    at: cython.Py_ssize_t = 0
    last: cython.Py_ssize_t = 0
    reached: cython.longlong = fetch_offset
    messages: cython.longlong = 0
    while total - at >= _START:
        offset: cython.longlong = int64_at(data, at)
        size: cython.longlong = int32_at(data, at + 8)
        if size < _HEAD - _START or not 0 <= offset <= _FURTHEST:
            return None
        if size > total - at - _START:
            break
        delta: cython.longlong = int32_at(data, at + 23)
        count: cython.longlong = int32_at(data, at + 57)
        following: cython.longlong = offset + delta + 1
        if data[at + _MAGIC_AT] != 2 or delta < 0 or count < 0 or 0 <= log_end < following:
            return None
        if following > reached:
            if not int16_at(data, at + _ATTRIBUTES_AT) & _CONTROL:
                messages += min(count, following - reached)
            reached = following
        last = at
        at += _START + size
    return reached, messages, last, at
