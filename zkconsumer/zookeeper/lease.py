"""The time until which our ZooKeeper session, and with it our partitions, is certainly ours.

The server ends a session when it heard nothing for the session timeout. An answered request proves that the server
heard us at or after the moment we sent it. From that moment on nobody else can own our partitions for one whole
timeout. So the lease is stamped with the *send* time. The time of the answer would be wrong after a pause of the
process: an answer may wait in the socket until long after the server gave the session up.

The session writes the lease, on its connection thread and on threads that complete a request. Every stream reads it for
each message: ``until`` is a plain attribute. The writes happen under a small lock that guards nothing else.
"""

from __future__ import annotations

from time import monotonic

from zkconsumer.data_plane.hand_out import LeaseEnd
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.runtime.interruptible_wait import InterruptibleLock, WakeFlag

CLOSED = float("-inf")


class Lease(LeaseEnd):
    """A point in monotonic time until which hand-outs and commits are safe.

    ``until`` is that time in seconds, or minus infinity while the session is not connected. A reader that sees
    ``monotonic() >= lease.until`` must hand out nothing and may call :meth:`wait`.
    """

    __slots__ = ("_connected", "_lock", "_stamped", "_waiting", "epoch", "safe_until")

    def __init__(self) -> None:
        super().__init__(CLOSED)
        self._stamped = CLOSED
        self._connected = False
        self._lock = InterruptibleLock()
        self._waiting: dict[WakeFlag, None] = {}  # in the order in which they began to wait
        self.epoch = 0
        self.safe_until = CLOSED
        """The end of the last lease that an answer in time gave. An answer later than the timeout gives none."""

    def renew(self, sent_at: float, timeout: float) -> None:
        """Renew the lease: a request sent at ``sent_at`` (monotonic seconds) was answered.

        ``timeout`` is the session's, in seconds.
        """
        with self._lock:
            self._stamped = max(self._stamped, sent_at + timeout)
            if self._stamped > monotonic():
                self.safe_until = self._stamped
            if self._connected and self._stamped > self.until:
                lapsed = self.until < monotonic()
                self.until = self._stamped
                if lapsed:
                    self.wake()

    def resume(self, epoch: int) -> None:
        """Let the lease count again: the session is connected, and the group's thread knows what happened meanwhile.

        ``epoch`` is that of the connection the group's thread knows of. If the session was suspended or lost again
        since, this does nothing. If the connection itself resumed the lease, messages of an ended session could be
        handed out until the group's thread hears of the end.
        """
        with self._lock:
            if epoch != self.epoch:
                return
            self._connected = True
            self.until = self._stamped
            self.wake()

    def suspend(self) -> None:
        """Note that the connection is gone: nothing is handed out until it is back, though the session may live on."""
        with self._lock:
            self._connected = False
            self.epoch += 1
            self.until = CLOSED

    def void(self) -> None:
        """Note that the session ended: its answers count no more."""
        with self._lock:
            self._connected = False
            self.epoch += 1
            self._stamped = CLOSED
            self.until = CLOSED
            self.wake()

    def lapse(self, ago: float = 0.0) -> None:
        """Let the lease count as over for ``ago`` seconds. For tests."""
        with self._lock:
            self._stamped = self.safe_until = monotonic() - ago
            self.until = min(self.until, self._stamped)

    @property
    def ends_at(self) -> float:
        """The time at which our partitions stop being ours unless an answer comes (monotonic seconds)."""
        return self._stamped

    @property
    def valid(self) -> bool:
        """Whether hand-outs and commits are safe now."""
        return monotonic() < self.until

    def wait(self, deadline: Deadline) -> bool:
        """Block until the lease is valid, its state changed, or the deadline passed; return whether it is valid."""
        flag = WakeFlag()
        self._waiting[flag] = None  # before the look, or a change after it would wake nobody
        try:
            if not self.valid:
                flag.wait(deadline.remaining())
        finally:
            self._waiting.pop(flag, None)
        return self.valid

    def wake(self) -> None:
        """Wake all threads in :meth:`wait`, so that they look again."""
        for flag in tuple(self._waiting):
            flag.set()
