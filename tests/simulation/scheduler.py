"""The scheduler of a simulated world: one task runs at a time, in virtual time, and a seed chooses the next one.

A task is a greenlet that stands for a thread. A process is the set of tasks of one member: it can be killed or frozen.
The clock moves when all tasks wait, and by a microsecond at each look, so that a loop that waits for a time ends.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from zlib import crc32

import greenlet  # type: ignore[import-untyped]

EPOCH = 1_700_000_000.0  # the wall clock at the start of each world, in seconds
LOOK = 1e-6  # seconds that a look at the clock takes
SWITCHES = 0.1  # the probability that a task which could go on gives its turn away
LINES = (0.0, 0.0, 0.0003, 0.01)
"""The probabilities of a switch between two statements, of which the seed chooses one for its run."""
DELAYS = (0.0, 0.001, 0.03)
"""The probabilities that a task which gave its turn away stands still for a while, as on a busy machine."""
PLACES = 31  # one statement in so many is a slow place
SLOW = (0.03, 0.5)  # the probabilities that a task stands still at a slow place, of which the seed chooses one
WATCHED: set[int] = set()
"""The places whose statements call :func:`before_statement`: few, if the seed wants no switch between two of them."""
_SLICES = 2_000_000  # turns without any progress of the clock to the next timer, after which the world is called stuck


class Stuck(AssertionError):
    """No task can go on, and no time is waited for; or the tasks go on for ever without waiting."""


class Interrupted(KeyboardInterrupt):
    """The exception of a signal handler, which leaves a call."""


class Process:
    """The tasks of one member, or of all servers. ``frozen_until`` is on the world's clock."""

    alive = True
    frozen_until = 0.0
    stood = 0.0  # the seconds for which its tasks stood still in all

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


class Task:
    """One simulated thread."""

    done = timed_out = False
    ready = True
    thaws = False  # whether its timer only ends a freeze of its process: it was ready before
    ticket = 0
    interrupt_in = 0  # the number of turns after which an exception leaves the present call; 0: none does
    waits_for: object = ""
    thread: Any = None
    switch: Callable[[], object]

    def __init__(self, number: int, name: str, process: Process) -> None:
        self.number, self.name, self.process = number, name, process
        self.mark = b"%d" % number

    def __repr__(self) -> str:
        return self.name


class World:
    """The tasks, the clock, the source of all chance, and the trace of one run."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.now = 1000.0
        self.lines = self.random.choice(LINES)
        self.delays = self.random.choice(DELAYS)
        self.slow_place = self.random.randrange(-PLACES // 2, PLACES)
        """Statements whose number has this remainder are slow; none if it is below 0."""
        self.slow = self.random.choice(SLOW)
        self.countdown = 0  # statements until the next switch between two of them
        self.count_down()
        self.tasks: list[Task] = []
        self.turns = 0
        self.trace: deque[str] = deque(maxlen=400)
        self.digest = 0
        self.failures: list[BaseException] = []
        self.system = Process("world")
        self._root = Task(0, "world", self.system)  # stands for the code outside of all tasks, which may not wait
        self.current = self._root  # the task that runs now
        self._numbers = itertools.count(1)
        self._ready: list[Task] = []
        self._timers: list[tuple[float, int, Task, int]] = []
        self._main = greenlet.getcurrent()
        self.network: Any = None
        """The :class:`tests.simulation.sockets.Network` of this world."""
        self._ended = False

    # ---- what happened

    def note(self, event: str) -> None:
        """Add an event to the trace, and to the digest that two equal runs share."""
        line = f"{self.now - 1000:12.6f} {self.current}: {event}"
        self.digest = crc32(line.encode(), self.digest)
        self.trace.append(line)

    # ---- tasks

    def spawn(self, name: str, body: Callable[[], object], process: Process | None = None) -> Task:
        """Make a task that is ready to run. Its process is by default the one of the present task."""
        task = Task(next(self._numbers), name, process or self.current.process)
        task.switch = greenlet.greenlet(lambda: self._run(task, body), self._main).switch
        self.tasks.append(task)
        self._ready.append(task)
        return task

    def _run(self, task: Task, body: Callable[[], object]) -> None:
        try:
            body()
        except BaseException as e:  # a task's failure is the world's: it is shown with the run
            self.failures.append(e)
            self._ended = True
        task.done = True
        self.tasks.remove(task)

    def go(self, until: Callable[[], bool]) -> None:
        """Run until the condition holds between two turns. Raises Stuck, and the first failure of a task."""
        while not self._ended and not until():
            self.turns += 1
            task = self._next()
            self.digest = crc32(task.mark, self.digest)
            self.current = task
            task.switch()
            self.current = self._root
        if self.failures:
            raise self.failures[0]

    def _next(self) -> Task:
        for _ in range(_SLICES):
            ready = self._ready
            while ready:
                index = int(self.random.random() * len(ready)) if len(ready) > 1 else 0
                task = ready[index]
                ready[index] = ready[-1]
                ready.pop()
                if task.done or not task.process.alive:
                    continue
                if task.process.frozen_until > self.now:
                    self._at(task.process.frozen_until, task)
                    continue
                return task
            if not self._timers:
                break
            due, _, task, ticket = heapq.heappop(self._timers)
            if ticket != task.ticket or task.ready or task.done or not task.process.alive:
                continue
            self.now = max(self.now, due)
            task.timed_out = task.timed_out or not task.thaws
            task.ready, task.thaws = True, False
            ready.append(task)
        raise Stuck("; ".join(f"{task} waits for {task.waits_for}" for task in self.tasks if task.process.alive))

    def _at(self, due: float, task: Task) -> None:
        """Put a frozen task that is ready back until it thaws. It stays woken, or timed out."""
        task.ready, task.thaws = False, True
        task.ticket += 1
        heapq.heappush(self._timers, (due, next(self._numbers), task, task.ticket))

    def pause(self) -> None:
        """Give the turn away, with a small probability."""
        if self.current is not self._root and self.random.random() < SWITCHES:
            self.give_way()
            if self.current.interrupt_in:
                self._interrupt(self.current)

    def count_down(self) -> None:
        """Choose the statement before which the turn is given away next."""
        self.countdown = 1 + int(self.random.expovariate(self.lines)) if self.lines else -1

    def give_way(self) -> None:
        """Give the turn away; the present task may be the next one, too, or stand still."""
        if self.delays and self.random.random() < self.delays:
            self.stand_still()
        else:
            self._ready.append(self.current)
            self._main.switch()

    def stood(self, process: Process) -> float:
        """Return the seconds for which tasks of a process and of the servers stood still in all."""
        return process.stood + self.system.stood

    def stand_still(self) -> None:
        """Give the present task no turn for up to 0.3 s."""
        seconds, task = self.random.random() ** 3 * 0.3, self.current
        task.process.stood += seconds
        kept, task.interrupt_in = task.interrupt_in, 0  # CPython does not look for signals between any two statements
        self.wait("its turn", seconds)
        task.interrupt_in = kept

    @contextmanager
    def interrupts(self, chance: float) -> Iterator[None]:
        """Raise Interrupted in the block, with this chance, where the task waits or gives its turn away."""
        task = self.current
        hit = chance and self.random.random() < chance
        task.interrupt_in = 1 + int(self.random.expovariate(0.4)) if hit else 0
        try:
            yield
        finally:
            task.interrupt_in = 0

    def _interrupt(self, task: Task) -> None:
        task.interrupt_in -= 1
        if not task.interrupt_in:
            self.note("an exception leaves the call")
            raise Interrupted

    def wait(self, why: object, seconds: float | None, waiters: list[Task] | None = None) -> bool:
        """Wait until :meth:`wake_all`, or for some seconds. Return whether the task was woken before its time.

        Arguments: ``waiters`` has the task meanwhile.
        """
        task = self.current
        assert task is not self._root, f"the world itself waits for {why}"
        task.ready, task.timed_out, task.thaws, task.waits_for = False, False, False, why
        task.ticket += 1
        if waiters is not None:
            waiters.append(task)
        if task.interrupt_in == 1:  # it comes amid the wait
            seconds = min(1e9 if seconds is None else seconds, self.random.random() * 2.0)
        if seconds is not None:
            heapq.heappush(self._timers, (self.now + max(0.0, seconds), next(self._numbers), task, task.ticket))
        self._main.switch()
        task.waits_for = ""
        if waiters is not None and task in waiters:
            waiters.remove(task)
        if task.interrupt_in:
            self._interrupt(task)
        return not task.timed_out

    def wait_until(self, holds: Callable[[], object], why: object, seconds: float | None, waiters: list[Task]) -> bool:
        """Wait until a condition holds, which is looked at after each :meth:`wake_all`. Return False after the time."""
        end = None if seconds is None else self.now + seconds
        while not holds():
            left = None if end is None else end - self.now
            if left is not None and left <= 0:
                return False
            self.wait(why, left, waiters)
        return True

    def wake_all(self, waiters: list[Task]) -> None:
        """Make all waiting tasks of a list ready, and empty the list."""
        for task in waiters:
            if not task.ready:
                task.ready = True
                task.ticket += 1
                self._ready.append(task)
        waiters.clear()

    # ---- time

    def monotonic(self) -> float:
        self.now += LOOK
        self.pause()
        return self.now

    def sleep(self, seconds: float) -> None:
        self.wait("a time", seconds)


_here = World(0)  # until a run begins, modules are imported in this one


def world() -> World:
    return _here


def enter(made: World) -> None:
    """Make a world the one that runs. The package's own choices by chance follow its seed, too."""
    global _here
    random.seed(made.seed)
    _here = made
    WATCHED.clear()
    WATCHED.update(range(PLACES) if made.lines else {made.slow_place})


def before_statement(place: int) -> None:
    """Count a statement of the chosen modules down; see :mod:`tests.simulation.lines`.

    Arguments: ``place`` is a number below PLACES. Each statement calls this function, so speed counts here.
    """
    here = _here
    here.countdown -= 1
    if not here.countdown:
        here.count_down()
        if here.current.number:
            here.give_way()
    elif place == here.slow_place and here.current.number and here.random.random() < here.slow:
        here.stand_still()
