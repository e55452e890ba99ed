"""Decompression of message sets, with one kind of error.

Pure. The codecs are aiokafka's (``gzip`` of the standard library, the others by cramjam); formats 0 and 1 need them
one by one, since their wrapper message is unpacked by us. Format 2 is decompressed inside aiokafka's record batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from aiokafka.codec import gzip_decode, lz4_decode, snappy_decode, zstd_decode

GZIP: Final = 1
SNAPPY: Final = 2
LZ4: Final = 3
ZSTD: Final = 4

_LZ4_MAGIC = b"\x04\x22\x4d\x18"
_MASK = 0xFFFFFFFF
_PRIME1, _PRIME2, _PRIME3, _PRIME4, _PRIME5 = 2654435761, 2246822519, 3266489917, 668265263, 374761393


def decompress(codec: int, data: bytes, magic: int) -> bytes:
    """The content of a wrapper message of format ``magic`` 0 or 1, or of a batch of format 2.

    Raises ValueError for an unknown codec and for data that cannot be unpacked.
    """
    decode: Callable[[bytes], bytes] | None = _DECODERS.get(codec)
    if decode is None or (codec == ZSTD and magic < 2):
        raise ValueError(f"compression codec {codec} is not one of message format {magic}")
    if codec == LZ4 and magic == 0:
        data = with_right_lz4_checksum(data)
    try:
        return decode(data)
    except Exception as failure:
        raise ValueError(f"it cannot be decompressed: {failure!r}") from failure


def with_right_lz4_checksum(frame: bytes) -> bytes:
    """An LZ4 frame with the header checksum that the format asks for.

    Producers of 0.8 and 0.9 computed it over the frame's magic number as well (KAFKA-3160), so decoders refuse what
    they wrote. The header says nothing else about the data, so it is safe to correct.
    """
    if len(frame) < 7 or frame[:4] != _LZ4_MAGIC:
        return frame
    end = 6 + (8 if frame[4] & 0x08 else 0)  # flags, block descriptor, perhaps the content's size
    if len(frame) <= end:
        return frame
    checksum = xxhash32(frame[4:end]) >> 8 & 0xFF
    return frame[:end] + bytes((checksum,)) + frame[end + 1 :]


def xxhash32(data: bytes) -> int:
    """The xxHash (32 bit, seed 0) of fewer than 16 bytes, which is all that a frame header can have."""
    value = (_PRIME5 + len(data)) & _MASK
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        value = (value + int.from_bytes(data[at : at + 4], "little") * _PRIME3) & _MASK
        value = (_rotated(value, 17) * _PRIME4) & _MASK
    for byte in data[whole:]:
        value = (_rotated((value + byte * _PRIME5) & _MASK, 11) * _PRIME1) & _MASK
    value = ((value ^ value >> 15) * _PRIME2) & _MASK
    value = ((value ^ value >> 13) * _PRIME3) & _MASK
    return value ^ value >> 16


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> (32 - bits)) & _MASK


_DECODERS: Final[dict[int, Callable[[bytes], bytes]]] = {
    GZIP: gzip_decode,
    SNAPPY: snappy_decode,
    LZ4: lz4_decode,
    ZSTD: zstd_decode,
}
