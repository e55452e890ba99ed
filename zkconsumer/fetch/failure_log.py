"""Failures that repeat, in few lines of the log: the first at once, then a summary ever more seldom.

Threads: the leader finder and the fetchers of one member; one lock guards the table. A fetcher of a broker that is away
is made anew for each try, so no fetcher can know what was logged before it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import Lock
from time import monotonic

log = logging.getLogger(__name__)

FIRST_PAUSE = 30.0
LONGEST_PAUSE = 600.0
"""Seconds between two lines about one thing, at first and at most."""
KEPT = 256
"""Things that are remembered. More of them forget the first."""


class _Outage:
    """A failure that repeats. ``times`` counts it, ``line_at`` is when it may be logged again."""

    __slots__ = ("is_over", "line_at", "pause", "since", "times", "told_over")

    def __init__(self, now: float) -> None:
        self.since = now
        self.times = 1
        self.pause = FIRST_PAUSE
        self.line_at = now + FIRST_PAUSE
        self.is_over = False
        self.told_over = False


class Outages:
    """Present failures, by their names in the log. Argument: ``clock`` tells seconds, from any beginning."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._lock = Lock()
        self._known: dict[str, _Outage] = {}

    def failed(self, what: str, why: str) -> None:
        """Note that ``what`` failed once more, and log ``why`` where it is time to. One that fails again soon after it
        worked is the same outage.
        """
        now = self._clock()
        with self._lock:
            outage = self._known.get(what)
            if outage is None or (outage.is_over and now >= outage.line_at):
                self._known.pop(what, None)
                self._known[what] = _Outage(now)
                for old in list(self._known)[: max(0, len(self._known) - KEPT)]:
                    del self._known[old]
                level, line = logging.WARNING, why
            else:
                outage.times += 1
                outage.is_over = False
                level = logging.WARNING if now >= outage.line_at else logging.DEBUG
                line = f"{why} ({outage.times} times in {now - outage.since:.0f} s)"
                if level == logging.WARNING:
                    outage.pause = min(2 * outage.pause, LONGEST_PAUSE)
                    outage.line_at = now + outage.pause
        log.log(level, "%s", line)

    def over(self, what: str) -> None:
        """Note that ``what`` works. That is logged once for an outage."""
        with self._lock:
            outage = self._known.get(what)
            if outage is None or outage.is_over:
                return
            outage.is_over = True
            told, outage.told_over = outage.told_over, True
            times, lasted = outage.times, self._clock() - outage.since
        log.log(
            logging.DEBUG if told else logging.INFO, "%s works again, after %d failures in %.0f s", what, times, lasted
        )
