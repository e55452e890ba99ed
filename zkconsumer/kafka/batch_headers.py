"""Reads the head of a batch or message in a message set, without its records, and checks its checksum. Pure.

All three formats begin with an offset, the size of the rest, and (at the same place) the number of the format. In
formats 0 and 1 the offset is that of the last message inside. In format 2 it is the first that the batch covers.

Checking the checksum (CRC-32C) of format 2 took a third of the time of columns. So the compiled data plane uses the
processor's own instruction. Where it has none, or is not compiled, google-crc32c takes its place. Without either the
data plane computes the same, five times slower, or a thousand times without its compiled copy.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Final

from zkconsumer.data_plane.records import CRC_BY_PROCESSOR, crc32c

START = Struct(">qi")  # offset, size of the rest
# offset, size, leader epoch, magic, CRC, attributes, last offset delta, first and max timestamp, producer id, producer
# epoch, base sequence, count of records
_BATCH = Struct(">qiibIhiqqqhii").unpack_from
BATCH_SIZE = 61
"""Bytes of a batch of format 2 before its records."""
_PARTIAL = Struct(">qi4xb6xi").unpack_from  # offset, size, magic, last offset delta (where magic is 2)
_TOLD = 27  # bytes of a head that hold these fields
_MAGIC = 16
_SMALLEST = 14  # the size of an empty message of format 0
LARGEST_OFFSET: Final = (1 << 63) - 1
"""The largest offset to go on at. So no message has it, since nothing could follow: neither a commit nor a fetch."""

_MESSAGE_CODEC, BATCH_CODEC = 17, 22  # the bytes that name the compression
CODEC = 0x07
TRANSACTIONAL = 0x10
CONTROL = 0x20


class MalformedSetError(ValueError):
    """The bytes break the format. It becomes an InvalidMessageException with the position."""


def is_compressed(records: bytes) -> bool:
    """Return whether the first batch or message of a set is compressed; the next ones most likely are as well."""
    if len(records) <= BATCH_CODEC:
        return False
    return records[BATCH_CODEC if records[_MAGIC] == 2 else _MESSAGE_CODEC] & CODEC != 0


Head = tuple[int, int, int, int, int, int, int]
"""Of a whole batch: offset, next offset, its end in the set, format; and for format 2 only: attributes, producer id,
count of records. A plain tuple, because one is made for each message if producers do not batch.
"""


def read_head(records: bytes, at: int) -> Head | None:
    """Return the head of the batch at ``at``; None if nothing is left, or nothing whole. Raises: MalformedSetError."""
    left = len(records) - at
    if left < START.size:
        return None
    offset, size = START.unpack_from(records, at)
    if size < _SMALLEST:
        raise MalformedSetError(f"a batch says that its size is {size}")
    end = at + START.size + size
    if end > len(records):
        return None
    if offset < 0:
        raise MalformedSetError(f"a batch says that its offset is {offset}")
    magic = records[at + _MAGIC]
    if magic < 2:
        return offset, offset + 1, end, magic, 0, -1, 0
    if magic > 2:
        raise MalformedSetError(f"a batch says that its format is {magic}")
    if end - at < BATCH_SIZE:
        raise MalformedSetError(f"a batch says that its size is {size}")
    _, _, _, _, _, attributes, delta, _, _, producer, _, _, total = _BATCH(records, at)
    if not 0 <= delta < LARGEST_OFFSET - offset or total < 0:
        raise MalformedSetError(f"a batch says that it has {total} records, the last {delta} after the first")
    return offset, offset + delta + 1, end, 2, attributes, producer, total


def misplaced(records: bytes, head: Head, last: int, reached: int) -> int | None:
    """Return the offset after a message of format 0 or 1 with a wrong offset, or None if its offset is right.

    An offset fits between those of its neighbours. No checksum covers it, and a wild one would move the position
    anywhere, back or beyond the log. A place before ``reached`` need not be checked, since the messages there are not
    asked for.

    Arguments: ``last`` is the last offset before it in the set, -1 for none; ``reached`` the offset to be read next.
    """
    offset, _, end, magic, *_ = head
    if magic == 2:
        return None
    following, plain = -1, False
    if len(records) - end > _MESSAGE_CODEC and records[end + _MAGIC] < 2:
        following = int(START.unpack_from(records, end)[0])
        plain = not records[end + _MESSAGE_CODEC] & CODEC  # a wrapper has the offset of its last message
    believed = (last if last >= 0 else reached - 1) < following
    if last < offset < LARGEST_OFFSET and not (believed and following <= offset):
        return None
    if believed and (plain or last < 0):
        return following
    return last + 2 if last >= 0 else reached + 1


def missing(records: bytes, at: int) -> int:
    """Return the bytes that a fetch must have at least for the batch at ``at``, which is not whole; 0 for no batch."""
    left = len(records) - at
    if left >= START.size:
        return at + START.size + int(START.unpack_from(records, at)[1])
    return len(records) + START.size if left else 0


def given_up(records: bytes, at: int, offset: int) -> int:
    """Return the offset after the unreadable batch at ``at``, which may be incomplete.

    That is after ``offset`` in any case, and after the batch's last message if its head tells that.
    """
    after = 0
    if len(records) - at >= _TOLD:
        first, _, magic, delta = _PARTIAL(records, at)
        after = first + 1 if magic < 2 else first + max(delta, 0) + 1
    return int(max(after if after <= LARGEST_OFFSET else 0, offset + 1))


_SUMMED = 21  # where the checksummed part begins
_CHECKSUM = slice(17, 21)


def _by_data_plane(view: memoryview) -> bool:
    return crc32c(view[_SUMMED:]) == int.from_bytes(view[_CHECKSUM], "big")


def _by_library() -> Callable[[memoryview], bool] | None:
    """Return the check by google-crc32c, None where it does not use the processor's instruction."""
    try:
        from google_crc32c import implementation, value
    except ImportError:  # pragma: no cover - it has no wheel for every machine
        return None
    if implementation != "c":  # pragma: no cover
        return None
    # a copy, since it takes no view; the instruction saves ten times the cost of the copy
    return lambda view: bool(value(bytes(view[_SUMMED:])) == int.from_bytes(view[_CHECKSUM], "big"))


_library = None if CRC_BY_PROCESSOR else _by_library()

CRC_IS_FAST: Final = CRC_BY_PROCESSOR or _library is not None

checksum_is_right: Final[Callable[[memoryview], bool]] = _library or _by_data_plane
"""Return whether a whole batch of format 2 has the checksum that it says."""
