"""The outcomes of a message: those that a handler may name, and those of the dispatcher. Pure; any thread.

:func:`outcome_of` and :func:`outcomes_of` tell what a handler's return value means.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
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


def outcome_of(result: object) -> Outcome:
    """Return the outcome of a handler of one message: whatever is no outcome means done.

    What cannot be meant so is a failure, because a message that counts as done never comes again: an exception that was
    returned and not raised, a coroutine or generator of which nothing has run, or a class instead of an outcome.
    """
    if result is None:
        return DONE
    if isinstance(result, Done | Failed | Later | NotStarted | Pending | Reject):
        return result
    if isinstance(result, BaseException):
        return Failed(result)
    if isinstance(result, type) and issubclass(result, Later | Reject | Pending):
        return Failed(TypeError(f"the handler returned the class {result.__name__}, and no outcome"))
    if inspect.isawaitable(result) or inspect.isgenerator(result):
        if inspect.iscoroutine(result):
            result.close()  # nobody awaits it
        return Failed(TypeError(f"the handler returned a {type(result).__name__}, of which nothing has run"))
    return DONE


def outcomes_of(result: object, messages: int) -> Sequence[Outcome]:
    """Return the outcomes of a handler of several messages: one for all, or a list with one for each.

    A list of another length fails all of them, because nobody knows which outcome belongs to which message.
    """
    if not isinstance(result, list | tuple):
        return [outcome_of(result)] * messages
    if len(result) != messages:
        error = ValueError(f"the handler returned {len(result)} outcomes for {messages} messages")
        return [Failed(error)] * messages
    return [outcome_of(one) for one in result]
