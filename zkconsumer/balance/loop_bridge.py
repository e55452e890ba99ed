"""The way between an event loop and other threads, and one event loop in a thread of ours.

The bridge knows nothing of messages. ``run(executor="asyncio")`` has a loop of its own. The asyncio interface of the
connector works on the application's loop.

Threads: the loop's own runs everything that is given to the loop. :meth:`LoopAccess.call`, :meth:`LoopAccess.submit`,
:meth:`LoopBridge.stop` and :attr:`LoopBridge.lag` are for any thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from contextvars import Context, copy_context
from functools import partial
from threading import Thread, current_thread
from time import monotonic
from typing import Any, TypeVar

from zkconsumer.runtime.deadline import Deadline
from zkconsumer.runtime.fork_guard import end_child

log = logging.getLogger(__name__)

T = TypeVar("T")

BEAT = 0.2
"""Seconds between two beats of the loop, by which its lag is measured."""
_LAG_TO_TELL = 1.0
"""Seconds of lag that are logged."""
_CANCELLED_WITHIN = 1.0
"""Seconds that cancelled coroutines get to return."""


class LoopAccess:
    """The way from any thread to an event loop. Coroutines run in copies of the context of the thread that made this.

    Arguments: ``name`` is for errors; ``loop`` is None until it is known.
    """

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._name = name
        self._loop = loop
        self._context = copy_context()
        self._begun: set[asyncio.Task[Any]] = set()

    @property
    def context(self) -> Context:
        """A new copy of the context."""
        return self._context.copy()

    def call(self, function: Callable[..., object], *arguments: object) -> bool:
        """Have the loop call a function soon. Returns False if the loop has ended."""
        loop = self._loop
        if loop is None:
            return False
        try:
            loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            return False
        return True

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine on the loop. Returns its future; cancelling that cancels the coroutine.

        Raises: RuntimeError if the loop has ended.
        """
        future: Future[T] = Future()

        def begin() -> None:
            if not future.set_running_or_notify_cancel():
                coroutine.close()
                return
            task = self.begin(coroutine)
            task.add_done_callback(lambda task: _hand_over(task, future))

        if not self.call(begin):
            coroutine.close()
            raise RuntimeError(f"{self._name}: the event loop has ended")
        return future

    def begin(
        self, coroutine: Coroutine[Any, Any, T], ended: Callable[[asyncio.Task[T]], object] | None = None
    ) -> asyncio.Task[T]:
        """Begin a coroutine in a context of its own, and call ``ended`` after it. Only on the loop's thread."""
        assert self._loop is not None
        task = self._loop.create_task(coroutine, context=self.context)
        self._begun.add(task)
        if ended is None:
            task.add_done_callback(self._begun.discard)
        else:  # one callback: the loop takes longer to make a second one than for all that is done here
            task.add_done_callback(partial(self._leave, ended))
        return task

    def _leave(self, ended: Callable[[asyncio.Task[T]], object], task: asyncio.Task[T]) -> None:
        self._begun.discard(task)
        ended(task)


class LoopBridge(LoopAccess):
    """An event loop that runs in a thread from :meth:`start` until :meth:`stop`.

    Arguments: ``name`` is the thread's.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._stopping = False
        self._beaten = monotonic()
        self._lag = 0.0
        self._left = False
        self.cancelling = False
        """Whether the coroutines that have not returned are being cancelled, because the loop ends."""

    def start(self) -> None:
        """Start the thread. Coroutines run in copies of the caller's context, so that they have its variables."""
        self._context = copy_context()
        self._loop = asyncio.new_event_loop()
        self._beaten = monotonic()
        self._thread.start()

    @property
    def lag(self) -> float:
        """How many seconds the loop is behind: while something blocks it, this grows."""
        return max(self._lag, monotonic() - self._beaten - BEAT, 0.0)

    def stop(self, deadline: Deadline) -> bool:
        """End the loop: wait for coroutines until the deadline, then cancel them. Not on the loop's own thread.

        Returns whether all had returned by themselves.
        """
        if self._loop is None or current_thread() is self._thread:
            raise RuntimeError("an event loop is stopped by another thread, after its start")
        ended: Future[bool] = Future()
        if self.call(lambda: self._begin_end(deadline, ended)):
            self._thread.join(deadline.bounded(_FOREVER) + 2 * _CANCELLED_WITHIN)
        return ended.done() and ended.result() and not self._thread.is_alive()

    def left_to_parent(self) -> None:
        """End a forked process when control is back at the loop, which shares the parent's descriptors.

        Otherwise the child would take the wake-ups of the parent's loop, and go on with its coroutines.
        """
        self._left = True
        if self._loop is not None and current_thread() is self._thread:
            self._loop.stop()

    # ---- the loop's thread

    def _run(self) -> None:
        loop = self._loop
        assert loop is not None
        asyncio.set_event_loop(loop)
        loop.call_soon(self._beat, monotonic())
        try:
            while not self._stopping:
                try:
                    loop.run_forever()
                    if self._left:
                        end_child(RuntimeError("a coroutine forked, and its child gave control to the parent's loop"))
                except BaseException:  # a task of the application's own that raised SystemExit, say
                    log.exception("%s: the event loop was interrupted, and goes on", self._thread.name)
        finally:
            with suppress(Exception):
                loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()

    def _beat(self, due: float) -> None:
        now = monotonic()
        self._lag = max(0.0, now - due)
        self._beaten = now
        if self._lag >= _LAG_TO_TELL:
            log.warning("%s: the event loop stood still for %.1f s: a handler blocks it", self._thread.name, self._lag)
        assert self._loop is not None
        self._loop.call_later(BEAT, self._beat, now + BEAT)

    def _begin_end(self, deadline: Deadline, ended: Future[bool]) -> None:
        assert self._loop is not None
        self._ending = self._loop.create_task(self._end(deadline, ended))

    async def _end(self, deadline: Deadline, ended: Future[bool]) -> None:
        returned = await _all_ended(self._begun, deadline)
        self.cancelling = True
        others = asyncio.all_tasks() - {self._ending}  # also those that the application began, and nobody waits for
        for task in others:
            task.cancel()
        await _all_ended(others, Deadline(_CANCELLED_WITHIN))
        self._stopping = True
        ended.set_result(returned)
        assert self._loop is not None
        self._loop.stop()


async def _all_ended(tasks: set[asyncio.Task[Any]], deadline: Deadline) -> bool:
    """Wait for tasks, also those that are added meanwhile. Returns whether all have ended."""
    while running := {task for task in tasks if not task.done()}:
        if deadline.expired:
            return False
        await asyncio.wait(running, timeout=deadline.remaining())
    return True


_FOREVER = 1_000_000.0


def _hand_over(task: asyncio.Task[T], future: Future[T]) -> None:
    """Give a task's end to the thread that waits for it."""
    if task.cancelled():
        future.set_exception(asyncio.CancelledError())
    elif (error := task.exception()) is not None:
        future.set_exception(error)
    else:
        future.set_result(task.result())
