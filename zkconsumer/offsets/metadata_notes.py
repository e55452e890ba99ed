"""Notes of finished messages in the metadata of offsets in Kafka.

Brokers limit the metadata of an offset in characters, whatever the name of ``offset.metadata.max.bytes`` says (4,096 by
default). So a note is text of 15 bits a character. Any other client's commit replaces the metadata, and so makes the
note void: a Java or Scala member writes an empty text. A note names its base, and counts only with that offset.

Used by one thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from zkconsumer.core.finished_note import (
    FinishedNote,
    decode_note,
    encode_note,
    note_as_text,
    note_of_text,
    text_bytes,
)
from zkconsumer.errors import BrokerResponseError
from zkconsumer.kafka import error_codes
from zkconsumer.kafka.group_channel import OffsetAndMetadata
from zkconsumer.model import TopicPartition
from zkconsumer.offsets.store import Notes

log = logging.getLogger(__name__)

MOST_CHARACTERS = 4096
"""Characters of a note at first: the default limit of brokers."""
_LEAST = 32

Offsets = Mapping[TopicPartition, int | OffsetAndMetadata]
Send = Callable[[Offsets], Mapping[TopicPartition, BrokerResponseError]]
"""Sends one request; returns the refused partitions."""


class MetadataNotes:
    """Writes and reads notes. It remembers how long a note may be."""

    def __init__(self) -> None:
        self.characters = MOST_CHARACTERS

    def commit(self, offsets: Offsets, notes: Notes, send: Send) -> Mapping[TopicPartition, BrokerResponseError]:
        """Write offsets with their notes. Returns the refused partitions. Raises what ``send`` raises.

        A broker that refuses a note as too long gets half of it, and at last none.
        """
        failures: dict[TopicPartition, BrokerResponseError] = {}
        left = offsets
        while left:
            texts = {tp: self._text(notes[tp]) for tp in left if tp in notes}
            answered = send({tp: _with(offset, texts.get(tp, "")) for tp, offset in left.items()})
            too_long = {tp for tp, error in answered.items() if _too_long(error) and texts.get(tp)}
            failures.update((tp, error) for tp, error in answered.items() if tp not in too_long)
            left = {tp: left[tp] for tp in too_long}
            if left:
                self.characters = self.characters // 2 if self.characters >= 2 * _LEAST else 0
                log.info("the broker refuses longer metadata: notes have %d characters from now on", self.characters)
        return failures

    def _text(self, note: FinishedNote) -> str:
        data = b"" if note.empty or not self.characters else encode_note(note, text_bytes(self.characters))
        return note_as_text(data) if data else ""


def note_in(stored: OffsetAndMetadata) -> FinishedNote | None:
    """Return the note beside an offset; None if there is none of this offset."""
    data = note_of_text(stored.metadata) if stored.metadata else None
    note = None if data is None else decode_note(data)
    return note if note is not None and note.base == stored.offset else None


def _with(offset: int | OffsetAndMetadata, text: str) -> int | OffsetAndMetadata:
    if not text:
        return offset
    return (
        offset._replace(metadata=text)
        if isinstance(offset, OffsetAndMetadata)
        else OffsetAndMetadata(offset, metadata=text)
    )


def _too_long(error: BrokerResponseError) -> bool:
    return error.code == error_codes.OFFSET_METADATA_TOO_LARGE
