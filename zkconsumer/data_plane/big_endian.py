"""Numbers and texts in a view of bytes. Compiled modules use the same functions of ``big_endian.pxd`` instead.

The compiled functions read through a pointer: the caller has compared the place with the end of the bytes.
"""

from __future__ import annotations

from struct import Struct

_INT16, _INT32, _INT64 = (Struct(f">{letter}").unpack_from for letter in "hiq")


def start_of_view(view: memoryview) -> memoryview:
    """Return the bytes of a view; a pointer to them in compiled code. Raises: BufferError if the view skips bytes."""
    if view.itemsize != 1 or view.strides != (1,):
        raise BufferError("the bytes do not lie one behind the other")
    return view


def int16_at(data: memoryview, at: int) -> int:
    """Return the number of two bytes at ``at``."""
    number: int = _INT16(data, at)[0]
    return number


def int32_at(data: memoryview, at: int) -> int:
    """Return the number of four bytes at ``at``."""
    number: int = _INT32(data, at)[0]
    return number


def int64_at(data: memoryview, at: int) -> int:
    """Return the number of eight bytes at ``at``."""
    number: int = _INT64(data, at)[0]
    return number


def text_at(data: memoryview, at: int, size: int) -> str:
    """Return a text of ``size`` bytes. Raises: UnicodeDecodeError."""
    return str(data[at : at + size], "utf-8")


def bytes_at(data: memoryview, at: int, size: int) -> bytes:
    """Return a copy of ``size`` bytes."""
    return bytes(data[at : at + size])
