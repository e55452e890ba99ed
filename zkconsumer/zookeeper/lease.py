"""How long we may still believe that our ZooKeeper session, and with it all we own, is alive.

The server ends a session when it heard nothing for the session timeout. An answered request proves that the server
heard us at or after the moment we sent it, so from that moment on nobody else can own what we own for one whole
timeout. The lease is therefore stamped with the *send* time: stamped with the time of the answer it would lie after a
pause of the process, when an answer that had waited in the socket is read long after the server gave the session up.

Written by the session (its connection thread and whoever completes a request), read by every stream for each message:
reading ``until`` is a plain attribute, the writes happen under a small lock that guards nothing else.
"""

from __future__ import annotations

from threading import RLock
from time import monotonic

from zkconsumer.deadline import Deadline
from zkconsumer.interruptible_wait import WakeFlag

CLOSED = float("-inf")


class Lease:
    """A point in monotonic time until which hand-outs and commits are safe.

    ``until`` is that time in seconds, or minus infinity while the session is not connected. A reader that sees
    ``monotonic() >= lease.until`` must hand out nothing and may call :meth:`wait`.
    """

    __slots__ = ("_connected", "_lock", "_stamped", "_waiting", "epoch", "safe_until", "until")

    def __init__(self) -> None:
        self.until = CLOSED
        self._stamped = CLOSED
        self._connected = False
        self._lock = RLock()
        self._waiting: set[WakeFlag] = set()
        self.epoch = 0
        self.safe_until = CLOSED
        """Until when an answer that came in time made hand-outs safe, the last one that did. An answer that took longer
        than the timeout proves something, too, but nothing of use.
        """

    def renew(self, sent_at: float, timeout: float) -> None:
        """A request sent at ``sent_at`` (monotonic seconds) was answered; the session's timeout is ``timeout``
        seconds.
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
        """The session is connected (again), and whoever owns the group's state has dealt with what happened to it
        meanwhile.

        From now on the lease counts as far as it was stamped. ``epoch`` is that of the connection which was dealt
        with: where the session was suspended or lost again since, this does nothing. Were the lease resumed at once
        by the connection, messages of a session that has ended could be handed out until the group's thread hears of
        the end.
        """
        with self._lock:
            if epoch != self.epoch:
                return
            self._connected = True
            self.until = self._stamped
            self.wake()

    def suspend(self) -> None:
        """The connection is gone: nothing is handed out until it is back, though the session may live on."""
        with self._lock:
            self._connected = False
            self.epoch += 1
            self.until = CLOSED

    def void(self) -> None:
        """The session ended: what it proved counts no more."""
        with self._lock:
            self._connected = False
            self.epoch += 1
            self._stamped = CLOSED
            self.until = CLOSED
            self.wake()

    def lapse(self, ago: float = 0.0) -> None:
        """Count it as over since ``ago`` seconds, as though so much time had passed (to test what then happens)."""
        with self._lock:
            self._stamped = self.safe_until = monotonic() - ago
            self.until = min(self.until, self._stamped)

    @property
    def ends_at(self) -> float:
        """When what we own stops being ours unless the session is heard of again (monotonic seconds)."""
        return self._stamped

    @property
    def valid(self) -> bool:
        """Whether hand-outs and commits are safe now."""
        return monotonic() < self.until

    def wait(self, deadline: Deadline) -> bool:
        """Block until the lease is valid, something changed, or the deadline passed; returns whether it is valid."""
        flag = WakeFlag()
        self._waiting.add(flag)  # before the look, or a change after it would wake nobody
        try:
            if not self.valid:
                flag.wait(deadline.remaining())
        finally:
            self._waiting.discard(flag)
        return self.valid

    def wake(self) -> None:
        """Wake everybody in :meth:`wait`, so that they look at what changed."""
        for flag in tuple(self._waiting):
            flag.set()
