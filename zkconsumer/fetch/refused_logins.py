"""Which brokers refuse us at present, and how long to leave each in peace.

Used by the leader finder and the fetchers, each from its own thread; one lock guards the table. A refused login is
cured by nobody but an operator, and every try is work for the broker and a line in its log, so the pauses grow. The
first refusal is reported once and loudly, whatever follows quietly.
"""

from __future__ import annotations

import logging
import random
from threading import Lock

from zkconsumer.core.backoff import backoff
from zkconsumer.errors import BrokerAuthenticationError

log = logging.getLogger(__name__)

FIRST_PAUSE = 0.5
LONGEST_PAUSE = 30.0


class Logins:
    """The refused logins of one member, by who tried."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._refused: dict[object, tuple[int, str]] = {}

    def refused(self, who: object, error: BrokerAuthenticationError) -> float:
        """A try failed. Returns the seconds to wait before the next: longer each time, up to half a minute."""
        with self._lock:
            first = not self._refused
            times = self._refused.get(who, (0, ""))[0] + 1
            self._refused[who] = (times, str(error))
        log.log(logging.ERROR if first else logging.DEBUG, "%s; it is tried again, ever more seldom", error)
        return backoff(times, FIRST_PAUSE, LONGEST_PAUSE) * random.uniform(0.75, 1.0)

    def accepted(self, who: object) -> None:
        """A try succeeded."""
        if self.forget(who) and not self.trouble:
            log.info("no broker refuses us any more")

    def forget(self, who: object) -> bool:
        """``who`` tries no more. Returns whether it was refused last."""
        with self._lock:
            return self._refused.pop(who, None) is not None

    @property
    def trouble(self) -> str:
        """Why, in words for the user; empty where nobody is refused."""
        with self._lock:
            return next((told for _, told in self._refused.values()), "")
