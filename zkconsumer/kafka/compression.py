"""Decompresses batches and wrapper messages into memory of limited size, with one kind of error. Pure.

cramjam decompresses into a given buffer and stops when that is full. So it takes no more memory than the limit allows:
32 kB of zstd may stand for 2 GB. The data's own head lets the size of the content be guessed. A wrong guess costs a
second try, in memory that is taken only as it is filled.

The original takes whatever memory the content needs.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from struct import Struct
from types import ModuleType
from typing import Final

import cramjam  # type: ignore[import-untyped,unused-ignore]

GZIP: Final = 1
SNAPPY: Final = 2
LZ4: Final = 3
ZSTD: Final = 4

DEFAULT_LIMIT: Final = 64 * 1024 * 1024
"""Bytes of a batch's content if no limit is given."""

_LZ4_MAGIC = b"\x04\x22\x4d\x18"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_XERIAL = Struct(">8sii")  # magic, version, oldest version that can read it
_XERIAL_HEAD = _XERIAL.pack(b"\x82SNAPPY\0", 1, 1)
_INT32 = Struct(">i").unpack_from
_UINT32_LITTLE = Struct("<I").unpack_from
_UINT64_LITTLE = Struct("<Q").unpack_from
_MASK = 0xFFFFFFFF
_PRIME1, _PRIME2, _PRIME3, _PRIME4, _PRIME5 = 2654435761, 2246822519, 3266489917, 668265263, 374761393
_RATIO = 32  # data that are compressed more than this are decompressed twice
_SMALL_ROOM = 64 * 1024
_SMALL = 8 * 1024  # compressed bytes that are tried without a guess
_SCRATCH = 256 * 1024
_MOST_BLOCKS = 4096  # looked at for a guess

Bytes = bytes | bytearray | memoryview


class Expansion:
    """The limit of the decompressed batches of a message set, and the bytes that are decompressed now.

    ``limit`` is for one batch, ``held`` counts all that are in memory; both in bytes. One thread writes, any may read.
    """

    __slots__ = ("held", "limit")

    def __init__(self, limit: int = DEFAULT_LIMIT) -> None:
        self.limit = limit
        self.held = 0


def decompress(codec: int, data: Bytes, magic: int, limit: int, head: Bytes = b"") -> memoryview:
    """Return ``head`` and behind it the decompressed content, in memory of its own.

    The content is that of a wrapper of format ``magic`` 0 or 1, or of a batch of format 2.

    Arguments: ``limit`` is how many bytes the content may have. Raises: ValueError for an unknown codec, for data that
    cannot be unpacked, and for a content beyond the limit.
    """
    if codec == SNAPPY:
        return _snappy(data, limit, head)
    library = CODECS.get(codec)
    if library is None or (codec == ZSTD and magic < 2):
        raise ValueError(f"compression codec {codec} is not one of message format {magic}")
    if codec == LZ4 and magic == 0:
        data = with_right_lz4_checksum(bytes(data))
    if len(data) <= _SMALL and limit >= _SCRATCH:
        room = _scratch.take()
        begin = len(head)
        room[:begin] = head
        try:
            return memoryview(bytearray(room[: begin + library.decompress_into(data, room[begin:])]))
        except Exception:  # noqa: BLE001, S110 - the content may only be larger
            pass
        finally:
            _scratch.room = room
    guess = _guess(codec, data)
    for size, compressed in ((guess, len(data)), (limit, 0)) if guess < limit else ((limit, 0),):
        room = _room(head, size, compressed)
        try:
            return room[: len(head) + library.decompress_into(data, room[len(head) :])]
        except Exception as error:  # noqa: BLE001 - errors of many kinds; the guess may only be wrong
            failure = error
            del room  # otherwise the error's traceback would keep it
    raise _too_large(limit) if _is_full(failure) else _unreadable(failure) from failure


class _Scratch(threading.local):
    """A buffer for each thread: a new one for each small content costs more than decompressing it."""

    def __init__(self) -> None:
        self.room: memoryview | None = None

    def take(self) -> memoryview:
        """Return the buffer, which is put back into ``room`` after its use. Meanwhile a signal handler that
        decompresses gets another buffer. Otherwise it would put its own content into an interrupted batch.
        """
        room, self.room = self.room, None
        return memoryview(bytearray(_SCRATCH)) if room is None else room


_scratch = _Scratch()


def _is_full(failure: Exception) -> bool:
    """Return whether the room was too small; only the error text depends on it."""
    return "whole buffer" in str(failure)


def _unreadable(failure: Exception) -> ValueError:
    return ValueError(f"it cannot be decompressed: {failure!r}")


def _too_large(limit: int) -> ValueError:
    return ValueError(
        f"it cannot be decompressed into the {limit} bytes that batch.expanded.max.bytes allows: raise that, or give"
        " it up"
    )


def _room(head: Bytes, size: int, compressed: int) -> memoryview:
    """Return memory for ``head``, which is put there, and ``size`` bytes. If ``size`` is much more than was
    ``compressed``, memory is taken only as it is filled.
    """
    size += len(head)
    if size <= _RATIO * compressed + _SMALL_ROOM:
        room = memoryview(bytearray(size))
    else:
        room = memoryview(mmap(-1, max(size, 1), MAP_PRIVATE | MAP_ANONYMOUS))
    room[: len(head)] = head
    return room


def _guess(codec: int, data: Bytes) -> int:
    """Return the probable size of the content; wrong data give a useless number, and no error."""
    try:
        if codec == GZIP:
            return int(_UINT32_LITTLE(data, len(data) - 4)[0])
        return _guess_lz4(data) if codec == LZ4 else _guess_zstd(data)
    except Exception:  # noqa: BLE001 - too short, which decompressing it tells
        return len(data)


def _guess_lz4(data: Bytes) -> int:
    flags = data[4]
    if flags & 0x08:
        return int(_UINT64_LITTLE(data, 6)[0])
    largest = 1 << (8 + 2 * (data[5] >> 4 & 7))
    at = 7 + (4 if flags & 0x01 else 0)
    beside = 8 if flags & 0x10 else 4  # a block's size, perhaps its checksum
    found = 0
    for _ in range(_MOST_BLOCKS):
        (size,) = _UINT32_LITTLE(data, at)
        if not size:
            break
        length = size & 0x7FFFFFFF
        found += length if size >> 31 else min(largest, _RATIO * length)
        at += beside + length
    return found


def _guess_zstd(data: Bytes) -> int:
    if data[:4] != _ZSTD_MAGIC:
        return len(data)
    flags = data[4]
    single = flags >> 5 & 1
    at = 5 + (1 - single) + (0, 1, 2, 4)[flags & 3]
    width = (single, 2, 4, 8)[flags >> 6]
    if width:
        return int.from_bytes(data[at : at + width], "little") + (256 if width == 2 else 0)
    found = last = 0
    for _ in range(_MOST_BLOCKS):
        block = int.from_bytes(data[at : at + 3], "little")
        last, kind, size = block & 1, block >> 1 & 3, block >> 3
        found += min(128 * 1024, _RATIO * size) if kind == 2 else size
        at += 3 + (1 if kind == 1 else size)
        if last:
            break
    return found


def _snappy(data: Bytes, limit: int, head: Bytes) -> memoryview:
    """Decompress Snappy, which says itself how large the content is, for each block if Java's library framed it."""
    view = memoryview(data)
    try:
        blocks = list(_xerial_blocks(view)) if view[: _XERIAL.size] == _XERIAL_HEAD else [view]
        sizes = [cramjam.snappy.decompress_raw_len(block) for block in blocks]
    except Exception as failure:
        raise _unreadable(failure) from failure
    size = sum(sizes)
    if size > limit:
        raise _too_large(limit)
    begin = at = len(head)
    small = begin + size <= _SCRATCH
    room = _scratch.take() if small else _room(head, size, len(view))
    room[:begin] = head
    try:
        for block, length in zip(blocks, sizes, strict=True):
            at += cramjam.snappy.decompress_raw_into(block, room[at : at + length])
    except Exception as failure:
        del room
        raise _unreadable(failure) from failure
    if not small:
        return room[:at]
    found = memoryview(bytearray(room[:at]))
    _scratch.room = room
    return found


def _xerial_blocks(view: memoryview) -> Iterator[memoryview]:
    at = _XERIAL.size
    while at < len(view):
        (size,) = _INT32(view, at)
        at += 4
        if not 0 < size <= len(view) - at:
            raise ValueError(f"a block of {size} bytes does not lie within it")
        yield view[at : at + size]
        at += size


def with_right_lz4_checksum(frame: bytes) -> bytes:
    """An LZ4 frame with the header checksum that the format asks for.

    Producers of 0.8 and 0.9 computed it over the frame's magic number as well (KAFKA-3160), so decoders refuse their
    frames. The header says nothing else about the data, so it is safe to correct.
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


CODECS: Final[dict[int, ModuleType]] = {GZIP: cramjam.gzip, LZ4: cramjam.lz4, ZSTD: cramjam.zstd}
