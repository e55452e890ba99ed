"""Runs handlers in worker processes of our own, which decode what they handle. For handlers that need the processor.

A pool of the standard library breaks as a whole when one process dies. Here a dead process costs the messages that it
had begun one attempt, and nothing else: a new one takes its place. :class:`CrashSuspects` are the messages of which one
may have killed a process.

Threads: one for each worker (``<name>-process-<n>``), which takes works, sends them in trips and settles the outcomes.
"""

from __future__ import annotations

import atexit
import logging
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from operator import attrgetter
from threading import Event, Thread
from time import monotonic
from weakref import WeakSet

from zkconsumer.balance.dispatched_work import Work, WorkSource
from zkconsumer.balance.handler_check import (
    Handler,
    check_not_in_worker,
    check_plain_handler,
    handler_name,
    pickled_for_workers,
)
from zkconsumer.balance.outcomes import DONE, NOT_STARTED, Failed, NotStarted, Outcome
from zkconsumer.balance.worker_link import START_WITHIN, Frame, WorkerLink, WorkerStarter, WorkerTrip
from zkconsumer.balance.worker_process import OVER, SETTLED, SentError, WorkerSetup, received_error
from zkconsumer.errors import HandlerTimeoutError, WorkerDiedError
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.runtime.interruptible_wait import InterruptibleLock
from zkconsumer.runtime.withdrawable_request import Answer
from zkconsumer.streams.chunk_reader import ReadSettings
from zkconsumer.streams.message import Decoder

log = logging.getLogger(__name__)

_SLICE = 0.1
"""Seconds after which a worker's thread looks at what nothing wakes it for: leases, the end, the handler's time."""
_LOOK_EACH = 0.02
"""The same while works wait behind a running handler, which must not begin once the lease or the partition is gone."""
_TRIP_SECONDS = 0.02
"""What a trip should take: many times the cost of its way, and little to wait for behind a slow message."""
_MOST_WORKS = 256
_BEHIND = 0.5
"""Seconds after which works that wait behind a running handler go to other workers."""
_END_WITHIN = 1.0
_KILLED_WITHIN = 3.0
"""Seconds that a worker's thread may take beyond the deadline: to kill its process and to see it gone."""
_FOREVER = 1_000_000.0
MOST_SUSPECTS = 10_000
"""Messages that are remembered; beyond that the oldest are forgotten, and may be given in a whole batch again."""

Place = tuple[str, int, int]
"""Topic, partition and offset of a message."""


class CrashSuspects:
    """The messages one of which may have killed a worker. Pure.

    For each the number of messages that it may be handled with: half of those in the crash, down to one.
    """

    def __init__(self, lock: AbstractContextManager[object]) -> None:
        self._lock = lock
        self._most: dict[Place, int] = {}

    def crashed(self, places: Sequence[Place]) -> None:
        """Note the messages that were in a worker's hands together when it died."""
        with self._lock:
            for place in places:
                self._most.pop(place, None)
                self._most[place] = max(1, len(places) // 2)
            while len(self._most) > MOST_SUSPECTS:
                del self._most[next(iter(self._most))]

    def cleared(self, places: Iterable[Place]) -> None:
        """Forget messages whose handler has returned or raised."""
        if self._most:  # a look without the lock: a message that was in hand is not added meanwhile
            with self._lock:
                for place in places:
                    self._most.pop(place, None)

    def fitting(self, places: Sequence[Place]) -> int:
        """Return how many of these messages, from the first on, may be handled together, at least one."""
        if not self._most:
            return len(places)
        with self._lock:
            most = len(places)
            for count, place in enumerate(places):
                limit = min(most, self._most.get(place, most))
                if count >= limit:
                    return max(1, count)
                most = limit
            return min(most, len(places))


@dataclass(frozen=True, slots=True)
class WorkerProcessView:
    """The present activity of one worker process. ``works`` are in the handler since ``since`` (monotonic seconds).

    ``starts`` counts the processes so far, ``trouble`` says why the last one died, until its successor has worked.
    """

    name: str
    pid: int | None
    works: tuple[Work, ...]
    since: float
    starts: int
    trouble: str


class ProcessExecutor:
    """Worker processes, each of which runs one handler at a time.

    Arguments: ``handler`` is importable and takes a message, or with ``batch`` > 1 a list of up to so many;
    ``concurrency`` is the number of processes; ``name`` is the consumer id; ``handler_timeout`` in seconds (None: none)
    after which the process of a handler that has not returned is killed; ``settings`` and ``decoders`` (of key and
    value) are those of the streams.
    Raises: TypeError that names a handler or decoder which a process cannot import; RuntimeError in a process that
    multiprocessing is just starting.
    """

    def __init__(
        self,
        handler: Handler,
        concurrency: int,
        *,
        name: str,
        batch: int = 1,
        handler_timeout: float | None = None,
        settings: ReadSettings | None = None,
        decoders: tuple[Decoder[object] | None, Decoder[object] | None] = (None, None),
    ) -> None:
        check_not_in_worker()
        check_plain_handler(handler)
        pickled = pickled_for_workers(handler, "the handler")
        for decoder in decoders:
            pickled_for_workers(decoder, "the decoder")
        setup = WorkerSetup(pickled, pickled_for_workers(decoders, "the decoders"), batch, settings or ReadSettings())
        self._name = handler_name(handler)
        self._stopping = Event()
        self._deadline = Deadline(None)
        self._first: Answer[None] = Answer()
        suspects = CrashSuspects(InterruptibleLock())
        self._workers = [
            _WorkerProcess(f"{name}-process-{number}", setup, handler_timeout, suspects, self._first)
            for number in range(concurrency)
        ]

    def start(self, source: WorkSource) -> None:
        """Start the processes, and wait until the first one has imported the handler.

        Raises: WorkerDiedError, or what the import raised, if it cannot; all processes have ended then.
        """
        for worker in self._workers:
            worker.start(source)
        try:
            self._first.result(START_WITHIN)
        except BaseException as error:
            self.stop(Deadline(0.0))
            if isinstance(error, Exception):
                error.add_note(f"no worker process can run the handler {self._name}; one has {START_WITHIN:.0f} s")
            raise

    def wake(self) -> None:
        """Do nothing: workers wait for work in ``source.take``."""

    def drained(self, deadline: Deadline) -> bool:
        """Take no more, and wait for handlers until the deadline. Returns whether all have returned."""
        for worker in self._workers:
            worker.drain()
        ended = [worker.join(deadline.remaining()) for worker in self._workers]
        return all(ended)

    def stop(self, deadline: Deadline) -> bool:
        """End; see :class:`~zkconsumer.balance.dispatched_work.Executor`. At the deadline handlers are killed."""
        for worker in self._workers:
            worker.stop(deadline)
        ended = [worker.join(deadline.bounded(_FOREVER) + _KILLED_WITHIN) for worker in self._workers]
        return all(ended) and all(worker.all_returned for worker in self._workers)

    @property
    def workers(self) -> list[WorkerProcessView]:
        """The present activity of each worker process. Any thread."""
        return [worker.view() for worker in self._workers]

    def troubles(self) -> list[str]:
        """Return which workers' processes died, and why, as far as none has worked since. Any thread."""
        return [f"{view.name}: {view.trouble}" for view in self.workers if view.trouble]

    def running(self) -> list[tuple[Work, float]]:
        """Return the works in handlers now, each with the time at which its handler began. Any thread."""
        return [(work, view.since) for view in self.workers for work in view.works]


class _WorkerProcess:
    """One worker in the parent: its thread, and one process after the other."""

    def __init__(
        self, name: str, setup: WorkerSetup, timeout: float | None, suspects: CrashSuspects, first: Answer[None]
    ) -> None:
        self.name = name
        self._batch = setup.batch
        self._timeout = timeout
        self._suspects = suspects
        self._ended = Event()
        self._starter = WorkerStarter(name, setup, first, self._ended, lambda: self._over)
        self._deadline = Deadline(None)
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._source: WorkSource
        self.all_returned = True
        self._pending: deque[Work] = deque()
        self._bad_lanes: set[object] = set()
        self._pace = 0.0
        self._trip: WorkerTrip | None = None

    def start(self, source: WorkSource) -> None:
        self._source = source
        _workers.add(self)
        self._thread.start()

    def drain(self) -> None:
        self._ended.set()

    def stop(self, deadline: Deadline) -> None:
        self._deadline = deadline
        self._ended.set()

    def join(self, seconds: float | None) -> bool:
        """Wait for the thread. Returns whether it has ended."""
        if self._thread.ident is not None:
            self._thread.join(seconds)
        return not self._thread.is_alive()

    def view(self) -> WorkerProcessView:
        trip, starter = self._trip, self._starter
        works, since = ((), 0.0) if trip is None else trip.running
        return WorkerProcessView(self.name, starter.pid, works, since, starter.starts, starter.trouble)

    # ---- the worker's thread

    def _run(self) -> None:
        try:
            while not self._over:
                link = self._starter.start()
                if link is not None:
                    try:
                        self._serve(link)
                    finally:
                        self._starter.pid = None
                        link.end(_END_WITHIN if not link.dead and not self._deadline.expired else 0.0)
        except BaseException as error:  # a defect here, which a user must see
            log.exception("%s: ended", self.name)
            self._starter.trouble = repr(error)
            self._starter.tell_first(error)
        finally:
            self._starter.tell_first(None)  # the run may have ended before a process was ready, which is no error
            self._give_back(self._pending)

    @property
    def _over(self) -> bool:
        return self._ended.is_set() or self._source.ended

    def _serve(self, link: WorkerLink) -> None:
        """Work until the end, or the process's death."""
        while not link.dead and not self._over:
            if not self._pending:
                self._bad_lanes.clear()
                self._pending.extend(self._source.take(self._most(), Deadline(_SLICE)))
            until = self._source.lease_until  # first, or it may be of a session in which the works are others'
            groups = self._next_groups()
            if groups:
                self._make_trip(link, groups, until)
            elif not self._pending:
                link.receive(0.0)  # sees that the idle process has died
                if link.dead:
                    self._starter.died(link.ending)

    def _most(self) -> int:
        """Return how many works to take: as many as take a trip's time."""
        batch = self._batch
        calls = int(_TRIP_SECONDS / self._pace) if self._pace else 1
        return max(1, min(calls, _MOST_WORKS // batch)) * batch

    def _next_groups(self) -> list[tuple[Work, ...]]:
        """Return the next works, one group for each call of the handler."""
        fit: list[Work] = []
        refused: list[Work] = []
        for work in self._pending:
            # the later ones of a lane whose message failed do not overtake it
            good = (work.lane is None or work.lane not in self._bad_lanes) and self._source.may_start(work)
            (fit if good else refused).append(work)
        self._give_back(refused)
        count = self._suspects.fitting([_place(work) for work in fit])
        self._pending = deque(fit[count:])
        batch = self._batch
        return [tuple(fit[at : min(at + batch, count)]) for at in range(0, count, batch)]

    def _give_back(self, works: Sequence[Work] | deque[Work]) -> None:
        if works:
            self._source.settle([(work, NOT_STARTED) for work in works])
            self._source.look()

    def _make_trip(self, link: WorkerLink, groups: list[tuple[Work, ...]], until: float) -> None:
        trip = WorkerTrip(link, groups)
        self._trip = trip
        try:
            trip.send(until)
            while not trip.over:
                slice_ = _LOOK_EACH if len(trip.waiting()) else _SLICE
                self._settle(trip, link.receive(slice_ if self._timeout is None else min(slice_, self._timeout / 4)))
                if link.dead:
                    self._settle_dead(trip)
                    return
                if not trip.over:
                    self._look_after(trip)
        except BaseException:
            link.kill()
            self._give_back(trip.take_open())
            raise
        finally:
            self._trip = None
        count = len(trip.groups)
        # bounded, so that one slow message does not make many trips of one message
        took = min((monotonic() - trip.sent_at) / count, 2 * _TRIP_SECONDS)
        self._pace = took if not self._pace else 0.8 * self._pace + 0.2 * took
        self._starter.worked()

    def _settle(self, trip: WorkerTrip, frames: Sequence[Frame]) -> None:
        """Settle what the worker has told."""
        outcomes: list[tuple[Work, Outcome]] = []
        began, handled = trip.since, 0
        for frame in frames:
            if frame.kind == OVER:
                outcomes += [(work, NOT_STARTED) for work in trip.end()]
            elif frame.kind == SETTLED:
                outcomes += self._outcomes(frame, trip.take_settled(frame.number))
                handled = len(outcomes)
        if handled:
            self._source.took(handled, trip.since - began)
        if outcomes:
            self._suspects.cleared(_place(work) for work, outcome in outcomes if outcome is not NOT_STARTED)
            self._source.settle(outcomes)
            if not trip.over:
                self._source.look()

    def _outcomes(self, frame: Frame, group: Sequence[Work]) -> list[tuple[Work, Outcome]]:
        if frame.value is None:
            return [(work, DONE) for work in group]
        found: list[tuple[Work, Outcome]] = []
        for work, result in zip(group, frame.value, strict=True):
            outcome: Outcome = DONE if result is None else result
            if isinstance(result, SentError):
                outcome = Failed(received_error(result, self.name))
            elif isinstance(result, NotStarted):
                outcome = NOT_STARTED
            found.append((work, outcome))
            if outcome is not DONE and work.lane is not None:
                self._bad_lanes.add(work.lane)
        return found

    def _look_after(self, trip: WorkerTrip) -> None:
        """Take back what must not begin any more, and kill a process whose handler has had its time."""
        now = monotonic()
        if self._ended.is_set() and self._deadline.expired:
            trip.given_up = True
            trip.link.kill()
        elif self._timeout is not None and now - trip.since > self._timeout:
            trip.timed_out = True
            trip.link.kill()
        elif not trip.recalled and now - trip.looked_at >= _LOOK_EACH:
            trip.looked_at = now
            if self._over or now - trip.since > _BEHIND or not all(map(self._source.may_start, trip.waiting())):
                self._give_back(trip.recall())

    def _settle_dead(self, trip: WorkerTrip) -> None:
        """Settle the works of a process that is gone: what had begun failed, the rest has lost nothing."""
        begun, told = trip.begun()
        rest = trip.take_open()
        if trip.given_up:
            self.all_returned = self.all_returned and not begun
            self._give_back(rest)
            return
        reason = trip.link.ending
        where = f" with {_text(begun)} in hand" if begun else ""
        error: Exception
        if trip.timed_out and begun and self._timeout is not None:
            reason = f"handler.timeout.ms ({self._timeout * 1000:.0f}) has passed"
            error = HandlerTimeoutError(f"{self.name} was killed{where}: {reason}")
        else:
            error = WorkerDiedError(f"{self.name} {reason}{where}")
        if len(begun) > 1:
            self._suspects.crashed([_place(work) for work in begun])
        failed, cost = set(begun), Failed(error, worker_died=True, together=len(begun) > 1)
        self._starter.died(reason + where + ("" if told else " or not begun"))
        self._source.settle([(work, cost if work in failed else NOT_STARTED) for work in rest])
        self._give_back(self._pending)
        self._pending.clear()


_workers: WeakSet[_WorkerProcess] = WeakSet()


def _end_all() -> None:
    """End what an interpreter leaves running: at its exit multiprocessing would wait for these processes for ever."""
    workers = list(_workers)
    for worker in workers:
        worker.stop(Deadline(0.0))
    end = Deadline(_KILLED_WITHIN)
    for worker in workers:
        worker.join(end.remaining())


atexit.register(_end_all)  # it runs before that of multiprocessing, which was imported before


_place_of = attrgetter("ledger.position.tp.topic", "ledger.position.tp.partition", "offset")


def _place(work: Work) -> Place:
    place: Place = _place_of(work)
    return place


def _text(works: Sequence[Work]) -> str:
    first = works[0]
    others = f" and {len(works) - 1} others" if len(works) > 1 else ""
    return f"{first.ledger.position.tp} at offset {first.offset}{others}"
