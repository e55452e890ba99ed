"""Arrow columns of one value: a batch's topic, partition and kind of timestamp. Pure; any thread.

Such columns are slices of arrays that are kept for a while. Filling new memory for each batch would cost as much as
copying a short value for each row.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

_KEPT_ROWS = 65_536


def constant(value: Any, kind: Any, count: int) -> Any:
    """Return ``count`` times the same value as an Arrow array of type ``kind``."""
    import pyarrow as pa

    if not 0 < count <= _KEPT_ROWS:
        return pa.repeat(pa.scalar(value, kind), count)
    return _kept(value, kind, 1 << (count - 1).bit_length()).slice(0, count)


@lru_cache(maxsize=12)
def _kept(value: Any, kind: Any, count: int) -> Any:
    """Arguments: ``count`` is a power of two. So a read of many sizes keeps few arrays of a value."""
    import pyarrow as pa

    return pa.repeat(pa.scalar(value, kind), count)
