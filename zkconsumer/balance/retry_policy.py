"""When a failed message comes again, when it is parked, and when it is given up. Pure.

The delays are those of RocketMQ's consumers, from its third level on, and its number of attempts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from math import isfinite

from zkconsumer.balance.outcomes import Failed, Later, NotStarted, Outcome, Reject
from zkconsumer.core.message_pointers import MOST_REASON
from zkconsumer.errors import DecodeError

DELAYS = (10.0, 30.0, *(60.0 * minutes for minutes in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 60, 120)))
"""Seconds before each further attempt; the last one repeats."""
MOST_SECONDS = 10.0 * 365 * 86400
"""Longest delay in seconds. A longer one is shortened to it: a due time has a limit, and so has a thread's wait."""


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """The policy for failed messages: ``connector.run(handle, "events", concurrency=64, retry=Retry(attempts=8))``.

    Arguments:
    * ``attempts``: number of attempts in all; after the last one the message is a dead letter
    * ``delays``: seconds before each further attempt (the last one repeats), or a function that returns the seconds for
      the number of attempts that have failed
    * ``jitter``: largest part, 0 to 1, by which a delay is shortened or lengthened at random
    * ``park_after``: number of failed attempts after which the message is parked, so that the offset may pass it
    * ``park_seconds``: seconds after the first failure for which a message may hold the committed offset
    * ``on``: exceptions after which the message comes again; after others it is a dead letter at once
    * ``reject``: exceptions after which it is a dead letter at once; ``DecodeError`` always is one of them

    Raises: ValueError for a value that cannot be used.
    """

    attempts: int = 16
    delays: Sequence[float] | Callable[[int], float] = DELAYS
    jitter: float = 0.1
    park_after: int = 3
    park_seconds: float = 60.0
    on: tuple[type[BaseException], ...] = (Exception,)
    reject: tuple[type[BaseException], ...] = ()

    def __post_init__(self) -> None:
        for name in ("attempts", "park_after"):
            number = getattr(self, name)
            if isinstance(number, bool) or not isinstance(number, int) or number < 1:
                raise ValueError(f"Retry({name}=) takes a number of at least 1, not {number!r}")
        if not _is_number(self.jitter) or not 0 <= self.jitter <= 1:
            raise ValueError(f"Retry(jitter=) takes a number from 0 to 1, not {self.jitter!r}")
        if not _is_number(self.park_seconds) or not self.park_seconds >= 0:
            raise ValueError(f"Retry(park_seconds=) takes seconds of at least 0, not {self.park_seconds!r}")
        if not callable(self.delays):
            object.__setattr__(self, "delays", _listed_delays(self.delays))
        for name in ("on", "reject"):
            object.__setattr__(self, name, _exception_classes(name, getattr(self, name)))

    def delay(self, failed: int) -> float:
        """Return the seconds before the next attempt, without jitter.

        Arguments: ``failed`` attempts have failed, at least 1.
        Raises: ValueError if the function of the user returns no seconds.
        """
        if not callable(self.delays):
            return self.delays[min(failed, len(self.delays)) - 1]
        seconds = self.delays(failed)
        if not _is_number(seconds) or not seconds >= 0:
            raise ValueError(f"Retry(delays=) is a function that returned no seconds after {failed}: {seconds!r}")
        return min(float(seconds), MOST_SECONDS)


def _listed_delays(delays: object) -> tuple[float, ...]:
    if isinstance(delays, str | bytes) or not isinstance(delays, Sequence) or not delays:
        raise ValueError(f"Retry(delays=) takes a list of seconds or a function, not {delays!r:.80}")
    for seconds in delays:
        if not _is_number(seconds) or not isfinite(seconds) or seconds < 0:
            raise ValueError(f"Retry(delays=) takes seconds of at least 0, not {seconds!r:.80}")
    return tuple(min(float(seconds), MOST_SECONDS) for seconds in delays)


def _exception_classes(name: str, given: object) -> tuple[type[BaseException], ...]:
    classes = given if isinstance(given, tuple | list) else (given,)
    for one in classes:
        if not isinstance(one, type) or not issubclass(one, BaseException):
            raise ValueError(f"Retry({name}=) takes exception classes, not {one!r:.80}")
        if not issubclass(one, Exception):
            raise ValueError(f"Retry({name}=) may not name {one.__name__}, because it always ends the run")
    return tuple(classes)


class Kind(Enum):
    """The next step of a message that was not finished."""

    AGAIN = "again"
    PARK = "park"
    DEAD = "dead"


@dataclass(frozen=True, slots=True)
class RetryDecision:
    """Next step of a message that was not finished.

    * ``kind``: it comes again and holds the base, it is parked, or it is a dead letter
    * ``seconds``: until the next attempt (AGAIN and PARK)
    * ``due_ms``: time of the next attempt in milliseconds since 1970 (AGAIN and PARK)
    * ``attempts``: the attempts that have failed
    * ``first_ms``: time at which the message first did not end, in milliseconds since 1970; 0 if it never began
    * ``reason``: why it failed or was rejected, empty if it did not
    * ``error``: the exception of the last attempt, None if there is none
    """

    kind: Kind
    seconds: float
    due_ms: int
    attempts: int
    first_ms: int
    reason: str = ""
    error: BaseException | None = field(default=None, compare=False)


def decide(
    retry: Retry,
    outcome: Outcome,
    attempts: int,
    first_ms: int,
    now_ms: int,
    *,
    may_park: bool,
    random: float,
    parked: bool = False,
) -> RetryDecision:
    """Return what becomes of a message after this outcome.

    Arguments: ``attempts`` had failed before, and ``first_ms`` is the time of the first (0: none); ``may_park`` is
    false where nothing is parked (``order="partition"``, groups that keep no pointers); ``random`` is a number from 0
    to 1 for the jitter; ``parked``: the message has a pointer already. Such a message is never held again, because only
    its pointer keeps attempts and due time over a restart.
    Raises: ValueError for an outcome that needs no decision, for an exception that ends the run, and if the function
    of ``Retry(delays=)`` returns no seconds.
    """
    if isinstance(outcome, NotStarted):
        return RetryDecision(Kind.AGAIN, 0.0, now_ms, attempts, first_ms)
    first = first_ms or now_ms
    if isinstance(outcome, Reject):
        return RetryDecision(Kind.DEAD, 0.0, 0, attempts + 1, first, _shortened(outcome.reason or "rejected"))
    reason, error = "", None
    if isinstance(outcome, Later):
        seconds, reason = min(outcome.seconds, MOST_SECONDS), failure_of(outcome)
        attempts += bool(reason)
        if reason and attempts >= retry.attempts:
            return RetryDecision(Kind.DEAD, 0.0, 0, attempts, first, reason)
    elif isinstance(outcome, Failed):
        # the last attempt is one that no other message can have spoiled
        attempts += not (outcome.together and attempts + 1 >= retry.attempts)
        reason, error = reason_of(outcome.error), outcome.error
        if attempts >= retry.attempts or _rejected(retry, outcome):
            return RetryDecision(Kind.DEAD, 0.0, 0, attempts, first, reason, error)
        seconds = retry.delay(max(attempts, 1)) * (1 + retry.jitter * (2 * random - 1))
    else:
        raise ValueError(f"{outcome!r} needs no decision")
    due = now_ms + round(seconds * 1000)
    held_too_long = attempts >= retry.park_after or due - first > retry.park_seconds * 1000
    kind = Kind.PARK if may_park and (parked or held_too_long) else Kind.AGAIN
    return RetryDecision(kind, seconds, due, attempts, first, reason, error)


def _rejected(retry: Retry, failed: Failed) -> bool:
    error = failed.error
    if failed.worker_died:
        return False  # the handler did not raise: its process was lost, perhaps for another message's sake
    if not isinstance(error, Exception):
        raise ValueError(f"{type(error).__name__} ends the run, so no message is retried after it")
    return isinstance(error, (DecodeError, *retry.reject)) or not isinstance(error, retry.on)


def failure_of(outcome: Outcome) -> str:
    """Return why the attempt failed, empty for an outcome that counts as no failed attempt."""
    if isinstance(outcome, Later):
        return _shortened(outcome.failure)
    return reason_of(outcome.error) if isinstance(outcome, Failed) else ""


def reason_of(error: BaseException) -> str:
    """Return the text that is kept of an exception: its class, and the first line of its message."""
    try:
        lines = str(error).strip().splitlines()
    except Exception:  # noqa: BLE001 - an exception of the application may fail to say what it is
        lines = []
    name = type(error).__name__
    return _shortened(f"{name}: {lines[0]}" if lines else name)


def _shortened(reason: object) -> str:
    text = str(reason)
    # A lone surrogate cannot be written as UTF-8, neither into a header nor to a terminal.
    return text[:MOST_REASON].encode("utf-8", "replace").decode()
