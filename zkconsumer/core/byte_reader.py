"""Reader and writers of the plain fields in Kafka's messages: integers, strings, bytes and arrays. Pure; any thread.

The bytes may come from other members of the group, and so from foreign programs. The reader compares every length with
the remaining bytes before it allocates anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from struct import Struct
from typing import TypeVar

from zkconsumer.model import TopicPartition

T = TypeVar("T")

_INT16 = Struct(">h")
_INT32 = Struct(">i")


class ByteReader:
    """Reads fields one after the other. Raises ValueError for bytes that end too early or make no sense."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        """Number of unread bytes."""
        return len(self._data) - self._at

    def take(self, size: int) -> bytes:
        """Read ``size`` bytes."""
        start = self._at
        end = start + size
        if size < 0 or end > len(self._data):
            raise ValueError(f"{size} bytes are announced at byte {start}, {self.left} are there")
        self._at = end
        return self._data[start:end]

    def int16(self) -> int:
        """Read a signed integer of two bytes."""
        return int(_INT16.unpack(self.take(2))[0])

    def int32(self) -> int:
        """Read a signed integer of four bytes."""
        return int(_INT32.unpack(self.take(4))[0])

    def nullable_string(self) -> str | None:
        """Read a string, or None."""
        size = self.int16()
        return None if size == -1 else self.take(size).decode()

    def string(self) -> str:
        """Read a string."""
        found = self.nullable_string()
        if found is None:
            raise ValueError(f"no text at byte {self._at - 2}")
        return found

    def nullable_bytes(self) -> bytes | None:
        """Read bytes, or None."""
        size = self.int32()
        return None if size == -1 else self.take(size)

    def array(self, one: Callable[[], T]) -> list[T]:
        """Read an array, each entry by a call of ``one``."""
        count = self.int32()
        if count < 0 or count > self.left:  # every entry takes at least one byte
            raise ValueError(f"{count} entries are announced at byte {self._at - 4}, {self.left} bytes are there")
        return [one() for _ in range(count)]

    def partitions(self) -> list[TopicPartition]:
        """Read partitions, grouped by topic."""
        return [tp for topic in self.array(self._topic) for tp in topic]

    def _topic(self) -> list[TopicPartition]:
        topic = self.string()
        found = [TopicPartition(topic, number) for number in self.array(self.int32)]
        if any(tp.partition < 0 for tp in found):
            raise ValueError(f"a negative partition of topic {topic!r}")
        return found


def int16(value: int) -> bytes:
    """Encode a signed integer of two bytes."""
    return _INT16.pack(value)


def int32(value: int) -> bytes:
    """Encode a signed integer of four bytes."""
    return _INT32.pack(value)


def string(value: str | None) -> bytes:
    """Encode a string, or None."""
    if value is None:
        return int16(-1)
    data = value.encode()
    return int16(len(data)) + data


def nullable_bytes(value: bytes | None) -> bytes:
    """Encode bytes, or None."""
    return int32(-1) if value is None else int32(len(value)) + value


def array(entries: Iterable[bytes]) -> bytes:
    """Encode an array of entries that are already encoded."""
    written = list(entries)
    return int32(len(written)) + b"".join(written)


def partitions(wanted: Iterable[TopicPartition]) -> bytes:
    """Encode partitions, grouped by topic. Topics keep the order of their first partitions."""
    topics: dict[str, list[int]] = {}
    for topic, number in wanted:
        topics.setdefault(topic, []).append(number)
    return array(string(topic) + array(map(int32, numbers)) for topic, numbers in topics.items())
