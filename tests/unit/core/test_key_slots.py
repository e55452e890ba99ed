"""Slots of keys: an even share, whatever hash has chosen the partition."""

from __future__ import annotations

from collections import Counter
from zlib import crc32

import pytest

from zkconsumer.core.key_slots import ALL_SLOTS, SLOTS, slot_of_key, slots_in


@pytest.mark.parametrize("partitions", [1, 3, 4, 64])
def test_keys_of_a_partition_of_librdkafka_use_all_slots(partitions: int) -> None:
    """Its default partitioner takes the CRC-32 of the key modulo the number of partitions."""
    keys = [key for key in (b"user-%d" % number for number in range(100_000)) if crc32(key) % partitions == 0]

    slots = Counter(map(slot_of_key, keys))

    assert set(slots) == set(range(SLOTS))


def test_the_set_of_all_slots_holds_each_of_them() -> None:
    assert list(slots_in(ALL_SLOTS)) == list(range(SLOTS))
