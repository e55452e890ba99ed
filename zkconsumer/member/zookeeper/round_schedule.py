"""When the next round is due, and why. The group's thread's only."""

from __future__ import annotations

import random
from time import monotonic

from zkconsumer.core.backoff import backoff
from zkconsumer.member.zookeeper.rebalance_round import RebalanceSettings

NEVER = float("inf")
REASONS_KEPT = 4
OWNER_QUIET = 0.005
"""Seconds of quiet after an owner node changed: what we wait for is released whole, in one transaction."""


class Schedule:
    """The time of the next round (monotonic seconds, :data:`NEVER`: none is due) and the reasons for it."""

    def __init__(self, settings: RebalanceSettings) -> None:
        self._settings = settings
        self._reasons: list[str] = []
        self._first_event = NEVER
        self.due = NEVER
        self.failures = 0
        self.not_before = 0.0
        """No round that is asked for begins before this; one that is repeated does."""

    def begin(self) -> str:
        """A round begins; returns the reasons for it, in words."""
        why = ", ".join(self._reasons[:3]) + (" and more" if len(self._reasons) > 3 else "")
        self._reasons.clear()
        self.due = self._first_event = NEVER
        return why

    def now(self, reason: str) -> None:
        """A round is to begin at once."""
        self._want(reason, 0.0)

    def after_quiet(self, reason: str) -> None:
        """A round is due after the quiet time; further events within it join that round. Members that see the same
        event do not all begin at the same moment.
        """
        self._want(reason, self._settings.quiet * random.uniform(0.5, 1.0))

    def briefly(self, reason: str) -> None:
        """A round is due after a few milliseconds: there is nothing to wait for but the rest of one transaction."""
        self._want(reason, min(OWNER_QUIET, self._settings.quiet))

    def later(self, reason: str) -> None:
        """A round is due for what no watch tells."""
        self._note(reason)
        self.due = monotonic() + self._settings.backoff_max * random.uniform(0.5, 1.0)

    def back_off(self) -> float:
        """A round failed; returns the seconds until the next, which grow with each failure, up to a limit."""
        self.failures += 1
        pause = backoff(self.failures, self._settings.backoff, self._settings.backoff_max) * random.uniform(0.5, 1.0)
        self._note("retry")
        self.due = monotonic() + pause
        return pause

    def _want(self, reason: str, pause: float) -> None:
        self._note(reason)
        now = monotonic()
        self._first_event = min(self._first_event, now)
        # not put off for ever by a stream of events
        self.due = max(self.not_before, min(now + pause, self._first_event + 4 * self._settings.quiet))

    def _note(self, reason: str) -> None:
        if len(self._reasons) < REASONS_KEPT and reason not in self._reasons:
            self._reasons.append(reason)
