"""When the next round and the next reconciliation are due, and why. The group thread's only."""

from __future__ import annotations

import random
from dataclasses import dataclass
from time import monotonic

from zkconsumer.core.backoff import backoff

NEVER = float("inf")
REASONS_KEPT = 4
OWNER_QUIET = 0.005
"""Seconds of quiet after an owner node changed. Members release all partitions of a round in one transaction."""


@dataclass(frozen=True, slots=True)
class RebalanceSettings:
    """The part of the configuration that concerns the group; times in seconds.

    ``patience`` is how long all attempts of a member to own a partition take together. ``conflict`` is
    ``offset.conflict``; ``raise_truncated``: ``log.truncation.policy`` is ``raise``.
    """

    quiet: float
    backoff: float
    backoff_max: float
    drain: float
    interval: float
    request_timeout: float
    auto_commit: bool
    exclude_internal_topics: bool
    patience: float = 9.0
    conflict: str = "adopt"
    raise_truncated: bool = False


class RoundSchedule:
    """The times of the next round and reconciliation (monotonic seconds, :data:`NEVER`: none), and the reasons."""

    def __init__(self, settings: RebalanceSettings) -> None:
        self._settings = settings
        self._reasons: list[str] = []
        self._first_event = NEVER
        self.due = NEVER
        self.failures = 0
        self.not_before = 0.0
        """No requested round begins before this; a repeated one may."""
        self.reconcile_at = NEVER

    def reconcile_later(self) -> None:
        """Make the next reconciliation due after one interval."""
        # spread: members that started together would all ask at the same moment for ever
        self.reconcile_at = monotonic() + self._settings.interval * random.uniform(0.9, 1.0)

    def begin(self) -> str:
        """Begin a round. Returns the reasons for it, in words."""
        why = ", ".join(self._reasons[:3]) + (" and more" if len(self._reasons) > 3 else "")
        self._reasons.clear()
        self.due = self._first_event = NEVER
        return why

    def now(self, reason: str) -> None:
        """Make a round due at once."""
        self._want(reason, 0.0)

    def after_quiet(self, reason: str) -> None:
        """Make a round due after the quiet time; further events within it join that round.

        Members that see the same event do not all begin at the same moment.
        """
        self._want(reason, self._settings.quiet * random.uniform(0.5, 1.0))

    def briefly(self, reason: str) -> None:
        """Make a round due after a few milliseconds, so that all events of a transaction arrive first."""
        self._want(reason, min(OWNER_QUIET, self._settings.quiet))

    def later(self, reason: str) -> None:
        """Make a round due for a change that no watch tells."""
        self._note(reason)
        self.due = monotonic() + self._settings.backoff_max * random.uniform(0.5, 1.0)

    def not_later(self, moment: float, reason: str) -> None:
        """Make a round due at this moment, if none is due before it."""
        if moment < self.due:
            self._note(reason)
            self.due = moment

    def back_off(self) -> float:
        """Make a failed round due again. Returns the seconds until then, which grow with each failure up to a limit."""
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
