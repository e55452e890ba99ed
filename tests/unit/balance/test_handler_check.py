"""A handler that can never be called with a message is refused before the group is joined."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest

from zkconsumer import ZookeeperConsumerConnector
from zkconsumer.balance.handler_check import check_handler


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
            connector.run(handler, "events", **form)  # type: ignore[arg-type]


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
