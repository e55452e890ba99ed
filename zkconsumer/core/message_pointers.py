"""Pointers to messages that the base has passed although they are not finished: parked ones and dead letters. Pure.

A partition has one node for all pointers, so that one version guards them. The node's bytes are a magic, a version,
the pointers as JSON compressed by zlib, and a checksum. They may be anybody's: what is no list of a known version makes
an error, because a pointer that is not understood must not be overwritten.

Source: RocketMQ keeps such messages in a retry topic and a dead-letter topic, and thus needs a producer.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from hashlib import blake2b

from zkconsumer.core.key_slots import slot_of_key

MAGIC = b"\x8aZP"
VERSION = 1
MOST_POINTERS = 1000
"""Pointers of each kind that one partition may have."""
MOST_REASON = 200
"""Characters of a reason that are kept."""
LOST = "no longer in the log"
"""Beginning of the reason of a pointer whose message is gone."""
NODE_BYTES = 128 * 1024
"""Size of a partition's node, at most: a transaction has room for several."""
_MARK_LENGTH = 18
_MOST_BYTES = 4 * 1024 * 1024
_MOST_OFFSET = (1 << 63) - 1


class PointerKind(Enum):
    """The kind of a pointer: what becomes of its message."""

    PARKED = "parked"
    DEAD = "dead"


@dataclass(frozen=True, slots=True)
class Pointer:
    """One message that waits outside the log's order.

    ``attempts`` have failed, the first at ``first_ms``; the next is due at ``due_ms`` (milliseconds since 1970; both 0
    if there is none). ``key`` is :func:`key_mark` of its key, empty if it has none or order does not matter. A message
    that is parked only because an earlier one of its key is has no attempts. ``reason`` tells why it failed last.
    ``lost_ms`` is when its message was found to be gone from the log, 0 if it was not. Another message may have its
    offset by then.
    """

    offset: int
    kind: PointerKind = PointerKind.PARKED
    attempts: int = 0
    due_ms: int = 0
    first_ms: int = 0
    key: str = ""
    reason: str = ""
    lost_ms: int = 0

    @property
    def place(self) -> int:
        """The number by which the pointers of a partition are known: the offset, or a negative one for a lost message.

        Otherwise a message of a new log would end or replace the pointer of a lost message with the same offset.
        """
        return self.offset if not self.lost_ms else -1 - (self.lost_ms << 63 | self.offset)

    def lost(self, why: str, now_ms: int) -> Pointer:
        """Return the dead letter that this becomes because its message is gone."""
        failed = f"; it was {self.kind.value}: {self.reason}" if self.reason else ""
        return replace(
            self, kind=PointerKind.DEAD, due_ms=0, lost_ms=now_ms, reason=f"{LOST}: {why}{failed}"[:MOST_REASON]
        )

    def is_of(self, key: bytes | None) -> bool:
        """Return whether the message at the offset may be that of the pointer, by its key."""
        return not self.key or (key is not None and key_mark(key) == self.key)


Pointers = Mapping[int, Pointer]
"""Pointers of one partition by their places."""


def lost_from(pointers: Iterable[Pointer], start: int, why: str, now_ms: int) -> dict[int, Pointer | None]:
    """Return the changes that make lost dead letters of all pointers from an offset on, also of dead letters."""
    changes: dict[int, Pointer | None] = {}
    for one in pointers:
        if one.offset >= start and not one.lost_ms:
            gone = one.lost(why, now_ms)
            changes |= {one.place: None, gone.place: gone}
    return changes


def key_mark(key: bytes) -> str:
    """Return the text by which pointers name a key, so that a later owner knows the keys with waiting messages.

    The text begins with the key's slot, so that an owner knows the slots that must not be lent.
    """
    return f"{slot_of_key(key):02x}{blake2b(key, digest_size=8).hexdigest()}"


def slot_of_mark(mark: str) -> int | None:
    """Return the slot of the key that :func:`key_mark` named, None for other text."""
    try:
        return int(mark[:2], 16) if len(mark) == _MARK_LENGTH else None
    except ValueError:
        return None


def encode_pointers(pointers: Iterable[Pointer]) -> bytes:
    """Return the content of a partition's node, in the order of offsets; empty for none.

    Reasons are cut short where the content would become larger than :data:`NODE_BYTES`.
    """
    ordered = sorted(pointers, key=lambda p: (p.offset, p.lost_ms))
    data = b""
    for characters in (MOST_REASON, MOST_REASON // 5, 0):
        data = _encoded(ordered, characters)
        if len(data) <= NODE_BYTES:
            break
    return data


def _encoded(pointers: Iterable[Pointer], characters: int) -> bytes:
    listed: list[list[object]] = []
    for p in pointers:
        listed.append([p.offset, p.kind.value, p.attempts, p.due_ms, p.first_ms, p.key, p.reason[:characters]])
        if p.lost_ms:
            listed[-1].append(p.lost_ms)
    if not listed:
        return b""
    text = json.dumps(listed, separators=(",", ":"), ensure_ascii=True)
    data = MAGIC + bytes((VERSION,)) + zlib.compress(text.encode())
    return data + zlib.crc32(data).to_bytes(4, "big")


def decode_pointers(data: bytes) -> dict[int, Pointer]:
    """Return the pointers of a node. Raises ValueError if they cannot be understood."""
    if not data:
        return {}
    head = len(MAGIC) + 1
    if len(data) < head + 4 or data[: len(MAGIC)] != MAGIC:
        raise ValueError("it does not begin as a list of pointers")
    if data[len(MAGIC)] != VERSION:
        raise ValueError(f"its version is {data[len(MAGIC)]}, and only {VERSION} is known")
    if zlib.crc32(data[:-4]).to_bytes(4, "big") != data[-4:]:
        raise ValueError("its checksum is wrong")
    try:
        decompressor = zlib.decompressobj()
        text = decompressor.decompress(data[head:-4], _MOST_BYTES)
        if decompressor.unconsumed_tail or not decompressor.eof:
            raise ValueError("it is too large")
        listed = json.loads(text)
    except (zlib.error, UnicodeDecodeError, RecursionError) as e:
        raise ValueError(f"it cannot be decompressed: {e}") from None
    if not isinstance(listed, list):
        raise ValueError("it is no list")
    found = {}
    for one in listed:
        pointer = _pointer(one)
        found[pointer.place] = pointer
    return found


def _pointer(one: object) -> Pointer:
    if not isinstance(one, list) or len(one) not in (7, 8):
        raise ValueError(f"{one!r:.80} is no pointer")
    offset, kind, attempts, due, first, key, reason, lost = (*one, 0)[:8]
    for number in (offset, attempts, due, first, lost):
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= _MOST_OFFSET:
            raise ValueError(f"{one!r:.80} has no number where one belongs")
    if not isinstance(key, str) or not isinstance(reason, str):
        raise ValueError(f"{one!r:.80} has no text where one belongs")
    return Pointer(offset, PointerKind(kind), attempts, due, first, key[:MOST_REASON], reason[:MOST_REASON], lost)
