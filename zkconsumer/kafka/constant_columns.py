"""Arrow columns of one value: a batch's topic, partition and kind of timestamp. Pure; any thread.

Such columns are slices of arrays that are kept for a while, at most 12 MB in all. Filling new memory for each batch
would cost as much as copying a short value for each row.
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct
from typing import Any

_KEPT_ARRAYS = 12
_KEPT_BYTES = 1024 * 1024  # of each array: many long names must not stay in memory
_INT = Struct("=i").pack
_ENDS = Struct("=ii").pack


def constant(value: int | str, count: int) -> Any:
    """Return ``count`` times the same text, or number of 32 bits, as an Arrow array."""
    import pyarrow as pa

    rows = 1 << max(0, count - 1).bit_length()
    width = 4 + len(value) if isinstance(value, str) else 4
    if count == 0 or rows * width > _KEPT_BYTES:
        return pa.repeat(_scalar(value), count)
    return _kept(value, rows).slice(0, count)


@lru_cache(_KEPT_ARRAYS)
def _kept(value: int | str, count: int) -> Any:
    """Arguments: ``count`` is a power of two. So a read of many sizes keeps few arrays of a value."""
    import pyarrow as pa

    return pa.repeat(_scalar(value), count)


def _scalar(value: int | str) -> Any:
    """Return an Arrow scalar. ``pyarrow.scalar`` would import pandas: 0.2 s and 40 MB that columns do not need."""
    import pyarrow as pa

    if isinstance(value, str):
        text = value.encode()
        content = [None, pa.py_buffer(_ENDS(0, len(text))), pa.py_buffer(text)]
        return pa.Array.from_buffers(pa.string(), 1, content)[0]
    return pa.Array.from_buffers(pa.int32(), 1, [None, pa.py_buffer(_INT(value))])[0]
