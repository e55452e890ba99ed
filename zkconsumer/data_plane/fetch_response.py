"""Reads a fetch response, versions 0 to 11, without touching the records. Pure; the fetcher thread calls it.

The schema in ``kafka/broker_schemas.py`` would need the whole response in memory before it reads the first record. Here
each partition's records are copied once, out of a small receive buffer, so a response of 50 MB does not take 100.
Lengths and counts are compared with the rest of the response and with the request, and memory grows with the bytes that
came. Any bytes give either a response or a BrokerError.

It is compiled because most responses of a slow topic hold one message. The interpreter took twice as long for such a
response as the system did to receive it.
"""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from struct import Struct
from typing import NamedTuple

from zkconsumer.data_plane import c_types as cython
from zkconsumer.data_plane.big_endian import bytes_at, int16_at, int32_at, int64_at, start_of_view, text_at  # cimport
from zkconsumer.errors import BrokerError
from zkconsumer.model import new_tuple

__all__ = ["FetchResponse", "PartitionResponse", "Receive", "ResponseReader", "read", "receive_bounded"]

_ABORTED = Struct(">qq")
_PIECE = 64 * 1024
_MOST_ABORTED = 500_000
"""Aborted transactions beside the records of one partition. Each takes ten times its bytes in memory."""

Receive = Callable[[memoryview], None]
"""Fills a view with the next bytes."""


def receive_bounded(begun: bytes | memoryview, size: int, scratch: bytearray, receive: Receive) -> bytes:
    """Return ``size`` bytes that begin with ``begun``, without believing the number, which the peer announced.

    The rest is received in parts as large as ``scratch``, so memory grows with the bytes that came. Otherwise eight
    bytes could make a member allocate two gigabytes, and stand still while they are zeroed. ``begun`` may lie in
    ``scratch``. Raises: errors of ``receive``.
    """
    found = BytesIO()
    found.write(begun)
    left = size - len(begun)
    scratch_view = memoryview(scratch or bytearray(_PIECE))
    while left > 0:
        piece = scratch_view[: min(left, len(scratch_view))]
        receive(piece)
        found.write(piece)
        left -= len(piece)
    return found.getvalue()  # its own buffer and no copy of it


class PartitionResponse(NamedTuple):
    """One partition of a response.

    - ``error``: a code of ``kafka.error_codes``
    - ``high_watermark``: the log end as far as consumers may read, -1 unknown
    - ``last_stable``: where the first open transaction begins, or the log end, -1 unknown
    - ``log_start``: the first offset of the log, -1 unknown
    - ``aborted``: (producer id, first offset) of aborted transactions in the records, told only to read_committed
    - ``records``: the message set, for ``fetched_batches.batches``
    - ``read_replica``: the broker to read from instead, -1 for none; told only to a client that names its rack
    """

    topic: str
    partition: int
    error: int
    high_watermark: int
    log_start: int
    aborted: tuple[tuple[int, int], ...]
    records: bytes
    last_stable: int = -1
    read_replica: int = -1

    def end(self, isolation_level: int) -> int:
        """Return the log end for an isolation level (0: read_uncommitted, 1: read_committed)."""
        return self.last_stable if isolation_level and self.last_stable >= 0 else self.high_watermark


class FetchResponse(NamedTuple):
    """A response: seconds of throttling by the broker's quota, the partitions in the broker's order, and the session
    id.

    The session id is 0 without a fetch session. In a session, partitions with nothing new are left out.
    """

    throttle: float
    partitions: list[PartitionResponse]
    session_id: int = 0
    error: int = 0


@cython.final
@cython.auto_pickle(False)
@cython.cclass
class ResponseReader:
    """Reads a response while it is received. The part of it that is in memory lies in a view, from ``_at`` to ``_end``.

    Arguments: ``buffer`` to receive into, which is replaced if it cannot hold a name; ``size`` in bytes of the
    response, by its head; ``receive`` fills a view with the next bytes; ``begun`` are the bytes that have come already.
    """

    __slots__ = ("_at", "_data", "_end", "_left", "_receive", "_view", "buffer")

    def __init__(
        self,
        buffer: bytearray,
        size: cython.longlong,
        receive: Callable[[memoryview], None],
        begun: bytes | bytearray | memoryview = b"",
    ) -> None:
        self.buffer = buffer
        self._receive = receive
        self._use(memoryview(begun))
        self._left = size - self._end

    @staticmethod
    def over(view: memoryview) -> ResponseReader:
        """Return the reader of a response that is in memory as a whole."""
        return ResponseReader(bytearray(), len(view), _receive_nothing, view)

    def _use(self, view: memoryview) -> None:
        """Read on at the beginning of a view."""
        self._data = start_of_view(view)
        self._view = view  # keeps the bytes where they are
        self._at = 0
        self._end = len(view)

    def _fill(self, count: cython.Py_ssize_t) -> None:
        """Have the next ``count`` bytes in the view, or all that are left; ``count`` is that of a name or a head.

        Raises: errors of ``receive``.
        """
        have: cython.Py_ssize_t = self._end - self._at
        if have >= count or self._left <= 0:
            return
        rest = bytes(self._view[self._at :])  # short: less than ``count``
        if len(self.buffer) < count:
            self.buffer = bytearray(count)
        whole = memoryview(self.buffer)
        whole[:have] = rest
        end = min(len(self.buffer), have + self._left)
        self._receive(whole[have:end])
        self._left -= end - have
        self._use(whole[:end])

    def _take(self, count: cython.Py_ssize_t) -> int:
        """Return the place of the next ``count`` bytes, those of a name or a head, and go on behind them.

        Raises: ValueError if fewer are left.
        """
        at: cython.Py_ssize_t = self._at
        if count > self._end - at:
            self._check(count)
            self._fill(count)
            at = self._at
        self._at = at + count
        return at

    def _records(self, count: cython.Py_ssize_t) -> bytes:
        """Return a copy of the next ``count`` bytes, however many. Raises ValueError if fewer are left."""
        if count > self._end - self._at:
            self._check(count)
            if count > len(self.buffer):
                begun = self._view[self._at :]
                found = receive_bounded(begun, count, self.buffer, self._receive)
                self._left -= count - len(begun)
                self._use(memoryview(b""))
                return found
        at: cython.Py_ssize_t = self._take(count)
        return bytes_at(self._data, at, count)

    def _check(self, count: cython.longlong) -> None:
        if count > self._end - self._at + self._left:
            raise ValueError(f"{count} bytes do not lie within the {self.left} that are left of it")

    @property
    def left(self) -> int:
        """Bytes of the response that were not read yet."""
        return self._end - self._at + self._left

    def response(self, version: cython.int, most: cython.longlong) -> FetchResponse:
        """Return the whole response; see :func:`read`. ``most`` is -1 for any number of partitions."""
        throttle: cython.int = 0
        error: cython.int = 0
        session_id: cython.int = 0
        at: cython.Py_ssize_t
        if version >= 1:
            at = self._take(4)
            throttle = int32_at(self._data, at)
        if version >= 7:
            at = self._take(6)
            error = int16_at(self._data, at)
            session_id = int32_at(self._data, at + 2)
        at = self._take(4)
        topics: cython.int = _checked(int32_at(self._data, at))
        partitions: list[PartitionResponse] = []
        while topics > 0:
            topics -= 1
            at = self._take(2)
            length: cython.Py_ssize_t = int16_at(self._data, at)
            if length < 0:
                raise ValueError("a topic without a name")
            at = self._take(length)
            topic = text_at(self._data, at, length)
            at = self._take(4)
            count: cython.int = _checked(int32_at(self._data, at))
            if 0 <= most < len(partitions) + count:
                raise ValueError(f"more than the {most} partitions that were asked for")
            while count > 0:
                count -= 1
                partitions.append(self._partition(version, topic))
        return new_tuple(FetchResponse, (throttle / 1000, partitions, session_id, error))  # type: ignore[no-any-return]

    def _partition(self, version: cython.int, topic: str) -> PartitionResponse:
        at: cython.Py_ssize_t = self._take(14 if version < 4 else 22 if version == 4 else 30)
        partition: cython.int = int32_at(self._data, at)
        error: cython.int = int16_at(self._data, at + 4)
        high_watermark: cython.longlong = int64_at(self._data, at + 6)
        last_stable: cython.longlong = -1
        log_start: cython.longlong = -1
        replica: cython.int = -1
        aborted: tuple[tuple[int, int], ...] = ()
        if version >= 5:
            log_start = int64_at(self._data, at + 22)
        if version >= 4:
            last_stable = int64_at(self._data, at + 14)
            at = self._take(4)
            count: cython.int = _checked(int32_at(self._data, at))
            if count > 0:
                aborted = self._aborted(count)
        if version >= 11:
            at = self._take(4)
            replica = int32_at(self._data, at)
        at = self._take(4)
        records = self._records(_checked(int32_at(self._data, at)))
        fields = (topic, partition, error, high_watermark, log_start, aborted, records, last_stable, replica)
        return new_tuple(PartitionResponse, fields)  # type: ignore[no-any-return]

    def _aborted(self, count: cython.Py_ssize_t) -> tuple[tuple[int, int], ...]:
        if count > _MOST_ABORTED:
            raise ValueError(f"{count} aborted transactions, more than {_MOST_ABORTED}")
        return tuple(_ABORTED.iter_unpack(self._records(count * 16)))


def _receive_nothing(view: memoryview) -> None:
    """Stand for the connection of a response that is in memory."""


def read(reader: ResponseReader, version: int, who: str, partitions: int | None = None) -> FetchResponse:
    """Return the response, from behind its correlation id on; ``reader`` may still be receiving it.

    Arguments: ``who`` names the broker in errors; ``partitions`` is the most that there may be, None does not check it.
    Raises: BrokerError for bytes that are no response of this version; errors of receiving.
    """
    try:
        answer = reader.response(version, -1 if partitions is None else partitions)
    except ValueError as failure:
        raise BrokerError(f"{who}: its answer to Fetch version {version} cannot be read: {failure}") from failure
    if reader.left:
        raise BrokerError(f"{who}: its answer to Fetch version {version} has {reader.left} bytes too many")
    return answer


@cython.cfunc
@cython.exceptval(-2)
def _checked(count: cython.int) -> cython.int:
    """Return a length or count; -1 stands for null, which means nothing here. Raises ValueError for less."""
    if count < -1:
        raise ValueError(f"negative length {count}")
    return 0 if count < 0 else count
