"""The message that a stream hands out: the class of ``data_plane.hand_out``, with types for decoders. Any thread.

A pair of decoders has a class of messages of its own, so that streams without decoders pay nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic

from zkconsumer.data_plane import hand_out
from zkconsumer.data_plane.hand_out import FIELDS
from zkconsumer.errors import DecodeError
from zkconsumer.model import TopicPartition
from zkconsumer.streams.decoders import K, V

__all__ = ["FIELDS", "MessageAndMetadata", "message_class"]

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
