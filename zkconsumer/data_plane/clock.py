"""The clock of the hand-out. Compiled modules read it by ``clock.pxd``, without a call of Python."""

from __future__ import annotations

from time import monotonic

__all__ = ["monotonic"]
