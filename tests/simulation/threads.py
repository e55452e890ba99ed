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
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tests.simulation.scheduler import EPOCH, Task, world


def _seconds(blocking: bool, timeout: float) -> float | None:
    if not blocking:
        return 0.0
    return None if timeout is None or timeout < 0 else timeout


class Lock:
    """A lock of the standard library's form. Waiters get it in any order."""

    def __init__(self) -> None:
        self._owner: Task | bool | None = None
        self._waiters: list[Task] = []

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        here = world()
        here.pause()
        if self._owner is None:
            self._owner = here.current or True
            return True
        if not blocking:
            return False
        limit = _seconds(blocking, timeout)
        end = None if limit is None else here.now + limit
        while self._owner is not None:
            left = None if end is None else end - here.now
            if left is not None and left <= 0:
                return False
            woken = here.wait(f"a lock of {self._owner}", left, self._waiters)
            if not woken and self._owner is not None:
                return False
        self._owner = here.current or True
        return True

    def release(self) -> None:
        if self._owner is None:
            raise RuntimeError("release unlocked lock")
        self._owner = None
        world().wake_all(self._waiters)

    def locked(self) -> bool:
        return self._owner is not None

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def _at_fork_reinit(self) -> None:
        self.__init__()  # type: ignore[misc]


class RLock(Lock):
    """A reentrant lock of the standard library's form."""

    def __init__(self) -> None:
        super().__init__()
        self._holder: Any = None
        self._count = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        me = world().current
        if self._count and self._holder is me:
            self._count += 1
            return True
        if not super().acquire(blocking, timeout):
            return False
        self._holder, self._count = me, 1
        return True

    def release(self) -> None:
        if not self._count or self._holder is not world().current:
            raise RuntimeError("cannot release un-acquired lock")
        self._count -= 1
        if not self._count:
            self._holder = None
            super().release()

    def _is_owned(self) -> bool:
        return self._count > 0 and self._holder is world().current

    def _release_save(self) -> tuple[int, Any]:
        saved = (self._count, self._holder)
        self._count, self._holder = 0, None
        super().release()
        return saved

    def _acquire_restore(self, saved: tuple[int, Any]) -> None:
        super().acquire()
        self._count, self._holder = saved


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
        here = world()
        here.pause()
        end = None if timeout is None else here.now + timeout
        while not self._items:
            left = None if end is None else end - here.now
            if not block or (left is not None and left <= 0):
                raise queue.Empty
            here.wait("a queue", left, self._waiters)
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

    def __init__(
        self,
        group: None = None,
        target: Callable[..., object] | None = None,
        name: str | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        daemon: bool | None = None,
    ) -> None:
        self._target, self._args, self._kwargs = target, args, dict(kwargs or {})
        self.name = name or "thread"
        self.daemon = bool(daemon)
        self._task: Task | None = None
        self._over = False
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
        if self._target is not None:
            self._target(*self._args, **self._kwargs)

    def join(self, timeout: float | None = None) -> None:
        if self._task is None:
            raise RuntimeError("cannot join thread before it is started")
        here = world()
        here.pause()
        end = None if timeout is None else here.now + timeout
        while not self._over and (end is None or end > here.now):  # no lock, whose taking an exception could leave
            here.wait(f"the end of {self.name}", None if end is None else end - here.now, self._waiters)

    def is_alive(self) -> bool:
        return self._task is not None and not self._over

    @property
    def ident(self) -> int | None:
        return None if self._task is None else self._task.number

    native_id = ident


class _Main:
    """The operating system's main thread, which no task of a world is."""

    name, daemon, ident, native_id = "MainThread", False, 0, 0

    def is_alive(self) -> bool:
        return True


_MAIN = _Main()


def _ident() -> int:
    task = world().current
    return 0 if task is None else task.number


def _current() -> Any:
    task = world().current
    return _MAIN if task is None or task.thread is None else task.thread


def _monotonic() -> float:
    return world().monotonic()


def _wall() -> float:
    here = world()
    return EPOCH + here.monotonic()


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
    active[0] = active.pop(next(iter(active)))
    # the package's lock derives from this class; the interpreter's import system must keep its own
    kept, _thread.RLock = _thread.RLock, RLock  # type: ignore[misc,assignment]
    importlib.import_module("zkconsumer.runtime.interruptible_wait")
    _thread.RLock = kept  # type: ignore[misc]
