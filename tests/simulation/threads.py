"""Locks, queues, threads and clocks that the scheduler knows, and the exchange of the standard library's for them.

Call :func:`install` before the package is imported, for its modules take these names from the standard library once.
The conditions, events and futures of the standard library are written in Python over locks, so they stay.
"""

from __future__ import annotations

import _thread
import importlib
import itertools
import os
import queue
import socket
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable
from typing import Any

from tests.simulation.scheduler import EPOCH, Task, world


class Lock:
    """A lock of the standard library's form. Waiters get it in any order."""

    def __init__(self) -> None:
        self._owner: Task | None = None
        self._waiters: list[Task] = []

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        here = world()
        here.pause()
        if self._owner is not None:
            seconds = 0.0 if not blocking else None if timeout < 0 else timeout
            if not here.wait_until(lambda: self._owner is None, self, seconds, self._waiters):
                return False
        self._owner = here.current
        return True

    def release(self) -> None:
        if self._owner is None:
            raise RuntimeError("release unlocked lock")
        self._owner = None
        world().wake_all(self._waiters)

    def __repr__(self) -> str:
        return f"a lock of {self._owner}"

    def locked(self) -> bool:
        return self._owner is not None

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def _at_fork_reinit(self) -> None:
        self.__init__()  # type: ignore[misc]


RLock: Any = vars(threading)["_RLock"]
"""The standard library's own reentrant lock in Python. Each one is made of a :class:`Lock`, after the exchange."""


class SimpleQueue:
    """A queue of the standard library's form."""

    def __init__(self) -> None:
        self._items: deque[Any] = deque()
        self._waiters: list[Task] = []

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        self._items.append(item)
        world().wake_all(self._waiters)
        world().pause()

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        world().pause()
        if not world().wait_until(lambda: self._items, "a queue", timeout if block else 0.0, self._waiters):
            raise queue.Empty
        return self._items.popleft()

    put_nowait = put

    def get_nowait(self) -> Any:
        return self.get(block=False)

    def empty(self) -> bool:
        return not self._items

    def qsize(self) -> int:
        return len(self._items)

    __class_getitem__ = classmethod(lambda cls, _: cls)


_numbers = itertools.count(1)


class Thread:
    """A thread of the standard library's form, which is a task of the world."""

    _task: Task | None = None
    _over = False

    def __init__(self, *, target: Any, name: Any = None, args: Any = (), kwargs: Any = None, daemon: Any = 0) -> None:
        self._target, self._args, self._kwargs = target, args, dict(kwargs or {})
        self.name, self.daemon = name or "thread", bool(daemon)
        self._waiters: list[Task] = []
        self._number = next(_numbers)

    def __hash__(self) -> int:
        return self._number  # a pool of threads joins them in the order of a set

    def start(self) -> None:
        if self._task is not None:
            raise RuntimeError("threads can only be started once")
        self._task = world().spawn(self.name, self._body)
        self._task.thread = self
        world().pause()

    def _body(self) -> None:
        try:
            self.run()
        finally:
            self._over = True
            world().wake_all(self._waiters)

    def run(self) -> None:
        self._target(*self._args, **self._kwargs)

    def join(self, timeout: float | None = None) -> None:
        if self._task is None:
            raise RuntimeError("cannot join thread before it is started")
        world().pause()  # no lock, whose taking an exception could leave
        world().wait_until(lambda: self._over, f"the end of {self.name}", timeout, self._waiters)

    def is_alive(self) -> bool:
        return self._task is not None and not self._over

    @property
    def ident(self) -> int | None:
        return None if self._task is None else self._task.number

    native_id = ident


class _MainThread:
    """The operating system's main thread, which no task of a world is."""

    name, daemon, ident, native_id = "MainThread", False, 0, 0

    def is_alive(self) -> bool:
        return True

    def _after_fork(self, new_ident: int | None = None) -> None:
        """Do nothing: from Python 3.13 on a thread compares its number with the system's in a forked process."""

    def _reset_internal_locks(self, is_alive: bool, ident: int | None = None) -> None:
        """Do nothing, as above: this is its name before Python 3.13."""


_MAIN = _MainThread()


def _ident() -> int:
    return world().current.number


def _current() -> Any:
    return world().current.thread or _MAIN


def _monotonic() -> float:
    return world().monotonic()


def _wall() -> float:
    return EPOCH + world().monotonic()


_strftime = time.strftime


def _text_of(form: str, when: Any = None) -> str:
    return _strftime(form, time.gmtime(_wall()) if when is None else when)


def install(*, sockets: type, create_server: Callable[..., Any]) -> None:
    """Exchange threads, clocks, chance and sockets of this process, for good."""
    modules: dict[Any, dict[str, Any]] = {
        threading: {
            "Lock": Lock, "RLock": RLock, "_CRLock": RLock, "_allocate_lock": Lock, "Thread": Thread,
            "current_thread": _current, "main_thread": lambda: _MAIN, "get_ident": _ident,
            "get_native_id": _ident, "_time": _monotonic,
        },
        queue: {"SimpleQueue": SimpleQueue},
        time: {
            "monotonic": _monotonic, "perf_counter": _monotonic, "time": _wall,
            "time_ns": lambda: int(_wall() * 1e9), "monotonic_ns": lambda: int(_monotonic() * 1e9),
            "strftime": _text_of,
            "sleep": lambda seconds: world().sleep(seconds),
        },
        uuid: {"uuid4": lambda: uuid.UUID(int=world().random.getrandbits(128), version=4)},
        os: {"getpid": lambda: 4711},
        socket: {"socket": sockets, "create_server": create_server, "gethostname": lambda: "simulated"},
    }  # fmt: skip
    for module, names in modules.items():
        for name, value in names.items():
            setattr(module, name, value)
    active: dict[int, Any] = vars(threading)["_active"]
    active.clear()
    active[0] = _MAIN
    # the package's lock derives from this class; the interpreter's import system must keep its own
    kept, _thread.RLock = _thread.RLock, RLock  # type: ignore[misc]
    importlib.import_module("zkconsumer.runtime.interruptible_wait")
    _thread.RLock = kept  # type: ignore[misc]
