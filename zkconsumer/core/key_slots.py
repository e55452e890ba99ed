"""Slots of messages: the unit in which a partition's messages are dealt to the members that handle them. Pure.

With ``order=key`` the slot follows from the key, so that all messages of a key stay together. A message without a key,
and every message with ``order=none``, belongs to the slot of its block of offsets. A set of slots is an integer, whose
bit ``n`` stands for slot ``n``.
"""

from __future__ import annotations

from collections.abc import Iterator
from zlib import crc32

SLOTS = 256
"""Number of slots of each partition: enough for an even share of forty workers, and 32 bytes as a set."""
SLOT_SHIFT = 24
"""Number of lower bits of a CRC-32 that the slot does not depend on."""
ALL_SLOTS = (1 << SLOTS) - 1
NO_SLOTS = 0
NO_SLOT = SLOTS
"""The slot of a message that may be handled whoever has the slots: it is in no set."""
BLOCK = 128
"""Number of neighbouring offsets in one block."""
_REVERSED = tuple(int(f"{slot:08b}"[::-1], 2) for slot in range(SLOTS))


def slot_of_key(key: bytes) -> int:
    """Return the slot of a key: the upper bits of its CRC-32.

    The lower bits would not do. librdkafka's producers choose the partition by them, so that the keys of one partition
    would share few slots.
    """
    return crc32(key) >> SLOT_SHIFT


def slot_of_offset(offset: int) -> int:
    """Return the slot of a message that has no key, or whose key does not matter.

    It is the number of the block with its bits reversed. Members have slots next to each other, and would otherwise
    have blocks next to each other: with a short backlog one member would have all the work.
    """
    return _REVERSED[offset // BLOCK % SLOTS]


def slots_in(slots: int) -> Iterator[int]:
    """Iterate over the slots of a set, in ascending order."""
    while slots:
        lowest = slots & -slots
        yield lowest.bit_length() - 1
        slots ^= lowest
