"""The message that a stream hands out: the class of ``data_plane.hand_out``, with decoders for keys and values.

A decoder is any callable that takes bytes. It is called each time ``message.key`` or ``message.value`` is read, as in
the original since KAFKA-1140. So a message that cannot be decoded is still handed out, finished and committed like any
other. None (no key, or a tombstone) stays None and is never given to a decoder. A pair of decoders has a class of
messages of its own, so that streams without decoders pay nothing.

Pure; any thread. The decoders mirror the original's ``kafka.serializer``.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic

from zkconsumer.data_plane import hand_out
from zkconsumer.errors import DecodeError
from zkconsumer.model import TopicPartition

if TYPE_CHECKING:  # a default for type variables is not in typing before Python 3.13; only type checkers need it
    from typing_extensions import TypeVar

    K = TypeVar("K", default=bytes)
    V = TypeVar("V", default=bytes)
    T = TypeVar("T")
else:
    from typing import TypeVar

    K = TypeVar("K")
    V = TypeVar("V")
    T = TypeVar("T")

Decoder = Callable[[bytes], T]
"""Makes a value of bytes; may raise anything."""


class StringDecoder:
    """Text. Arguments: ``encoding`` and ``errors`` as for ``bytes.decode``; the original's default is UTF-8 too.

    By default bytes that are no UTF-8 raise; Java puts a replacement character there, as ``errors="replace"`` does.
    """

    def __init__(self, encoding: str = "utf-8", errors: str = "strict") -> None:
        self._encoding = encoding
        self._errors = errors
        codecs.lookup(encoding)  # an unknown one is the caller's mistake: LookupError here and not at each message

    def __call__(self, data: bytes) -> str:
        """Return the text. Raises UnicodeDecodeError."""
        return data.decode(self._encoding, self._errors)

    def __repr__(self) -> str:
        return f"StringDecoder({self._encoding!r})"


class _Integer:
    size = 0

    def __call__(self, data: bytes) -> int:
        """The number. Raises ValueError for data of another length."""
        if len(data) != self.size:
            raise ValueError(f"{len(data)} bytes are no {8 * self.size}-bit number")
        return int.from_bytes(data, "big", signed=True)

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class IntDecoder(_Integer):
    """A Java int: 4 bytes, the highest first."""

    size = 4


class LongDecoder(_Integer):
    """A Java long: 8 bytes, the highest first."""

    size = 8


if TYPE_CHECKING:

    class MessageAndMetadata(hand_out.MessageAndMetadata, Generic[K, V]):
        """A message whose key and value have these types. A compiled class cannot have type variables itself."""

        @property
        def key(self) -> K:
            """The key."""

        @property
        def value(self) -> V:
            """The value."""

else:
    MessageAndMetadata = hand_out.MessageAndMetadata


def message_class(
    key_decoder: Callable[[bytes], Any] | None, value_decoder: Callable[[bytes], Any] | None
) -> type[MessageAndMetadata[Any, Any]]:
    """Return the class of messages whose ``key`` and ``value`` go through these decoders (None: they stay bytes)."""
    members: dict[str, Any] = {"__slots__": (), "__doc__": MessageAndMetadata.__doc__}
    if key_decoder is not None:
        members["key"] = _decoded("key", key_decoder)
    if value_decoder is not None:
        members["value"] = _decoded("value", value_decoder)
    return type("MessageAndMetadata", (MessageAndMetadata,), members) if len(members) > 2 else MessageAndMetadata


def _decoded(field: str, decoder: Callable[[bytes], Any]) -> property:
    def read(message: MessageAndMetadata[Any, Any]) -> Any:
        data = getattr(message.record, field)
        if data is None:
            return None
        try:
            return decoder(data)
        except Exception as e:  # StopIteration too: it would end the application's loop without a word
            where = TopicPartition(message.topic, message.partition)
            raise DecodeError(where, message.offset, field, decoder, e) from e

    return property(read, doc=f"The {field}, decoded at each access; None where there is none. Raises DecodeError.")
