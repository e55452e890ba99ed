"""Virtual time for the threads of many members. One thread runs at a time, and waits for a moment, not for seconds.

A :class:`Simulation` starts the threads. It passes the turn from one to the next in the order of their moments. So each
run is equal, takes no longer than its computing, and an hour without events takes no time. The caller of
:meth:`Simulation.run` has the turn first and gets it back at the end. All other threads wait through
:meth:`Simulation.sleep_until` and :class:`Mailbox`.

CPU time can count as time: then a member's computing between two waits advances its virtual clock, as on its own
machine.
"""

from __future__ import annotations

import heapq
import itertools
import random
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import TypeVar

T = TypeVar("T")
_STACK = 512 * 1024


class _Ended(BaseException):
    """The task was ended from outside, as by SIGKILL."""


class Task:
    """One thread. ``cpu`` is the processor time it used, in seconds, without that of the simulated servers."""

    def __init__(self, simulation: Simulation, name: str, body: Callable[[], None]) -> None:
        self.cpu = 0.0
        self.ended = False
        self._simulation = simulation
        self._body = body
        self.turn = threading.Semaphore(0)
        self.since = 0.0
        self.wakeup = 0
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        self.turn.acquire()
        self.since = time.thread_time()
        try:
            if not self.ended:
                self._body()
        except _Ended:
            pass
        except BaseException as e:
            self._simulation.failures.append(e)
        finally:
            self.ended = True
            self._simulation.turn_back.release()


class Simulation:
    """The clock and the order of everything.

    Arguments: ``counts_cpu``: whether what members compute takes time. ``chance`` is the same in every run.
    """

    def __init__(self, *, counts_cpu: bool = False, seed: int = 1) -> None:
        self.now = 1000.0
        self.failures: list[BaseException] = []
        self._counts_cpu = counts_cpu
        self._seed = seed
        self.chance = random.Random(seed)
        self.turn_back = threading.Semaphore(0)
        self._moments: list[tuple[float, int, Task | None, int, Callable[[], None] | None]] = []
        self._order = itertools.count()
        self._tasks: list[Task] = []
        self._running: Task | None = None

    def monotonic(self) -> float:
        """Return the time, as ``time.monotonic``. A task also sees its own CPU time since its last wait."""
        task = self._running
        if task is None or not self._counts_cpu:
            return self.now
        return self.now + time.thread_time() - task.since

    def start(self, name: str, body: Callable[[], None]) -> Task:
        """A new thread, whose first turn comes now."""
        size = threading.stack_size(_STACK)
        try:
            task = Task(self, name, body)
        finally:
            threading.stack_size(size)
        self._tasks.append(task)
        self.wake(task, self.now)
        return task

    def at(self, moment: float, call: Callable[[], None]) -> None:
        """Call this then; it must not wait."""
        heapq.heappush(self._moments, (moment, next(self._order), None, 0, call))

    def end(self, task: Task) -> None:
        """End a thread where it stands. It is not its turn."""
        if not task.ended:
            task.ended = True
            self._give_turn(task)

    def run(self, until: float) -> None:
        """Let everything happen that happens until then. Raises what a thread raised."""
        while self._moments and self._moments[0][0] <= until and not self.failures:
            moment, _, task, wakeup, call = heapq.heappop(self._moments)
            if task is None:
                self.now = max(self.now, moment)
                assert call is not None
                call()
            elif not task.ended and task.wakeup == wakeup:
                self.now = max(self.now, moment)
                self._give_turn(task)
        if self.failures:
            raise self.failures[0]
        self.now = max(self.now, until)

    def close(self) -> None:
        """End all threads."""
        for task in self._tasks:
            self.end(task)
            task.thread.join(10)

    @contextmanager
    def clocks(self) -> Iterator[None]:
        """For this time, every module of the package that looks at the monotonic clock sees this one, and chance is
        the same in every run.
        """
        patched = [
            module
            for name, module in list(sys.modules.items())
            if name.startswith("zkconsumer.") and getattr(module, "monotonic", None) is time.monotonic
        ]
        chance = random.getstate()
        random.seed(self._seed)
        for module in patched:
            module.monotonic = self.monotonic  # type: ignore[attr-defined]
        try:
            yield
        finally:
            for module in patched:
                module.monotonic = time.monotonic  # type: ignore[attr-defined]
            random.setstate(chance)

    # ---- for the task whose turn it is ----

    def task(self) -> Task:
        """Whose turn it is."""
        assert self._running is not None, "only a task can wait"
        return self._running

    def settle_cpu(self) -> float:
        """Book what the task has computed; returns the moment it has got to."""
        task = self.task()
        used = time.thread_time() - task.since
        task.cpu += used
        task.since += used
        return self.now + used if self._counts_cpu else self.now

    def forget_cpu(self) -> None:
        """Do not charge the task for the CPU time since :meth:`settle_cpu`."""
        self.task().since = time.thread_time()

    def sleep_until(self, moment: float) -> None:
        """Give the turn away until then."""
        task = self.task()
        self.wake(task, moment)
        self._wait(task)

    # ---- the turn ----

    def wake(self, task: Task, moment: float) -> None:
        """Its turn comes then, and not when it was to come before."""
        task.wakeup += 1
        heapq.heappush(self._moments, (max(moment, self.now), next(self._order), task, task.wakeup, None))

    def _give_turn(self, task: Task) -> None:
        self._running = task
        task.turn.release()
        self.turn_back.acquire()
        self._running = None

    def _wait(self, task: Task) -> None:
        self.turn_back.release()
        task.turn.acquire()
        if task.ended:
            raise _Ended
        task.since = time.thread_time()


class Mailbox(SimpleQueue[T]):
    """A queue whose waiting is virtual. One task takes; anybody puts."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self._items: deque[T] = deque()
        self._taker: Task | None = None

    def put(self, item: T, block: bool = True, timeout: float | None = None) -> None:
        """Add one; whoever waits gets it now."""
        self._items.append(item)
        if self._taker is not None:
            self.simulation.wake(self._taker, self.simulation.now)

    def get(self, block: bool = True, timeout: float | None = None) -> T:
        """Take one, waiting ``timeout`` seconds for it. Raises Empty."""
        if not self._items and block:
            simulation = self.simulation
            reached = simulation.settle_cpu()
            self._taker = simulation.task()
            try:
                simulation.sleep_until(float("inf") if timeout is None else reached + timeout)
            finally:
                self._taker = None
        return self.get_nowait()

    def get_nowait(self) -> T:
        """Take one that is there. Raises Empty."""
        if not self._items:
            raise Empty
        return self._items.popleft()

    def empty(self) -> bool:
        """Whether there is none."""
        return not self._items

    def qsize(self) -> int:
        """How many there are."""
        return len(self._items)
