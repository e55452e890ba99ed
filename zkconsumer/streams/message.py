"""The message that a stream hands out. Pure; any thread."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter
from types import SimpleNamespace
from typing import Any, Generic, NamedTuple

from zkconsumer.decoders import K, V

FIELDS = ("topic", "partition", "offset", "key", "value", "timestamp", "timestamp_type", "headers")
"""The public fields of a message."""


class _Fields(NamedTuple):
    record: Any
    place: Any
    value: Any


class MessageAndMetadata(tuple[Any, Any, Any], Generic[K, V]):
    """One message of a partition.

    Its fields are ``topic``, ``partition``, ``offset``, ``key``, ``value``, ``timestamp`` (ms since the epoch, -1:
    none), ``timestamp_type`` (0: set by the producer, 1: by the broker, -1: none) and ``headers`` (list of (name, bytes
    or None)).

    It refers to the fetched data and reads a field when it is asked for, as the original decodes lazily (KAFKA-1140). A
    message keeps its whole chunk in memory. To keep a few of many messages, keep ``bytes(message.value)``.
    """

    __slots__ = ()

    # The record, its place, and its value, since nearly every message's value is read. A named tuple's field is read
    # twice as fast as a property.
    _record = _Fields.record
    _place = _Fields.place
    value: V = _Fields.value
    """The value; bytes (or None) unless a decoder was given."""
    offset: int = property(attrgetter("_record.offset"))  # type: ignore[assignment]
    timestamp_type: int = property(attrgetter("_record.timestamp_type"))  # type: ignore[assignment]
    headers: list[tuple[str, bytes | None]] = property(attrgetter("_record.headers"))  # type: ignore[assignment]
    topic: str = property(attrgetter("_place.topic"))  # type: ignore[assignment]
    partition: int = property(attrgetter("_place.partition"))  # type: ignore[assignment]

    @property
    def key(self) -> K:
        """The key; bytes (or None) unless a decoder was given."""
        return self[0].key  # type: ignore[no-any-return]

    @property
    def timestamp(self) -> int:
        """Milliseconds since the epoch, -1 where the message format has none."""
        timestamp: int | None = self[0].timestamp
        return -1 if timestamp is None else timestamp

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the public fields in the order of ``repr``, so that ``tuple(message)`` shows them."""
        # No __len__ of eight: it would cost each message of merged streams a call.
        return iter([getattr(self, name) for name in FIELDS])

    def __dir__(self) -> list[str]:
        # hides a tuple's count and index, and the private fields
        return [*FIELDS, *(name for name in super().__dir__() if name.startswith("__"))]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MessageAndMetadata):
            return NotImplemented
        return _content(self) == _content(other)

    def __hash__(self) -> int:
        return hash((self.topic, self.partition, self.offset))

    def __repr__(self) -> str:
        return (
            f"MessageAndMetadata(topic={self.topic!r}, partition={self.partition}, offset={self.offset}, "
            f"key={self[0].key!r}, value={self[2]!r}, timestamp={self.timestamp}, headers={list(self.headers)!r})"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickle, _content(self)


def _content(message: MessageAndMetadata[Any, Any]) -> tuple[Any, ...]:
    record = message[0]
    return (
        message.topic,
        message.partition,
        record.offset,
        message.key,
        message.value,
        record.timestamp,
        record.timestamp_type,
        list(record.headers),
    )


def _unpickle(*content: Any) -> MessageAndMetadata[Any, Any]:
    # one object in place of the record and its place, detached from the fetched data
    copy = SimpleNamespace(**dict(zip(FIELDS, content, strict=True)))
    return MessageAndMetadata((copy, copy, copy.value))
