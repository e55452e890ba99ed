"""The message that a stream hands out: the class of ``data_plane.hand_out``, with types for decoders. Any thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic

from zkconsumer.data_plane import hand_out
from zkconsumer.data_plane.hand_out import FIELDS
from zkconsumer.decoders import K, V

__all__ = ["FIELDS", "MessageAndMetadata"]

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
