"""The marks of keys in pointers: they begin with the key's slot."""

from __future__ import annotations

from zkconsumer.core.key_slots import slot_of_key
from zkconsumer.core.message_pointers import key_mark, slot_of_mark


def test_a_mark_tells_the_slot_of_its_key() -> None:
    keys = [b"", b"a", b"\x00" * 100, *(str(number).encode() for number in range(500))]
    assert [slot_of_mark(key_mark(key)) for key in keys] == [slot_of_key(key) for key in keys]
    assert len({key_mark(key) for key in keys}) == len(keys)


def test_another_text_tells_no_slot() -> None:
    assert [slot_of_mark(mark) for mark in ("", "ab", "zz" + "0" * 16, "0" * 19)] == [None] * 4
