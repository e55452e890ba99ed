"""The meaning of a handler's return value. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from zkconsumer.balance.outcomes import DONE, Done, Failed, Later, Outcome, Pending, Reject


def outcome_of(result: object) -> Outcome:
    """Return the outcome of a handler of one message."""
    return result if isinstance(result, Later | Reject | Pending) else DONE


def outcomes_of(result: object, messages: int) -> Sequence[Outcome]:
    """Return the outcomes of a handler of several messages: one for all, or a list with one for each.

    An exception in the list is a failure. A list of another length fails all of them, because nobody knows which
    outcome belongs to which message.
    """
    if not isinstance(result, list | tuple):
        return [outcome_of(result)] * messages
    if len(result) != messages:
        error = ValueError(f"the handler returned {len(result)} outcomes for {messages} messages")
        return [Failed(error)] * messages
    return [_listed(one) for one in result]


def _listed(one: object) -> Outcome:
    if isinstance(one, Done | Failed):
        return one
    return Failed(one) if isinstance(one, BaseException) else outcome_of(one)
