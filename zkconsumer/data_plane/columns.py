"""Reads the records of batches of format 2 into the memory of Arrow columns. Pure, one thread at a time.

One pass: keys and values are copied when their record is read, while the processor still has the batch in its caches.
``columns.pxd`` says the C types of the compiled copy.

Nothing that the bytes say is believed. The compiled copy reads them through a pointer, so each index is compared with
the end of the record or the batch before it is used. Each index into a column is checked by the compiler's own check
(an IndexError), each copy by ``checked_slice``. Bytes that are not as the format demands make ``scan`` return False.
The caller then reads the same batches record by record, which says what is wrong with them, and where.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from zkconsumer.data_plane import c_types as cython
from zkconsumer.data_plane.checked_slice import copy_part  # cimport
from zkconsumer.data_plane.records import start_of  # cimport

SMALLEST_RECORD: Final = 7
"""Bytes of a record without key, value and headers: seven numbers of one byte."""

_LARGEST_MS = (2**63 - 1) // 1000
_LARGEST = 2**63 - 1


class ColumnMemory(NamedTuple):
    """The memory of columns, as buffers or as one-dimensional views.

    ``offsets`` and ``timestamps`` (microseconds) are vectors of 8 bytes a number, ``key_ends`` and ``value_ends`` of 4.
    The last two have room for one more row. ``keys`` and ``values`` are bytes. The three others have a bit for each
    row, which is set before; a scanner clears those of nulls.
    """

    offsets: Any
    timestamps: Any
    key_ends: Any
    value_ends: Any
    keys: Any
    values: Any
    valid_keys: Any
    valid_values: Any
    valid_timestamps: Any


@cython.final
@cython.cclass
class RowScanner:
    """Fills the memory of columns with the rows of some batches.

    Arguments: ``memory`` for all rows of the batches. Keys and values are only copied if ``with_keys`` and
    ``with_values``. Raises: ValueError for memory of other types.
    """

    __slots__ = (
        "_appended",
        "_at",
        "_base",
        "_data",
        "_first",
        "_key_bytes",
        "_key_ends",
        "_keys",
        "_null_keys",
        "_null_timestamps",
        "_null_values",
        "_offsets",
        "_previous",
        "_rows",
        "_size",
        "_span",
        "_stamp",
        "_stop",
        "_timestamps",
        "_valid_keys",
        "_valid_timestamps",
        "_valid_values",
        "_value_bytes",
        "_value_ends",
        "_values",
        "_with_keys",
        "_with_values",
    )

    def __init__(self, memory: ColumnMemory, with_keys: bool, with_values: bool) -> None:
        self._offsets, self._timestamps = memory.offsets, memory.timestamps
        self._key_ends, self._value_ends = memory.key_ends, memory.value_ends
        self._keys, self._values = memory.keys, memory.values
        self._valid_keys, self._valid_values = memory.valid_keys, memory.valid_values
        self._valid_timestamps = memory.valid_timestamps
        self._with_keys, self._with_values = with_keys, with_values
        self._rows = self._key_bytes = self._value_bytes = 0
        self._null_keys = self._null_values = self._null_timestamps = 0
        self._key_ends[0] = self._value_ends[0] = 0

    def totals(self) -> tuple[int, int, int]:
        """Return the rows so far, and the bytes of their keys and of their values."""
        return self._rows, self._key_bytes, self._value_bytes

    def nulls(self) -> tuple[int, int, int]:
        """Return how many keys, values and timestamps are null."""
        return self._null_keys, self._null_values, self._null_timestamps

    def scan(
        self,
        data: memoryview,
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
        batch is not as it must be; then nothing of this scanner may be used. Raises: BufferError if ``data`` skips
        bytes.
        """
        view = memoryview(data)  # its own, which nobody can release
        self._data, self._size, self._at = start_of(view, count), len(view), 0
        self._base, self._previous, self._span = base, -1, last - base
        self._stamp, self._appended = append_time if appended else oldest, appended
        self._first, self._stop = first, end
        try:
            for _ in range(count):
                if not self._record():
                    return False
        except IndexError:  # there is too little memory
            return False
        return self._at == self._size

    def _record(self) -> bool:
        """Read the record at ``_at`` and go behind it. Returns whether it is as it must be."""
        data = self._data
        at: cython.Py_ssize_t = self._at
        width: cython.Py_ssize_t = _width(data, at, self._size)
        if width == 0:
            return False
        delta: cython.longlong = _number(data, at, width)
        at += width
        if delta <= 0 or delta > self._size - at:
            return False
        stop: cython.Py_ssize_t = at + delta
        if data[at] > 127:  # the record's attributes, of which there are none yet
            return False
        at += 1
        width = _width(data, at, stop)
        if width == 0:
            return False
        stamp: cython.longlong = self._stamp
        if not self._appended:
            delta = _number(data, at, width)
            if (delta > 0 and stamp > _LARGEST - delta) or (delta < 0 and stamp < -_LARGEST - delta):
                return False  # more than 64 bits
            stamp += delta
        at += width
        width = _width(data, at, stop)
        if width == 0:
            return False
        delta = _number(data, at, width)
        if not self._previous < delta <= self._span:
            return False
        self._previous = delta
        self._at = at + width
        if self._first <= self._base + delta < self._stop:
            return self._row(stop, self._base + delta, stamp)
        return self._fields(stop, False)

    def _row(self, stop: cython.Py_ssize_t, offset: cython.longlong, stamp: cython.longlong) -> bool:
        """Add a row. Returns whether its record is as it must be."""
        row: cython.Py_ssize_t = self._rows
        self._offsets[row] = offset
        if stamp == -1 or stamp > _LARGEST_MS or stamp < -_LARGEST_MS:
            self._null_timestamps += 1
            self._valid_timestamps[row >> 3] &= ~(1 << (row & 7)) & 255
            stamp = 0
        self._timestamps[row] = stamp * 1000
        if not self._fields(stop, True):
            return False
        self._key_ends[row + 1] = self._key_bytes
        self._value_ends[row + 1] = self._value_bytes
        self._rows = row + 1
        return True

    def _fields(self, stop: cython.Py_ssize_t, wanted: cython.bint) -> bool:
        """Read the key, the value and the headers of a record, and copy the first two if they are ``wanted``."""
        data = self._data
        at: cython.Py_ssize_t = self._at
        width: cython.Py_ssize_t = _width(data, at, stop)
        if width == 0:
            return False
        size: cython.longlong = _number(data, at, width)
        at += width
        if size < -1 or size > stop - at:
            return False
        if wanted:
            self._key(at, size)
        if size > 0:
            at += size
        width = _width(data, at, stop)
        if width == 0:
            return False
        size = _number(data, at, width)
        at += width
        if size < -1 or size > stop - at:
            return False
        if wanted:
            self._value(at, size)
        if size > 0:
            at += size
        self._at = stop
        return (stop - at == 1 and data[at] == 0) or self._headers_end(at, stop)

    def _key(self, at: cython.Py_ssize_t, size: cython.longlong) -> int:
        row: cython.Py_ssize_t = self._rows
        if size < 0:
            self._null_keys += 1
            self._valid_keys[row >> 3] &= ~(1 << (row & 7)) & 255
        elif size > 0 and self._with_keys:
            copy_part(self._keys, self._key_bytes, self._data, self._size, at, at + size)
            self._key_bytes += size
        return 0

    def _value(self, at: cython.Py_ssize_t, size: cython.longlong) -> int:
        row: cython.Py_ssize_t = self._rows
        if size < 0:
            self._null_values += 1
            self._valid_values[row >> 3] &= ~(1 << (row & 7)) & 255
        elif size > 0 and self._with_values:
            copy_part(self._values, self._value_bytes, self._data, self._size, at, at + size)
            self._value_bytes += size
        return 0

    def _headers_end(self, at: cython.Py_ssize_t, stop: cython.Py_ssize_t) -> bool:
        """Return whether the headers that begin at ``at`` end at ``stop``."""
        data = self._data
        width: cython.Py_ssize_t = _width(data, at, stop)
        if width == 0:
            return False
        left: cython.longlong = _number(data, at, width)
        at += width
        if left < 0:
            return False
        left *= 2  # a name, which cannot be null, and a value
        while left > 0:
            width = _width(data, at, stop)
            if width == 0:
                return False
            size: cython.longlong = _number(data, at, width)
            at += width
            if size < -(left & 1) or size > stop - at:
                return False
            if size > 0:
                at += size
            left -= 1
        return at == stop


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _width(data: cython.Start, at: cython.Py_ssize_t, stop: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Return how many bytes the number at ``at`` has; 0 if it does not end before ``stop``, or has more than nine."""
    if at < stop and data[at] < 128:
        return 1
    if at + 1 < stop and data[at + 1] < 128:
        return 2
    width: cython.Py_ssize_t = 3
    while width < 10 and at + width <= stop:
        if data[at + width - 1] < 128:
            return width
        width += 1
    return 0


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _number(data: cython.Start, at: cython.Py_ssize_t, width: cython.Py_ssize_t) -> cython.longlong:
    """Return the number at ``at``, which has ``width`` bytes."""
    found: cython.longlong = data[at]
    if width > 1:
        found = found & 127 | cython.cast(cython.longlong, data[at + 1] & 127) << 7
        place: cython.Py_ssize_t
        for place in range(2, width):
            found |= cython.cast(cython.longlong, data[at + place] & 127) << 7 * place
    return found >> 1 ^ -(found & 1)
