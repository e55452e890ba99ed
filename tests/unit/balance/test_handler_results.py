"""What handlers return."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from zkconsumer.balance.handler_results import outcome_of, outcomes_of
from zkconsumer.balance.outcomes import DONE, PENDING, Failed, Later, Reject


async def _coroutine() -> None:
    """Nobody awaits it."""


def _generator() -> Iterator[int]:
    yield 1


@pytest.mark.parametrize("result", [None, 0, False, "text", [], [Reject()], {}])
def test_what_is_no_outcome_means_done(result: object) -> None:
    assert outcome_of(result) is DONE


@pytest.mark.parametrize("result", [Later(1.0), Reject("no"), PENDING])
def test_outcomes_mean_themselves(result: object) -> None:
    assert outcome_of(result) is result


def test_what_cannot_mean_done_is_a_failure() -> None:
    """A coroutine that nobody awaits, for instance: the message would count as finished, and nothing was done."""
    error = ValueError("returned")
    assert outcome_of(error) == Failed(error)
    for result in (Reject, Later, _coroutine(), _generator()):
        outcome = outcome_of(result)
        assert isinstance(outcome, Failed)
        assert "the handler returned" in str(outcome.error)


def test_several_messages_have_one_outcome_or_one_each() -> None:
    error = ValueError("bad")
    assert outcomes_of(Reject("all"), 2) == [Reject("all")] * 2
    assert outcomes_of([None, error, Later(2.0)], 3) == [DONE, Failed(error), Later(2.0)]
    assert outcomes_of(None, 2) == [DONE, DONE]
    wrong = outcomes_of([None], 2)
    said = "the handler returned 1 outcomes for 2 messages"
    assert [str(one.error) for one in wrong if isinstance(one, Failed)] == [said] * 2
