"""The meaning of a handler's return value. Pure."""

from __future__ import annotations

import inspect
from collections.abc import Sequence

from zkconsumer.balance.outcomes import DONE, Done, Failed, Later, NotStarted, Outcome, Pending, Reject


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
