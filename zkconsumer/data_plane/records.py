"""Records, and the reader of those in a batch of format 2.

This code runs for each record. It looks at each number where it stands, since a call costs as much as all the rest.
``records.pxd`` says the C types of the compiled copy.

The bytes come from outside. Each index is compared with the record's or the batch's end before it is used, and each
length with the bytes that are left. The compiled copy reads through a pointer, so nothing else would stop it at the
end. A batch gives the same records and the same error in both ways.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from struct import Struct
from typing import Any, Final

from zkconsumer.data_plane import c_types as cython
from zkconsumer.data_plane.checksum import by_processor, by_table, prepare  # cimport

__all__ = ["CRC_BY_PROCESSOR", "MalformedRecordError", "Record", "RecordReader", "crc32c"]

_BATCH_HEAD = 61  # bytes before the records
_ATTRIBUTES_AT: Final = 21
_HEAD = Struct(">h4xqq14xi").unpack_from  # attributes, first and largest timestamp, count of records
_LOG_APPEND_TIME: Final = 0x08
_LARGEST = (1 << 63) - 1
_SMALLEST = 6  # the bytes of a record without a key and a value
_LARGE: Final = 4096  # bytes of a record
_SKIPPING: Final = "the bytes do not lie one behind the other"

CRC_BY_PROCESSOR: Final[bool] = prepare()
"""Whether :func:`crc32c` uses the processor's instruction."""


class MalformedRecordError(ValueError):
    """The bytes of a record break the format."""


@cython.final
@cython.no_gc
@cython.freelist(512)
@cython.auto_pickle(False)
@cython.cclass
class Record:
    """One message, with the bytes of its key and value.

    ``timestamp`` is in ms, -1 for none. ``timestamp_type`` is 0 for CreateTime, 1 for LogAppendTime, -1 for none.

    It holds nothing that could refer to it again. So the compiled class is not known to the garbage collector, and many
    records set no collection off.
    """

    __slots__ = ("_headers", "key", "offset", "timestamp", "timestamp_type", "value")

    def __init__(
        self,
        offset: cython.longlong,
        timestamp: cython.longlong,
        timestamp_type: cython.int,
        key: bytes | None,
        value: bytes | None,
        headers: list[tuple[str, bytes | None]] | None = None,
    ) -> None:
        self.offset = offset
        self.timestamp = timestamp
        self.timestamp_type = timestamp_type
        self.key = key
        self.value = value
        self._headers = headers

    @property
    def headers(self) -> list[tuple[str, bytes | None]]:
        """The headers, in a new list: a list of the record's own could hold the record, which would never be freed."""
        return [] if self._headers is None else list(self._headers)

    def __repr__(self) -> str:
        return (
            f"Record(offset={self.offset}, timestamp={self.timestamp}, timestamp_type={self.timestamp_type},"
            f" key={self.key!r}, value={self.value!r}, headers={self.headers!r})"
        )

    def __reduce__(self) -> tuple[type[Record], tuple[Any, ...]]:
        fields = self.offset, self.timestamp, self.timestamp_type, self.key, self.value, self._headers
        return Record, fields


if not cython.compiled:

    def start_of(view: memoryview, parts: int) -> Any:
        """Return the bytes of a view, of which ``parts`` are read; a pointer to them in the compiled copy.

        Raises: BufferError if the view skips bytes.
        """
        if view.itemsize != 1 or view.strides != (1,):
            raise BufferError(_SKIPPING)
        return bytes(view) if len(view) <= _LARGE * parts else _LargeBatch(view)

    class _LargeBatch:
        """The bytes of a batch of large records. Copied as a whole, these would be in memory three times."""

        def __init__(self, view: memoryview) -> None:
            self._view = view

        def __getitem__(self, at: Any) -> Any:
            found = self._view[at]
            return found if isinstance(found, int) else bytes(found)


@cython.final
@cython.auto_pickle(False)
@cython.cclass
class RecordReader:
    """Reads the records of an uncompressed batch of format 2: some at a time, or one by one as an iterator.

    Compiled, the iterator is faster. A record is then read in memory that the one before has just left, and which the
    processor still has at hand.

    ``left`` is the number of records that are not read, 0 after a corrupt one. Then ``failure`` says what is wrong with
    it. ``reached`` is the offset after the last good one. After any other exception, such as MemoryError, the reader
    must not be used.
    """

    __slots__ = (
        "_at",
        "_base",
        "_data",
        "_end",
        "_failed",
        "_first",
        "_first_stamp",
        "_kind",
        "_span",
        "_stamp",
        "_unread",
        "_view",
        "failure",
        "left",
    )

    def __init__(
        self,
        batch: bytes | bytearray | memoryview,
        base: cython.longlong,
        span: cython.longlong,
        first: cython.longlong,
        failed: Callable[[int, MalformedRecordError], Exception] | None = None,
    ) -> None:
        """Arguments: ``batch`` covers ``span`` offsets from ``base`` on. Records before offset ``first`` are left out.
        ``failed`` makes the error that the iterator raises instead, of ``reached`` and ``failure``. A reader whose
        records are taken has none.

        Raises: MalformedRecordError if the offsets are beyond those of Kafka, or the batch has no head.
        """
        view = memoryview(batch)  # its own, which nobody can release
        if len(view) < _BATCH_HEAD or base < 0 or not 0 <= span <= _LARGEST - base:
            raise MalformedRecordError(f"a batch of {len(view)} bytes covers {span} offsets from {base} on")
        attributes, first_stamp, last_stamp, total = _HEAD(view, _ATTRIBUTES_AT)
        data = start_of(view, total)
        # Both or none: a second call that is refused would else leave a pointer to bytes that are given up.
        self._view = view
        self._data = data
        self._failed = failed
        self._at = _BATCH_HEAD
        self._end = len(view)
        self._base = base
        self._span = span
        self._first = max(0, first - base) if first > 0 else 0
        self._unread = 0
        self._kind = 1 if attributes & _LOG_APPEND_TIME else 0
        self._first_stamp = first_stamp
        self._stamp = last_stamp
        self.left = max(0, total)
        self.failure: MalformedRecordError | None = None

    @property
    def reached(self) -> int:
        """The offset after the last good record, or the batch's first."""
        return self._base + self._unread

    def __iter__(self) -> RecordReader:
        return self

    def __next__(self) -> Record:
        # no try block here: entering one for each record costs as much as reading its numbers
        while self.left > 0:
            record: Record = self._record()
            self.left -= 1
            if self._unread > self._first:
                return record
        self._check_end()
        raise StopIteration

    def take(self, most: cython.Py_ssize_t) -> list[Record]:
        """Return up to ``most`` of the next records. Fewer come before a corrupt one, and at the batch's end."""
        found: list[Record] = []
        count: cython.Py_ssize_t = min(most, self.left)
        with suppress(MalformedRecordError):  # which is in ``failure``
            while count > 0:
                record: Record = self._record()
                if self._unread > self._first:
                    found.append(record)
                count -= 1
                self.left -= 1
            self._check_end()
        return found

    def _check_end(self) -> None:
        if self.left == 0 and self._at != self._end and self.failure is None:
            raise self._malformed(f"{self._end - self._at} bytes are behind the last record")

    def _malformed(self, reason: str) -> Exception:
        """Return the error for the next record, behind which nothing is read."""
        failure = MalformedRecordError(reason)
        self.failure = failure
        self.left = 0
        if self._failed is None:
            return failure
        error: Exception = self._failed(self.reached, failure)
        error.__cause__ = failure
        return error

    def _record(self) -> Record:
        """Return the record at ``_at``, and go on behind it."""
        data = self._data
        at: cython.Py_ssize_t = self._at
        size: cython.longlong
        byte: cython.longlong = data[at] if at < self._end else 128
        if byte < 128:
            size, at = byte >> 1 ^ -(byte & 1), at + 1
        else:
            size, at = self._number(at, self._end), self._at
        if size < _SMALLEST or size > self._end - at:
            raise self._malformed(f"a record of {size} bytes does not lie within the batch")
        stop: cython.Py_ssize_t = at + size
        if data[at] > 127:
            raise self._malformed(f"a record has the attributes {data[at]}")
        stamp: cython.longlong
        byte = data[at + 1]
        if byte < 128:
            stamp, at = byte >> 1 ^ -(byte & 1), at + 2
        else:
            stamp, at = self._number(at + 1, stop), self._at
        delta: cython.longlong
        byte = data[at] if at < stop else 128
        if byte < 128:
            delta, at = byte >> 1 ^ -(byte & 1), at + 1
        else:
            delta, at = self._number(at, stop), self._at
        if not self._unread <= delta < self._span:
            raise self._malformed("its offset is not between that of the one before and the batch's end")
        record: Record = Record.__new__(Record)
        record.offset = self._base + delta
        record.timestamp = self._stamp if self._kind else self._shifted(stamp)
        record.timestamp_type = self._kind
        self._at = self._content(record, at, stop)
        self._unread = delta + 1
        return record

    def _content(self, record: Record, at: cython.Py_ssize_t, stop: cython.Py_ssize_t) -> int:
        """Read key, value and headers of a record that ends at ``stop``; returns where they end."""
        data = self._data
        size: cython.longlong
        byte: cython.longlong = data[at] if at < stop else 128
        if byte < 128:
            size, at = byte >> 1 ^ -(byte & 1), at + 1
        else:
            size, at = self._number(at, stop), self._at
        if size > stop - at:
            raise self._malformed(f"a key of {size} bytes does not lie within its record")
        if size < 0:
            record.key = None
        else:
            record.key = data[at : at + size]
            at += size
        byte = data[at] if at < stop else 128
        if byte < 128:
            size, at = byte >> 1 ^ -(byte & 1), at + 1
        else:
            size, at = self._number(at, stop), self._at
        if size > stop - at:
            raise self._malformed(f"a value of {size} bytes does not lie within its record")
        if size < 0:
            record.value = None
        else:
            record.value = data[at : at + size]
            at += size
        if at == stop - 1 and data[at] == 0:
            record._headers = None
            return stop
        record._headers = self._headers(at, stop)
        return stop

    def _headers(self, at: cython.Py_ssize_t, stop: cython.Py_ssize_t) -> list[tuple[str, bytes | None]]:
        """Read the headers, which end at ``stop``. Bytes of a name that are no UTF-8 become U+FFFD: Java clients write
        and read any bytes there.
        """
        data = self._data
        count: cython.longlong = self._number(at, stop)
        at = self._at
        if count < 0:
            raise self._malformed(f"a record of {count} headers")
        found: list[tuple[str, bytes | None]] = []
        while count > 0:
            size: cython.longlong = self._number(at, stop)
            at = self._at
            if size < 0 or size > stop - at:
                raise self._malformed(f"a header's name of {size} bytes does not lie within its record")
            name: str = data[at : at + size].decode("utf-8", "replace")
            size, at = self._number(at + size, stop), self._at
            if size > stop - at:
                raise self._malformed(f"a header of {size} bytes does not lie within its record")
            if size < 0:
                found.append((name, None))
            else:
                found.append((name, data[at : at + size]))
                at += size
            count -= 1
        if at != stop:
            raise self._malformed(f"a record of {stop - at} bytes more than its fields")
        return found

    def _number(self, at: cython.Py_ssize_t, stop: cython.Py_ssize_t) -> int:
        """Return the number at ``at``, which ends before ``stop``, and put the place behind it into ``_at``."""
        data = self._data
        if stop - at > 1 and data[at] > 127 and data[at + 1] < 128:  # nearly all that are more than a byte
            pair: cython.longlong = data[at] & 127 | data[at + 1] << 7
            self._at = at + 2
            return pair >> 1 ^ -(pair & 1)
        return self._any_number(at, stop)

    def _any_number(self, at: cython.Py_ssize_t, stop: cython.Py_ssize_t) -> int:
        data = self._data
        found: cython.ulonglong = 0
        shift: cython.int = 0
        byte: cython.ulonglong
        while shift < 70:
            if at >= stop:
                raise self._malformed("a number does not end where it should")
            byte = data[at]
            at += 1
            found |= (byte & 127) << shift
            if byte < 128:
                self._at = at
                if shift == 63:  # ten bytes are more than 64 bits
                    found &= 0xFFFFFFFFFFFFFFFF
                return found >> 1 ^ -(found & 1)
            shift += 7
        raise self._malformed("a number of more than ten bytes")

    def _shifted(self, delta: cython.longlong) -> int:
        """Return the first timestamp plus ``delta``. The sum wraps around at 64 bits, as Java's."""
        if cython.compiled:
            stamp: cython.ulonglong = self._first_stamp
            stamp += delta
            return stamp
        stamp = self._first_stamp + delta
        return stamp if -_LARGEST <= stamp <= _LARGEST else (stamp + _LARGEST + 1) % (1 << 64) - _LARGEST - 1


def crc32c(data: bytes | bytearray | memoryview, as_any_processor: bool = False) -> int:
    """Return the CRC-32C of some bytes, without a copy of them.

    Arguments: with ``as_any_processor`` it is computed without the processor's instruction.
    """
    view = memoryview(data)
    size: cython.Py_ssize_t = len(view)
    start = start_of(view, size)
    if CRC_BY_PROCESSOR and not as_any_processor:
        return by_processor(0xFFFFFFFF, start, size) ^ 0xFFFFFFFF
    return by_table(0xFFFFFFFF, start, size) ^ 0xFFFFFFFF
