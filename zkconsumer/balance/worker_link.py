"""The parent's end of one worker process: starts it, sends trips, receives outcomes, and ends it.

A :class:`WorkerStarter` starts the process, and starts it anew when it has died. A :class:`WorkerLink` sends and
receives. A :class:`WorkerTrip` has the works in the hands of the process.

No link blocks: what a stopped worker does not read stays in this process until it reads on or is killed.

Threads: one, that of the worker in the parent. Any may read the attributes of a starter, and the pid of a link.
"""

from __future__ import annotations

import logging
import os
import pickle
import select
import signal
import socket
from collections.abc import Callable, Collection
from concurrent.futures import InvalidStateError
from contextlib import suppress
from multiprocessing import Pipe, get_context, resource_tracker
from multiprocessing.context import SpawnProcess
from threading import BoundedSemaphore, Event
from time import monotonic
from typing import Any, NamedTuple

from zkconsumer.balance.dispatched_work import Work
from zkconsumer.balance.worker_process import (
    LENGTH,
    READY,
    RECORD_FIELDS,
    UNABLE,
    SentChunk,
    SentWork,
    Trip,
    WorkerSetup,
    packed,
    received_error,
    run_worker,
)
from zkconsumer.errors import WorkerDiedError
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.runtime.interruptible_wait import InterruptibleLock
from zkconsumer.runtime.withdrawable_request import Answer
from zkconsumer.streams.stream_queue import Chunk

log = logging.getLogger(__name__)
_PIECE = 256 * 1024
"""Bytes that are read from a worker at a time."""

CACHED_BYTES = 8 * 1024 * 1024
"""Bytes of chunks that a worker keeps, besides those of the trip it is on."""

MOST_STEPS = 1024
"""The most steps of a trip. A pipe holds more than so many tokens."""

_REAPED_WITHIN = 2.0
"""Seconds in which a process that was killed, or has closed its pipes, is gone, unless the machine stands still."""

START_WITHIN = 60.0
"""Seconds in which a worker process has imported the handler."""

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 30.0
"""Seconds until the next process is started if the last one died."""

_LOOK_EACH = 0.1
"""Seconds after which a start looks at what nothing wakes it for: the end of the run, and of the time."""

_importing = BoundedSemaphore(os.cpu_count() or 1)
"""For processes that import their handler. All at once they would take so long that each is given up."""

_starting = InterruptibleLock()
"""One process at a time is started: the list of children that multiprocessing keeps is not made for threads."""


class Frame(NamedTuple):
    """A message of a worker: its kind (see ``worker_process``), the number of a group, and a value."""

    kind: int
    number: int
    value: Any


class ChunkCache:
    """The chunks that a worker has, the longest unused first. The parent decides what the worker forgets."""

    def __init__(self, most_bytes: int = CACHED_BYTES) -> None:
        self._most = most_bytes
        self._known: dict[int, tuple[Chunk, int]] = {}  # by id(); the chunk is kept, so its id is not used again
        self._serial = 0
        self._bytes = 0

    def serial(self, chunk: Chunk, new: list[SentChunk]) -> int:
        """Return the chunk's number; a chunk that the worker has not got is added to ``new``."""
        known = self._known.pop(id(chunk), None)
        if known is None:
            self._serial += 1
            known = (chunk, self._serial)
            self._bytes += len(chunk.records)
            place = chunk.position.tp
            new.append(
                SentChunk(self._serial, *place, chunk.records, chunk.fetch_offset, chunk.next_offset, chunk.aborted)
            )
        self._known[id(chunk)] = known
        return known[1]

    def forget(self, needed: Collection[int]) -> tuple[int, ...]:
        """Forget chunks beyond the limit, but none of the ``needed`` numbers. Returns the numbers."""
        gone: list[int] = []
        for key, (chunk, serial) in list(self._known.items()):
            if self._bytes <= self._most:
                break
            if serial not in needed:
                del self._known[key]
                self._bytes -= len(chunk.records)
                gone.append(serial)
        return tuple(gone)


class WorkerLink:
    """One worker process, from its start to its end.

    Arguments: ``name`` is that of its thread here. Raises: OSError if there is no file or process left.
    """

    def __init__(self, name: str, setup: WorkerSetup) -> None:
        self.name = name
        self.cache = ChunkCache()
        self.dead = False
        """Whether the process has ended, and everything that it sent is received."""
        self._out = memoryview(b"")
        self._in = bytearray()
        self._channel, theirs = socket.socketpair()
        self._tokens, self._grants = Pipe(duplex=False)
        for end in (self._tokens, self._grants):
            os.set_blocking(end.fileno(), False)
        self._channel.setblocking(False)
        arguments = (setup, theirs, self._tokens, os.getpid())
        self._process = get_context("spawn").Process(target=run_worker, args=arguments, name=name, daemon=True)
        with theirs, _starting:
            try:
                _start_without_signals(self._process)
            except BaseException:
                self._close()
                raise
        self.pid = self._process.pid
        self._poll = select.poll()
        self._poll.register(self._process.sentinel, select.POLLIN)

    @property
    def ending(self) -> str:
        """The end of the process, in words."""
        code = self._process.exitcode
        if code is None:  # it lives, or another thread was told its code
            return f"(pid {self.pid}) has ended"
        if code < 0:
            return f"(pid {self.pid}) was killed by signal {-code}"
        return f"(pid {self.pid}) has ended with exit code {code}"

    def send(self, value: object, steps: int) -> None:
        """Send a trip, of which the worker may begin so many steps. The frame before must have been sent."""
        os.write(self._grants.fileno(), bytes(steps))
        self._out = memoryview(packed(value))
        self._flush()

    def withdraw_steps(self) -> int:
        """Keep the worker from beginning anything more. Returns the number of steps that it will not begin."""
        with suppress(BlockingIOError):
            return len(os.read(self._tokens.fileno(), MOST_STEPS))
        return 0

    def receive(self, seconds: float) -> list[Frame]:
        """Return what the worker sent, after so many seconds at the latest; see also :attr:`dead`."""
        self._poll.register(self._channel, select.POLLIN | (select.POLLOUT if self._out else 0))
        ready = dict(self._poll.poll(seconds * 1000))
        # a process that the worker forked may hold the sentinel's pipe open, so the exit code is looked at as well
        over = self._process.sentinel in ready or (not ready and self._process.exitcode is not None)
        self._flush()
        closed = self._read()
        if over or closed:
            self._process.join(_REAPED_WITHIN)
            self._read()
            self.dead = over or not self._process.is_alive()
            if not self.dead:
                self.kill()  # it has closed the channel, and will never be of use again
        return self._frames()

    def kill(self) -> None:
        """Kill the process at once."""
        with suppress(OSError):
            self._process.kill()

    def end(self, seconds: float) -> None:
        """Have the idle process end by itself, kill it after so many seconds, and wait until it is gone."""
        with suppress(OSError):
            self._channel.shutdown(socket.SHUT_RDWR)
        self._process.join(seconds)
        if self._process.is_alive():
            self.kill()
            self._process.join(_REAPED_WITHIN)
        self._close()
        with suppress(ValueError):  # it is not gone even so: the kernel holds it; multiprocessing reaps it later
            self._process.close()

    def _close(self) -> None:
        for end in (self._channel, self._tokens, self._grants):
            end.close()

    def _flush(self) -> None:
        with suppress(BlockingIOError, ConnectionError):
            while self._out:
                self._out = self._out[self._channel.send(self._out) :]

    def _read(self) -> bool:
        """Receive all bytes that are there. Returns whether the other end is closed."""
        try:
            while data := self._channel.recv(_PIECE):
                self._in += data
        except BlockingIOError:
            return False
        except ConnectionError:
            pass
        return True

    def _frames(self) -> list[Frame]:
        found = []
        at = 0
        while len(self._in) >= at + LENGTH.size:
            begin = at + LENGTH.size
            end = begin + LENGTH.unpack_from(self._in, at)[0]
            if len(self._in) < end:
                break
            found.append(Frame(*pickle.loads(memoryview(self._in)[begin:end])))  # noqa: S301 - of our own process
            at = end
        self._in = self._in[at:]
        return found


def _start_without_signals(process: SpawnProcess) -> None:
    """Start a process in which SIGINT and SIGTERM are blocked until it ignores them."""
    # The first start would start it, which unblocks both signals: a SIGTERM to the whole group killed that worker.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class WorkerStarter:
    """Starts the processes of one worker, one after the other. Any thread may read the attributes.

    Arguments: ``name`` of the worker; ``first`` is told how the first start of any worker went; ``ended`` is set when
    the worker ends; ``over`` says whether no process is wanted any more.

    * ``pid``: of the present process, None if there is none; ``starts``: number of processes so far
    * ``trouble``: why the last process died, until its successor has worked
    """

    def __init__(
        self, name: str, setup: WorkerSetup, first: Answer[None], ended: Event, over: Callable[[], bool]
    ) -> None:
        self.name = name
        self.pid: int | None = None
        self.starts = 0
        self.trouble = ""
        self._deaths = 0
        self._setup = setup
        self._first = first
        self._ended = ended
        self._over = over

    def start(self) -> WorkerLink | None:
        """Start a process, after a pause if the last ones died; return it when it is ready, None if it is not."""
        if self._deaths:
            pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** min(self._deaths, 16))
            if self._ended.wait(pause):
                return None
        while not _importing.acquire(timeout=_LOOK_EACH):
            if self._over():
                return None
        try:
            return self._start_one()
        finally:
            _importing.release()

    def _start_one(self) -> WorkerLink | None:
        self.starts += 1
        try:
            link = WorkerLink(self.name, self._setup)
        except OSError as refused:
            self.died(f"it could not be started: {refused!r}", refused)
            return None
        self.pid = link.pid
        end = Deadline(START_WITHIN)
        error: BaseException | None = None
        while not link.dead and not self._ended.is_set():
            for frame in link.receive(_LOOK_EACH):
                if frame.kind == READY:
                    self.tell_first(None)
                    return link
                if frame.kind == UNABLE:
                    error = received_error(frame.value, self.name)
            if end.expired:
                link.kill()
        if not self._ended.is_set():
            reason = f"it was not ready: {error}" if error is not None else f"{link.ending} before it was ready"
            self.died(reason, error)
        link.end(0.0)
        self.pid = None
        return None

    def died(self, reason: str, error: BaseException | None = None) -> None:
        """Note that the process died, so that the next start waits a while."""
        self._deaths += 1
        self.trouble = f"process {self.starts}: {reason}"
        log.warning("%s: %s; it is started anew", self.name, self.trouble)
        hint = "; its own error output says more. A script that calls run() needs: if __name__ == '__main__':"
        self.tell_first(error or WorkerDiedError(f"{self.name}: {reason}{hint}"))

    def worked(self) -> None:
        """Note that the process has come back from a trip."""
        self._deaths, self.trouble = 0, ""

    def tell_first(self, error: BaseException | None) -> None:
        """Tell how the first start went, if nobody has told it."""
        with suppress(InvalidStateError):  # it is told already
            if error is None:
                self._first.set_result(None)
            else:
                self._first.set_exception(error)


class WorkerTrip:
    """The groups of works that a process has in hand.

    * ``over``: the process has told that it is ready for the next trip
    * ``recalled``: it begins nothing more of this one
    * ``given_up``, ``timed_out``: it was killed, at the end of the run or because of the handler's time
    * ``since``: when the process last told something, which is when the present group began (monotonic seconds)
    """

    def __init__(self, link: WorkerLink, groups: list[tuple[Work, ...]]) -> None:
        self.link = link
        self.groups = groups
        self.over = self.recalled = self.given_up = self.timed_out = False
        self.sent_at = self.since = self.looked_at = monotonic()
        self._open = dict(enumerate(groups))
        self._steps = len(groups) + 1

    @property
    def running(self) -> tuple[tuple[Work, ...], float]:
        """The works of the group that is handled, and since when. Any thread."""
        number = len(self.groups) - len(self._open) if not self.recalled else self._steps - 2
        return (self.groups[number] if 0 <= number < len(self.groups) else ()), self.since

    def send(self, until: float) -> None:
        """Send the groups, and the chunks that the process has not got. It begins none after ``until`` (monotonic)."""
        new: list[SentChunk] = []
        lanes: dict[object, int] = {None: -1}
        sent = []
        for group in self.groups:
            works = []
            for work in group:
                lane = lanes.setdefault(work.lane, len(lanes) - 1)
                if work.chunk is None:
                    record, place = work.message.record, work.ledger.position.tp
                    fields = (*place, *(getattr(record, name) for name in RECORD_FIELDS))
                    works.append(SentWork(-1, work.offset, work.attempts + 1, lane, fields, work.failure))
                else:
                    serial = self.link.cache.serial(work.chunk, new)
                    works.append(SentWork(serial, work.offset, work.attempts + 1, lane, failure=work.failure))
            sent.append(tuple(works))
        needed = {work.serial for works in sent for work in works}
        self.link.send(Trip(self.link.cache.forget(needed), tuple(new), tuple(sent), until), self._steps)

    def take_settled(self, number: int) -> tuple[Work, ...]:
        """Return a group that the process has settled, once."""
        self.since = monotonic()
        return self._open.pop(number, ())

    def end(self) -> list[Work]:
        """Note that the process is ready for the next trip. Returns the works that it has not begun.

        It leaves steps when the lease has ended. With those the next trip would seem to have begun less than it has,
        and a message in hand would be taken back and begun elsewhere.
        """
        self.over = True
        self.link.withdraw_steps()
        return self.take_open()

    def take_open(self) -> list[Work]:
        """Return the works that are not settled, once."""
        rest = [work for group in self._open.values() for work in group]
        self._open = {}
        return rest

    def waiting(self) -> list[Work]:
        """Return works that have probably not begun."""
        groups = list(self._open.values())[1:]
        return [work for group in groups for work in group]

    def recall(self) -> list[Work]:
        """Keep the process from beginning anything more of this trip. Returns the works that it will not begin."""
        self.recalled = True
        self._steps -= self.link.withdraw_steps()
        return [work for n in range(max(0, self._steps - 1), len(self.groups)) for work in self._open.pop(n, ())]

    def begun(self) -> tuple[list[Work], bool]:
        """Return the works that had begun when the process died, and whether that is known for sure.

        A process that died after it received the trip and before it began a group died by any of the messages.
        """
        self._steps -= self.link.withdraw_steps()
        known = self._steps != 1
        groups = [group for number, group in self._open.items() if not known or number < self._steps - 1]
        return [work for group in groups for work in group], known
