"""Arrow arrays of Python lists, and of one value. Pure; any thread.

``pyarrow.array`` and ``pyarrow.scalar`` import pandas where pandas is installed. That takes up to 2 s of CPU time and
40 MB once per process. So these functions fill the buffers of an array themselves.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Sequence
from functools import lru_cache
from itertools import accumulate
from struct import Struct
from typing import Any

_KEPT_ARRAYS = 12
_KEPT_BYTES = 1024 * 1024  # of each array: many long names must not stay in memory
_INT = Struct("=i").pack
_ENDS = Struct("=ii").pack


def numbers(values: Sequence[int | None], kind: Any) -> Any:
    """Return numbers as an Arrow array; None becomes null.

    Arguments: ``kind`` is an Arrow type of 32 or 64 bits. Raises OverflowError for a number with more bits.
    """
    import pyarrow as pa

    content = array("i" if kind.bit_width == 32 else "q", [0 if value is None else value for value in values])
    valid = _valid(values) if None in values else None
    return pa.Array.from_buffers(kind, len(values), [valid, pa.py_buffer(content)])


def binaries(values: Sequence[bytes | None], kind: Any) -> Any:
    """Return byte strings as an Arrow array; None becomes null.

    Arguments: ``kind`` is ``pyarrow.binary()``, or ``pyarrow.string()`` for text in UTF-8. Raises OverflowError for
    more than 2 GB.
    """
    import pyarrow as pa

    present = [value or b"" for value in values]
    ends = array("i", accumulate(map(len, present), initial=0))
    valid = _valid(values) if None in values else None
    return pa.Array.from_buffers(kind, len(values), [valid, pa.py_buffer(ends), pa.py_buffer(b"".join(present))])


def _valid(values: Collection[object]) -> Any:
    """Return the bits that tell which values are not None, the first one lowest, as Arrow has them."""
    import pyarrow as pa

    bits = "".join(["0" if value is None else "1" for value in values])[::-1]
    return pa.py_buffer(int(bits, 2).to_bytes(-(-len(bits) // 8), "little"))


def constant(value: int | str, count: int) -> Any:
    """Return ``count`` times the same text, or number of 32 bits, as an Arrow array.

    The array is a slice of one that is kept for a while, at most 12 MB in all. Filling new memory for each batch would
    cost as much as copying a short value for each row.
    """
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
    """Return an Arrow scalar."""
    import pyarrow as pa

    if isinstance(value, str):
        text = value.encode()
        content = [None, pa.py_buffer(_ENDS(0, len(text))), pa.py_buffer(text)]
        return pa.Array.from_buffers(pa.string(), 1, content)[0]
    return pa.Array.from_buffers(pa.int32(), 1, [None, pa.py_buffer(_INT(value))])[0]
