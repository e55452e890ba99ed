"""Receives bytes whose number the other side has announced, without believing the number.

Pure but for the ``receive`` that it is given. Memory grows with what has come, so that a wrong length costs nothing:
eight bytes could otherwise make a member allocate two gigabytes, and stand still while they are zeroed.
"""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO

Receive = Callable[[memoryview], None]
"""Fills a view with what comes next."""
_PIECE = 64 * 1024


def received(begun: bytes | memoryview, size: int, scratch: bytearray, receive: Receive) -> bytes:
    """Return ``size`` bytes that begin with ``begun``; the rest is received in pieces as large as ``scratch``.

    ``begun`` may lie in ``scratch``. Raises what ``receive`` raises.
    """
    found = BytesIO()
    found.write(begun)
    left = size - len(begun)
    scratch_view = memoryview(scratch or bytearray(_PIECE))
    while left > 0:
        piece = scratch_view[: min(left, len(scratch_view))]
        receive(piece)
        found.write(piece)
        left -= len(piece)
    return found.getvalue()  # its own buffer and no copy of it
