"""Runs handlers on threads.

Threads: ``<consumer>-worker-<n>``, each with a hand of messages that it took at once. Another thread may take back what
a worker with a slow handler has not begun; a deque gives each message to one of the two.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Thread, get_native_id
from time import monotonic
from typing import Any

from zkconsumer.balance.dispatched_work import Work, WorkSource
from zkconsumer.balance.idle_workers import SECONDS, BatchSize
from zkconsumer.balance.outcomes import DONE, NOT_STARTED, Failed, Outcome, answered, outcome_of, outcomes_of
from zkconsumer.runtime.deadline import Deadline

log = logging.getLogger(__name__)

Handler = Callable[[Any], object]
TAKE_WITHIN = 1.0
"""Seconds that a worker waits for messages before it looks whether the run has ended."""
SLOW = 0.01
"""Seconds of a handler after which the messages that its worker has not begun are taken back."""


class _Worker:
    """The messages of one thread: ``hand`` is not begun, ``current`` is in the handler since ``began`` (0: nothing is).

    ``outcomes`` of finished handlers are settled several at once, by whichever thread takes them out first.
    """

    __slots__ = ("began", "current", "hand", "native", "outcomes", "thread")

    def __init__(self) -> None:
        self.hand: deque[Work] = deque()
        self.outcomes: deque[tuple[Work, Outcome]] = deque()
        self.current: Sequence[Work] = ()
        self.began = 0.0
        self.native = 0
        self.thread: Thread | None = None


class ThreadExecutor:
    """Runs handlers on ``concurrency`` threads: a :class:`~zkconsumer.balance.dispatched_work.Executor`.

    Arguments: ``batch`` messages are given to the handler at once, as a list (1: the message itself); ``name`` begins
    the names of the threads; ``sizes`` says how many messages a worker takes.
    """

    def __init__(
        self, handler: Handler, concurrency: int, *, batch: int = 1, name: str = "run", sizes: BatchSize | None = None
    ) -> None:
        self._handler = handler
        self._batch = batch
        self._name = name
        self._sizes = sizes or BatchSize()
        self._workers = [_Worker() for _ in range(concurrency)]
        self._source: WorkSource | None = None

    def start(self, source: WorkSource) -> None:
        """Start the threads."""
        self._source = source
        for number, worker in enumerate(self._workers):
            worker.thread = Thread(
                target=self._work, args=(source, worker), name=f"{self._name}-worker-{number}", daemon=True
            )
            worker.thread.start()

    def wake(self) -> None:
        """Return at once: workers wait in the dispatcher."""

    def stop(self, deadline: Deadline) -> bool:
        """Wait for the handlers until the deadline. Returns whether all have returned; the source has ended."""
        alive = False
        for worker in self._workers:
            if worker.thread is not None and worker.thread.ident is not None:
                worker.thread.join(deadline.remaining())
                alive = alive or worker.thread.is_alive()
        return not alive

    drained = stop

    @property
    def late(self) -> Sequence[str]:
        """The names of threads whose handlers have not returned."""
        return [w.thread.name for w in self._workers if w.thread is not None and w.thread.is_alive()]

    def running(self) -> list[tuple[Work, float]]:
        """Return the works in handlers now, each with the time at which its handler began. Any thread."""
        return [(work, worker.began) for worker in self._workers if worker.began for work in tuple(worker.current)]

    def in_hand_of(self, thread: int) -> Sequence[Work]:
        """Return the messages in the handler that this thread (native identifier) runs."""
        for worker in self._workers:
            if worker.native == thread:
                return tuple(worker.current)
        return ()

    def reclaim(self, thread: int | None = None) -> None:
        """Take back what workers with slow handlers, or this thread, have not begun, and settle what they finished.

        Otherwise a handler that does not return would hold back the outcomes of the messages before it.
        """
        before = monotonic() - SLOW
        for worker in self._workers:
            slow = worker.began and worker.began < before
            if (worker.hand or worker.outcomes) and (slow if thread is None else worker.native == thread):
                with suppress(IndexError):
                    while True:
                        worker.outcomes.append((worker.hand.pop(), NOT_STARTED))
                self._settle_finished(worker)

    def _settle_finished(self, worker: _Worker) -> None:
        """Settle the outcomes of a worker."""
        found: list[tuple[Work, Outcome]] = []
        outcomes = worker.outcomes
        while outcomes:
            try:
                found.append(outcomes.popleft())
            except IndexError:  # another thread took the last one
                break
        if found and self._source is not None:
            self._source.settle(found)

    # ---- a worker's thread

    def _work(self, source: WorkSource, worker: _Worker) -> None:
        worker.native = get_native_id()
        handle = self._one_by_one if self._batch == 1 else self._in_batches
        try:
            while not source.ended:
                works = source.take(max(self._sizes.size, self._batch), Deadline(TAKE_WITHIN))
                if works:
                    worker.hand.extend(works)
                    handle(source, worker)
        except BaseException as e:  # noqa: BLE001 (the caller of run raises it: otherwise a thread would be missing)
            source.abort(e)

    def _one_by_one(self, source: WorkSource, worker: _Worker) -> None:
        handler, hand, may_start = self._handler, worker.hand, source.may_start
        outcomes, finished = worker.outcomes, 0
        broken: set[Any] = set()
        outcome: Outcome
        last = monotonic()
        while hand:
            try:
                work = hand.popleft()
            except IndexError:
                break
            if not may_start(work) or (broken and work.lane in broken):
                outcome = NOT_STARTED
            else:
                worker.current, worker.began = (work,), last
                try:
                    result = handler(work.message)
                    outcome = DONE if result is None else outcome_of(result)
                except BaseException as e:  # noqa: BLE001 (the dispatcher decides)
                    outcome = Failed(e)
                if work.answer is not None:
                    outcome = answered(outcome, work.answer)
            outcomes.append((work, outcome))
            finished += 1
            if outcome is not DONE and work.lane is not None:
                broken.add(work.lane)
            now = monotonic()
            if now - last > SECONDS:
                self._settle(worker, finished, now - last)
                finished, last = 0, now
        if finished:
            self._settle(worker, finished, monotonic() - last)

    def _settle(self, worker: _Worker, finished: int, seconds: float) -> None:
        worker.began = 0.0
        self._sizes.note(finished, seconds)
        self._settle_finished(worker)
        worker.current = ()

    def _in_batches(self, source: WorkSource, worker: _Worker) -> None:
        hand = worker.hand
        broken: set[Any] = set()
        while hand:
            works: list[Work] = []
            unstarted: list[tuple[Work, Outcome]] = []
            while len(works) < self._batch:
                try:
                    work = hand.popleft()
                except IndexError:
                    break
                if source.may_start(work) and not (broken and work.lane in broken):
                    works.append(work)
                else:
                    unstarted.append((work, NOT_STARTED))
                    broken.add(work.lane)
            broken.discard(None)
            if unstarted:
                source.settle(unstarted)
            if works:
                began = worker.began = monotonic()
                worker.current = works
                outcomes = self._of_batch(works)
                broken |= {work.lane for work, outcome in outcomes if outcome is not DONE and work.lane is not None}
                worker.outcomes.extend(outcomes)
                self._settle(worker, len(outcomes), monotonic() - began)

    def _of_batch(self, works: Sequence[Work]) -> list[tuple[Work, Outcome]]:
        try:
            result = self._handler([work.message for work in works])
        except BaseException as e:  # noqa: BLE001 (the dispatcher decides)
            return [(work, Failed(e)) for work in works]
        told = zip(works, outcomes_of(result, len(works)), strict=True)
        return [(work, answered(outcome, work.answer)) for work, outcome in told]
