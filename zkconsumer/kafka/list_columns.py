"""Arrow columns of Python lists. Pure; any thread.

``pyarrow.array`` imports pandas where pandas is installed, also for a list. That takes up to 2 s of CPU time once per
process. So these functions fill the buffers of a column themselves.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Sequence
from itertools import accumulate
from typing import Any


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
