"""Runs coroutine handlers, many at a time, on one event loop in a thread of ours.

Threads: the loop's (``<name>-asyncio``) takes works without waiting, runs handlers and settles outcomes. Everything
here but :meth:`AsyncioExecutor.start`, ``wake``, ``stop`` and ``running`` is called on it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from itertools import groupby
from threading import Event
from time import monotonic
from typing import Any

from zkconsumer.balance.dispatched_work import Work, WorkSource
from zkconsumer.balance.handler_check import Handler, check_coroutine_handler
from zkconsumer.balance.loop_bridge import LoopBridge
from zkconsumer.balance.outcomes import NOT_STARTED, Done, Failed, Outcome, answered, outcome_of, outcomes_of
from zkconsumer.errors import HandlerFailedError, HandlerTimeoutError
from zkconsumer.runtime.deadline import Deadline

LOOK_EACH = 0.1
"""Seconds after which the loop looks for work that nothing woke it for: a retry that is due, a lease that is back."""


class AsyncioExecutor:
    """Coroutines of a handler, at most ``concurrency`` at a time.

    Arguments: ``handler`` is a coroutine function of a message, or with ``batch`` > 1 of a list of up to so many;
    ``name`` is the consumer id; ``handler_timeout`` in seconds (None: none) after which a coroutine is cancelled, which
    fails its message.
    Raises: TypeError for a handler that is no coroutine function.
    """

    def __init__(
        self, handler: Handler, concurrency: int, *, name: str, batch: int = 1, handler_timeout: float | None = None
    ) -> None:
        check_coroutine_handler(handler)
        self._handler = handler
        self._most = concurrency
        self._batch = batch
        self._timeout = handler_timeout
        self._bridge = LoopBridge(f"{name}-asyncio")
        self._source: WorkSource
        self._tasks: dict[asyncio.Task[None], list[Work]] = {}
        self._running: dict[Work, float] = {}
        self._outcomes: list[tuple[Work, Outcome]] = []
        self._settles = False
        self._stopping = False
        self._drained = Event()
        self._woken = False

    def start(self, source: WorkSource) -> None:
        """Start the loop; handlers have the context variables of the thread that calls this."""
        self._source = source
        self._bridge.start()
        self._bridge.call(self._look)

    def wake(self) -> None:
        """Have the loop take work. Any thread; returns at once."""
        if not self._woken:  # one call of the loop does for many works
            self._woken = True
            self._bridge.call(self._take)

    def drained(self, deadline: Deadline) -> bool:
        """Take no more, and wait for coroutines until the deadline. Returns whether all have returned."""
        self._stopping = True
        if not self._bridge.call(self._look_for_end):
            return True
        return self._drained.wait(deadline.remaining())

    def stop(self, deadline: Deadline) -> bool:
        """End; see :class:`zkconsumer.balance.dispatched_work.Executor`. At the deadline coroutines are cancelled."""
        self._stopping = True
        return self._bridge.stop(deadline)

    @property
    def lag(self) -> float:
        """The seconds by which the loop is late because a handler blocks it. Any thread."""
        return self._bridge.lag

    def left_to_parent(self) -> None:
        """End the loop in a forked process. On the thread that forked, which is the only one there."""
        self._bridge.left_to_parent()

    def running(self) -> list[tuple[Work, float]]:
        """Return the works in handlers now, each with the time at which its handler began. Any thread."""
        return list(self._running.items())

    # ---- the loop's thread

    @property
    def _over(self) -> bool:
        return self._stopping or self._source.ended

    def _look(self) -> None:
        self._take()
        if not self._stopping:
            asyncio.get_running_loop().call_later(LOOK_EACH, self._look)

    def _take(self) -> None:
        self._woken = False
        while not self._over and (free := self._most - len(self._tasks)) > 0:
            works = self._source.take(free if self._batch == 1 else self._batch, _AT_ONCE)
            if not works:
                return
            for some in [list(works)] if self._batch > 1 else _by_lane(works):
                self._tasks[self._bridge.begin(self._run(some), self._ended)] = some

    def _ended(self, task: asyncio.Task[None]) -> None:
        for work in self._tasks.pop(task):  # those of a task that was cancelled before it began
            self._settle(work, NOT_STARTED)
        self._look_for_end()
        if not (self._woken or self._stopping):  # one look for all that end in this turn of the loop
            self._woken = True
            asyncio.get_running_loop().call_soon(self._take)

    def _look_for_end(self) -> None:
        if self._stopping and not self._tasks:
            self._drained.set()

    async def _run(self, works: list[Work]) -> None:
        """Handle a batch, or works of one lane one after the other. Takes those out of the list that have an outcome.

        Works that may not begin now, and those of the lane that come after a message that is not done, stay in it.
        """
        if self._batch > 1:
            batch = [work for work in works if self._source.may_start(work)] if not self._over else []
            if batch:
                outcomes = await self._handle(batch)
                works[:] = [work for work in works if work not in batch]
                for work, outcome in zip(batch, outcomes, strict=True):
                    self._settle(work, answered(outcome, work.answer))
            return
        while works and not self._over and self._source.may_start(works[0]):
            (outcome,) = await self._handle(works[:1])
            outcome = answered(outcome, works[0].answer)
            self._settle(works.pop(0), outcome)
            if not isinstance(outcome, Done):
                return

    async def _handle(self, batch: list[Work]) -> Sequence[Outcome]:
        """Return the outcome of each message, as the handler or its end tells it."""
        now = monotonic()
        for work in batch:
            self._running[work] = now
        limit: Any = None
        try:
            if self._timeout is None:
                return await self._called(batch)
            async with asyncio.timeout(self._timeout) as limit:
                return await self._called(batch)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None:
                while task.cancelling():
                    task.uncancel()
            if self._bridge.cancelling:
                return [NOT_STARTED] * len(batch)  # the end of the run is no failure of the message
            failure = HandlerFailedError("asyncio.CancelledError", "not by the end of the run")
            failure.__cause__ = error
            return [Failed(failure)] * len(batch)
        except TimeoutError as error:
            if limit is None or not limit.expired():
                return [Failed(error)] * len(batch)
            where = f"{batch[0].ledger.position.tp} at offset {batch[0].offset}"
            timeout = HandlerTimeoutError(f"the handler took longer than handler.timeout.ms with {where}")
            timeout.__cause__ = error
            return [Failed(timeout)] * len(batch)
        except BaseException as error:  # noqa: BLE001 - the dispatcher decides; in a task SystemExit would end the loop
            return [Failed(error)] * len(batch)
        finally:
            self._source.took(len(batch), monotonic() - now)
            for work in batch:
                self._running.pop(work, None)

    async def _called(self, batch: list[Work]) -> Sequence[Outcome]:
        if self._batch == 1:
            return (outcome_of(await self._handler(batch[0].message)),)
        return outcomes_of(await self._handler([work.message for work in batch]), len(batch))

    def _settle(self, work: Work, outcome: Outcome) -> None:
        """Settle a work together with the others that end in this turn of the loop."""
        self._outcomes.append((work, outcome))
        if not self._settles:
            self._settles = True
            asyncio.get_running_loop().call_soon(self._settle_all)

    def _settle_all(self) -> None:
        self._settles = False
        outcomes, self._outcomes = self._outcomes, []
        self._source.settle(outcomes)
        self._take()


_AT_ONCE = Deadline(0.0)


def _by_lane(works: Sequence[Work]) -> Iterable[list[Work]]:
    """Split works into those of one task each: those of one lane stay together."""
    for lane, some in groupby(works, lambda work: work.lane):
        if lane is None:
            yield from ([work] for work in some)
        else:
            yield list(some)
