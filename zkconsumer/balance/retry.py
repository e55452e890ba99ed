"""When a failed message comes again, when it is parked, and when it is given up. Pure.

The delays are those of RocketMQ's consumers, from its third level on, and its number of attempts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

DELAYS = (10.0, 30.0, *(60.0 * minutes for minutes in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 60, 120)))
"""Seconds before each further attempt; the last one repeats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """What becomes of failed messages.

    Arguments: ``attempts`` in all, then the message is a dead letter; ``delays`` in seconds before each further attempt
    (the last one repeats); ``jitter`` is the largest part by which a delay is varied; ``park_after`` failed attempts,
    or ``park_seconds`` after the first, the message is parked, so that the committed offset may pass it; ``on`` are
    exceptions that may pass, others make a dead letter at once; ``reject`` are exceptions that make one at once.
    """

    attempts: int = 16
    delays: Sequence[float] = DELAYS
    jitter: float = 0.1
    park_after: int = 3
    park_seconds: float = 60.0
    on: tuple[type[BaseException], ...] = (Exception,)
    reject: tuple[type[BaseException], ...] = ()
