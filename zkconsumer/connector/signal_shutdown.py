"""Shutting a connector down on a signal: the message in hand is finished and committed, and the loop ends.

A signal handler runs in the main thread between any two steps of it, perhaps while that thread holds one of our locks.
It may also run late: a main thread that waits for a lock may run no handler for as long as it waits. So the interpreter
itself writes each signal to a socket (``signal.set_wakeup_fd``). A thread of our own (``<consumer>-signals``) reads it
there and has the connector shut down, while the main thread goes on with its message. The handler only counts. If
somebody else has set such a descriptor (asyncio does), the handler writes to the socket.

The original leaves signals to the application: a shutdown hook of the JVM runs on a thread of its own.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
from contextlib import suppress
from threading import Thread, current_thread, main_thread
from types import FrameType, TracebackType
from typing import Any, Protocol, Self
from weakref import ref

from zkconsumer.connector.lifecycle import CLOSE_WITHIN, Lifecycle, check_seconds
from zkconsumer.runtime import fork_guard

log = logging.getLogger(__name__)

END = 0
"""Stands for a signal where the thread is to end; no signal has this number."""
JOIN_WITHIN = 1.0
"""Seconds that the end of a guard waits for its thread, which has nothing left to do."""


class Stoppable(Protocol):
    """A connector, as this module sees it: something that can be shut down."""

    @property
    def lifecycle(self) -> Lifecycle:
        """The life of the connector."""


class ShutdownOnSignal:
    """The signals that shut one connector down, until :meth:`restore`; what :func:`shutdown_on_signal` returns."""

    def __init__(self, lifecycle: Lifecycle, signals: tuple[int, ...], timeout: float) -> None:
        # weak: a connector that is dropped is to be found so
        self._lifecycle = ref(lifecycle)
        self._name = str(lifecycle.consumer_id)
        self._timeout = timeout
        self._count = 0
        self._acted = 0
        self._passer: dict[None, str] = {}
        self._called_again = False
        self._previous: dict[int, Any] = {}
        self._installed = False
        self._process = os.getpid()
        self._reading, self._writing = socket.socketpair()
        self._writing.setblocking(False)
        self._wakes = False
        self.received: int | None = None
        """The first signal that came; None where none has."""
        self._thread = Thread(target=self._serve, name=f"{self._name}-signals", daemon=True)
        try:
            self._install(signals)
        except BaseException:  # also an interrupt, and a system that gives no more threads
            self._wakes = True  # or a signal would be written to a descriptor that is somebody else's by then
            self.restore()
            if self._thread.ident is None:  # otherwise the thread closes them
                self._reading.close()
                self._writing.close()
            raise

    def _install(self, signals: tuple[int, ...]) -> None:
        for number in signals:
            if signal.getsignal(number) is None:
                raise ValueError(f"{_name(number)} has a handler that was not set from Python: it cannot be restored")
        self._installed = True
        try:
            for number in signals:
                self._previous[number] = signal.getsignal(number)
                signal.signal(number, self._received)
        except (OSError, ValueError) as e:
            del self._previous[number]
            self._restore_handlers()
            raise ValueError(f"no handler can be set for {_name(number)}: {e}") from e
        others = signal.set_wakeup_fd(self._writing.fileno(), warn_on_full_buffer=False)
        self._wakes = others == -1
        if not self._wakes:
            signal.set_wakeup_fd(others)
        fork_guard.watch(self)
        self._thread.start()

    def left_to_parent(self, parent: int) -> None:
        """For ``fork_guard``: the signals of a forked process are none of the parent's connector."""
        del parent
        self.restore()

    def restore(self) -> None:
        """Put the handlers back that were there before. May be called again; from the main thread only.

        A handler that somebody else has set meanwhile stays.
        """
        if not self._installed:
            return
        self._restore_handlers()
        if self._wakes:
            ours = self._writing.fileno()
            current = signal.set_wakeup_fd(-1)
            if current != ours:
                signal.set_wakeup_fd(current)
        if os.getpid() == self._process:  # a forked process shares the socket, and has no such thread
            self._write(END)

    def _restore_handlers(self) -> None:
        self._installed = False
        for number, handler in self._previous.items():
            if signal.getsignal(number) == self._received:
                signal.signal(number, handler)

    def _write(self, number: int) -> None:
        with suppress(BlockingIOError):  # full of signals that nobody has read yet
            self._writing.send(bytes([number]))

    def _received(self, number: int, frame: FrameType | None) -> None:
        # runs between any two steps of the main thread: takes no lock, waits for nothing, writes no log
        self._count += 1
        lifecycle, previous = self._lifecycle(), self._previous[number]
        # a handler that runs late finds the connector ended by its own signal, through the thread
        ours = self._count <= self._acted
        more = not ours and self._count <= 2 and self._installed and lifecycle is not None and not lifecycle.end.over
        if (ours or more) and not self._called_again:
            self.received = self.received or number
            if not self._wakes:
                self._write(number)
            if isinstance(getattr(previous, "__self__", None), ShutdownOnSignal):
                previous(number, frame)  # another connector's
            return
        # a third signal, or a signal when nothing is left to shut down, has its former effect
        if self._passer.setdefault(None, "handler") != "handler" and not self._called_again:
            return  # the thread calls this again
        self.restore()
        if callable(previous):
            previous(number, frame)
        elif previous == signal.SIG_DFL:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    def _serve(self) -> None:
        came = 0
        with self._reading, self._writing:
            while True:
                for number in self._reading.recv(64):
                    if number == END:
                        return
                    if number in self._previous:
                        came += 1
                        self._act(number, came)

    def _act(self, number: int, came: int) -> None:
        lifecycle = self._lifecycle()
        if came > 2:
            self._call_again(number)
            return
        if lifecycle is None or lifecycle.end.over:
            return  # the handler passes it on
        self._acted = came
        self.received = self.received or number
        if came == 1:
            log.info("%s: %s came; finishing what is in hand, then leaving", self._name, _name(number))
            try:
                lifecycle.begin_shutdown(self._timeout)
            except RuntimeError:  # the system gives no more threads, and nobody else would close
                lifecycle.shut_down(finished=False, timeout=self._timeout)
        else:
            log.warning("%s: %s came again; waiting for no message in hand", self._name, _name(number))
            lifecycle.hurry()

    def _call_again(self, number: int) -> None:
        """Have the handler pass the third signal on, unless it has done so.

        Two signals that come before the main thread runs a handler make one call of it. So the handler counts too few,
        and takes the third for the second.
        """
        if self._passer.setdefault(None, "thread") == "thread" and not self._called_again:
            self._called_again = True  # first: a call that is still due for an earlier signal then passes on as well
            signal.pthread_kill(main_thread().ident or 0, number)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Restore the handlers. If a signal came, wait for the end of the connector.

        Raises: :class:`OffsetCommitError` for offsets that could not be committed, unless an exception leaves already.
        """
        lifecycle = self._lifecycle()
        try:
            if self.received is not None and lifecycle is not None:
                lifecycle.shut_down(finished=kind is None, timeout=self._timeout)
                if kind is None:
                    lifecycle.end.raise_failure()
        finally:
            self.restore()
            self._thread.join(JOIN_WITHIN)

    def __repr__(self) -> str:
        names = ", ".join(map(_name, self._previous))
        return f"<ShutdownOnSignal {self._name} {names}>"


def shutdown_on_signal(connector: Stoppable, *signals: int, timeout: float = CLOSE_WITHIN) -> ShutdownOnSignal:
    """Shut a connector down when a signal comes, without lost or repeated messages.

    ``with connector, shutdown_on_signal(connector, SIGTERM, SIGINT): ...`` The first signal lets the message in hand be
    finished and committed, and streams end. The second signal waits for no message any more. The third signal has the
    effect that it had before. Former handlers are restored at the end of the ``with``, by ``restore()``, or when the
    main thread has shut the connector down. The signal handler takes no lock and waits for nothing.

    Arguments: ``signals`` by number; ``timeout`` in seconds is that of ``connector.shutdown()``: all but 1.8 s of it
    is for messages in hand.
    Returns: a context manager; its ``received`` is the first signal that came. At the end of the ``with`` it raises
    :class:`OffsetCommitError` where something could not be committed.
    Raises: ValueError outside the main thread, where Python sets no handlers, and for a signal that cannot be handled.
    """
    if current_thread() is not main_thread():
        raise ValueError(
            f"signals are handled by the main thread only, and this is {current_thread().name!r}: call"
            " shutdown_on_signal() (or run(stop_on=...)) there, or shutdown() from any thread"
        )
    if not signals:
        raise ValueError("no signals: name at least one, such as signal.SIGTERM")
    for number in signals:
        if isinstance(number, bool) or not isinstance(number, int) or number not in signal.valid_signals():
            raise ValueError(f"{number!r} is no signal of this system; signal.SIGTERM is one")
    check_seconds(timeout)
    guard = ShutdownOnSignal(connector.lifecycle, tuple(dict.fromkeys(signals)), timeout)
    connector.lifecycle.restorers.append(guard.restore)
    return guard


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
