"""Nodes beside the offsets of a group: notes of finished messages, and pointers. None is the original's.

The note of a partition counts only while the same transaction was the last to write its node and the offset node, which
their ``mzxid`` tells. So if anybody else writes the offset node, or deletes it and makes it anew, the note is void, and
messages are repeated. Versions would not do: they begin again with a new node, and an old note could become valid.

Pointers always count. A node of pointers that cannot be understood is left alone, and its partition parks nothing.

Pure; any thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from time import time_ns

from zkconsumer.core.finished_note import FinishedNote, decode_note
from zkconsumer.core.message_pointers import Pointer, decode_pointers, lost_from
from zkconsumer.ownership.balanced_ledger import applied
from zkconsumer.ownership.stored_offset import StoredNotes
from zkconsumer.zookeeper.node_values import FORBIDDEN, Node

NOTE_BYTES = 64 * 1024
"""Largest note in a node. What does not fit is consumed again if the member dies."""
RECREATED = "its topic was deleted and made anew"


@dataclass(frozen=True, slots=True)
class KnownAcks:
    """The note and the pointers of one partition as read.

    * ``note``: what is finished beyond the offset that was read with it; None if nothing is known
    * ``note_data``: the bytes of that note
    * ``has_note``: whether there is a node for the note, whatever is in it
    * ``pointers`` and the data ``version`` of their node; None: there is no node
    * ``outdated``: whether the node must be written, because it names messages of a deleted topic as if they were there
    * ``trouble``: why the pointers cannot be used, in words; empty if they can
    """

    note: FinishedNote | None = None
    note_data: bytes = b""
    has_note: bool = False
    pointers: Mapping[int, Pointer] = field(default_factory=dict)
    version: int | None = None
    outdated: bool = False
    trouble: str = ""

    def stored(self) -> StoredNotes:
        """Return what a member keeps of this."""
        return StoredNotes(
            self.has_note,
            self.note,
            pointers=self.pointers,
            version=self.version,
            restoring=self.outdated,
            trouble=self.trouble,
        )


@dataclass(frozen=True, slots=True)
class AckWrite:
    """The note and the pointers that a transaction writes beside an offset.

    ``note`` None leaves its node alone; ``has_note`` says whether there is one. ``pointers`` None leaves theirs alone;
    ``version`` is the data version that it must have (None: there is no node).
    """

    note: bytes | None = None
    has_note: bool = False
    pointers: bytes | None = None
    version: int | None = None


NO_ACKS = AckWrite()


def known_acks(
    path: str, offset: Node | None, start: int | None, note: Node | None, pointers: Node | None
) -> KnownAcks:
    """Return what the nodes say.

    Arguments: ``path`` of the node of pointers, for the trouble; ``offset`` is the offset node and ``start`` the offset
    in it.
    """
    found, data = None, b""
    together = offset is not None and note is not None and offset.mzxid == note.mzxid >= 0
    if together and note is not None:
        found, data = decode_note(note.data), note.data
        if found is None or found.base != start:
            found, data = None, b""
    listed, version, trouble = known_pointers(path, pointers)
    return KnownAcks(found, data, note is not None, listed, version, trouble=trouble)


def after_recreation(known: KnownAcks, topic: Node | None) -> KnownAcks:
    """Return what is known once the topic was deleted and made anew: all messages of the pointers are lost.

    They were lost when the node ``topic`` was made. So each reader gives them the same places.
    """
    made_ms = 0 if topic is None else topic.ctime
    changes = lost_from(known.pointers.values(), 0, RECREATED, made_ms if made_ms > 0 else time_ns() // 1_000_000)
    return replace(known, pointers=applied(known.pointers, changes), outdated=known.outdated or bool(changes))


def is_of_earlier_topic(node: Node | None, topic: Node | None) -> bool:
    """Return whether a node of a partition was last written before the node ``topic`` of its topic was made.

    ZooKeeper numbers all changes in turn, so no clock takes part.
    """
    if node is None or topic is None or topic is FORBIDDEN:
        return False
    return topic.czxid > node.mzxid >= 0


def known_pointers(path: str, node: Node | None) -> tuple[Mapping[int, Pointer], int | None, str]:
    """Return the pointers in a node, its data version, and why they cannot be used, in words."""
    if node is None:
        return {}, None, ""
    if node is FORBIDDEN:
        return ({}, node.version, f"{path}: ZooKeeper does not let us read it; check the node's ACL")
    try:
        return decode_pointers(node.data), node.version, ""
    except ValueError as e:
        return (
            {},
            node.version,
            f"{path} is no list of pointers ({e}); move its content elsewhere, or delete the node",
        )
