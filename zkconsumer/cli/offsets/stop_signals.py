"""Ctrl-C and SIGTERM while offsets are written: the run ends after the slice under way, and tells what it wrote."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Any, Self


class StopSignals:
    """Takes SIGINT and SIGTERM within a ``with`` block of the main thread. A second signal interrupts at once.

    ``code`` is the exit code after a signal as a shell shows it, 0 without one. After an interrupt the block ends with
    SystemExit and this code.
    """

    def __init__(self) -> None:
        self.code = 0
        self._before: dict[int, Any] = {}

    def __call__(self) -> bool:
        """Return whether a signal has come."""
        return bool(self.code)

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._came)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if isinstance(error, KeyboardInterrupt) and self.code:
            raise SystemExit(self.code) from error  # the code of Ctrl-C, 130, would be told after SIGTERM

    def _came(self, number: int, _: FrameType | None) -> None:
        if self.code:
            raise KeyboardInterrupt
        self.code = 128 + number
