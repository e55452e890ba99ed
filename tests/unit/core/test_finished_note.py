"""Notes and pointers as bytes and text: what is written is read, and foreign bytes are neither believed nor costly."""

from __future__ import annotations

import zlib
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.values import present
from zkconsumer.core.finished_note import (
    MOST_ATTEMPTS,
    Attempts,
    FinishedNote,
    decode_note,
    encode_note,
    note_as_text,
    note_of_text,
    text_bytes,
)
from zkconsumer.core.key_slots import ALL_SLOTS
from zkconsumer.core.message_pointers import (
    MOST_POINTERS,
    MOST_REASON,
    NODE_BYTES,
    Pointer,
    PointerKind,
    decode_pointers,
    encode_pointers,
)
from zkconsumer.core.unfinished_offsets import Finished
from zkconsumer.zookeeper.note_nodes import NOTE_BYTES

OFFSETS = st.integers(0, 1 << 62)


@st.composite
def notes(draw: st.DrawFn) -> FinishedNote:
    base = draw(OFFSETS)
    pieces = []
    for _ in range(draw(st.integers(0, 3))):
        start = base + draw(st.integers(0, 300))
        length = draw(st.integers(0, 300))
        unfinished = sorted(draw(st.sets(st.integers(start, start + length - 1)))) if length else []
        slots = draw(st.sampled_from([ALL_SLOTS, 1, 1 << 255, 0b1010]))
        pieces.append(Finished(start, start + length, tuple(unfinished), slots))
    failing = draw(st.sets(st.integers(base, base + 300), max_size=3))
    attempts = {offset: Attempts(draw(st.integers(1, 99)), draw(OFFSETS)) for offset in failing}
    by_key = draw(st.booleans()) or all(one.slots == ALL_SLOTS for one in pieces)
    return FinishedNote(base, tuple(pieces), attempts, by_key)


@settings(max_examples=30)
@given(notes())
def test_a_note_is_read_as_it_was_written(note: FinishedNote) -> None:
    data = encode_note(note)
    assert decode_note(data) == note
    assert note_of_text(note_as_text(data)) == data


@settings(max_examples=30)
@given(notes(), st.integers(0, 120))
def test_a_note_that_is_cut_says_nothing_more(note: FinishedNote, limit: int) -> None:
    data = encode_note(note, limit)
    assert len(data) <= limit
    cut = decode_note(data)
    if not data or cut is None:
        assert data == b""
        return
    assert cut.base == note.base
    for one in cut.finished:
        for offset in range(one.start, one.end):
            assert not one.covers(offset, 1) or note.covers(offset, 1)


@settings(max_examples=30)
@given(st.binary(max_size=80))
def test_text_holds_any_bytes_in_few_characters(data: bytes) -> None:
    text = note_as_text(data)
    assert note_of_text(text) == data
    assert text_bytes(len(text)) >= len(data)
    assert text.encode().decode() == text


@settings(max_examples=30)
@given(st.text(max_size=40))
def test_other_text_is_no_note(text: str) -> None:
    found = note_of_text(text)
    assert found is None or decode_note(found) is None


def test_slots_of_another_order_say_nothing() -> None:
    """In another order a slot has other messages. The slot's finished offsets would hide unfinished messages."""
    whole, some = Finished(5, 9, (5,)), Finished(5, 12, (7,), 0b1010)
    note = FinishedNote(5, (whole, some), {7: Attempts(1, 2)}, by_key=False)
    assert decode_note(encode_note(note)) == note
    assert note.for_slots(by_key=False) == note
    assert note.for_slots(by_key=True) == FinishedNote(5, (whole,), {7: Attempts(1, 2)})


def test_a_million_offsets_with_5_percent_unfinished_fit() -> None:
    unfinished = sorted(Random(1).sample(range(1_000_000), 50_000))
    note = FinishedNote(0, (Finished(0, 1_000_000, tuple(unfinished)),))
    data = encode_note(note, NOTE_BYTES)
    assert decode_note(data) == note
    assert len(data) < 40_000
    text = note_as_text(encode_note(note, text_bytes(4096)))
    assert len(text) <= 4096
    assert present(decode_note(note_of_text(text) or b"")).finished[0].end > 150_000, "from the start as much as fits"


def _note(body: bytes) -> bytes:
    data = b"\x8aZN\x01" + zlib.compress(body)
    return data + zlib.crc32(data).to_bytes(4, "big")


LARGE = b"\xff\xff\xff\xff\xff\xff\xff\xff\x7f"
BAD_NOTES = {
    "nothing": b"",
    "a number": b"1234",
    "a whole note and more": encode_note(FinishedNote(5)) + b"x",
    "another version": encode_note(FinishedNote(5)).replace(b"ZN\x01", b"ZN\x02"),
    "a bomb": _note(bytes(9 * 1024 * 1024)),
    "no body": _note(b""),
    "something behind": _note(b"\x05\x00\x00\x00"),
    "a million million offsets": _note(b"\x05\x01\x00\x00" + LARGE + LARGE),
    "an offset beyond its piece": _note(b"\x05\x01\x00\x00\x02\x01\x02\x00"),
    "slots that end too early": _note(b"\x05\x01\x01\x00"),
    "too many pieces": _note(b"\x05\x81\x08"),
    "a million attempts": _note(b"\x05\x00\xc0\x84\x3d" + bytes(3_000_000)),
    "an endless number": _note(b"\x80" * 100),
}


@pytest.mark.parametrize("data", BAD_NOTES.values(), ids=BAD_NOTES.keys())
def test_foreign_bytes_are_no_note(data: bytes) -> None:
    assert decode_note(data) is None


@settings(max_examples=30)
@given(notes(), st.integers(0), st.integers(1, 255))
def test_a_flipped_byte_makes_a_note_void(note: FinishedNote, at: int, flip: int) -> None:
    data = bytearray(encode_note(note))
    data[at % len(data)] ^= flip
    assert decode_note(bytes(data)) is None


POINTERS = st.builds(
    Pointer,
    OFFSETS,
    st.sampled_from(PointerKind),
    attempts=st.integers(0, 99),
    due_ms=OFFSETS,
    first_ms=OFFSETS,
    key=st.sampled_from(["", "0123456789abcdef01"]),
    reason=st.text(max_size=MOST_REASON),
)


@settings(max_examples=30)
@given(st.lists(POINTERS, max_size=5, unique_by=lambda pointer: pointer.offset))
def test_pointers_are_read_as_they_were_written(pointers: list[Pointer]) -> None:
    assert decode_pointers(encode_pointers(pointers)) == {pointer.offset: pointer for pointer in pointers}


def test_the_most_pointers_fit_their_node() -> None:
    """Reasons of a hostile handler are cut; the rest is whole."""
    random = Random(2)
    pointers = [
        Pointer(
            random.randrange(1 << 62),
            kind,
            attempts=random.randrange(99),
            due_ms=random.randrange(1 << 50),
            first_ms=random.randrange(1 << 50),
            key=f"{random.randrange(1 << 72):018x}",
            reason="".join(chr(random.randrange(0x4E00, 0x9000)) for _ in range(MOST_REASON)),
        )
        for kind in PointerKind
        for _ in range(MOST_POINTERS)
    ]
    data = encode_pointers(pointers)
    assert len(data) <= NODE_BYTES
    found = decode_pointers(data)
    assert len(found) == 2 * MOST_POINTERS
    assert all(found[one.offset].due_ms == one.due_ms and found[one.offset].key == one.key for one in pointers)


def _list(text: bytes) -> bytes:
    data = b"\x8aZP\x01" + zlib.compress(text)
    return data + zlib.crc32(data).to_bytes(4, "big")


BAD_LISTS = {
    "bytes": b"mine",
    "another version": encode_pointers([Pointer(1)]).replace(b"ZP\x01", b"ZP\x02"),
    "a bomb": _list(b"[" + bytes(5 * 1024 * 1024)),
    "no JSON": _list(b"["),
    "deep JSON": _list(b"[" * 100_000),
    "no list": _list(b"{}"),
    "no pointer": _list(b"[1]"),
    "a negative offset": _list(b'[[-1,"parked",0,0,0,"",""]]'),
    "a kind of a later release": _list(b'[[1,"buried",0,0,0,"",""]]'),
    "a number as key": _list(b'[[1,"dead",0,0,0,1,""]]'),
    "a huge number": _list(b"[[" + b"9" * 10_000 + b',"dead",0,0,0,"",""]]'),
}


@pytest.mark.parametrize("data", BAD_LISTS.values(), ids=BAD_LISTS.keys())
def test_foreign_bytes_are_no_list_of_pointers(data: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        decode_pointers(data)


def test_what_is_before_the_base_is_not_written() -> None:
    note = FinishedNote(50, (Finished(10, 60, (20, 55)), Finished(5, 9)), {3: Attempts(2, 9), 55: Attempts(1, 8)})
    found = decode_note(encode_note(note))
    assert found == FinishedNote(50, (Finished(50, 60, (55,)),), {55: Attempts(1, 8)})


def test_attempts_beyond_their_bound_are_left_out() -> None:
    """A release must be able to read its own notes."""
    attempts = {offset: Attempts(1, 2) for offset in range(MOST_ATTEMPTS + 1)}
    whole = FinishedNote(0, (Finished(0, 90_000, tuple(attempts)),), attempts)
    assert decode_note(encode_note(whole)) == replace(whole, attempts={})
    most = replace(whole, attempts=dict(list(attempts.items())[1:]))
    assert decode_note(encode_note(most)) == most
