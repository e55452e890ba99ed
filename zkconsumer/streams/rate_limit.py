"""Limits the messages a second (``consumed.max.per.second``), against the burst after a rebalance.

Threads: all readers of a member share one :class:`RateLimitedLease`. A lock guards its bucket, and no thread waits
while it holds the lock.

Without a limit it costs nothing. A stream looks at its lease before each message anyway, and a rate-limited lease
always says "no longer", which sends the stream to the gate. The gate finishes the last message, so nothing is held
there. A timeout and the end of the stream get through, as when ZooKeeper is away.

The token is taken at the gate, before the message is announced. So an interrupt (Ctrl-C) meanwhile finds no message in
hand that nobody got. The original has no such limit.
"""

from __future__ import annotations

from threading import Event
from time import monotonic

from zkconsumer.data_plane.hand_out import LeaseEnd
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.runtime.interruptible_wait import InterruptibleLock
from zkconsumer.zookeeper.lease import Lease

BURST_S = 0.1
"""Seconds whose messages may come at once."""


class TokenBucket:
    """A token bucket: ``rate`` tokens a second, at most those of ``BURST_S`` seconds at once. Pure.

    Arguments: ``rate`` above 0; ``now`` in seconds of any clock that does not go back.
    """

    def __init__(self, rate: float, now: float) -> None:
        self._rate = rate
        self._most = max(1.0, rate * BURST_S)
        self._tokens = self._most
        self._at = now

    def _fill(self, now: float) -> None:
        self._tokens = min(self._most, self._tokens + max(0.0, now - self._at) * self._rate)
        self._at = max(now, self._at)

    def take(self, now: float) -> bool:
        """Take one token; returns whether there was one."""
        self._fill(now)
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True

    def spend(self, count: int, now: float) -> None:
        """Take ``count`` tokens. The bucket may go below zero; :meth:`take` then fails until it is refilled."""
        self._fill(now)
        self._tokens -= count

    def wait(self, now: float) -> float:
        """Return the seconds until there is a token, 0 if there is one."""
        self._fill(now)
        return max(0.0, (1.0 - self._tokens) / self._rate)


class RateLimitedLease(LeaseEnd):
    """A lease that lets through ``rate`` messages a second. Arguments: the ``lease``; ``rate`` above 0.

    ``until`` is long past, so that streams come to the gate with each message. There :meth:`take` takes its token, and
    ``lease`` says whether the message may be handed out.
    """

    def __init__(self, lease: Lease, rate: float) -> None:
        super().__init__(float("-inf"))
        self.lease = lease
        self._lock = InterruptibleLock()
        self._bucket = TokenBucket(rate, monotonic())

    def take(self) -> bool:
        """Take the token of one message; returns whether there was one. Without a lease there is none."""
        if not self.lease.valid:
            return False
        with self._lock:
            return self._bucket.take(monotonic())

    @property
    def valid(self) -> bool:
        """Whether a message may be handed out now."""
        return self.lease.valid and not self.missing()

    def wait(self, deadline: Deadline) -> bool:
        """Block until a message may be handed out, something changed, or the deadline has passed."""
        if not self.lease.valid:
            self.lease.wait(deadline)
        elif missing := self.missing():
            Event().wait(deadline.bounded(missing))
        return self.valid

    def spend(self, count: int) -> None:
        """Take the tokens of ``count`` messages that were handed out at once."""
        with self._lock:
            self._bucket.spend(count, monotonic())

    def missing(self) -> float:
        """Return the seconds until there is a token, 0 if there is one; the lease does not matter here."""
        with self._lock:
            return self._bucket.wait(monotonic())


HandOutGate = Lease | RateLimitedLease
"""The condition for a hand-out: the lease, or a lease with a rate limit."""
