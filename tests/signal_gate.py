"""Stages a signal whose handler is due at a chosen moment of the main thread, and runs where CPython looks next.

The main thread waits inside of C for a lock. Another thread, which holds that lock, sends a signal to itself: that
interrupts no wait of the main thread. Then it gives the lock up.
"""

from __future__ import annotations

import gc
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import methodcaller
from threading import Lock, Thread, get_ident
from types import FrameType
from typing import Any

from tests.timing import eventually, scaled

WITHIN = 60.0
"""Seconds for a step of another thread, on a busy machine."""


class Interrupted(BaseException):
    """The error that the signal handler raises."""


@contextmanager
def interrupting() -> Iterator[None]:
    """Have SIGUSR1 raise :class:`Interrupted` in the main thread."""

    def handler(_number: int, _frame: FrameType | None) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


class Gate:
    """A lock that opens when a signal has come.

    An action sets ``near`` and goes to the lock by instructions that do not let another thread run. So once the other
    thread sees ``near``, the main thread waits for the lock. Afterwards the action sets ``beyond``.
    """

    def __init__(self, lock: Any = None) -> None:
        self.lock = Lock() if lock is None else lock
        self.acquire = self.lock.acquire
        self.near = self.beyond = False
        self.ready = False  # for an action that goes to the gate by an attribute: not before this

    passed = property(methodcaller("acquire"))
    """Takes the lock in C, while an attribute is read."""

    def looks(self, action: Callable[[Gate], object]) -> bool:
        """Return whether CPython looks for signals before the action is beyond the gate."""
        held: list[bool] = []

        def hold() -> None:
            if not self.lock.acquire(timeout=scaled(WITHIN)):
                return
            held.append(True)
            try:
                eventually(lambda: self.near, WITHIN, "the main thread to wait")
                signal.pthread_kill(get_ident(), signal.SIGUSR1)
            finally:
                self.lock.release()

        thread = Thread(target=hold, name="holder")
        gc.collect()  # before the times below begin: it takes seconds in a large process
        gc.disable()  # Python swallows what is raised in a finaliser, which could run here
        try:
            thread.start()
            eventually(lambda: held, WITHIN, "the lock to be held")
            action(self)
            [].clear()  # a call of C, where every version looks
            raised = False
        except Interrupted:
            raised = True
        finally:
            gc.enable()
        thread.join(scaled(WITHIN))
        assert raised, "no signal came at the gate"
        return not self.beyond

    def is_free(self) -> bool:
        """Return whether another thread can take the lock."""
        taken: list[bool] = []

        def take() -> None:
            if self.lock.acquire(timeout=0.2):
                self.lock.release()
                taken.append(True)

        thread = Thread(target=take, name="taker")
        thread.start()
        thread.join(scaled(WITHIN))
        return bool(taken)
