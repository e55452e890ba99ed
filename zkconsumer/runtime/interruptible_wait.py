"""Waits and locks that an interrupt (Ctrl-C, a signal handler that raises) may leave at any point without harm to other
threads.

A signal that comes just before the main thread begins to wait for a lock, or that the system gives to another thread,
does not interrupt that wait: Python runs the handler after it. So the main thread waits in slices.

The conditions, events and futures of the standard library enter their locks by functions in Python. An interrupt that
comes between the lock and the ``with`` block leaves the lock held for ever, and the thread that is to wake the waiter
then hangs. So an application's thread waits by this module's classes, where each step is a call in C. On CPython 3.14
``with lock`` itself has that gap, so all locks of the package are :class:`InterruptibleLock`. ``DECISIONS.md`` beside
this module has a table of the moments at which each version of CPython runs signal handlers.

Threads: any.
"""

from __future__ import annotations

import sys
from _thread import RLock
from threading import Lock, get_ident, main_thread
from time import monotonic

SLICE = 0.2
"""Seconds that the main thread waits at a time. A signal handler runs at most so late."""


class InterruptibleLock(RLock):  # type: ignore[misc]  # final for type checkers alone
    """A reentrant lock that no interrupt leaves locked. Code enters it by ``with lock`` alone, never by ``acquire()``.

    CPython 3.14 looks for signals after the ``__enter__`` of a lock and before the ``with`` block
    (https://github.com/python/cpython/issues/148874; 3.15 does not). If a handler raises there, the block's end never
    comes, and the lock stays held for ever. Between reading an attribute and the block, no version looks for signals.
    So from 3.14 on this class takes the lock while C reads an attribute.
    """

    __slots__ = ()

    if sys.version_info >= (3, 14):
        _taken = property(RLock.acquire)

        def __enter__(self) -> bool:
            return self._taken  # a call of acquire() here would be followed by a look for signals


class WakeFlag:
    """A flag that one thread waits for and others set, like ``threading.Event``."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = Lock()  # locked: the flag is down
        self._lock.acquire()

    def set(self) -> None:
        """Raise the flag, and wake the waiting thread."""
        try:
            self._lock.release()
        except RuntimeError:  # it is up already
            pass

    def clear(self) -> None:
        """Take the flag down."""
        self._lock.acquire(blocking=False)

    def wait(self, seconds: float | None) -> bool:
        """Wait until the flag is up, and take it down. Return False if it is still down after so many seconds."""
        if get_ident() != main_thread().ident:
            return self._lock.acquire(True, -1 if seconds is None else max(0.0, min(seconds, _LONGEST)))
        end = None if seconds is None else monotonic() + seconds
        while True:
            left = SLICE if end is None else max(0.0, end - monotonic())
            if self._lock.acquire(timeout=min(left, SLICE)):
                return True
            if left <= SLICE and end is not None:
                return False


_LONGEST = 1_000_000.0
"""Seconds that a lock can be waited for, and less than what its wait overflows at."""
