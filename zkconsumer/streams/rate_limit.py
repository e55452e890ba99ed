"""At most so many messages a second (``consumed.max.per.second``), against the burst after a rebalance.

Threads: all readers of a member share one :class:`RateLimitedLease`. A lock guards its bucket, and no thread waits
while it holds the lock.

How it costs nothing where it is not wanted: a stream looks at its lease before each message anyway, and a lease that
says "no longer" closes the same gate. What was handed out before is finished then, nothing is held, and a timeout or
the end of the stream gets through, as when ZooKeeper is away. The token is taken at the gate, before the message is
announced: an interrupt (Ctrl-C) while it is taken finds no message in hand that nobody got. The original has no such
limit.
"""

from __future__ import annotations

from threading import Event, Lock
from time import monotonic
from typing import Protocol

from zkconsumer.deadline import Deadline

BURST_S = 0.1
"""Seconds whose messages may come at once."""


class HandOutGate(Protocol):
    """What a stream looks at before it hands anything out: the lease, or one with a pace."""

    @property
    def until(self) -> float:
        """The monotonic time until which a message may be handed out."""

    @property
    def valid(self) -> bool:
        """Whether that is so now."""

    def wait(self, deadline: Deadline) -> bool:
        """Block until it is, something changed, or the deadline has passed; returns whether it is."""


class TokenBucket:
    """Pure: so many tokens a second, of which few are kept. Times in seconds, of any clock that does not go back.

    Arguments: ``rate`` a second, above 0; ``now``.
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
        """Take so many tokens, whether or not they are there; nobody gets any before they are made up for."""
        self._fill(now)
        self._tokens -= count

    def wait(self, now: float) -> float:
        """Seconds until there is a token, 0 where there is one."""
        self._fill(now)
        return max(0.0, (1.0 - self._tokens) / self._rate)


class RateLimitedLease:
    """A lease that lets through so many messages a second. Arguments: the ``lease``; ``rate`` a second, above 0.

    ``until`` is long past, so that streams come to the gate with each message; there :meth:`take` takes its token, and
    ``lease`` says whether it may be handed out.
    """

    until = float("-inf")

    def __init__(self, lease: HandOutGate, rate: float) -> None:
        self.lease = lease
        self._lock = Lock()
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
        """So many messages were handed out at once."""
        with self._lock:
            self._bucket.spend(count, monotonic())

    def missing(self) -> float:
        """Seconds until there is a token, 0 where there is one; whatever the lease says."""
        with self._lock:
            return self._bucket.wait(monotonic())
