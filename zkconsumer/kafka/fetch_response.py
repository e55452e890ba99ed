"""Reads a fetch response, versions 0 to 11, without touching the records. Pure; the fetcher thread calls it.

The schema in ``broker_schemas.py`` would need the whole response in memory before it reads the first record. Here each
partition's records are copied once, out of a small receive buffer, so a response of 50 MB does not take 100. Lengths
and counts are compared with the rest of the response and with the request, and memory grows with the bytes that came.
Any bytes give either a response or a BrokerError.
"""

from __future__ import annotations

import struct
from struct import Struct
from typing import NamedTuple

from zkconsumer.errors import BrokerError
from zkconsumer.kafka.connection import Receive, receive_bounded

_INT16 = Struct(">h").unpack_from
_INT32 = Struct(">i").unpack_from
_START_1, _SIZE_1 = Struct(">ii").unpack_from, 8  # throttling in ms, topics
_START_7, _SIZE_7 = Struct(">ihii").unpack_from, 14  # throttling in ms, error code, session id, topics
_ABORTED = Struct(">qq")
_PARTITION, _PARTITION_SIZE = Struct(">ihq").unpack_from, 14  # partition, error code, high watermark
_PARTITION_4, _PARTITION_SIZE_4 = (
    Struct(">ihqqi").unpack_from,
    26,
)  # + last stable offset, count of aborted transactions
_PARTITION_5, _PARTITION_SIZE_5 = Struct(">ihqqqi").unpack_from, 34  # + log start offset, before that count

_HEAD = 64
"""Bytes that hold any of the parts of fixed size."""
_MOST_ABORTED = 500_000
"""Aborted transactions beside the records of one partition. Each takes ten times its bytes in memory."""


class PartitionResponse(NamedTuple):
    """One partition of a response.

    - ``error``: a code of ``kafka.error_codes``
    - ``high_watermark``: the log end as far as consumers may read, -1 unknown
    - ``last_stable``: where the first open transaction begins, or the log end, -1 unknown
    - ``log_start``: the first offset of the log, -1 unknown
    - ``aborted``: (producer id, first offset) of aborted transactions in the records, told only to read_committed
    - ``records``: the message set, for ``message_set.batches``
    """

    topic: str
    partition: int
    error: int
    high_watermark: int
    log_start: int
    aborted: tuple[tuple[int, int], ...]
    records: bytes
    last_stable: int = -1

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


class ResponseReader:
    """Reads a response while it is received; ``view`` from ``at`` on is the part in memory.

    Arguments: ``buffer`` to receive into, which is replaced if it cannot hold a name; ``size`` in bytes of the
    response, by its head; ``receive`` fills a view with the next bytes; ``begun`` are the bytes that have come already.
    """

    __slots__ = ("_left", "_receive", "at", "buffer", "view")

    def __init__(self, buffer: bytearray, size: int, receive: Receive, begun: bytes | memoryview = b"") -> None:
        self.buffer = buffer
        self._left = size - len(begun)
        self._receive = receive
        self.at = 0
        self.view = memoryview(begun)

    @classmethod
    def over(cls, view: memoryview) -> ResponseReader:
        """Return the reader of a response that is in memory as a whole."""
        return cls(bytearray(), len(view), lambda _: None, view)

    def fill(self, count: int) -> None:
        """Have the next ``count`` bytes in the view, or all that are left; ``count`` is that of a name or a head.

        Raises: errors of ``receive``.
        """
        have = len(self.view) - self.at
        if have >= count or not self._left:
            return
        rest = bytes(self.view[self.at :])  # short: less than ``count``
        if len(self.buffer) < count:
            self.buffer = bytearray(count)
        whole = memoryview(self.buffer)
        whole[:have] = rest
        end = min(len(self.buffer), have + self._left)
        self._receive(whole[have:end])
        self._left -= end - have
        self.view, self.at = whole[:end], 0

    def take(self, count: int) -> memoryview:
        """Return the next ``count`` bytes, valid until the next call; ``count`` is that of a name or a head.

        Raises: ValueError if fewer are left; a slice of Python would silently be shorter.
        """
        start, end = self.at, self.at + count
        if end > len(self.view):
            self._check(count)
            self.fill(count)
            start, end = self.at, self.at + count
        self.at = end
        return self.view[start:end]

    def data(self, count: int) -> bytes:
        """Return a copy of the next ``count`` bytes, however many. Raises ValueError if fewer are left."""
        if count <= len(self.view) - self.at or count <= len(self.buffer):
            return bytes(self.take(count))
        self._check(count)
        begun = self.view[self.at :]
        found = receive_bounded(begun, count, self.buffer, self._receive)
        self._left -= count - len(begun)
        self.view, self.at = memoryview(b""), 0
        return found

    def _check(self, count: int) -> None:
        if count > self.left:
            raise ValueError(f"{count} bytes do not lie within the {self.left} that are left of it")

    @property
    def left(self) -> int:
        """Bytes of the response that were not read yet."""
        return len(self.view) - self.at + self._left


def read(reader: ResponseReader, version: int, who: str, partitions: int | None = None) -> FetchResponse:
    """Return the response, from behind its correlation id on; ``reader`` may still be receiving it.

    Arguments: ``who`` names the broker in errors; ``partitions`` is the most that there may be, None does not check it.
    Raises: BrokerError for bytes that are no response of this version; errors of receiving.
    """
    try:
        answer = _read(reader, version, partitions)
    except (struct.error, UnicodeDecodeError, ValueError) as failure:
        raise BrokerError(f"{who}: its answer to Fetch version {version} cannot be read: {failure}") from failure
    if reader.left:
        raise BrokerError(f"{who}: its answer to Fetch version {version} has {reader.left} bytes too many")
    return answer


def _read(reader: ResponseReader, version: int, most: int | None) -> FetchResponse:
    # Names and heads are unpacked in place. A call for each of them took half the time of a small response.
    if len(reader.view) < _HEAD:
        reader.fill(_HEAD)
    view, throttle, error, session_id = reader.view, 0, 0, 0
    if version >= 7:
        throttle, error, session_id, topics = _START_7(view)
        reader.at = _SIZE_7
    elif version >= 1:
        throttle, topics = _START_1(view)
        reader.at = _SIZE_1
    else:
        (topics,) = _INT32(reader.take(4))
    partitions: list[PartitionResponse] = []
    for _ in range(topics if topics >= 0 else _checked(topics)):
        view, at = reader.view, reader.at
        if len(view) - at < _HEAD:
            reader.fill(_HEAD)
            view, at = reader.view, reader.at
        (length,) = _INT16(view, at)
        if length < 0:
            raise ValueError("a topic without a name")
        named = reader.take(length + 6)
        topic = str(named[2:-4], "utf-8")
        (count,) = _INT32(named, length + 2)
        if most is not None and len(partitions) + count > most:
            raise ValueError(f"more than the {most} partitions that were asked for")
        for _ in range(count if count >= 0 else _checked(count)):
            partitions.append(_read_partition(reader, version, topic))  # noqa: PERF401
    return FetchResponse(throttle / 1000, partitions, session_id, error)


def _read_partition(reader: ResponseReader, version: int, topic: str) -> PartitionResponse:
    view, at = reader.view, reader.at  # read once: there may be many partitions, and a head usually lies in one piece
    if len(view) - at < _HEAD:
        reader.fill(_HEAD)
        view, at = reader.view, reader.at
    log_start = last_stable = -1
    count = 0
    if version >= 5:
        partition, error, high_watermark, last_stable, log_start, count = _PARTITION_5(view, at)
        at += _PARTITION_SIZE_5
    elif version == 4:
        partition, error, high_watermark, last_stable, count = _PARTITION_4(view, at)
        at += _PARTITION_SIZE_4
    else:
        partition, error, high_watermark = _PARTITION(view, at)
        at += _PARTITION_SIZE
    aborted: tuple[tuple[int, int], ...] = ()
    if count > 0 or count < -1:
        reader.at = at
        aborted = _read_aborted(reader, count)
        view, at = reader.view, reader.at
    if version >= 11:
        at += 4  # the preferred read replica, which is told only to a client that names its rack
    (size,) = _INT32(view, at)
    at += 4
    if 0 <= size <= len(view) - at:
        reader.at = at + size
        records = bytes(view[at : at + size])
    else:
        reader.at = at
        records = reader.data(_checked(size))
    return PartitionResponse(topic, partition, error, high_watermark, log_start, aborted, records, last_stable)


def _read_aborted(reader: ResponseReader, count: int) -> tuple[tuple[int, int], ...]:
    """Return the aborted transactions, with the rest of the partition's head in the view behind them."""
    if _checked(count) > _MOST_ABORTED:
        raise ValueError(f"{count} aborted transactions, more than {_MOST_ABORTED}")
    aborted = tuple(_ABORTED.iter_unpack(reader.data(count * _ABORTED.size)))
    reader.fill(_HEAD)
    return aborted


def _checked(count: int) -> int:
    """Return a length or count; -1 stands for null, which means nothing here. Raises ValueError for less."""
    if count < -1:
        raise ValueError(f"negative length {count}")
    return max(count, 0)
