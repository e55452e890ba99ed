"""Real signals at random moments: what opcode tracing cannot see is the inside of calls to C.

A timer sends SIGALRM at a random moment of a reading, and its handler raises in the main thread, as Ctrl-C does. Each
message that comes is noted; at the end everything must have come, and nothing may be committed that did not.

The handler raises in the reading function of the application, too. A message in a variable of that function counts as
handed out, and no other may be lost. Built-in ``next()`` cannot promise that: there the handler raises in the project
alone.
"""

from __future__ import annotations

import gc
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from time import monotonic
from types import FrameType
from typing import Any

from tests.interrupts import world
from tests.interrupts.boundaries import in_project
from tests.interrupts.sweep import AGAIN, Operation, timer
from tests.interrupts.world import Violation

_HARNESS = str(world.__file__)
_STORM = 12
"""Readings of one world, each interrupted, some of them twice."""
_NOTES = ("took", "took_rows", "took_list", "check")
_SHORTEST_S = 5e-6
_SHORTLY_S = 2e-4


class Rung(BaseException):
    """The exception of the signal's handler."""


@dataclass
class SignalFigures:
    """The figures of a campaign with signals."""

    operation: str
    worlds: int = 0
    inside: int = 0
    between: int = 0
    outside: int = 0
    repeats: int = 0
    findings: list[str] = field(default_factory=list)


class _Bell:
    """Rings at random moments while an operation runs, and raises in the project's code; with ``callers`` also in the
    function that reads.
    """

    def __init__(self, choose: random.Random, again: bool = False, callers: bool = False) -> None:
        self._choose = choose
        self._again = again
        self._callers = callers
        self.world: Any = None
        self.between = 0
        self._soon = False
        self.armed = False
        self.inside = 0
        self.outside = 0
        self.longest = 1e-3

    def set(self, longest: float | None = None) -> None:
        signal.setitimer(signal.ITIMER_REAL, self._choose.uniform(_SHORTEST_S, longest or self.longest))

    def ring(self, number: int, frame: FrameType | None) -> None:
        if not self.armed:
            return
        if not _in_project(frame):
            if not (self._callers and _reads(frame)):
                self.outside += 1  # nothing of the project, nor its caller, is interrupted
                self.set()
                return
            self.between += 1
            self.world.holds(frame.f_locals if frame is not None else {})
        else:
            self.inside += 1
        self.armed = self._again
        if self._again:
            # each second time while the first interrupt is still on its way to the application
            self._soon = not self._soon
            self.set(_SHORTLY_S if self._soon else None)
        raise Rung


def _in_project(frame: FrameType | None) -> bool:
    """Whether the project was called, and not by the harness while it notes what came."""
    inside = False
    while frame is not None:
        if frame.f_code.co_filename == _HARNESS and frame.f_code.co_name in _NOTES:
            return False
        inside = inside or in_project(frame.f_code)
        frame = frame.f_back
    return inside


def _reads(frame: FrameType | None) -> bool:
    """Whether this is the frame of a function that reads, between two calls."""
    return frame is not None and frame.f_code.co_filename == _HARNESS and frame.f_code.co_name.startswith("by_")


def ring(operation: Operation, seconds: float, seed: int, enough: int = 1 << 30) -> SignalFigures:
    """Interrupt an operation by signals, again and again, for so many seconds. Only in the main thread.

    Arguments: ``seed`` chooses the moments (the machine's own timing does so too); it ends when ``enough`` interrupts
    came inside the project.
    """
    bell = _Bell(random.Random(seed), callers=operation.reaches)
    return _campaign(operation, bell, lambda: _one_world(operation, bell), seconds, enough)


def storm(operation: Operation, seconds: float, seed: int, enough: int = 1 << 30) -> SignalFigures:
    """Interrupt the readings of an operation many times each, also while an interrupt is still on its way out.

    Arguments and result as for :func:`ring`. Any number of messages may come again.
    """
    bell = _Bell(random.Random(seed), again=True)
    patient = replace(operation, repeats=1 << 30)
    return _campaign(operation, bell, lambda: _stormy_world(patient, bell), seconds, enough)


def _campaign(
    operation: Operation, bell: _Bell, one_world: Callable[[], int], seconds: float, enough: int
) -> SignalFigures:
    figures = SignalFigures(operation.name)
    end = monotonic() + seconds
    for _ in range(2):  # the first one imports what is imported late
        began = monotonic()
        made = operation.prepare()
        operation.act(made)
        bell.longest = 1.2 * (monotonic() - began)
        operation.after(made, None)
    with timer(bell.ring):
        while monotonic() < end and bell.inside < enough:
            figures.worlds += 1
            try:
                figures.repeats = max(figures.repeats, one_world())
            except Violation as violation:
                figures.findings.append(str(violation))
            except Exception as refusal:
                figures.findings.append(f"refuses: {type(refusal).__name__}: {refusal}")
    figures.inside, figures.outside, figures.between = bell.inside, bell.outside, bell.between
    return figures


@contextmanager
def _no_finalisers() -> Iterator[None]:
    """Collect no garbage: Python swallows what is raised in a finaliser."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _stormy_world(operation: Operation, bell: _Bell) -> int:
    made = operation.prepare()
    with _no_finalisers():
        for _ in range(_STORM):
            try:
                bell.armed = True
                bell.set()
                operation.act(made)
            except Rung:
                pass
            finally:
                bell.armed = False
            made.forget_hands()
            made.check()
            operation.mend(made)
            made.fetch_again()
    return operation.after(made, AGAIN)


def _one_world(operation: Operation, bell: _Bell) -> int:
    """Read one world to its end, interrupted once. Returns: how many messages came again."""
    made = bell.world = operation.prepare()
    bell.armed = True
    with _no_finalisers():
        try:
            bell.set()
            operation.act(made)
        except Rung:
            pass
        finally:
            bell.armed = False
    return operation.after(made, AGAIN)
