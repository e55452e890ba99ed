"""The log of one fake partition: the producers' batches, in memory.

Any thread may call it; each log has one lock. A batch of format 2 stays as the producer sent it, and only gets its
offsets, as in a broker. Older formats are refused.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from struct import Struct
from threading import Lock
from typing import NamedTuple

from google_crc32c import value as crc32c

from zkconsumer.kafka.fetched_batches import batches
from zkconsumer.model import TopicPartition

_HEAD = Struct(">qiibIhiqqqhii")
_CRC_FROM = 21
_EPOCH, _MAGIC = 12, 16
_START = Struct(">qi")
_KEPT_SEQUENCES = 5  # the most batches that a producer may have in flight

NONE = 0
OFFSET_OUT_OF_RANGE = 1
CORRUPT_MESSAGE = 2
OUT_OF_ORDER_SEQUENCE = 45
UNSUPPORTED_FORMAT = 43


class StoredBatch(NamedTuple):
    """A batch in a log: the first and the last offset, the greatest timestamp in ms, and the bytes."""

    first: int
    last: int
    timestamp: int
    data: bytes


class Follower(NamedTuple):
    """A replica that consumers of its ``rack`` (empty: none) are sent to. Its log ends at ``end``, None: where the
    leader's ends.
    """

    rack: str
    end: int | None = None


class Appended(NamedTuple):
    """The result of a produce: an error code, or the first offset."""

    error: int
    offset: int = -1


def encode_batch(
    values: Sequence[bytes | None], timestamp: int, keys: Sequence[bytes | None] = (), first: int = 0
) -> bytes:
    """Return a batch of format 2, uncompressed and without headers. ``timestamp`` is in ms; ``keys`` may be empty."""
    records = bytearray()
    for number, value in enumerate(values):
        record = bytearray(b"\0\0")  # no attributes, the same time as the batch
        record += _varint(number) + _field(keys[number] if keys else None) + _field(value) + b"\0"
        records += _varint(len(record)) + record
    last = len(values) - 1
    head = _HEAD.pack(first, 0, 0, 2, 0, 0, last, timestamp, timestamp, -1, -1, -1, len(values))
    data = bytearray(head) + records
    data[8:12] = (len(data) - _START.size).to_bytes(4, "big")
    data[17:21] = int(crc32c(bytes(data[_CRC_FROM:]))).to_bytes(4, "big")
    return bytes(data)


def _field(data: bytes | None) -> bytes:
    return _varint(-1) if data is None else _varint(len(data)) + data


def _varint(number: int) -> bytes:
    """Encode a signed number as a zigzag varint."""
    rest = number << 1 if number >= 0 else ((-number) << 1) - 1
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


class PartitionLog:
    """The log of one partition. ``leader`` is a broker's id, -1 for none. ``epoch`` counts the leaders. ``followers``
    are those that consumers may read from, by their broker's id.

    Each batch carries the epoch in which it was appended. :meth:`epoch_end` returns the end of each epoch.
    """

    def __init__(self, where: TopicPartition, leader: int) -> None:
        self.where = where
        self.leader = leader
        self.followers: dict[int, Follower] = {}
        self.epoch = 0
        self._lock = Lock()
        self._batches: list[StoredBatch] = []
        self._start = 0
        self._end = 0
        self._sequences: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
        self._epochs: list[tuple[int, int]] = [(0, 0)]

    def move(self, leader: int) -> None:
        """Change the leader; the former one follows. The next epoch begins at the end of the log."""
        with self._lock:
            self.followers.setdefault(self.leader, Follower(""))
            self.leader = leader
            self._next_epoch()

    def _next_epoch(self) -> None:
        self.epoch += 1
        self._epochs = [
            *((epoch, start) for epoch, start in self._epochs if start < self._end),
            (self.epoch, self._end),
        ]

    def epoch_end(self, epoch: int) -> tuple[int, int]:
        """Return the last epoch that is not later than ``epoch``, and its end offset.

        An ``epoch`` that is later than the present one returns (-1, -1).
        """
        with self._lock:
            if epoch >= self.epoch:
                return (self.epoch, self._end) if epoch == self.epoch else (-1, -1)
            later = next(start for known, start in self._epochs if known > epoch)
            found = [known for known, _ in self._epochs if known <= epoch]
            return (found[-1] if found else epoch), later

    @property
    def start(self) -> int:
        """The first offset of the log."""
        with self._lock:
            return self._start

    @property
    def end(self) -> int:
        """The offset of the next message."""
        with self._lock:
            return self._end

    def append(self, records: bytes) -> Appended:
        """Append a producer's batches."""
        at = 0
        first: int | None = None
        with self._lock:
            while at < len(records):
                if len(records) - at < _HEAD.size:
                    return Appended(UNSUPPORTED_FORMAT if len(records) > _MAGIC else CORRUPT_MESSAGE)
                _, size, _, magic, crc, _, delta, _, newest, *producer, _ = _HEAD.unpack_from(records, at)
                end = at + _START.size + size
                if magic != 2:
                    return Appended(UNSUPPORTED_FORMAT)
                if end > len(records) or crc32c(records[at + _CRC_FROM : end]) != crc:
                    return Appended(CORRUPT_MESSAGE)
                known = self._known(producer, delta)
                if known is not None and (known.error or known.offset >= 0):
                    return known
                offset = self._end
                first = offset if first is None else first
                epoch = self.epoch.to_bytes(4, "big")
                data = offset.to_bytes(8, "big") + records[at + 8 : at + _EPOCH] + epoch + records[at + _MAGIC : end]
                self._batches.append(StoredBatch(offset, offset + delta, newest, data))
                self._end = offset + delta + 1
                self._remember(producer, delta, offset)
                at = end
        return Appended(NONE, -1 if first is None else first)

    def read(self, offset: int, max_bytes: int, end: int | None = None) -> tuple[int, bytes]:
        """Return an error code, and the batches from the one with ``offset`` on, of a replica that ends at ``end``.

        If there is a batch, the bytes hold at least one whole batch, even beyond ``max_bytes``.
        """
        with self._lock:
            last = self._end if end is None else end
            if not self._start <= offset <= last:
                return OFFSET_OUT_OF_RANGE, b""
            found = bytearray()
            for batch in self._batches[self._index(offset) :]:
                if batch.last >= last or (found and len(found) + len(batch.data) > max_bytes):
                    break
                found += batch.data
            return NONE, bytes(found)

    def offset_at(self, timestamp: int) -> tuple[int, int]:
        """Return (offset, timestamp) of the first batch that is not older, or (-1, -1)."""
        with self._lock:
            for batch in self._batches:
                if batch.timestamp >= timestamp:
                    return batch.first, batch.timestamp
            return -1, -1

    def truncate_before(self, offset: int) -> None:
        """Delete the batches before ``offset``, as retention does."""
        with self._lock:
            self._batches = [batch for batch in self._batches if batch.last >= offset]
            self._start = min(max(self._start, offset), self._end)

    def truncate(self, offset: int) -> None:
        """Delete the batches from ``offset`` on and begin the next epoch, as a new leader does that was behind."""
        with self._lock:
            self._batches = [batch for batch in self._batches if batch.last < offset]
            self._end = self._batches[-1].last + 1 if self._batches else min(self._start, offset)
            self._start = min(self._start, self._end)
            self._sequences.clear()
            self._next_epoch()

    def compact(self, offset: int) -> None:
        """Delete the batch with ``offset``, as compaction does. Raises KeyError."""
        with self._lock:
            del self._batches[self._index_of_batch(offset)]

    def corrupt(self, offset: int) -> None:
        """Change a byte in the batch with ``offset``, so that its checksum is wrong. Raises KeyError."""
        with self._lock:
            index = self._index_of_batch(offset)
            batch = self._batches[index]
            data = bytearray(batch.data)
            data[-1] ^= 0xFF
            self._batches[index] = batch._replace(data=bytes(data))

    def values(self) -> list[bytes | None]:
        """Return the values of all messages."""
        with self._lock:
            data = b"".join(batch.data for batch in self._batches)
            start = self._start
        return [
            record.value
            for batch in batches(data, check_crc=True, where=self.where, fetch_offset=start)
            for record in batch
        ]

    def _index_of_batch(self, offset: int) -> int:
        index = self._index(offset)
        if index == len(self._batches) or not self._batches[index].first <= offset:
            raise KeyError(f"{self.where} has no batch with offset {offset}")
        return index

    def _index(self, offset: int) -> int:
        return bisect_left(self._batches, offset, key=lambda batch: batch.last)

    def _known(self, producer: list[int], delta: int) -> Appended | None:
        """Return the offset of an idempotent producer's repeated batch, or an error if its batch leaves a gap."""
        producer_id, epoch, sequence = producer
        if producer_id < 0:
            return None
        kept = self._sequences.get((producer_id, epoch))
        for first, last, offset in kept or ():
            if (first, last) == (sequence, sequence + delta):
                return Appended(NONE, offset)
        expected = (kept[-1][1] + 1) if kept else sequence
        return Appended(OUT_OF_ORDER_SEQUENCE) if sequence != expected else None

    def _remember(self, producer: list[int], delta: int, offset: int) -> None:
        producer_id, epoch, sequence = producer
        if producer_id >= 0:
            kept = self._sequences.setdefault((producer_id, epoch), [])
            kept.append((sequence, sequence + delta, offset))
            del kept[:-_KEPT_SEQUENCES]
