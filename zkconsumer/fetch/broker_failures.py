"""Remembers the failures of brokers: how often they are logged, and how soon a refused login is tried again.

Threads: the leader finder and the fetchers of one member. Each class has one lock, which guards its table. The fetcher
of an unreachable broker is made anew for each try, and does not know the log lines of the try before.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from time import monotonic

from zkconsumer.errors import BrokerAuthenticationError
from zkconsumer.ownership.fetch_cursor import FetchCursor
from zkconsumer.runtime.deadline import backoff
from zkconsumer.runtime.interruptible_wait import InterruptibleLock

log = logging.getLogger(__name__)

FIRST_LOG_PAUSE = 30.0
LONGEST_LOG_PAUSE = 600.0
"""Seconds between two log lines about the same failure, at first and at most."""
KNOWN_FAILURES = 256
"""Failures that are remembered at most; the oldest one is forgotten first."""
FIRST_LOGIN_PAUSE = 0.5
LONGEST_LOGIN_PAUSE = 30.0
"""Seconds before a refused login is tried again, at first and at most."""


def note_trouble(cursor: FetchCursor, trouble: str) -> None:
    """Note why fetching a partition failed. It is logged once, not at every try that fails alike."""
    log.log(logging.DEBUG if trouble == cursor.trouble else logging.INFO, "%s", trouble)
    cursor.trouble = trouble


class _Failure:
    """A failure that repeats, ``times`` so far. It may be logged again at ``line_at``."""

    __slots__ = ("is_over", "line_at", "pause", "since", "times", "told_over")

    def __init__(self, now: float) -> None:
        self.since = now
        self.times = 1
        self.pause = FIRST_LOG_PAUSE
        self.line_at = now + FIRST_LOG_PAUSE
        self.is_over = False
        self.told_over = False


class FailureLog:
    """Logs failures that repeat in few lines: the first at once, then a summary at growing intervals.

    Argument: ``clock`` returns seconds, from any beginning.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._lock = InterruptibleLock()
        self._known: dict[str, _Failure] = {}

    def failed(self, what: str, why: str) -> None:
        """Count a failure of ``what``, and log ``why`` if it is time to.

        A failure soon after ``what`` worked again belongs to the same outage.
        """
        now = self._clock()
        with self._lock:
            failure = self._known.get(what)
            if failure is None or (failure.is_over and now >= failure.line_at):
                self._known.pop(what, None)
                self._known[what] = _Failure(now)
                for old in list(self._known)[: max(0, len(self._known) - KNOWN_FAILURES)]:
                    del self._known[old]
                level, line = logging.WARNING, why
            else:
                failure.times += 1
                failure.is_over = False
                level = logging.WARNING if now >= failure.line_at else logging.DEBUG
                line = f"{why} ({failure.times} times in {now - failure.since:.0f} s)"
                if level == logging.WARNING:
                    failure.pause = min(2 * failure.pause, LONGEST_LOG_PAUSE)
                    failure.line_at = now + failure.pause
        log.log(level, "%s", line)

    def over(self, what: str) -> None:
        """Note that ``what`` works. This is logged once for an outage."""
        with self._lock:
            failure = self._known.get(what)
            if failure is None or failure.is_over:
                return
            failure.is_over = True
            told, failure.told_over = failure.told_over, True
            times, lasted = failure.times, self._clock() - failure.since
        log.log(
            logging.DEBUG if told else logging.INFO, "%s works again, after %d failures in %.0f s", what, times, lasted
        )


class RefusedLogins:
    """The refused logins of one member, by the connection that tried.

    Only an operator cures a refused login, and every try costs the broker work and a line in its log. So the pauses
    between tries grow. The first refusal is logged as an error, the later ones quietly.
    """

    def __init__(self) -> None:
        self._lock = InterruptibleLock()
        self._refused: dict[object, tuple[int, str]] = {}

    def refused(self, who: object, error: BrokerAuthenticationError) -> float:
        """Note a refused login; returns the seconds to wait before the next try, longer each time."""
        with self._lock:
            first = not self._refused
            times = self._refused.get(who, (0, ""))[0] + 1
            self._refused[who] = (times, str(error))
        log.log(logging.ERROR if first else logging.DEBUG, "%s; it is tried again at growing intervals", error)
        return backoff(times, FIRST_LOGIN_PAUSE, LONGEST_LOGIN_PAUSE) * random.uniform(0.75, 1.0)

    def accepted(self, who: object) -> None:
        """Note a login that succeeded."""
        if self.forget(who) and not self.trouble:
            log.info("all brokers accept our login again")

    def forget(self, who: object) -> bool:
        """Drop ``who``, which tries no more; returns whether its last try was refused."""
        with self._lock:
            return self._refused.pop(who, None) is not None

    @property
    def trouble(self) -> str:
        """The reason of a refusal, for the user; empty if no login is refused."""
        with self._lock:
            return next((told for _, told in self._refused.values()), "")
