"""The end of one connector: begun once, waited for by every thread that asks for it.

Kept apart from the connector, so that streams and threads can wait for the end without keeping the connector alive.

Threads: any. Signal handlers may call everything here, so nothing takes a lock: flags are single writes, and a
``SimpleQueue`` may be used by a handler that interrupts another use of it.
"""

from __future__ import annotations

import math
from queue import Empty, SimpleQueue
from typing import NamedTuple

from zkconsumer.errors import OffsetCommitError
from zkconsumer.runtime.deadline import Deadline

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
    """The end of one connector: whether it has begun, who closes, its deadline, and its result."""

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
            return
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
