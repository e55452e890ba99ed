"""Reads the records of batches of format 2 into the memory of Arrow columns. Pure, one thread at a time.

Two passes over each record. :meth:`RowScanner.scan` finds its fields and writes all numbers. Then the sizes of the
columns are known, and :meth:`RowScanner.gather` copies keys and values there, once.

Nothing that the bytes say is believed: each index is checked by the compiler's own check (an IndexError), each copy
by ``bounded``. Bytes that are not as the format demands make ``scan`` return False. The caller then reads the same
batches record by record, which says what is wrong with them, and where.
"""

from __future__ import annotations

from typing import Final

from zkconsumer.data_plane import c_types as cython
from zkconsumer.data_plane.bounded import copy_part  # cimport

SMALLEST_RECORD: Final = 7
"""Bytes of a record without key, value and headers: seven numbers of one byte."""

# Numbers of C. Otherwise each use of one would make Python objects.
_LARGEST_MS = cython.declare(cython.longlong, (2**63 - 1) // 1000)
_LARGEST = cython.declare(cython.longlong, 2**63 - 1)
# In place of a timestamp that is null: no number of whole milliseconds is this in microseconds.
_NULL = cython.declare(cython.longlong, 1 - 2**63)


@cython.final
@cython.cclass
class RowScanner:
    """Fills the memory of columns with the rows of some batches.

    Arguments: one-dimensional memory for all rows of the batches, and for one more in ``key_ends`` and ``value_ends``.
    ``starts`` has two places for each row. ``offsets`` and ``timestamps`` (microseconds) are vectors of 8 bytes a
    number, the others of 4. Raises: ValueError for memory of other types.
    """

    _offsets: cython.Longs
    _timestamps: cython.Longs
    _key_ends: cython.Ints
    _value_ends: cython.Ints
    _starts: cython.Ints
    _data: cython.Bytes
    _at: cython.Py_ssize_t
    _rows: cython.Py_ssize_t
    _key_bytes: cython.Py_ssize_t
    _value_bytes: cython.Py_ssize_t
    _null_keys: cython.Py_ssize_t
    _null_values: cython.Py_ssize_t
    _null_timestamps: cython.Py_ssize_t

    def __init__(
        self,
        offsets: cython.Longs,
        timestamps: cython.Longs,
        key_ends: cython.Ints,
        value_ends: cython.Ints,
        starts: cython.Ints,
    ) -> None:
        self._offsets = offsets
        self._timestamps = timestamps
        self._key_ends = key_ends
        self._value_ends = value_ends
        self._starts = starts
        self._rows = self._key_bytes = self._value_bytes = 0
        self._null_keys = self._null_values = self._null_timestamps = 0
        key_ends[0] = value_ends[0] = 0

    def totals(self) -> tuple[int, int, int]:
        """Return the rows so far, and the bytes of their keys and of their values."""
        return self._rows, self._key_bytes, self._value_bytes

    def nulls(self) -> tuple[int, int, int]:
        """Return how many keys, values and timestamps are null."""
        return self._null_keys, self._null_values, self._null_timestamps

    def scan(
        self,
        data: cython.Bytes,
        count: cython.longlong,
        base: cython.longlong,
        last: cython.longlong,
        oldest: cython.longlong,
        append_time: cython.longlong,
        appended: cython.bint,
        first: cython.longlong,
        end: cython.longlong,
    ) -> bool:
        """Add the records of a batch whose offsets are ``first`` or later and before ``end``.

        Arguments: ``data`` are the ``count`` records, ``base`` and ``last`` the batch's first and last offset,
        ``oldest`` its first timestamp. If ``appended``, ``append_time`` stands for all timestamps. Returns False if the
        batch is not as it must be; then nothing of this scanner may be used.
        """
        self._data = data
        self._at = 0
        span: cython.longlong = last - base
        previous: cython.longlong = -1
        stamp: cython.longlong = append_time
        delta: cython.longlong
        record_end: cython.Py_ssize_t
        try:
            for _ in range(count):
                record_end = self._record_end()
                if data[self._at] > 127:  # the record's attributes, of which there are none yet
                    return False
                self._at += 1
                delta = self._number()
                if not appended:
                    stamp = _sum(oldest, delta)
                delta = self._number()
                if not previous < delta <= span:
                    return False
                previous = delta
                wanted: cython.bint = first <= base + delta < end
                self._fields(record_end, wanted)
                if wanted:
                    self._offsets[self._rows - 1] = base + delta
                    self._timestamps[self._rows - 1] = self._microseconds(stamp)
        except IndexError:
            return False
        return self._at == len(data)

    @cython.cfunc
    @cython.inline
    @cython.exceptval(-2, check=True)
    def _number(self) -> cython.longlong:
        """Read a number and go behind it. Raises: IndexError at the end of the data, and for more than nine bytes."""
        at: cython.Py_ssize_t = self._at
        byte: cython.longlong = self._data[at]
        value: cython.longlong = byte & 127
        shift: cython.int = 0
        while byte > 127:
            shift += 7
            if shift > 56:
                raise IndexError("a number of more than nine bytes")
            at += 1
            byte = self._data[at]
            value |= (byte & 127) << shift
        self._at = at + 1
        return (value >> 1) ^ -(value & 1)

    @cython.cfunc
    @cython.inline
    @cython.exceptval(-2, check=True)
    def _record_end(self) -> cython.Py_ssize_t:
        """Read a record's length and return where it ends. Raises: IndexError if that is beyond the data."""
        size: cython.longlong = self._number()
        if not 0 < size <= len(self._data) - self._at:
            raise IndexError("a record beyond the end of its batch")
        return self._at + size

    @cython.cfunc
    @cython.inline
    @cython.exceptval(-2, check=True)
    def _field(self, record_end: cython.Py_ssize_t, least: cython.longlong) -> cython.longlong:
        """Read the size of a field, -1 for null. Raises: IndexError for one below ``least`` or beyond the record."""
        size: cython.longlong = self._number()
        if not least <= size <= record_end - self._at:
            raise IndexError("a field beyond the end of its record")
        return size

    @cython.cfunc
    @cython.exceptval(-2, check=True)
    def _fields(self, record_end: cython.Py_ssize_t, wanted: cython.bint) -> cython.int:
        """Read the key, the value and the headers of a record, and note the first two if they are ``wanted``."""
        key_size: cython.longlong = self._field(record_end, -1)
        key_start: cython.Py_ssize_t = self._at
        if key_size > 0:
            self._at += key_size
        value_size: cython.longlong = self._field(record_end, -1)
        value_start: cython.Py_ssize_t = self._at
        if value_size > 0:
            self._at += value_size
        headers: cython.longlong = self._number()
        if headers < 0:
            raise IndexError("fewer than no headers")
        while headers > 0:
            self._at += self._field(record_end, 0)
            value: cython.longlong = self._field(record_end, -1)
            if value > 0:
                self._at += value
            headers -= 1
        if self._at != record_end:
            raise IndexError("a record of another length")
        if wanted:
            self._note(key_size, key_start, value_size, value_start)
        return 0

    @cython.cfunc
    @cython.inline
    @cython.exceptval(-2, check=True)
    def _note(
        self,
        key_size: cython.longlong,
        key_start: cython.Py_ssize_t,
        value_size: cython.longlong,
        value_start: cython.Py_ssize_t,
    ) -> cython.int:
        row: cython.Py_ssize_t = self._rows
        if key_size < 0:
            self._null_keys += 1
            key_start = -1
        else:
            self._key_bytes += key_size
        if value_size < 0:
            self._null_values += 1
            value_start = -1
        else:
            self._value_bytes += value_size
        self._starts[2 * row] = key_start
        self._starts[2 * row + 1] = value_start
        self._key_ends[row + 1] = self._key_bytes
        self._value_ends[row + 1] = self._value_bytes
        self._rows = row + 1
        return 0

    @cython.cfunc
    @cython.inline
    def _microseconds(self, milliseconds: cython.longlong) -> cython.longlong:
        if milliseconds == -1 or not -_LARGEST_MS <= milliseconds <= _LARGEST_MS:
            self._null_timestamps += 1
            return _NULL
        return milliseconds * 1000

    def gather(
        self,
        data: cython.Bytes,
        begin: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
        values: cython.bint,
        target: cython.WritableBytes,
    ) -> None:
        """Copy the keys of rows ``begin`` to ``end`` to their places in ``target``, or their values.

        Arguments: ``data`` is what these rows were scanned in. Raises: IndexError for rows and places that are not
        there.
        """
        ends: cython.Ints = self._value_ends if values else self._key_ends
        starts: cython.Ints = self._starts
        row: cython.Py_ssize_t
        start: cython.Py_ssize_t
        at: cython.Py_ssize_t
        side: cython.Py_ssize_t = 1 if values else 0
        for row in range(begin, end):
            start = starts[2 * row + side]
            if start >= 0:
                at = ends[row]
                copy_part(target, at, data, start, start + (ends[row + 1] - at))

    def valid_fields(self, values: cython.bint, target: cython.WritableBytes) -> None:
        """Set the bits of the rows whose key is not null, or whose value is not; ``target`` is zero before."""
        side: cython.Py_ssize_t = 1 if values else 0
        row: cython.Py_ssize_t
        for row in range(self._rows):
            if self._starts[2 * row + side] >= 0:
                target[row >> 3] |= 1 << (row & 7)

    def valid_timestamps(self, target: cython.WritableBytes) -> None:
        """Set the bits of the rows that have a timestamp; ``target`` is zero before."""
        row: cython.Py_ssize_t
        for row in range(self._rows):
            if self._timestamps[row] != _NULL:
                target[row >> 3] |= 1 << (row & 7)


@cython.cfunc
@cython.inline
@cython.exceptval(-2, check=True)
def _sum(first: cython.longlong, delta: cython.longlong) -> cython.longlong:
    """Return the sum. Raises: IndexError if it has no 64 bits."""
    if (delta > 0 and first > _LARGEST - delta) or (delta < 0 and first < _NULL - delta):
        raise IndexError("a timestamp of more than 64 bits")
    return first + delta
