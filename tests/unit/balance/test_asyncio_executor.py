"""Coroutine handlers on one event loop, and the bridge to it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import pytest

from tests.timing import eventually, scaled
from tests.unit.balance.work_list import WorkList, new_works
from zkconsumer.balance.asyncio_executor import AsyncioExecutor
from zkconsumer.balance.loop_bridge import LoopBridge
from zkconsumer.balance.outcomes import DONE, NOT_STARTED, PENDING, Failed, Later, Outcome
from zkconsumer.errors import HandlerFailedError, HandlerTimeoutError
from zkconsumer.runtime.deadline import Deadline

TRACE: ContextVar[str] = ContextVar("TRACE", default="none")


@contextmanager
def running(source: WorkList, handler: Any, concurrency: int = 8, **options: Any) -> Iterator[AsyncioExecutor]:
    """Run an executor on the source."""
    executor = AsyncioExecutor(handler, concurrency, name="g_c", **options)
    executor.start(source)
    source.wake = executor.wake
    try:
        yield executor
    finally:
        source.end()
        executor.stop(Deadline(scaled(5)))


def finished(works: list[Any], handler: Any, **options: Any) -> WorkList:
    """Return a source all of whose works have an outcome."""
    source = WorkList(works)
    with running(source, handler, **options):
        eventually(source.done, 10, lambda: f"all outcomes: {source.outcomes}")
    return source


def error_of(outcome: Outcome) -> BaseException:
    """The error of a failed work."""
    assert isinstance(outcome, Failed), outcome
    return outcome.error


def test_each_result_and_exception_of_a_coroutine_is_told() -> None:
    results = [None, Later(1.5), PENDING, ValueError("bad"), SystemExit(3), asyncio.CancelledError(), "other"]

    async def handler(message: Any) -> object:
        await asyncio.sleep(0)
        result = results[message.offset]
        if isinstance(result, BaseException):
            raise result
        return result

    source = finished(new_works([b"v"] * 7), handler)
    found = source.last()

    assert [messages for messages, _ in source.times] == [1] * len(results)
    assert [found[n] for n in (0, 1, 2, 6)] == [DONE, Later(1.5), PENDING, DONE]
    assert isinstance(error_of(found[3]), ValueError)
    assert isinstance(error_of(found[4]), SystemExit)
    assert isinstance(error_of(found[5]), HandlerFailedError)


def test_messages_of_a_batch_have_one_outcome_or_one_each() -> None:
    sizes = []

    async def handler(messages: list[Any]) -> list[object] | None:
        sizes.append(len(messages))
        if messages[0].offset == 3:
            raise ValueError
        return [ValueError("bad"), Later(1.0), None] if messages[0].offset == 6 else None

    source = finished(new_works([b"v"] * 9), handler, batch=3)
    assert sizes == [3, 3, 3]
    found = list(source.last().values())
    assert [isinstance(outcome, Failed) for outcome in found] == [False] * 3 + [True] * 4 + [False] * 2
    assert found[:3] == [DONE] * 3
    assert found[7:] == [Later(1.0), DONE]


def test_so_many_coroutines_as_concurrency_run_at_once() -> None:
    inside, most = 0, 0
    gate = threading.Event()

    async def handler(message: Any) -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await asyncio.to_thread(gate.wait, scaled(20))
        inside -= 1

    source = WorkList(new_works([b"v"] * 20))
    with running(source, handler, concurrency=5) as executor:
        eventually(lambda: inside == 5 and len(executor.running()) == 5, 10, "five handlers")
        gate.set()
        eventually(source.done, 10, "all outcomes")
    assert most == 5


def test_works_of_a_lane_come_one_after_the_other() -> None:
    """After a message that failed, the later ones of its lane do not begin."""
    seen: list[int] = []

    async def handler(message: Any) -> None:
        seen.append(message.offset)
        await asyncio.sleep(0)
        if message.offset == 1 and seen.count(1) == 1:
            raise ValueError

    source = WorkList(new_works([b"v"] * 4, lanes=["a"] * 3), attempts=2)
    with running(source, handler):
        eventually(source.done, 10, "all outcomes")
    assert source.outcomes[2][0] is NOT_STARTED
    assert source.last() == dict.fromkeys(range(4), DONE)


def test_a_coroutine_beyond_the_timeout_is_cancelled() -> None:
    async def handler(message: Any) -> None:
        await asyncio.sleep(60 if message.offset == 0 else 0)
        if message.offset == 1:
            raise TimeoutError("the handler's own")

    source = finished(new_works([b"v"] * 3), handler, handler_timeout=0.05)
    found = source.last()
    assert isinstance(error_of(found[0]), HandlerTimeoutError)
    assert "events-0 at offset 0" in str(error_of(found[0]))
    assert type(error_of(found[1])) is TimeoutError
    assert found[2] is DONE


def test_stop_cancels_what_has_not_returned() -> None:
    """It costs those messages no attempt; a handler that returns in time is waited for."""
    cancelled = threading.Event()

    async def handler(message: Any) -> None:
        if message.offset:
            return
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    source = WorkList(new_works([b"v"] * 2))
    with running(source, handler) as executor:
        eventually(lambda: source.settled == 1 and executor.running(), 10, "a handler that runs")
        assert not executor.stop(Deadline(0.05))
    assert cancelled.is_set()
    assert source.last() == {0: NOT_STARTED, 1: DONE}


def test_stop_waits_for_handlers_until_the_deadline() -> None:
    begun, go_on = threading.Event(), threading.Event()

    async def handler(message: Any) -> None:
        begun.set()
        await asyncio.to_thread(go_on.wait, scaled(20))

    source = WorkList(new_works([b"v"]))
    with running(source, handler) as executor:
        assert begun.wait(scaled(10))
        threading.Timer(0.05, go_on.set).start()
        assert executor.stop(Deadline(scaled(20)))
    assert source.last() == {0: DONE}


def test_a_handler_that_blocks_the_loop_is_visible() -> None:
    blocked, go_on = threading.Event(), threading.Event()

    async def handler(message: Any) -> None:
        if not message.offset:
            blocked.set()
            go_on.wait(scaled(20))

    source = WorkList(new_works([b"v"] * 2))
    with running(source, handler) as executor:
        assert blocked.wait(scaled(10))
        eventually(lambda: executor.lag > 0.1, 10, "a loop that lags")
        go_on.set()
        eventually(source.done, 10, "all outcomes")
    assert source.last() == {0: DONE, 1: DONE}


def test_handlers_have_the_context_variables_of_the_caller() -> None:
    seen = []

    async def handler(message: Any) -> None:
        seen.append(TRACE.get())
        TRACE.set("of one handler")

    source = WorkList(new_works([b"v"] * 2))
    token = TRACE.set("of the caller")
    try:
        with running(source, handler, concurrency=1):
            eventually(source.done, 10, "all outcomes")
    finally:
        TRACE.reset(token)
    assert seen == ["of the caller"] * 2


def test_nothing_begins_while_the_source_refuses() -> None:
    called = []

    async def handler(message: Any) -> None:
        called.append(message.offset)

    source = WorkList(new_works([b"v"] * 2))
    source.halted = True
    with running(source, handler):
        eventually(lambda: len(source.outcomes) == 2, 10, "outcomes")
    assert not called
    assert set(source.last().values()) == {NOT_STARTED}


def test_asyncio_refuses_a_plain_function() -> None:
    with pytest.raises(TypeError, match=r"wants a coroutine function .*test_asyncio_refuses_a_plain_function"):
        AsyncioExecutor(test_asyncio_refuses_a_plain_function, 1, name="g_c")


def test_the_bridge_hands_over_results_errors_and_cancels() -> None:
    bridge = LoopBridge("bridge")
    bridge.start()

    async def works() -> str:
        await asyncio.sleep(0)
        return threading.current_thread().name

    async def fails() -> None:
        raise ValueError("bad")

    assert bridge.submit(works()).result(scaled(10)) == "bridge"
    with pytest.raises(ValueError, match="bad"):
        bridge.submit(fails()).result(scaled(10))
    never = bridge.submit(asyncio.sleep(60))
    assert not bridge.stop(Deadline(0.05))
    assert isinstance(never.exception(scaled(10)), asyncio.CancelledError)
    with pytest.raises(RuntimeError, match="has ended"):
        bridge.submit(works())
    assert not bridge.call(time.sleep, 0)
