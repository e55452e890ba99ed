"""Runs an operation once for each of its boundaries, interrupts the run there, and checks the result."""

from __future__ import annotations

import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from types import CodeType, FrameType
from typing import Any, NamedTuple, Protocol

from tests.interrupts.boundaries import Alarm, Boundary, Interrupted, NoMemory, Tracer, Visit, boundaries, in_project
from tests.interrupts.world import InterruptedStreams, Reading, Violation, by_batches, by_for, by_messages
from tests.timing import scaled

RUN_S = 20.0
"""Seconds after which one run counts as standing still."""
KINDS: tuple[type[BaseException], ...] = (Interrupted, Alarm, NoMemory)


class Subject(Protocol):
    """An operation that can be interrupted, and looked at afterwards."""

    @property
    def name(self) -> str:
        """For the report."""

    def prepare(self) -> Any:
        """Make the world of one run."""

    def act(self, world: Any) -> None:
        """Do it; this is interrupted."""

    def after(self, world: Any, aftermath: Aftermath | None) -> int:
        """Go on afterwards, and check what must hold (``aftermath`` None: it was not interrupted).

        Returns: how many messages came again. Raises: Violation.
        """


@dataclass(frozen=True)
class Operation:
    """Something that an application does with a stream.

    Arguments: ``prepare`` makes the streams, and ``act`` is the interrupted use of the streams; ``repeats`` is how many
    messages may come again after an interrupt; ``mend`` is the application's repair before the next read.
    ``reaches`` says that no interrupt comes between a call and the caller's variable (not so of built-in ``next()``).
    """

    name: str
    prepare: Callable[[], InterruptedStreams]
    act: Reading
    repeats: int = 1
    mend: Callable[[InterruptedStreams], None] = lambda _world: None
    columns: bool = True
    reaches: bool = True

    def after(self, world: InterruptedStreams, aftermath: Aftermath | None) -> int:
        """Read on, and check that all came and is finished."""
        world.forget_hands()
        world.check()
        self.mend(world)
        (aftermath or AGAIN).go_on(self, world)
        world.check_end(0 if aftermath is None else self.repeats)
        world.end()
        return sum(partition.repeats for partition in world.partitions)


class Aftermath(NamedTuple):
    """The steps after the interrupt."""

    name: str
    go_on: Callable[[Operation, InterruptedStreams], None]


def _again(operation: Operation, world: InterruptedStreams) -> None:
    _read_on(operation.act, world)


def _by_for(operation: Operation, world: InterruptedStreams) -> None:
    _read_on(by_for if len(world.streams) == 1 else by_messages, world)


def _by_columns(operation: Operation, world: InterruptedStreams) -> None:
    if operation.columns and len(world.streams) == 1:
        _read_on(by_batches, world)
    else:
        _by_for(operation, world)


def _leaves(operation: Operation, world: InterruptedStreams) -> None:
    world.revoke(0)
    _by_for(operation, world)


def _read_on(read: Reading, world: InterruptedStreams) -> None:
    world.fetch_again()
    world.late()
    read(world)
    while world.fetch_again():
        read(world)


AGAIN = Aftermath("it is asked again", _again)
AFTERMATHS = (
    AGAIN,
    Aftermath("a for loop reads on", _by_for),
    Aftermath("batches are asked for", _by_columns),
    Aftermath("a partition leaves", _leaves),
)


class Finding(NamedTuple):
    """A violation at a boundary."""

    operation: str
    boundary: Boundary
    how: str
    error: str
    aftermath: str
    what: str


@dataclass
class Figures:
    """The figures of a sweep of one operation."""

    operation: str
    boundaries: int = 0
    runs: int = 0
    missed: int = 0
    repeats: int = 0
    findings: list[Finding] = field(default_factory=list)

    @property
    def serious(self) -> list[Finding]:
        """Those at boundaries at which CPython itself can raise."""
        return [finding for finding in self.findings if finding.how != "other"]


class TooLong(BaseException):
    """A run takes too long."""


@contextmanager
def timer(ring: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Have this called when the real timer ends; the timer and handler that were there come back afterwards."""
    before = signal.signal(signal.SIGALRM, ring)
    left, began = signal.setitimer(signal.ITIMER_REAL, 0)[0], monotonic()
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if left:  # the limit of a whole test
            signal.setitimer(signal.ITIMER_REAL, max(0.01, left - (monotonic() - began)))


@contextmanager
def bounded(seconds: float) -> Iterator[None]:
    """Raise TooLong in the main thread after so many seconds (elsewhere: no bound)."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def too_long(number: int, frame: FrameType | None) -> None:
        raise TooLong

    with timer(too_long):
        signal.setitimer(signal.ITIMER_REAL, scaled(seconds))
        yield


def sweep(
    subject: Subject,
    *,
    often: int = 0,
    kinds: Sequence[type[BaseException]] = KINDS,
    aftermaths: Sequence[Aftermath] = AFTERMATHS,
    scope: Callable[[CodeType], bool] = in_project,
    most: int = 0,
    rotate: bool = False,
) -> Figures:
    """Interrupt an operation at each of its boundaries.

    Arguments: ``often`` is how many visits of each instruction (0: all); ``most`` is how many boundaries are taken,
    evenly (0: all); ``rotate`` takes one kind and one aftermath for each in place of all.
    """
    figures = Figures(subject.name)
    passed = passes(subject, scope)
    chosen = boundaries(passed, often)
    figures.boundaries = len(chosen)
    every = max(1, len(chosen) // most) if most else 1
    ways = [(kind, aftermath) for kind in kinds for aftermath in aftermaths]
    for number, visit in enumerate(chosen):
        if number % every:
            continue
        for kind, aftermath in [ways[number // every % len(ways)]] if rotate else ways:
            next(_by_itself(partial(_interrupt, subject, visit, kind, aftermath, scope, figures)))
    return figures


def _by_itself(run: Callable[[], None]) -> Iterator[None]:
    """Run this in a generator, whose exception in hand is its own.

    An interrupt at an instruction that begins or ends an ``except`` leaves the thread with an exception in hand for
    ever. Every later failure of the process would be shown as one that came of it.
    """
    run()
    yield


def passes(subject: Subject, scope: Callable[[CodeType], bool] = in_project) -> list[Visit]:
    """The boundaries of an uninterrupted run, which must be right itself."""
    for _ in range(2):  # the first one imports what is imported late
        world = subject.prepare()
        tracer = Tracer(scope=scope)
        with bounded(RUN_S):
            with tracer:
                subject.act(world)
            subject.after(world, None)
    return tracer.visits


def _interrupt(
    subject: Subject,
    visit: Visit,
    kind: type[BaseException],
    aftermath: Aftermath,
    scope: Callable[[CodeType], bool],
    figures: Figures,
) -> None:
    def found(what: str) -> None:
        finding = Finding(subject.name, visit.boundary, visit.how, kind.__name__, aftermath.name, what)
        figures.findings.append(finding)

    world = subject.prepare()
    tracer = Tracer(visit.boundary, kind, scope)
    figures.runs += 1
    surfaced = False
    try:
        with bounded(RUN_S):
            try:
                with tracer:
                    subject.act(world)
            except (Interrupted, Alarm, NoMemory):
                surfaced = True
            except Violation:
                raise
            except Exception as other:
                surfaced = True
                found(f"refuses: another exception takes its place: {other!r}")
            if not tracer.raised:
                figures.missed += 1
            elif not surfaced:
                found("swallowed: the interrupt does not reach the application")
            figures.repeats = max(figures.repeats, subject.after(world, aftermath))
    except Violation as violation:
        found(str(violation))
    except TooLong:
        found("stands still: it does not come back")
    except Exception as refusal:
        found(f"refuses: {type(refusal).__name__}: {refusal}")


def told(figures: Sequence[Figures], most: int = 20) -> list[str]:
    """The figures as lines, and each finding once: where, what, how often."""
    lines = [
        f"{one.operation}: {one.boundaries} boundaries, {one.runs} interrupts ({one.missed} not reached), "
        f"at most {one.repeats} repeated, {len(one.findings)} findings"
        for one in figures
    ]
    examples: dict[tuple[str, str, str], Finding] = {}
    seen: Counter[tuple[str, str, str]] = Counter()
    places: dict[tuple[str, str, str], Counter[str]] = {}
    for finding in (finding for one in figures for finding in one.findings):
        key = finding.operation, finding.what.split(":", 1)[0], finding.how
        seen[key] += 1
        places.setdefault(key, Counter())[finding.boundary.place] += 1
        examples.setdefault(key, finding)
    for key, count in sorted(seen.items()):
        example = examples[key]
        lines += [
            f"  {key[0]}: {key[1]}, by {key[2]}, {count} times",
            f"    such as {example.boundary.place}, {example.boundary.instruction}: {example.what} "
            f"[{example.error}; then {example.aftermath}]",
            f"    at {', '.join(f'{place} ({times})' for place, times in places[key].most_common(most))}",
        ]
    return lines
