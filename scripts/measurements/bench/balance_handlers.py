"""The handlers of ``scripts/bench balance``: functions of a module, so that worker processes can import them.

A handler that records appends 24 bytes to the file of its process's environment: when it returned (CLOCK_MONOTONIC in
nanoseconds), partition, and offset. A write of 24 bytes is atomic, so all threads and processes share the file.
"""

from __future__ import annotations

import itertools
import os
import struct
import time
from pathlib import Path
from typing import Any, NamedTuple

RECORD_FILE = "ZKCONSUMER_BENCH_RECORD"
WAIT_S = 0.05
"""Seconds that a waiting handler takes."""
SPIN_S = 0.002
"""Seconds of CPU time that a computing handler takes."""
FAILING = 100
"""One message in so many fails."""
FAILURES = 2
"""Number of times that a failing message fails."""

_ENTRY = struct.Struct("<QIxxxxQ")
_file = -1
counted = itertools.count()


class Handled(NamedTuple):
    """One message that a handler finished; ``at`` is CLOCK_MONOTONIC in seconds."""

    at: float
    partition: int
    offset: int


def wait(message: Any) -> None:
    """Wait, as a handler does that calls a service."""
    time.sleep(WAIT_S)
    record(message.partition, message.offset)


def spin(message: Any) -> None:
    """Compute."""
    end = time.thread_time() + SPIN_S
    while time.thread_time() < end:
        pass
    record(message.partition, message.offset)


def count(_: Any) -> None:
    """Do nothing but count."""
    next(counted)


def fail_twice(message: Any) -> None:
    """Fail the first attempts at one message in a hundred."""
    if message.offset % FAILING == 0 and message.attempt <= FAILURES:
        raise RuntimeError("staged by the measurement")
    next(counted)


HANDLERS = {"wait": wait, "spin": spin, "count": count, "fail_twice": fail_twice}


def record(partition: int, offset: int) -> None:
    """Append one entry to the file."""
    global _file
    if _file < 0:
        _file = os.open(os.environ[RECORD_FILE], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(_file, _ENTRY.pack(time.monotonic_ns(), partition, offset))


def number_counted() -> int:
    """Return how often the handlers of this process have counted."""
    return int(repr(counted)[len("count(") : -1])


def recorded(file: Path) -> list[Handled]:
    """Return the entries of a file, in the order of writing."""
    data = file.read_bytes() if file.exists() else b""
    whole = len(data) - len(data) % _ENTRY.size
    return [Handled(ns / 1e9, partition, offset) for ns, partition, offset in _ENTRY.iter_unpack(data[:whole])]
