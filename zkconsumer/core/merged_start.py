"""Where a partition starts when its offset is kept in more than one store.

Pure. Mirrors the original's rule of ``dual.commit.enabled``: the maximum of what the stores hold. The stores may differ
because one of them failed at a commit, or because the group is being moved from one to the other; a store that holds
nothing, or less, is told of the start at the next commit (the original leaves it behind until the partition gets a
new message, so that a move back loses the offsets of idle partitions).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Start(NamedTuple):
    """Where to begin: None where nothing is stored, so that ``auto.offset.reset`` decides; ``level`` says that all
    stores agree.
    """

    offset: int | None
    level: bool


def merged_start(stored: Iterable[int | None]) -> Start:
    """The start offset by what each store holds.

    Arguments: one entry a store, None or negative (the original writes -1) where it holds no offset. A store whose
    content is *unknown* must not be entered as None: then nothing may be started.
    """
    valid = [None if offset is None or offset < 0 else offset for offset in stored]
    known = [offset for offset in valid if offset is not None]
    start = max(known, default=None)
    return Start(start, all(offset == start for offset in valid))
