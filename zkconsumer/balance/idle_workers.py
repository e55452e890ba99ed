"""The workers of a run: those that wait for messages, and how many messages one takes at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from zkconsumer.runtime.interruptible_wait import InterruptibleLock, WakeFlag
from zkconsumer.runtime.metrics import Buckets

MOST = 128
"""Messages that a worker takes at most."""
SECONDS = 0.002
"""Seconds of handlers that a worker takes at a time, as the quickest of the last takes went."""
_LOOK_BACK = 8


class BatchSize:
    """The number of messages to take, by the time that handlers took. Pure.

    A lock and a look at the lanes for each message would cost more than an empty handler. But a worker that has taken
    many messages keeps them from the others, so slow handlers get one at a time.

    The quickest of the last takes counts: with many threads a worker waits for the interpreter most of the time, and
    that says nothing of the handler.
    """

    def __init__(self) -> None:
        self._last: deque[float] = deque(maxlen=_LOOK_BACK)
        self.size = 1
        self.times = Buckets()
        """The durations of handlers; those of quick ones as the mean of several."""

    def note(self, messages: int, seconds: float) -> None:
        """Note how long some handlers took, one after the other. Any thread: each step is atomic."""
        self._last.append(seconds / messages)
        self.times.add(seconds / messages, messages)
        each = min(self._last.copy())
        wanted = MOST if each <= 0 else int(SECONDS / each)
        self.size = max(1, min(wanted, 2 * self.size, MOST))

    def workers(self, startable: int) -> int:
        """Return how many workers so many startable messages occupy."""
        return -(-startable // self.size)


class IdleWorkers:
    """Workers that wait for messages. Any thread.

    Arguments: ``lock`` is the dispatcher's; ``wake_executor`` is called when there may be work to take; ``sizes`` says
    how many messages a worker takes.
    """

    def __init__(self, lock: InterruptibleLock, wake_executor: Callable[[], None], sizes: BatchSize) -> None:
        self.wake_executor = wake_executor
        self.sizes = sizes
        self._lock = lock
        self._idle: list[WakeFlag] = []
        self._called: set[WakeFlag] = set()  # of workers that were woken, and have not looked yet

    def enter(self) -> WakeFlag:
        """Return the flag of a worker that is going to :meth:`wait`. The caller holds the lock."""
        flag = WakeFlag()
        self._idle.append(flag)
        return flag

    def wait(self, flag: WakeFlag, seconds: float) -> None:
        """Wait until this worker is woken, or for so many seconds."""
        woken = flag.wait(seconds)
        self._called.discard(flag)
        if woken:
            return
        with self._lock:
            if flag in self._idle:
                self._idle.remove(flag)
                return
        self._called.discard(flag)
        self.wake(1)  # it was chosen for a message at the same moment: another one takes that

    def wake(self, workers: int) -> None:
        """Have so many workers look. Those on their way count: otherwise all wake up, and most find nothing."""
        flags: list[WakeFlag] = []
        with self._lock:
            while self._idle and len(self._called) < workers:
                flags.append(self._idle.pop())  # the last one: few threads do the work of quick handlers
                self._called.add(flags[-1])
        for flag in flags:
            flag.set()

    def wake_for(self, startable: int, *, besides: int = 0) -> None:
        """Have as many workers look as so many startable messages occupy, ``besides`` so many that look anyway."""
        if startable and self._idle:
            self.wake(self.sizes.workers(startable) - besides)

    def look(self) -> None:
        """Have one worker look."""
        self.wake(1)
        self.wake_executor()

    def end(self) -> None:
        """Have all look, because the run ends."""
        for flag in self._idle.copy():
            flag.set()
        self.wake_executor()
