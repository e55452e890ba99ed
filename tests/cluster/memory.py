"""The most memory that this process takes while something happens. Linux only, as the cluster tests are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MEGABYTE = 1 << 20


class Growth:
    """``peak``: bytes that the process took at most beyond what it had at the beginning."""

    def __init__(self) -> None:
        self.peak = 0


@contextmanager
def growth() -> Iterator[Growth]:
    """Measure what happens inside a ``with``; known at its end."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from now on
    before, found = _status("VmRSS"), Growth()
    yield found
    found.peak = _status("VmHWM") - before


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))
