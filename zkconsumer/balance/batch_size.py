"""How many messages a worker takes at a time. Pure.

A lock and a look at the lanes for each message would cost more than an empty handler. But a worker that has taken many
messages keeps them from the others, so slow handlers get one at a time.
"""

from __future__ import annotations

from collections import deque

from zkconsumer.runtime.metrics import Buckets

MOST = 128
"""Messages that a worker takes at most."""
SECONDS = 0.002
"""Seconds of handlers that a worker takes at a time, as the quickest of the last takes went."""
_LOOK_BACK = 8


class BatchSize:
    """The number of messages to take, by the time that handlers took.

    The quickest of the last takes counts: with many threads a worker waits for the interpreter most of the time, and
    that says nothing of the handler.
    """

    def __init__(self) -> None:
        self._last: deque[float] = deque(maxlen=_LOOK_BACK)
        self.size = 1
        self.times = Buckets()
        """The durations of handlers; those of quick ones as the mean of several."""

    def note(self, messages: int, seconds: float) -> None:
        """Note how long some handlers took, one after the other. Any thread: each step is atomic."""
        self._last.append(seconds / messages)
        self.times.add(seconds / messages, messages)
        each = min(self._last.copy())
        wanted = MOST if each <= 0 else int(SECONDS / each)
        self.size = max(1, min(wanted, 2 * self.size, MOST))

    def workers(self, startable: int) -> int:
        """Return how many workers so many startable messages occupy."""
        return -(-startable // self.size)
