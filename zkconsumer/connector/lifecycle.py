"""The life of a connector, from the first streams to the end: the member, the shutdown, and a fork of the process.

A shutdown is begun once. Every thread that asks for one waits for the same end.

Threads: any. Signal handlers may call all of :class:`Closing` and :meth:`Lifecycle.shut_down`, so these take no lock on
entry: flags are single writes, and a ``SimpleQueue`` may be used by a handler that interrupts another use of it.
"""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from queue import Empty, SimpleQueue
from threading import Thread, current_thread, get_native_id, main_thread
from types import FrameType
from typing import TYPE_CHECKING, NamedTuple, Protocol
from weakref import WeakSet

from zkconsumer.config import ConsumerConfig
from zkconsumer.errors import ConnectorClosedException, ForkedProcessError, OffsetCommitError, PartitionNotOwnedError
from zkconsumer.member.connector_state import ConnectorState, Phase
from zkconsumer.member.events import StopRequested
from zkconsumer.model import ConsumerId, TopicPartition
from zkconsumer.runtime import fork_guard
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.runtime.interruptible_wait import InterruptibleLock

if TYPE_CHECKING:
    from zkconsumer.balance.balance_state import BalanceState
    from zkconsumer.balance.balanced_run import BalancedRun
    from zkconsumer.ownership.partition_position import PartitionPosition
    from zkconsumer.wiring.group_member import GroupMember
    from zkconsumer.wiring.groupless_reader import PartitionReading

CLOSE_WITHIN = 5.0
"""Seconds within which :meth:`ZookeeperConsumerConnector.shutdown` returns by default, in any state of ZooKeeper and
the brokers.
"""
LATE = 0.3
"""Seconds that a waiting thread gives a close beyond its deadline."""


def check_seconds(timeout: float) -> None:
    """Raise TypeError or ValueError for a value that is no time for a shutdown."""
    if isinstance(timeout, bool) or not isinstance(timeout, int | float):
        raise TypeError(f"timeout: a number of seconds is wanted, not {timeout!r}")
    if not 0 <= timeout < math.inf:
        raise ValueError(f"timeout: seconds from 0 on are wanted, not {timeout!r}")


class _Begun(NamedTuple):
    closer: int
    deadline: Deadline


class Closing:
    """The end of a connector: whether the end has begun, which thread closes, the deadline, and the result.

    Kept apart from :class:`Lifecycle`, so that streams can wait for the end without keeping the connector alive.
    """

    def __init__(self) -> None:
        self.over = False
        self._complete = False
        self.ends_streams = False
        """Whether a stream's end waits for this: a handler interrupted an ask, and could not wait itself."""
        self._begun: dict[None, _Begun] = {}
        self._done: SimpleQueue[bool] = SimpleQueue()
        self._failure: OffsetCommitError | None = None

    def begin(self, closer: int, seconds: float) -> bool:
        """Begin the close, which has so many seconds; return whether nobody has begun it before.

        Arguments: ``closer`` is the native identifier of the thread that closes; 0: none of the application's does.
        """
        mine = _Begun(closer, Deadline(seconds))
        # one step of the interpreter: neither another thread nor a signal handler comes between look and entry
        return self._begun.setdefault(None, mine) is mine

    @property
    def begun(self) -> bool:
        """Whether the connector is being shut down, or was."""
        return bool(self._begun)

    @property
    def closer(self) -> int:
        """The native identifier of the thread that closes; 0 where none of the application's does."""
        return self._begun[None].closer if self._begun else 0

    def left_undone(self, thread: int) -> bool:
        """Return whether an exception interrupted the close.

        Arguments: ``thread`` is the native identifier of the calling thread, which is not closing now.
        """
        return not self._complete and (self.over or self.closer == thread)

    @property
    def remaining(self) -> float:
        """The seconds that the close still has; 0 before it begins."""
        return self._begun[None].deadline.bounded(86_400.0) if self._begun else 0.0

    def end(self, failure: OffsetCommitError | None = None, *, complete: bool = True) -> None:
        """Note that all is closed; ``failure`` tells what could not be committed.

        Arguments: ``complete`` is False where an exception interrupted the close; the next shutdown takes it up again.
        """
        self._failure, self._complete = failure, complete
        self.over = True
        self._done.put(True)

    def wait(self) -> None:
        """Wait until all is closed, no longer than the close may take."""
        try:
            self._done.get(timeout=self.remaining + LATE)
        except Empty:
            pass
        finally:
            if self.over:  # for the others that wait, also if an interrupt ends this wait with their answer in hand
                self._done.put(True)

    def await_stream_end(self) -> None:
        """Wait at the end of a stream, where a handler that interrupted an ask left the waiting to the stream."""
        if self.ends_streams:
            self.wait()

    def raise_failure(self) -> None:
        """Raise the error of the last commit, if it failed. Only the first call raises it."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure


class Run(Protocol):
    """A call of ``run`` that is under way."""

    def hurry(self) -> None:
        """Wait for no handler any more. Any thread, also a signal handler."""


class Lifecycle:
    """A connector from its first streams to its end: the state that its parts share.

    Arguments: ``config`` of the member, and its name.
    """

    created = False
    """Whether a member was made, which happens once."""

    def __init__(self, config: ConsumerConfig, consumer_id: ConsumerId) -> None:
        self.config = config
        self.consumer_id = consumer_id
        self.lock = InterruptibleLock()
        """Guards the subscription and the creation of streams. No thread waits while it holds the lock."""
        self.end = Closing()
        self.forked: ForkedProcessError | None = None
        """The error for every call in a process that was forked; None in the connector's own."""
        self.member: GroupMember | None = None
        self.running: Run | None = None
        """The call of ``run`` that is under way."""
        self.balanced_run: BalancedRun | None = None
        """The same, if it has ``concurrency``."""
        self.readings: WeakSet[PartitionReading] = WeakSet()
        """The reads of partitions that are open, or were; they end with the connector."""
        self.restorers: list[Callable[[], None]] = []
        """Called when the main thread has shut the connector down, and in a forked process."""

    def begin(self, member: GroupMember) -> None:
        """Have this member from now on."""
        self.member = member
        self.created = True
        fork_guard.watch(self)

    # ---- looking

    def check_open(self) -> None:
        """Raise ConnectorClosedException if the connector was shut down, ForkedProcessError in a forked process."""
        if self.end.begun:
            raise self.forked or ConnectorClosedException("the connector was shut down")

    def live(self) -> GroupMember:
        """Return the member. Raises: as :meth:`check_open`; PartitionNotOwnedError before streams are created."""
        self.check_open()
        if self.member is None:
            raise PartitionNotOwnedError("this member owns nothing yet: create streams first")
        return self.member

    def deadline(self, timeout: float | None) -> Deadline:
        """Return the time of a request, by default as long as one may take. Raises: as :meth:`live`."""
        return Deadline(self.live().request_timeout if timeout is None else timeout)

    def positions(self) -> Mapping[TopicPartition, PartitionPosition]:
        """Return the partitions that are owned now (a copy)."""
        member = self.member
        return {} if member is None else member.positions()

    @property
    def state(self) -> ConnectorState:
        """The present state of the member, and what it waits for."""
        member = self.member
        state = None if member is None else member.state
        if member is None or state is None:
            detail = "" if self.forked is None else str(self.forked)
            return ConnectorState(Phase.CLOSED if self.end.begun else Phase.STARTING, detail=detail)
        if state.phase is Phase.CLOSED:
            return state
        return state if (balance := self.balance) is None else replace(state, balance=tuple(balance.lines()))

    @property
    def balance(self) -> BalanceState | None:
        """The state of a run with ``concurrency``, None while there is no such run."""
        run = self.balanced_run
        return None if run is None else run.state()

    # ---- the end

    def shut_down(self, *, finished: bool, timeout: float = CLOSE_WITHIN) -> None:
        """End everything, and wait for that. ``finished``: the calling thread's message is finished."""
        check_seconds(timeout)
        thread, interrupting = get_native_id(), self._interrupting()
        if self.end.begin(0 if interrupting else thread, timeout):
            if interrupting:
                # locks of ours may be held below us: what they guard must go on, and the message is not finished
                self.end.ends_streams = True
                self._close_in_background()
                return
            self._close(finished)
        elif interrupting:
            self.hurry()
            return
        elif not self._shutting_down_below():  # a handler that interrupted it would wait for itself
            if self.end.closer != thread:
                if self.member is not None:
                    self._settle_balanced(finished)
                    self.member.settle_in_hand(thread, finished=finished)
                self.end.wait()
            if self.end.left_undone(thread):
                # else threads would run on for ever, and a session that keeps partitions from other members
                self._close(finished, Deadline(timeout))
        if current_thread() is main_thread():
            for restore in self.restorers:
                restore()

    def _interrupting(self) -> bool:
        """Return whether this is a signal handler that interrupted its thread in an ask, or with a message in hand."""
        member, thread = self.member, get_native_id()
        if member is None:
            return False
        return member.delivery.interrupted(thread) or (
            in_signal_handler() and (member.delivery.returning(thread) or bool(member.in_hand(thread)))
        )

    def _shutting_down_below(self) -> bool:
        """Return whether this shutdown interrupts another shutdown on the same thread. A flag could be left behind; a
        frame cannot.
        """
        frame, found = inspect.currentframe(), 0
        while frame is not None:
            found += frame.f_code is _SHUT_DOWN and frame.f_locals.get("self") is self
            frame = frame.f_back
        return found > 1

    def begin_shutdown(self, timeout: float) -> None:
        """Begin to end everything, on a thread of its own. Any thread."""
        if self.end.begin(0, timeout):
            self._close_in_background()

    def hurry(self) -> None:
        """Wait for no message any more, and for no handler of ``run``. Any thread, also a signal handler."""
        if self.member is not None:
            self.member.events.put(StopRequested(hurried=True))
        run = self.running
        if run is not None:
            run.hurry()

    def _settle_balanced(self, finished: bool) -> None:
        """Settle the messages of the calling handler, in a run with ``concurrency``: it asks for no more."""
        running = self.balanced_run  # once, as in _close
        if running is not None:
            running.settle_in_hand(get_native_id(), finished)

    def _close_in_background(self) -> None:
        closing = Thread(target=self._close, args=(False,), name=f"{self.consumer_id}-closing", daemon=False)
        try:
            closing.start()
        except RuntimeError:  # the system gives no thread: the next shutdown closes, else nobody ever would
            self.end.end(complete=False)
            raise

    def _close(self, finished: bool, deadline: Deadline | None = None) -> None:
        failure, complete = None, False
        try:
            for reading in list(self.readings):
                reading.close(self.end.remaining)
            if self.member is not None:
                running = self.balanced_run  # once: the thread of the run sets it to None when the run ends
                if running is not None:
                    running.give_back()  # while the session still lives
                self._settle_balanced(finished)
                self.member.close(deadline or Deadline(self.end.remaining), finished=finished)
                if self.member.not_committed:
                    failure = OffsetCommitError(
                        f"{self.consumer_id} was shut down; these messages are consumed again, for they are not"
                        f" committed: {', '.join(self.member.not_committed)}"
                    )
            complete = True
        finally:
            self.end.end(failure, complete=complete)

    def left_to_parent(self, parent: int) -> None:
        """Become an empty shell in a forked process; process ``parent`` reads on. See ``fork_guard``."""
        member = self._left = self.member  # kept: nothing of it is to be finalised here
        self.lock = InterruptibleLock()
        self.forked = ForkedProcessError(
            f"{self.consumer_id} belongs to process {parent}, from which this one was forked: make a connector here, "
            "or fork before streams are created"
        )
        self.member, self.end = None, Closing()
        self.end.begin(0, 0.0)
        self.end.end()
        for restore in self.restorers:
            restore()
        if self.balanced_run is not None:
            self.balanced_run.left_to_parent()
        if member is not None:
            member.delivery.left_to_parent(self.forked)

    def __del__(self) -> None:
        if self.created and not self.end.begun:
            warnings.warn(
                f"{self.consumer_id} was dropped without shutdown(): its threads live on, and it keeps its partitions"
                f" of group {self.config.group_id!r} from other members; use `with`, or call shutdown()",
                ResourceWarning,
                stacklevel=1,
                source=self,
            )


_SHUT_DOWN = Lifecycle.shut_down.__code__


def in_signal_handler() -> bool:
    """Return whether the caller runs in a signal handler, which interrupted the main thread somewhere.

    Python calls a handler with the frame that it interrupts, which is then the handler's caller. Nothing else is called
    with its own caller, except the functions of a debugger, which interrupt as well.
    """
    if current_thread() is not main_thread():
        return False
    frame = inspect.currentframe()
    while frame is not None and frame.f_back is not None:
        if any(value is frame.f_back for value in _arguments(frame)):
            return True
        frame = frame.f_back
    return False


def _arguments(frame: FrameType) -> Iterator[object]:
    code = frame.f_code
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    found = frame.f_locals
    yield from (found.get(name) for name in names)
    if code.co_flags & inspect.CO_VARARGS:
        rest = found.get(code.co_varnames[code.co_argcount + code.co_kwonlyargcount])
        yield from rest if isinstance(rest, tuple) else ()
