"""The note of the messages finished beyond a base: its compact form, for a node and for the metadata of a commit. Pure.

Bytes: the magic, a version, the body compressed by zlib, and a checksum over all of it. The body is the base and, for
each :class:`Finished`, its slots, range and unfinished offsets as differences, then the attempts of failing messages,
all as variable-length integers. Text, for the metadata of Kafka's commits: 15 bits a character, because brokers
limit the characters and not the bytes.

The bytes may be anybody's. Only a whole note of a known version is a note. No bytes make the decoder allocate more than
:data:`MOST_BYTES`, :data:`MOST_UNFINISHED` offsets and :data:`MOST_ATTEMPTS` attempts.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from zkconsumer.core.key_slots import ALL_SLOTS, SLOTS
from zkconsumer.core.unfinished_offsets import Finished, joined

MAGIC = b"\x8aZN"
VERSION = 1
MOST_UNFINISHED = 1_000_000
MOST_ATTEMPTS = 20_000
MOST_BYTES = 8 * 1024 * 1024
"""Limits of what one note may hold once it is decompressed."""
MOST_PIECES = 1024
MOST_OFFSET = (1 << 63) - 1
_SLOT_BYTES = SLOTS // 8
_WHOLE, _BY_KEY, _BY_OFFSET = 0, 1, 2
"""Whether a piece is of all slots, or how its slots were computed."""
_TEXT_MARK = "\u33ff"
_FIRST_CHARACTER = 0x3400
"""The characters from here on stand for 15 bits each. None of them is a surrogate, and each takes three bytes."""


class Attempts(NamedTuple):
    """``failed`` attempts at a message have failed, the first at ``first_ms`` (milliseconds since 1970)."""

    failed: int
    first_ms: int


@dataclass(frozen=True, slots=True)
class FinishedNote:
    """``base`` is the lowest unfinished offset; ``finished`` tells what is finished beyond it.

    ``attempts`` maps offsets of failing messages to their attempts. ``by_key`` says how slots of parts of ``finished``
    were computed: by the keys of messages, or by their offsets.
    """

    base: int
    finished: tuple[Finished, ...] = ()
    attempts: Mapping[int, Attempts] = field(default_factory=dict)
    by_key: bool = True

    @property
    def empty(self) -> bool:
        """Whether the base alone says as much."""
        return not self.finished and not self.attempts

    @property
    def size(self) -> int:
        """The number of offsets that it lists."""
        return len(self.attempts) + sum(len(one.unfinished) for one in self.finished)

    def covers(self, offset: int, slot: int) -> bool:
        """Return whether the message is finished."""
        return offset < self.base or any(one.covers(offset, slot) for one in self.finished)

    def for_slots(self, *, by_key: bool) -> FinishedNote:
        """Return the note for a member with ``by_key``, without slots that would name other messages."""
        if by_key == self.by_key:
            return self
        whole = tuple(one for one in self.finished if one.slots == ALL_SLOTS)
        return replace(self, finished=whole, by_key=by_key)

    def from_base(self) -> FinishedNote:
        """Return the same note without the offsets before the base, which the base implies."""
        base = self.base
        kept = (one if one.start >= base else one.beyond(base) for one in self.finished)
        finished = tuple(one for one in kept if one is not None)
        attempts = {o: a for o, a in self.attempts.items() if o >= base}
        return replace(self, finished=finished, attempts=attempts)

    def raised(self, base: int) -> FinishedNote:
        """Return the same note with this base if its own is lower. All before it is finished or parked."""
        return self if self.base >= base else replace(self, base=base).from_base()

    def before(self, end: int) -> FinishedNote:
        """Return the same note without what it says of ``end`` and later offsets."""
        kept = tuple(part for one in self.finished if (part := one.before(end)) is not None)
        return replace(self, finished=kept, attempts={o: a for o, a in self.attempts.items() if o < end})

    def of_slots(self, slots: int) -> FinishedNote:
        """Return what this says of ``slots``, with all attempts."""
        kept = tuple(part for one in self.finished if (part := one.of_slots(slots)) is not None)
        return FinishedNote(self.base, kept, self.attempts)

    def told_from(self, base: int, slots: int) -> list[Finished]:
        """Return what this says of ``slots``, beyond a ``base`` that may be lower: all before its own is finished."""
        before = [Finished(base, self.base, (), slots)] if self.base > base and slots else []
        return [*before, *self.of_slots(slots).finished]


def together(parts: Collection[tuple[FinishedNote, int]]) -> FinishedNote:
    """Return one note of disjoint sets of slots, each finished before its own base."""
    base = min((note.base for note, _ in parts), default=0)
    pieces: list[Finished] = []
    attempts: dict[int, Attempts] = {}
    for note, slots in parts:
        if note.base > base and slots:
            pieces.append(Finished(base, note.base, (), slots))
        pieces += note.finished
        attempts |= note.attempts
    return FinishedNote(base, joined(pieces), attempts)


def encode_note(note: FinishedNote, limit: int | None = None) -> bytes:
    """Return the note's bytes.

    Arguments: ``limit`` in bytes. The end that does not fit is left out, so that it is consumed again; the
    attempts are left out first. Empty if not even the start fits.
    """
    limit = MOST_BYTES if limit is None else limit
    note = note.from_base()
    if len(note.attempts) > MOST_ATTEMPTS:
        note = replace(note, attempts={})
    data = _encoded(note) if note.size <= MOST_UNFINISHED and len(note.finished) <= MOST_PIECES else b""
    if data and len(data) <= limit:
        return data
    note = replace(note, finished=note.finished[:MOST_PIECES], attempts={})
    low, high = note.base, max((one.end for one in note.finished), default=note.base)
    best = b""
    while low < high:
        middle = (low + high + 1) // 2
        part = note.before(middle)
        data = _encoded(part) if part.size <= MOST_UNFINISHED else b""
        if data and len(data) <= limit:
            low, best = middle, data
        else:
            high = middle - 1
    return best


def decode_note(data: bytes) -> FinishedNote | None:
    """Return the note; None for bytes that are no note."""
    head = len(MAGIC) + 1
    if len(data) < head + 4 or data[: len(MAGIC)] != MAGIC or data[len(MAGIC)] != VERSION:
        return None
    if zlib.crc32(data[:-4]).to_bytes(4, "big") != data[-4:]:
        return None
    try:
        decompressor = zlib.decompressobj()
        body = decompressor.decompress(data[head:-4], MOST_BYTES)
        if decompressor.unconsumed_tail or not decompressor.eof:
            return None
        return _decoded(body)
    except (ValueError, zlib.error):
        return None


def note_as_text(data: bytes) -> str:
    """Return a note's bytes as text of 15 bits a character."""
    bits, have, found = 0, 0, [_TEXT_MARK, chr(_FIRST_CHARACTER + len(data) % 15)]
    for byte in data:
        bits, have = bits << 8 | byte, have + 8
        if have >= 15:
            have -= 15
            found.append(chr(_FIRST_CHARACTER + (bits >> have)))
            bits &= (1 << have) - 1
    if have:
        found.append(chr(_FIRST_CHARACTER + (bits << (15 - have))))
    return "".join(found)


def text_bytes(characters: int) -> int:
    """Return the bytes of a note that fit into so many characters."""
    return max(0, (characters - 2) * 15 // 8)


def note_of_text(text: str) -> bytes | None:
    """Return the bytes of :func:`note_as_text`; None for other text."""
    if len(text) < 2 or text[0] != _TEXT_MARK:
        return None
    digits = [ord(character) - _FIRST_CHARACTER for character in text[1:]]
    if any(not 0 <= digit < 1 << 15 for digit in digits):
        return None
    remainder, *digits = digits
    size = len(digits) * 15 // 8
    while size and size % 15 != remainder:
        size -= 1
    bits, have, found = 0, 0, bytearray()
    for digit in digits:
        bits, have = bits << 15 | digit, have + 15
        while have >= 8:
            have -= 8
            found.append(bits >> have & 0xFF)
            bits &= (1 << have) - 1
    return bytes(found[:size])


def _encoded(note: FinishedNote) -> bytes:
    body = bytearray()
    _write(body, note.base)
    _write(body, len(note.finished))
    for one in note.finished:
        if one.slots == ALL_SLOTS:
            body.append(_WHOLE)
        else:
            body.append(_BY_KEY if note.by_key else _BY_OFFSET)
            body += one.slots.to_bytes(_SLOT_BYTES, "big")
        _write(body, one.start - note.base)
        _write(body, one.end - one.start)
        _write_ascending(body, one.start, one.unfinished)
    _write_ascending(body, note.base, sorted(note.attempts))
    for offset in sorted(note.attempts):
        _write(body, note.attempts[offset].failed)
        _write(body, note.attempts[offset].first_ms)
    data = MAGIC + bytes((VERSION,)) + zlib.compress(bytes(body))
    return data + zlib.crc32(data).to_bytes(4, "big")


def _write_ascending(body: bytearray, start: int, offsets: object) -> None:
    listed: list[int] = list(offsets)  # type: ignore[call-overload]
    _write(body, len(listed))
    last = start - 1
    for offset in listed:
        _write(body, offset - last - 1)
        last = offset


def _write(body: bytearray, value: int) -> None:
    while value > 0x7F:
        body.append(value & 0x7F | 0x80)
        value >>= 7
    body.append(value)


def _decoded(body: bytes) -> FinishedNote:
    numbers = _Numbers(body)
    base, pieces, left = numbers.next(), [], MOST_UNFINISHED
    count = numbers.next()
    if count > MOST_PIECES:
        raise ValueError("too many pieces")
    kinds = set()
    for _ in range(count):
        kind = numbers.byte()
        kinds.add(kind)
        slots = ALL_SLOTS if kind == _WHOLE else numbers.slots()
        start = base + numbers.next()
        end = start + numbers.next()
        unfinished = tuple(numbers.ascending(start, end, left))
        left -= len(unfinished)
        pieces.append(Finished(start, end, unfinished, slots))
    failing = list(numbers.ascending(base, MOST_OFFSET, min(left, MOST_ATTEMPTS)))
    attempts = {offset: Attempts(numbers.next(), numbers.next()) for offset in failing}
    numbers.ended()
    kinds.discard(_WHOLE)
    if len(kinds) > 1 or not kinds <= {_BY_KEY, _BY_OFFSET}:
        raise ValueError("its slots are of an unknown kind")
    return FinishedNote(base, tuple(pieces), attempts, _BY_OFFSET not in kinds)


class _Numbers:
    """Reads the body's numbers one after the other. Raises ValueError."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._at = 0

    def byte(self) -> int:
        if self._at >= len(self._body):
            raise ValueError("it ends too early")
        self._at += 1
        return self._body[self._at - 1]

    def next(self) -> int:
        value = shift = 0
        while True:
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift > 63:
                raise ValueError("a number is too long")
        if value > MOST_OFFSET:
            raise ValueError("a number is too large")
        return value

    def slots(self) -> int:
        self._at += _SLOT_BYTES
        if self._at > len(self._body):
            raise ValueError("it ends too early")
        return int.from_bytes(self._body[self._at - _SLOT_BYTES : self._at], "big")

    def ascending(self, start: int, end: int, most: int) -> Iterator[int]:
        count = self.next()
        if count > most:
            raise ValueError("too many offsets")
        last = start - 1
        for _ in range(count):
            last += self.next() + 1
            if last >= end:
                raise ValueError("an offset is out of its range")
            yield last

    def ended(self) -> None:
        if self._at != len(self._body):
            raise ValueError("something follows")
