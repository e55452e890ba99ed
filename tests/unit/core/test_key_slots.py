"""Slots of keys: an even share, whatever hash has chosen the partition; and the marks of keys in pointers."""

from __future__ import annotations

from collections import Counter
from zlib import crc32

import pytest

from zkconsumer.core.key_slots import ALL_SLOTS, SLOTS, slot_of_key, slots_in
from zkconsumer.core.message_pointers import key_mark, slot_of_mark


@pytest.mark.parametrize("partitions", [1, 3, 4, 64])
def test_keys_of_a_partition_of_librdkafka_use_all_slots(partitions: int) -> None:
    """Its default partitioner takes the CRC-32 of the key modulo the number of partitions."""
    keys = [key for key in (b"user-%d" % number for number in range(100_000)) if crc32(key) % partitions == 0]

    slots = Counter(map(slot_of_key, keys))

    assert set(slots) == set(range(SLOTS))


def test_the_set_of_all_slots_holds_each_of_them() -> None:
    assert list(slots_in(ALL_SLOTS)) == list(range(SLOTS))


def test_a_mark_tells_the_slot_of_its_key() -> None:
    keys = [b"", b"a", b"\x00" * 100, *(str(number).encode() for number in range(500))]
    assert [slot_of_mark(key_mark(key)) for key in keys] == [slot_of_key(key) for key in keys]
    assert len({key_mark(key) for key in keys}) == len(keys)


def test_another_text_tells_no_slot() -> None:
    assert [slot_of_mark(mark) for mark in ("", "ab", "zz" + "0" * 16, "0" * 19)] == [None] * 4
