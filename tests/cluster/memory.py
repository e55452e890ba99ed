"""The peak of this process's memory during a block. Linux only, as the cluster tests are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MEGABYTE = 1 << 20


class Growth:
    """The measurement. ``peak`` is in bytes above the memory at the beginning."""

    def __init__(self) -> None:
        self.peak = 0


@contextmanager
def growth() -> Iterator[Growth]:
    """Measure a ``with`` block. The result is known at its end."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from now on
    before, found = _status("VmRSS"), Growth()
    yield found
    found.peak = _status("VmHWM") - before


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))
