"""Where a claimed partition starts by its stored offsets, in one store or two. Pure.

Without a stored offset :mod:`zkconsumer.fetch.auto_offset_reset` asks the broker.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class MergedStart(NamedTuple):
    """The start offset of one partition.

    ``offset`` is None if no store holds one: then ``auto.offset.reset`` decides. ``stores_agree`` is true if all stores
    hold the same.
    """

    offset: int | None
    stores_agree: bool


def merged_start(stored: Iterable[int | None]) -> MergedStart:
    """Return the start offset of a partition whose offset is in more than one store.

    Mirrors the original's rule of ``dual.commit.enabled``: the largest of the stored offsets. Stores differ after a
    failed commit, or while the group moves from one store to the other. The next commit brings a store up that holds no
    offset or a smaller one. The original leaves it behind until the partition gets a new message, so that a move back
    loses the offsets of idle partitions.

    Arguments: ``stored`` has one entry for each store: its offset, or None, or a negative number (the original writes
    -1) for no offset. Never pass None for a store that could not be read: then the partition must not start.
    """
    valid = [None if offset is None or offset < 0 else offset for offset in stored]
    start = max((offset for offset in valid if offset is not None), default=None)
    return MergedStart(start, all(offset == start for offset in valid))


def start_in_node(offset: int | None, *, store_elsewhere: bool) -> int | None:
    """Return where a partition starts by its offset node alone, or None if that cannot be told.

    Arguments: ``offset`` is the node's, None or negative for none; ``store_elsewhere`` says that another store may hold
    an offset, and must be asked too (:func:`merged_start`).
    """
    return None if store_elsewhere or offset is None or offset < 0 else offset
