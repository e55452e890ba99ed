"""CRC-32C, a part at a time. Compiled modules use the same functions of ``checksum.pxd`` instead, which use the
processor's instruction for it.
"""

from __future__ import annotations

from typing import Any, Final

_CASTAGNOLI: Final = 0x82F63B78
_SUMS: Final = [0] * 256


def prepare() -> bool:
    """Make the tables, before any other call. Return whether the processor has the instruction, and it is used."""
    for byte in range(256):
        found = byte
        for _ in range(8):
            found = found >> 1 ^ (_CASTAGNOLI if found & 1 else 0)
        _SUMS[byte] = found
    return False


def by_table(before: int, data: Any, size: int) -> int:
    """Return the inverted sum ``before``, continued over ``size`` bytes, on any processor."""
    for at in range(size):
        before = before >> 8 ^ _SUMS[(before ^ data[at]) & 0xFF]
    return before


by_processor = by_table
