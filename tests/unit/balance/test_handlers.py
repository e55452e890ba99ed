"""Handlers: those that no message fits are refused before the group is joined, and what their results mean."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest

from zkconsumer import ZookeeperConsumerConnector
from zkconsumer.balance.handler_check import check_handler
from zkconsumer.balance.outcomes import DONE, PENDING, Failed, Later, Reject, outcome_of, outcomes_of


def none() -> None: ...


def two(message: Any, other: Any) -> None: ...


def only_by_name(*, message: Any) -> None: ...


async def coroutine_of_none() -> None: ...


def with_defaults(message: Any, other: Any = None, *, third: Any = None) -> None: ...


class Handler:
    def __call__(self, message: Any) -> None: ...

    def method(self, message: Any) -> None: ...

    @classmethod
    def of_class(cls, message: Any) -> None: ...


FORMS: list[dict[str, Any]] = [
    {},
    {"concurrency": 2},
    {"concurrency": 2, "executor": "processes"},
    {"concurrency": 2, "batch": 3},
]


@pytest.mark.parametrize("form", [*FORMS, {"concurrency": 2, "executor": "asyncio"}], ids=str)
def test_handlers_that_take_no_or_two_arguments_are_refused(form: dict[str, Any]) -> None:
    """They were accepted, failed with each message, and made a dead letter of each."""
    connector = ZookeeperConsumerConnector(zookeeper_connect="127.0.0.1:1", group_id="g")
    wrong = [coroutine_of_none] if form.get("executor") == "asyncio" else [none, two, only_by_name, partial(two, 1, 2)]
    for handler in wrong:
        with pytest.raises(TypeError, match=r"is called with one argument, the message .*cannot be"):
            connector.run(handler, "events", **form)  # type: ignore[call-overload]


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_every_handler_of_one_argument_is_accepted(form: dict[str, Any]) -> None:
    """The method of a dict has no readable signature. A check of a Mock never returned."""
    for handler in (
        with_defaults,
        Handler(),
        Handler().method,
        Handler.of_class,
        partial(two, 1),
        lambda *messages: None,
        Mock(return_value=None),
        deque[Any]().append,
        dict[Any, Any]().pop,
        print,
    ):
        check_handler(handler, form.get("concurrency"), form.get("executor", "threads"), traced=False)


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
