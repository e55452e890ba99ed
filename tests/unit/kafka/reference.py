"""A slow reader of message sets, written from the format's description alone: the oracle of the fast one."""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Sequence
from typing import NamedTuple

import cramjam  # type: ignore[import-untyped,unused-ignore]


class Plain(NamedTuple):
    """A record by its content."""

    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def crc32c(data: bytes) -> int:
    value = 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    return value ^ 0xFFFFFFFF


def unpacked(codec: int, data: bytes) -> bytes:
    if codec == 0:
        return data
    if codec == 1:
        return gzip.decompress(data)
    if codec == 2:
        if data[:8] != b"\x82SNAPPY\x00":
            return bytes(cramjam.snappy.decompress_raw(data))
        at, blocks = 16, b""
        while at < len(data):
            (size,) = struct.unpack_from(">i", data, at)
            blocks += bytes(cramjam.snappy.decompress_raw(data[at + 4 : at + 4 + size]))
            at += 4 + size
        return blocks
    return bytes((cramjam.lz4 if codec == 3 else cramjam.zstd).decompress(data))


def lz4_blocks(frame: bytes) -> bytes:
    """The content of an LZ4 frame of independent blocks, whatever its header's checksum says: in format 0 that is wrong
    (KAFKA-3160).
    """
    assert frame[:4] == bytes.fromhex("04224d18")
    assert frame[4] & 0xF0 == 0x60, "independent blocks without checksums"
    at, found = 7 + (8 if frame[4] & 0x08 else 0), b""
    while size := int.from_bytes(frame[at : at + 4], "little"):
        block = frame[at + 4 : at + 4 + (size & 0x7FFFFFFF)]
        room = bytearray(b"" if size >> 31 else 1 << 20)
        count = cramjam.lz4.decompress_block_into(block, room, output_len=len(room)) if room else 0
        found += bytes(room[:count]) if room else block
        at += 4 + len(block)
    return found


class Cursor:
    """Reads one thing after the other."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, count: int) -> bytes:
        assert self.at + count <= len(self.data)
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self, size: int, signed: bool = True) -> int:
        return int.from_bytes(self.take(size), "big", signed=signed)

    def varint(self) -> int:
        value, shift = 0, 0
        while True:
            (byte,) = self.take(1)
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 128:
                return value >> 1 ^ -(value & 1)

    def nullable(self, length: int) -> bytes | None:
        return None if length < 0 else self.take(length)


def read(data: bytes, fetch_offset: int = 0) -> list[Plain]:
    """All records of whole batches, from the asked offset on; asserts every checksum."""
    cursor, records = Cursor(data), []
    while len(data) - cursor.at >= 12:
        offset, size = cursor.number(8), cursor.number(4)
        if len(data) - cursor.at < size:
            break
        body = cursor.take(size)
        records += batch(offset, body) if body[4] == 2 else legacy(offset, body)
    return [record for record in records if record.offset >= fetch_offset]


def without_aborted(data: bytes, aborted: Sequence[tuple[int, int]], fetch_offset: int = 0) -> list[Plain]:
    """As ``read``, but without the records of the aborted transactions (producer id, first offset): each goes on until
    the next marker of its producer that says so.
    """
    heads, cursor = [], Cursor(data)
    while len(data) - cursor.at >= 12:
        offset, size = cursor.number(8), cursor.number(4)
        if len(data) - cursor.at < size:
            break
        body = cursor.take(size)
        if body[4] == 2:
            attributes, delta = struct.unpack_from(">hi", body, 9)
            (producer,) = struct.unpack_from(">q", body, 31)
            is_abort = bool(attributes & 0x20) and batch(offset, body, markers=True)[0].key == b"\0\0\0\0"
            heads.append((offset, offset + delta, bool(attributes & 0x10), producer, is_abort))
    gone: set[int] = set()
    for producer, first in aborted:
        ends = [base for base, _, _, of, is_abort in heads if of == producer and is_abort and base > first]
        for base, last, transactional, of, _ in heads:
            if transactional and of == producer and last >= first and (not ends or base < ends[0]):
                gone.update(range(base, last + 1))
    return [record for record in read(data, fetch_offset) if record.offset not in gone]


def batch(base: int, body: bytes, markers: bool = False) -> list[Plain]:
    cursor = Cursor(body)
    cursor.take(5)
    assert cursor.number(4, signed=False) == crc32c(body[9:])
    attributes, _, first, last = cursor.number(2), cursor.number(4), cursor.number(8), cursor.number(8)
    cursor.take(14)
    count = cursor.number(4)
    if attributes & 0x20 and not markers:
        return []
    cursor = Cursor(unpacked(attributes & 7, body[cursor.at :]))
    records = []
    for _ in range(count):
        cursor.varint(), cursor.take(1)
        timestamp, offset = cursor.varint() + first, cursor.varint() + base
        key, value = cursor.nullable(cursor.varint()), cursor.nullable(cursor.varint())
        headers = tuple(
            (cursor.take(cursor.varint()).decode(), cursor.nullable(cursor.varint())) for _ in range(cursor.varint())
        )
        stamp = (last, 1) if attributes & 8 else (timestamp, 0)
        records.append(Plain(offset, *stamp, key, value, headers))
    assert cursor.at == len(cursor.data)
    return records


def legacy(offset: int, body: bytes) -> list[Plain]:
    cursor = Cursor(body)
    assert cursor.number(4, signed=False) == zlib.crc32(body[4:])
    magic, attributes = cursor.number(1), cursor.number(1)
    timestamp = cursor.number(8) if magic else -1
    kind = -1 if not magic else 1 if attributes & 8 else 0
    key, value = cursor.nullable(cursor.number(4)), cursor.nullable(cursor.number(4))
    codec = attributes & 7
    if not codec:
        return [Plain(offset, timestamp, kind, key, value, ())]
    assert value is not None
    inner = read(lz4_blocks(value) if codec == 3 and not magic else unpacked(codec, value), -(2**63))
    shift = offset - inner[-1].offset if magic else 0
    moved = [record._replace(offset=record.offset + shift) for record in inner]
    return [record._replace(timestamp=timestamp, timestamp_type=1) for record in moved] if kind == 1 else moved
