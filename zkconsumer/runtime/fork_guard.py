"""The fork guard: connectors in a forked process are empty shells that say so, and a handler's forked child ends.

The error that a call in the child raises is made by ``Lifecycle.left_to_parent``.

A forked process has a copy of everything but the threads. Without the guard its readers would hand out the parent's
messages again, then wait for ever. A shutdown in it would cut the connections that it shares with the parent.

Threads: Python calls the guard in the child's only thread. It takes none of our locks, because another thread may have
held one. The original knows no forks; a JVM cannot. Any thread may call a handler of :func:`ends_forked_child`.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn, Protocol
from weakref import WeakSet


class Shared(Protocol):
    """The owner of threads, connections and a session."""

    def left_to_parent(self, parent: int) -> None:
        """Become an empty shell that says so: the process was just forked from ``parent``."""


_shared: WeakSet[Shared] = WeakSet()
_generation = 0
"""Number of forks between this process and the one that imported this. Reading it is cheaper than ``os.getpid()``."""


def watch(owner: Shared) -> None:
    """Tell it of every fork from now on, as long as it lives."""
    _shared.add(owner)


def _after_fork() -> None:
    global _generation
    _generation += 1
    for owner in list(_shared):
        owner.left_to_parent(os.getppid())
    _shared.clear()


os.register_at_fork(after_in_child=_after_fork)


def ends_forked_child(handler: Callable[..., Any], *, coroutine: bool = False) -> Callable[..., Any]:
    """Return a handler that does the same as this one, and never returns in a child that the handler forked.

    The forked child returns from the handler like its parent. In a worker process the child would answer over the pipe
    that it shares with its parent, for messages that the parent has not handled, and take further ones. In the member's
    process the child would go on as a copy of the worker, whose connections are the parent's.

    Arguments: ``handler`` takes one argument; ``coroutine`` says that it is a coroutine function, and so is the result.
    The child ends by ``os._exit``, so neither ``atexit`` functions nor ``finally`` blocks of the caller run there.
    """
    generation = _generation

    def call(argument: Any) -> Any:
        try:
            result = handler(argument)
        except BaseException as error:
            if _generation != generation:
                end_child(error)
            raise
        if _generation != generation:
            end_child()
        return result

    async def call_coroutine(argument: Any) -> Any:
        try:
            result = await handler(argument)
        except BaseException as error:
            if _generation != generation:
                end_child(error)
            raise
        if _generation != generation:
            end_child()
        return result

    return call_coroutine if coroutine else call


def end_child(error: BaseException | None = None) -> NoReturn:
    """End this process at once, with the exit code that the error stands for: 0 for none."""
    code = 0
    with suppress(BaseException):  # whatever the application's streams and exceptions raise, the child ends
        if isinstance(error, SystemExit):
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
        elif error is not None:
            code = 1
            traceback.print_exception(error)  # its parent cannot see it
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code & 0xFF)
