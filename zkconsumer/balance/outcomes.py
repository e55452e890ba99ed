"""The outcomes of a message: those that a handler may name, and those of the dispatcher. Pure; any thread."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Later:
    """Return this from a handler to have the message again after so many seconds.

    It counts as no failed attempt. With ``failure``, the reason, it is one, whose delay is the handler's own.

    Raises: ValueError for seconds that are none.
    """

    seconds: float
    failure: str = ""

    def __post_init__(self) -> None:
        if isinstance(self.seconds, bool) or not isinstance(self.seconds, int | float) or not self.seconds >= 0:
            raise ValueError(f"Later takes seconds of at least 0, not {self.seconds!r}")


@dataclass(frozen=True, slots=True)
class Reject:
    """Return this from a handler to make the message a dead letter at once. ``reason`` is kept with it."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Pending:
    """See :data:`PENDING`."""


PENDING = Pending()
"""Return this from a handler whose message is finished elsewhere, by ``message.ack()`` or ``message.nack()``."""


@dataclass(frozen=True, slots=True)
class Done:
    """The message is finished."""


DONE = Done()


@dataclass(frozen=True, slots=True)
class Failed:
    """The attempt failed. ``error`` is the exception; ``worker_died``: its worker did not survive, or was killed.

    ``together``: other messages had begun in that worker, and one of them may be the cause.
    """

    error: BaseException
    worker_died: bool = False
    together: bool = False


@dataclass(frozen=True, slots=True)
class NotStarted:
    """The message was handed to an executor, and its handler did not begin. It counts as no attempt."""


NOT_STARTED = NotStarted()

Outcome = Done | Failed | Later | Reject | Pending | NotStarted


def answered(outcome: Outcome, answer: Outcome | None) -> Outcome:
    """Return what counts of a handler's ``outcome`` and the ``answer`` that came before it, None if none did.

    An exception that ends the run counts in any case.
    """
    ends_run = isinstance(outcome, Failed) and not isinstance(outcome.error, Exception)
    return outcome if answer is None or ends_run or outcome is NOT_STARTED else answer
