"""Message sets for tests."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import google_crc32c
from hypothesis import strategies as st

from tests.unit.kafka.record_writer import (
    APPEND_TIME,
    CONTROL,
    GZIP,
    LZ4,
    SNAPPY,
    TRANSACTIONAL,
    ZSTD,
    NewRecord,
    batch_bytes,
    message_bytes,
    wrapped,
)
from tests.unit.kafka.reference import Plain
from zkconsumer.kafka import batches
from zkconsumer.kafka.arrow_columns import NAMES, ColumnBuilder
from zkconsumer.kafka.record_batch import RecordBatch
from zkconsumer.model import TopicPartition

WHERE = TopicPartition("t", 3)


@dataclass(frozen=True)
class Written:
    """A record to write, ``gap`` offsets after the one before."""

    key: bytes | None = None
    value: bytes | None = b"v"
    headers: Sequence[tuple[str, bytes | None]] = ()
    timestamp: int = 1_500_000_000_000
    gap: int = 0


@dataclass(frozen=True)
class Batch:
    """A batch to write: of ``magic`` 0, 1 or 2, ``gap`` offsets after the one before."""

    records: Sequence[Written] = (Written(),)
    magic: int = 2
    codec: int = 0
    append_time: bool = False
    gap: int = 0
    producer_id: int = -1
    transactional: bool = False
    control: bool = False
    trailing: int = 0  # offsets after the last record that compaction removed

    def encode(self, base: int) -> tuple[bytes, int]:
        """The bytes at ``base``, and the next offset."""
        return self._batch(base) if self.magic == 2 else self._legacy(base)

    def _offsets(self) -> list[int]:
        offsets, offset = [], -1
        for record in self.records:
            offset += record.gap + 1
            offsets.append(offset)
        return offsets

    def _batch(self, base: int) -> tuple[bytes, int]:
        records = [
            NewRecord(offset, record.timestamp, record.key, record.value, record.headers)
            for offset, record in zip(self._offsets(), self.records, strict=True)
        ]
        data = batch_bytes(
            records,
            base=base,
            codec=self.codec,
            attributes=APPEND_TIME * self.append_time | TRANSACTIONAL * self.transactional | CONTROL * self.control,
            producer_id=self.producer_id,
            trailing=self.trailing,
        )
        return data, base + records[-1].delta + self.trailing + 1

    def _legacy(self, base: int) -> tuple[bytes, int]:
        """Messages, or one around them. The offsets inside of one of format 1 begin at 0."""
        offsets = self._offsets()
        attributes = APPEND_TIME if self.magic and self.append_time else 0
        first = 0 if self.codec and self.magic else base
        messages = [
            message_bytes(
                self.magic, first + offset, record.timestamp, record.key, record.value, 0 if self.codec else attributes
            )
            for offset, record in zip(offsets, self.records, strict=True)
        ]
        last = base + offsets[-1]
        if not self.codec:
            return b"".join(messages), last + 1
        return wrapped(self.magic, self.codec, messages, last, attributes), last + 1


def resealed(data: bytes) -> bytes:
    """One batch or message with the checksum that fits its content."""
    if data[16:17] == b"\2":
        return data[:17] + int(google_crc32c.value(data[21:])).to_bytes(4, "big") + data[21:]
    return data[:12] + zlib.crc32(data[16:]).to_bytes(4, "big") + data[16:]


@dataclass(frozen=True)
class MessageSet:
    """Batches one after the other from ``base`` on."""

    batches: Sequence[Batch]
    base: int = 0
    data: bytes = field(init=False)
    ends: Sequence[int] = field(init=False)
    next_offset: int = field(init=False)

    def __post_init__(self) -> None:
        data, ends, offset = b"", [], self.base
        for batch in self.batches:
            one, offset = batch.encode(offset + batch.gap)
            data += one
            ends.append(len(data))
        object.__setattr__(self, "data", data)
        object.__setattr__(self, "ends", tuple(ends))
        object.__setattr__(self, "next_offset", offset)


BYTES = st.none() | st.binary(max_size=20) | st.binary(max_size=3).map(lambda b: b * 100)
WRITTEN = st.builds(
    Written,
    key=BYTES,
    value=BYTES,
    headers=st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3),
    timestamp=st.integers(0, 2**42),
    gap=st.sampled_from([0, 0, 0, 1, 300]),
)
CODECS = {0: (0, GZIP, SNAPPY), 1: (0, GZIP, SNAPPY, LZ4), 2: (0, GZIP, SNAPPY, LZ4, ZSTD)}
"""By format; LZ4 of format 0 exists too, with a checksum of its own."""
BATCHES = st.sampled_from([(magic, codec) for magic, codecs in CODECS.items() for codec in codecs]).flatmap(
    lambda kind: st.builds(
        Batch,
        records=st.lists(WRITTEN, min_size=1, max_size=6),
        magic=st.just(kind[0]),
        codec=st.just(kind[1]),
        append_time=st.booleans(),
        gap=st.sampled_from([0, 0, 5]),
        trailing=st.sampled_from([0, 0, 2]),
    )
)
SETS = st.builds(MessageSet, st.lists(BATCHES, min_size=1, max_size=4), base=st.integers(0, 2**40))


def read_columns(batches: Iterable[RecordBatch], names: Sequence[str] = NAMES, *, end: int | None = None) -> list[Any]:
    """Return all columns of some batches at once, for small amounts. Raises CorruptRecordsError."""
    builder = ColumnBuilder(names)
    for batch in batches:
        builder.add_batch(batch, end)
    return builder.take()


def plain(found: Iterable[RecordBatch]) -> list[Plain]:
    return [
        Plain(r.offset, r.timestamp, r.timestamp_type, r.key, r.value, tuple(r.headers))
        for batch in found
        for r in batch
    ]


def listed(data: bytes, fetch_offset: int = 0, check_crc: bool = True) -> list[RecordBatch]:
    return list(batches(data, check_crc=check_crc, where=WHERE, fetch_offset=fetch_offset))


def offsets(found: Iterable[RecordBatch]) -> list[int]:
    return [record.offset for batch in found for record in batch]
