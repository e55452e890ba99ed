"""Ends a process that a handler has forked when its copy of the handler ends. Any thread.

The forked child returns from the handler like its parent. In a worker process the child would answer over the pipe that
it shares with its parent, for messages that the parent has not handled, and take further ones. In the member's process
the child would go on as a copy of the worker, whose connections are the parent's.

A JVM cannot fork, so the original knows nothing of this.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

from zkconsumer.balance.handler_check import is_coroutine_function

_generation = 0
"""Number of forks between this process and the one that imported this. Reading it is cheaper than ``os.getpid()``."""


def _after_fork() -> None:
    global _generation
    _generation += 1


os.register_at_fork(after_in_child=_after_fork)


def ends_forked_child(handler: Callable[..., Any]) -> Callable[..., Any]:
    """Return a handler that does the same as this one, and never returns in a child that the handler forked.

    Arguments: ``handler`` takes one argument; of a coroutine function a coroutine function is returned.
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

    return call_coroutine if is_coroutine_function(handler) else call


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
