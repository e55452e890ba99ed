"""A process that takes a part of the machine while the peers are measured: a core, or the way to memory."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

KINDS = ("core", "memory")

_COPIED_BYTES = 64 << 20  # more than the caches of a processor hold


@contextmanager
def neighbour(kind: str | None) -> Iterator[subprocess.Popen[bytes] | None]:
    """Run a process beside the measurements inside of the ``with``.

    Arguments: ``kind`` is "core" for one that computes without a pause, "memory" for one that copies memory without a
    pause, None for none. Raises: RuntimeError if it ended before them.
    """
    if kind is None:
        yield None
        return
    process = subprocess.Popen([sys.executable, __file__, kind])
    try:
        yield process
        ended = process.poll()
        if ended is not None:
            raise RuntimeError(f"the process beside the measurements ended with exit code {ended}: they do not count")
    finally:
        process.kill()
        process.wait()


def _burn() -> None:
    number = 1
    for _ in range(1_000_000):
        number = number * 1_103_515_245 + 12_345 & 0x7FFFFFFF


def _copy() -> None:
    _TARGET[:] = _SOURCE


def _run(kind: str) -> None:
    """Work until the parent ends, so that a killed measurement leaves nothing behind."""
    parent = os.getppid()
    work = {"core": _burn, "memory": _copy}[kind]
    while os.getppid() == parent:
        work()


if __name__ == "__main__":
    # written, not zeroed: untouched pages are all one page of the processor's cache
    _SOURCE, _TARGET = b"x" * _COPIED_BYTES, bytearray(_COPIED_BYTES)
    _run(sys.argv[1])
