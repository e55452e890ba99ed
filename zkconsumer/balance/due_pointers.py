"""Which parked messages are due, in the order of their keys. Pure."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import NamedTuple

from zkconsumer.core.message_pointers import Pointer, PointerKind


class DuePointers(NamedTuple):
    """``due`` pointers in the order of offsets; ``next_ms`` is when the next one is due (None: no other one waits)."""

    due: list[Pointer]
    next_ms: int | None


def due_pointers(pointers: Iterable[Pointer], in_hand: Container[int], now_ms: int) -> DuePointers:
    """Return the parked pointers of one partition whose messages may be handed out now.

    Only the first parked message of a key is handed out. Otherwise a later one could overtake it, if it fails again.
    Dead letters hold up nothing. Arguments: ``in_hand`` are offsets that the engine has; ``now_ms`` is the time in
    milliseconds since 1970.
    """
    due: list[Pointer] = []
    next_ms: int | None = None
    keys: set[str] = set()
    for pointer in sorted((p for p in pointers if p.fate is PointerKind.PARKED), key=lambda p: p.offset):
        if pointer.key:
            if pointer.key in keys:
                continue
            keys.add(pointer.key)
        if pointer.offset in in_hand:
            continue
        if pointer.due_ms <= now_ms:
            due.append(pointer)
        else:
            next_ms = pointer.due_ms if next_ms is None else min(next_ms, pointer.due_ms)
    return DuePointers(due, next_ms)
