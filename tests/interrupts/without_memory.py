"""``python -m tests.interrupts.without_memory``: lets each allocation of a read fail, one at a time.

The program is a process of its own, since the failing allocation may be any thread's. It prints the number of failed
reads, and the findings.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from typing import Any

from tests.interrupts.reading import filled
from tests.interrupts.world import ELSEWHERE, InterruptedStreams, Violation, by_for, by_messages
from zkconsumer.data_plane import COMPILED
from zkconsumer.errors import ConsumerTimeoutException

Ask = Callable[[], Any]


def _loop(messages: Iterator[Any]) -> Ask:
    return lambda: next(messages)


def _rows(world: InterruptedStreams) -> Any:
    # all rows of a chunk: pyarrow's compute functions, which look for the row to stop at, crash without memory
    return next(world.stream.batches(timeout=0))


WAYS: dict[str, Callable[[InterruptedStreams], Ask]] = {
    "for": lambda world: _loop(iter(world.stream)),
    "get": lambda world: lambda: world.stream.get(timeout=0),
    "next": lambda world: lambda: next(world.stream),
    "messages-for": lambda world: _loop(iter(world.merged)),
    "messages-get": lambda world: lambda: world.merged.get(timeout=0),
    "messages-next": lambda world: lambda: next(world.merged),
}
if COMPILED:  # else numpy makes the columns, which crashes without memory
    WAYS["batches"] = lambda world: lambda: _rows(world)
_MOST = 2000
_ENOUGH = 10
_MOST_REPEATS = 2
_BATCH = 5
"""Rows of the largest batch, which may come again as a whole."""


def _asked_without_memory(ask: Ask, number: int) -> Any:
    """Ask for a message, while the allocation of that number fails. Return None if the ask failed."""
    python = import_module("_testcapi")
    remove_mem_hooks = python.remove_mem_hooks
    try:
        python.set_nomemory(number, number + 1)
        return ask()
    # Python 3.11 loses the MemoryError of a call that has no room for its frame
    except (MemoryError, SystemError):
        return None
    finally:
        remove_mem_hooks()


def _fails(way: str, before: int, number: int) -> bool:
    """Read ``before`` messages, and the next one without memory. Then read all, and check that all came."""
    merged = way.startswith("messages")
    world = filled(merged=merged)()
    try:
        ask = WAYS[way](world)
        took = world.took_rows if way == "batches" else world.took
        for _ in range(before):
            took(ask())
        message = _asked_without_memory(ask, number)
        if message is not None:
            took(message)
        world.forget_hands()
        world.check()
        world.late()
        read = by_messages if merged else by_for
        read(world)
        while world.fetch_again():
            read(world)
        world.check_end(_BATCH if way == "batches" else _MOST_REPEATS)
    finally:
        world.end()
    return message is None


def main() -> int:
    """Returns: the number of findings."""
    logging.disable(logging.CRITICAL)
    failures, findings = 0, []
    for way in WAYS:
        with suppress(ConsumerTimeoutException):  # imports what is imported late
            _fails(way, 0, 1 << 30)
        for before in (0, 1, 2) if way == "batches" else (0, 2, 4, 5):
            well = 0  # reads that did well, one after the other: some allocations may fail without any harm
            for number in range(_MOST):
                try:
                    failed = _fails(way, before, number)
                    failures, well = failures + failed, 0 if failed else well + 1
                    if well > _ENOUGH:
                        break
                except Violation as violation:
                    findings.append(f"{way} after {before} messages, allocation {number}: {violation}")
    ELSEWHERE.end()
    print(failures, "reads failed")
    print(*findings, sep="\n")
    return len(findings)


if __name__ == "__main__":
    sys.exit(min(1, main()))
