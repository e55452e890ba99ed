"""Worker processes: what they handle, what they tell, and what becomes of messages when they die."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.timing import eventually, scaled
from tests.unit.balance import handlers
from tests.unit.balance.work_list import WorkList, new_works
from zkconsumer.balance.outcomes import DONE, Failed, Later, Reject
from zkconsumer.balance.process_executor import ProcessExecutor
from zkconsumer.deadline import Deadline
from zkconsumer.errors import HandlerFailedError


@contextmanager
def running(
    source: WorkList, concurrency: int = 1, handler: Any = handlers.by_value, **options: Any
) -> Iterator[ProcessExecutor]:
    """Run an executor on the source."""
    executor = ProcessExecutor(handler, concurrency, name="g_c", **options)
    executor.start(source)
    try:
        yield executor
    finally:
        source.end()
        executor.stop(Deadline(scaled(5)))


def error_of(outcome: object) -> BaseException:
    """The error of a failed work."""
    assert isinstance(outcome, Failed), outcome
    return outcome.error


def test_each_result_and_exception_is_told() -> None:
    """One process: it lives on after each of them."""
    words = [b"fine", b"later 2.5", b"reject bad", b"odd", b"local", b"exit", b"pending", b"fine"]
    source = WorkList(new_works(words))
    with running(source):
        eventually(source.done, 20, lambda: f"all outcomes: {source.outcomes}")
    found = source.last()

    assert (found[0], found[1], found[2], found[7]) == (DONE, Later(2.5), Reject("bad"), DONE)
    odd = error_of(found[3])
    assert isinstance(odd, handlers.OddError)
    assert (str(odd), odd.second) == ("1 and 2", 2)
    assert "raised in the process g_c-process-0:\nTraceback" in odd.__notes__[0]
    local = error_of(found[4])
    assert isinstance(local, HandlerFailedError)
    assert str(local).endswith("LocalError: text")
    assert isinstance(error_of(found[5]), SystemExit)
    assert isinstance(error_of(found[6]), TypeError)
