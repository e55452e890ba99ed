"""A writer of batches and messages in formats 0, 1 and 2, from the format's description alone."""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import cramjam  # type: ignore[import-untyped,unused-ignore]
import google_crc32c

GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4
APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20

_XERIAL = b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK = 32 * 1024


class NewRecord(NamedTuple):
    """A record of format 2, ``delta`` offsets behind the first offset of its batch."""

    delta: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = ()


# ---- compression


def gzip_encode(data: bytes) -> bytes:
    return gzip.compress(data, mtime=0)


def snappy_encode(data: bytes) -> bytes:
    """Blocks behind the head of the Java library."""
    blocks = (
        bytes(cramjam.snappy.compress_raw(data[at : at + _XERIAL_BLOCK])) for at in range(0, len(data), _XERIAL_BLOCK)
    )
    return _XERIAL + b"".join(len(block).to_bytes(4, "big") + block for block in blocks)


def lz4_encode(data: bytes) -> bytes:
    """A frame of independent blocks, the only kind that brokers take."""
    compressor = cramjam.lz4.Compressor(level=9, content_checksum=False, block_linked=False)
    compressor.compress(data)
    return bytes(compressor.finish())


def zstd_encode(data: bytes) -> bytes:
    return bytes(cramjam.zstd.compress(data, level=3))


_ENCODERS: dict[int, Callable[[bytes], bytes]] = {
    0: bytes,
    GZIP: gzip_encode,
    SNAPPY: snappy_encode,
    LZ4: lz4_encode,
    ZSTD: zstd_encode,
}


# ---- format 2


def batch_bytes(
    records: Sequence[NewRecord],
    *,
    base: int = 0,
    codec: int = 0,
    attributes: int = 0,
    producer_id: int = -1,
    trailing: int = 0,
) -> bytes:
    """A batch whose first offset is ``base``; compaction removed ``trailing`` offsets at its end."""
    first = records[0].timestamp
    latest = max(record.timestamp for record in records)
    known = producer_id >= 0
    head = struct.pack(
        ">hiqqqhii",
        codec | attributes,
        records[-1].delta + trailing,
        first,
        latest,
        producer_id,
        0 if known else -1,
        0 if known else -1,
        len(records),
    )
    body = head + _ENCODERS[codec](b"".join(_record(record, first) for record in records))
    rest = struct.pack(">ibI", -1, 2, google_crc32c.value(body)) + body
    return struct.pack(">qi", base, len(rest)) + rest


def _record(record: NewRecord, first: int) -> bytes:
    parts = [b"\0", varint(record.timestamp - first), varint(record.delta), _field(record.key), _field(record.value)]
    parts.append(varint(len(record.headers)))
    for name, value in record.headers:
        parts += (_field(name.encode()), _field(value))
    body = b"".join(parts)
    return varint(len(body)) + body


def _field(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


def varint(number: int) -> bytes:
    """A signed number, seven bits a byte, the sign in the lowest bit."""
    rest = number << 1 ^ number >> 63
    written = bytearray()
    while rest > 0x7F:
        written.append(rest & 0x7F | 0x80)
        rest >>= 7
    written.append(rest)
    return bytes(written)


# ---- formats 0 and 1


def message_bytes(
    magic: int, offset: int, timestamp: int, key: bytes | None, value: bytes | None, attributes: int = 0
) -> bytes:
    """One message of format 0 or 1."""
    times = timestamp.to_bytes(8, "big", signed=True) if magic else b""
    body = bytes([magic, attributes]) + times + _sized(key) + _sized(value)
    rest = zlib.crc32(body).to_bytes(4, "big") + body
    return struct.pack(">qi", offset, len(rest)) + rest


def wrapped(
    magic: int, codec: int, messages: Iterable[bytes], offset: int, timestamp: int, attributes: int = 0
) -> bytes:
    """Compressed messages inside of one. Its offset is that of the last one inside."""
    return message_bytes(magic, offset, 0, None, _ENCODERS[codec](b"".join(messages)), codec | attributes)


def _sized(data: bytes | None) -> bytes:
    return b"\xff\xff\xff\xff" if data is None else len(data).to_bytes(4, "big") + data
